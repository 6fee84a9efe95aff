# SPDX-License-Identifier: LGPL-2.1-or-later
"""A mount of the Python pass-through whose READs and WRITEs are forced onto one path."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import efuse
from efuse.control import PATHS, Connection

WORDS = ("auto", *PATHS)
"""What may be forced; ``auto`` chooses by itself."""

_FOR_ALL = ("auto", "daemon", "direct")


@dataclass
class Forced:
    """The mount."""

    point: Path
    path: str
    pid: int
    connection: Connection

    def __truediv__(self, name: str) -> Path:
        return self.point / name

    def answered(self) -> dict[str, int]:
        """How many requests each path has answered."""
        paths = self.connection.path / "paths"
        return {path: int((paths / path / "requests").read_text()) for path in PATHS}

    def show_that_it_ran(self, requests: int, *, kept: bool = True) -> None:
        """Show that the path has answered that many requests, and that ``daemon`` is alone.

        A path that keeps bytes answers what it has kept: one request is enough, and none where
        *kept* says that there is nothing.
        """
        answered = self.answered()
        print(f"path {self.path}: answered {answered}")
        # What a path cannot take is the daemon's, and the choice is the kernel's in auto.
        named = {p: n for p, n in answered.items() if p != "daemon" or self.path == "daemon"}
        ran = sum(named.values()) if self.path == "auto" else named[self.path]
        least = requests if self.path in _FOR_ALL else int(kept)
        assert ran >= least, f"{self.path} did not run: {answered}"
        assert sum(answered.values()) >= requests, f"too few requests: {answered}"
        if self.path == "daemon":
            assert ran == sum(answered.values()), f"another path ran: {answered}"


@contextlib.contextmanager
def forced(
    lower: Path,
    point: Path,
    path: str,
    operations: efuse.Passthrough | None = None,
    **options: object,
) -> Iterator[Forced]:
    """Mount *lower* on *point*, which is made, and force *path*.

    :param operations: served instead of a pass-through of *lower* with these *options*.
    """
    operations = operations or efuse.Passthrough(lower, **options)
    point.mkdir(exist_ok=True)
    try:
        with efuse.mount(operations, point, required=True) as one:
            assert one.connection is not None
            connection = Connection(one.connection)
            connection.forced_path = path
            yield Forced(point, path, one.pid, connection)
    finally:
        operations.close()
