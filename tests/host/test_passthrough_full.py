# SPDX-License-Identifier: LGPL-2.1-or-later
"""Appends through the pass-through to a lower file system that becomes full."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_FREE = 1 << 19
"""Room for the appended data until another file is removed, in bytes."""
_WANTED = _FREE + _FREE // 2


@pytest.mark.parametrize("size", [1 << 17, 100_003])
def test_appends_to_a_full_file_system_store_what_write_accepted(
    place: Path,
    served: Callable[..., Any],
    mount: Callable[..., None],
    eventually: Callable[..., object],
    size: int,
) -> None:
    """Of the last WRITE before the error, the lower file system stores a part."""
    lower = place / "lower"
    lower.mkdir()
    mount("-t", "tmpfs", "-o", f"size={2 * _FREE}", "tmpfs", lower)
    (lower / "other").write_bytes(bytes(_FREE))
    mounted = served(arguments={"source": str(lower)})
    data = random.Random(size).randbytes(_WANTED)
    fd = os.open(mounted.path / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    done = os.write(fd, data[:10])  # so that no later write ends with a page
    short = []
    while True:
        try:
            wrote = os.write(fd, data[done : done + size])
        except OSError as error:
            assert error.errno == errno.ENOSPC
            break
        if wrote != size:
            short.append(wrote)
        done += wrote
    assert len(short) == 1
    assert (lower / "log").read_bytes() == data[:done]
    (mounted.path / "other").unlink()
    # The file takes room until the daemon has read the FORGET.
    eventually(lambda: os.statvfs(lower).f_bavail * 4096 >= _FREE, what="the room")
    while done < len(data):
        done += os.write(fd, data[done : done + size])
    os.close(fd)
    assert (lower / "log").read_bytes() == data
    assert (mounted.path / "log").read_bytes() == data
