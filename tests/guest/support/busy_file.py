# SPDX-License-Identifier: LGPL-2.1-or-later
"""A lower file whose writers wait."""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.guest.support.backing_files import make
from tests.guest.support.daemons import Call, Mount, eventually, mounted


@contextlib.contextmanager
def busy(path: str) -> Iterator[None]:
    """Keep the writers of a file on ext4 waiting for its lock. Its readers do not wait.

    A task writes the file's last byte again. Meanwhile it has the lock, and waits for the page with
    the byte, which the daemon of a mount of its own holds back.
    """
    with tempfile.TemporaryDirectory() as point, mounted(Path(point), attach=False) as other:
        size = os.stat(path).st_size
        make(other, "last", Path(path).read_bytes()[-1:])
        other.hold("read", "before")
        holder = Call(_rewrite, other, path, size - 1)
        other.wait_held()
        try:
            yield
        finally:
            other.release()
            assert holder.result() == 1


def _rewrite(other: Mount, path: str, offset: int) -> int:
    page = mmap.mmap(os.open(other / "last", os.O_RDONLY), 1, prot=mmap.PROT_READ)
    return os.pwritev(os.open(path, os.O_WRONLY), [memoryview(page)], offset)


def wait_until_below(call: Call[int]) -> None:
    """Wait until a writer waits for a lower file on ext4."""
    eventually(lambda: "ext4_buffered_write_iter" in call.within(), "the writer waits below")
