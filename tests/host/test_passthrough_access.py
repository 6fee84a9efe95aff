# SPDX-License-Identifier: LGPL-2.1-or-later
"""access(2) through the pass-through, where the lower file system checks permissions."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.host.mounting import bind, remount

SHORT = {"entry_timeout": 0.0, "attr_timeout": 0.0}
USERS = (0, 65534)

_ASKS = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for path in sys.argv[1:]:
    for mode in range(8):
        failed = libc.access(os.fsencode(path), mode)
        print(errno.errorcode[ctypes.get_errno()] if failed else "yes", end=" ")
"""


def _serve(served: Any, source: Path, **arguments: Any) -> Path:
    """Serve *source* without ``default_permissions``, so that the kernel asks the daemon."""
    told = {"source": str(source), **SHORT, **arguments}
    path: Path = served(arguments=told, options=("allow_other",)).path
    return path


def _fill(directory: Path) -> list[str]:
    """Make files of several types and modes. Return their names, and one that does not exist."""
    for name, mode in (("program", 0o755), ("data", 0o644), ("secret", 0o700)):
        (directory / name).write_bytes(b"#!/bin/true\n")
        (directory / name).chmod(mode)
    (directory / "directory").mkdir()
    (directory / "link").symlink_to("program")
    (directory / "nowhere").symlink_to("nothing")
    return ["program", "data", "secret", "directory", "link", "nowhere", "nothing"]


@pytest.mark.parametrize("options", ["rw", "noexec", "ro", "ro,noexec"])
def test_access_equals_access_to_the_lower_file(
    served: Any,
    source: Path,
    mount: Callable[..., None],
    as_user: Callable[..., str],
    options: str,
) -> None:
    sub = source / "sub"
    sub.mkdir()
    mount("-t", "tmpfs", "tmpfs", sub)
    names = _fill(sub)
    remount(sub, options)
    path = _serve(served, source)
    for user in USERS:
        lower = as_user(user, _ASKS, *(sub / name for name in names))
        assert as_user(user, _ASKS, *(path / "sub" / name for name in names)) == lower


@pytest.mark.parametrize("first", ["one", "two"])
@pytest.mark.parametrize("options", ["noexec", "ro"])
def test_access_depends_on_the_mount_of_the_name(
    served: Any,
    source: Path,
    mount: Callable[..., None],
    as_user: Callable[..., str],
    options: str,
    first: str,
) -> None:
    """A file is one inode, whether its mount forbids execution or not."""
    for directory in ("one", "two"):
        (source / directory).mkdir()
    names = _fill(source / "one")
    bind(mount, source / "one", source / "two", options)
    path = _serve(served, source)
    for name in names:
        if name != "nothing":
            (path / first / name).lstat()
    for _ in range(2):
        for directory in ("one", "two"):
            for user in USERS:
                lower = [as_user(user, _ASKS, source / directory / name) for name in names]
                assert [as_user(user, _ASKS, path / directory / name) for name in names] == lower


def test_access_obeys_a_mount_that_becomes_noexec(
    served: Any, source: Path, mount: Callable[..., None], as_user: Callable[..., str]
) -> None:
    sub = source / "sub"
    sub.mkdir()
    mount("-t", "tmpfs", "tmpfs", sub)
    names = _fill(sub)
    path = _serve(served, source)
    for options in ("noexec", "exec", "noexec"):
        remount(sub, options)
        for user in USERS:
            lower = as_user(user, _ASKS, *(sub / name for name in names))
            assert as_user(user, _ASKS, *(path / "sub" / name for name in names)) == lower


def test_access_after_the_lower_name_was_removed_uses_the_descriptor(
    served: Any, source: Path, as_user: Callable[..., str]
) -> None:
    names = _fill(source)
    path = _serve(served, source)
    os.link(path / "program", path / "other")
    expected = [os.access(source / "program", mode) for mode in range(8)]
    with (path / "program").open("rb") as held:
        for name in ("program", "other"):
            (source / name).unlink()
        assert as_user(0, _ASKS, path / names[0]).split() == ["ENOENT"] * 8
        open_file = Path(f"/proc/self/fd/{held.fileno()}")
        assert [os.access(open_file, mode) for mode in range(8)] == expected
