# SPDX-License-Identifier: LGPL-2.1-or-later
"""A mount of the Python pass-through whose READs and WRITEs are forced to one path."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import efuse
from efuse.control import PATHS, Connection

WORDS = ("auto", *PATHS)
"""The values of ``forced_path``; with ``auto`` the kernel chooses the path."""

_FOR_ALL = ("auto", "daemon", "direct")


@dataclass
class Forced:
    """A mount with a forced path."""

    point: Path
    path: str
    pid: int
    connection: Connection

    def __truediv__(self, name: str) -> Path:
        return self.point / name

    def answered(self) -> dict[str, int]:
        """Return how many requests each path has answered."""
        return {path: self.connection.counts(f"paths/{path}")["requests"] for path in PATHS}

    def show_that_it_ran(self, requests: int, *, kept: bool = True) -> None:
        """Check that the forced path has answered *requests* requests; for ``daemon``, only it.

        Paths that keep data answer only for what they have kept: one request is enough for them.

        :param kept: whether they have kept anything; if not, no request is needed.
        """
        answered = self.answered()
        print(f"path {self.path}: answered {answered}")
        # Other paths leave what they cannot answer to the daemon; with auto any path may answer.
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
    """Mount *lower* on *point*, which is made if needed, with the forced path *path*.

    :param operations: file system to serve; None: a pass-through of *lower* with *options*.
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
