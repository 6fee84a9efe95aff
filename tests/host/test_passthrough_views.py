# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pass-through of a directory in which another file system shows the same files again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

LONG = {"entry_timeout": 60.0, "attr_timeout": 60.0}


def _view(mount: Callable[..., None], kind: str, place: Path, what: Path, where: Path) -> None:
    """Show *what* as *where*, by bindfs or overlayfs."""
    if kind == "bindfs":
        mount("-t", "fuse.bindfs", "-o", "attr_timeout=0,entry_timeout=0", what, where)
        return
    for name in ("above", "work"):
        (place / name).mkdir()
    layers = f"lowerdir={what},upperdir={place}/above,workdir={place}/work"
    mount("-t", "overlay", "-o", layers, "overlay", where)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ["bindfs", "overlay"])
def test_read_by_one_name_returns_bytes_written_by_the_other(
    served: Any, place: Path, source: Path, mount: Callable[..., None], kind: str, when: str
) -> None:
    """In exclusive mode the kernel would keep the pages, since the write goes to another inode."""
    for name in ("files", "view"):
        (source / name).mkdir()
    (source / "files" / "f").write_bytes(b"before")
    if when == "before":
        _view(mount, kind, place, source / "files", source / "view")
    path = served(arguments={"source": str(source), "consistency": "exclusive", **LONG}).path
    assert (path / "files" / "f").read_bytes() == b"before"
    if when == "after":
        _view(mount, kind, place, source / "files", source / "view")
    read, written = ("files", "view") if kind == "bindfs" else ("view", "files")
    assert (path / read / "f").read_bytes() == b"before"
    (path / written / "f").write_bytes(b"behind")  # the same length, since attributes are cached
    assert (source / "files" / "f").read_bytes() == b"behind"
    assert (path / read / "f").read_bytes() == b"behind"
