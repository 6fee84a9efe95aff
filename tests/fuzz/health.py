# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether the module is well after it was fuzzed."""

from __future__ import annotations

import os
from pathlib import Path

from efuse.errors import ModuleBuildError
from efuse.module import live
from efuse.module.build import EFUSE, Source
from tests.guest.support.daemons import eventually, force_stat, mounted

_DATA = bytes(range(256)) * 100


def check_mount(mountpoint: Path) -> None:
    """Check that a fresh mount works: bytes are right, and the kernel answers from its maps."""
    with mounted(mountpoint, consistency="exclusive") as m:
        m.model.create("read", _DATA)
        with open(m / "read", "rb") as file:
            assert file.read() == _DATA
        with open(m / "written", "wb") as file:
            file.write(_DATA[::-1])
        assert bytes(m.call("inode", "written").data) == _DATA[::-1]
        force_stat(m / "read")
        with m.answered("getattr"):
            assert force_stat(m / "read").st_size == len(_DATA)


def check_no_task_hangs() -> None:
    """Check that no task keeps waiting in FUSE, not even one of the kernel."""
    eventually(lambda: not _hanging(), "tasks hang in FUSE")


def unload(module: Source = EFUSE) -> None:
    """Unload a module as soon as the last mount has let go of it."""

    def is_unloaded() -> bool:
        try:
            live.unload(module)
        except ModuleBuildError:
            return False
        return True

    eventually(is_unloaded, f"{module.name} is in use")


def _hanging() -> list[str]:
    """Return the stacks of the tasks that wait in FUSE, uninterruptibly."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state = (process / "stat").read_text().rsplit(")", 1)[1].split()[0]
            stack = (process / "stack").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state == "D" and "fuse_" in stack and int(process.name) != os.getpid():
            found.append(stack)
    return found
