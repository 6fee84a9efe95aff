# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pass-through of a directory into which mounts come while it is passed through."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import trio
from pyfuse3 import RequestContext

import efuse
from tests.host.mounting import bind

_CTX = cast(RequestContext, None)


def _bring(how: str, place: Path, source: Path, mount: Callable[..., None]) -> None:
    """Show ``source/files`` as ``source/d/m``."""
    if how == "mount":
        bind(mount, source / "files", source / "d" / "m")
    elif how == "move":
        subprocess.run(["mount", "--move", place / "d" / "m", source / "d" / "m"], check=True)
    else:
        (source / "d" / "m").rmdir()
        (source / "d").rmdir()
        (place / "d").rename(source / "d")  # the kernel does not tell of it


@pytest.fixture(params=["mount", "move", "rename"])
def bring(
    request: pytest.FixtureRequest, place: Path, source: Path, mount: Callable[..., None]
) -> Iterator[Callable[[], None]]:
    """Have a mount come below the source: ``bring()``."""
    for directory in (place / "d" / "m", source / "d" / "m", source / "files"):
        directory.mkdir(parents=True)
    (source / "files" / "f").write_bytes(b"before")
    if request.param != "mount":
        bind(mount, source / "files", place / "d" / "m")
    yield lambda: _bring(request.param, place, source, mount)
    subprocess.run(["umount", "--lazy", source / "d" / "m"], check=False)


def test_promises_end_with_the_first_inode_that_is_found_on_a_mount_that_has_come(
    source: Path, bring: Callable[[], None]
) -> None:
    fs = efuse.Passthrough(source, consistency="exclusive")
    bring()

    async def look_up() -> None:
        assert fs.efuse_options.consistency == "exclusive"
        directory = (await fs.lookup(1, b"d", _CTX)).st_ino
        await fs.lookup(directory, b"m", _CTX)
        assert fs.efuse_options.consistency == "ttl"
        assert not fs.efuse_options.nodeid_per_file

    trio.run(look_up)
    fs.close()
