# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pass-through of directories whose listing fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from efuse.fs.passthrough.syscalls import getdents

FILES = 60
LOWER = "listings:Listing"
EIO = "EIO"


def _read(directory: Path) -> list[str]:
    """Return the names and the errors of repeated getdents64(2) calls, in order."""
    found = []
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for _ in range(FILES):
            try:
                entries = getdents(fd)
            except OSError as error:
                found.append(errno.errorcode[error.errno or 0])
                continue
            if not entries:
                return found
            found += [os.fsdecode(name) for _, _, name, _ in entries]
    finally:
        os.close(fd)
    return found


def _expected(*behind: int, times: int) -> list[str]:
    found = []
    for number in range(FILES):
        found += [EIO] * times if number in behind else []
        found.append(f"file{number}")
    return found


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("behind", [(10,), (1,), (30,), (5, 6, 40)], ids=str)
def test_listing_fails_where_the_lower_one_fails_and_continues_after_it(
    served: Any, behind: tuple[int, ...], times: int
) -> None:
    """No name is missing, and none comes twice."""
    told = {"files": FILES, "fails_behind": behind, "times": times}
    expected = _expected(*behind, times=times)
    assert _read(served(LOWER, told).path) == expected
    below = served(LOWER, told)
    assert _read(served(arguments={"source": str(below.path)}).path) == expected


def test_listing_that_always_fails_shows_the_names_before_the_error(served: Any) -> None:
    below = served(LOWER, {"files": FILES, "fails_behind": [10], "times": 1000})
    path = served(arguments={"source": str(below.path)}).path
    names = [f"file{number}" for number in range(10)]
    assert _read(path) == names + [EIO] * (FILES - 1)
    with pytest.raises(OSError, match="Input/output") as failure:
        os.listdir(path)
    assert failure.value.errno == errno.EIO


def test_lookups_of_a_listing_that_failed_are_forgotten(
    served: Any, eventually: Callable[..., Any]
) -> None:
    """If the reply were an error instead of entries, the kernel would not count their lookups."""
    below = served(LOWER, {"files": FILES, "fails_behind": [10], "times": 1})
    upper = served(arguments={"source": str(below.path)})
    assert EIO in _read(upper.path)

    def all_forgotten() -> bool:
        Path("/proc/sys/vm/drop_caches").write_text("2")
        return upper.report()["lookups"] == {}

    eventually(all_forgotten, timeout=60, what="every lookup to be forgotten")
