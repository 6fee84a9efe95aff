# SPDX-License-Identifier: LGPL-2.1-or-later
"""The daemons that are killed: what each one shows, and its command line."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from efuse.bench.programs import built
from tests.withstand.loads import LOADS, READING
from tests.withstand.place import Place
from tests.zoo.daemons import DAEMONS as ZOO

__all__ = ["DAEMONS", "Daemon"]

_SOURCE = "source"
_PASSTHROUGH = str(Path(__file__).with_name("passthrough.py"))


@dataclass(frozen=True)
class Daemon:
    """A daemon.

    :ivar name: its name.
    :ivar command: its command line in the foreground, from a directory and the mount point.
    :ivar prepare: makes what it shows in that directory, in which there is the directory ``tree``.
    :ivar below: a directory of that place in which the files of the mount are, too, byte for byte.
    :ivar loads: what runs on it.
    :ivar environment: variables that it needs.
    """

    name: str
    command: Callable[[Path, Path], list[str]]
    prepare: Callable[[Path], None]
    below: str = ""
    loads: Mapping[str, Callable[[Place], int]] = field(default_factory=lambda: LOADS)
    environment: Mapping[str, str] = field(default_factory=dict)


def _empty(place: Path) -> None:
    (place / _SOURCE).mkdir()


def _of_zoo(
    name: str, below: str = "", options: Sequence[str] = (), without: Sequence[str] = ()
) -> Daemon:
    """Return a daemon that the zoo has, with the zoo's command line.

    :param options: what is added to the command line.
    :param without: names of loads that it cannot carry out.
    """
    one = next(each for each in ZOO if each.program == name)

    def prepare(place: Path) -> None:
        one.prepare(place / "tree", place)
        if not one.read_only:
            shutil.rmtree(place / _SOURCE, ignore_errors=True)
            (place / _SOURCE).mkdir()

    def command(place: Path, point: Path) -> list[str]:
        return [*one.command(place, point), *options]

    loads = READING if one.read_only else LOADS
    loads = {load: function for load, function in loads.items() if load not in without}
    return Daemon(name, command, prepare, below, loads, one.environment)


DAEMONS = {
    each.name: each
    for each in (
        Daemon(
            "Passthrough",
            lambda at, on: [sys.executable, _PASSTHROUGH, f"{at}/{_SOURCE}", f"{on}"],
            _empty,
            below=_SOURCE,
        ),
        Daemon(
            "passthrough_ll",
            lambda at, on: [
                *(str(built("passthrough_ll")), "-f", "-o"),
                *(f"source={at}/{_SOURCE},timeout=3600,cache=always", f"{on}"),
            ],
            _empty,
            below=_SOURCE,
        ),
        # It ignores the times that are set by a descriptor.
        _of_zoo("bindfs", below=_SOURCE, without=("tar",)),
        # By default it acknowledges what its server has not got. It follows links for their times.
        _of_zoo("sshfs", below=_SOURCE, options=("-o", "sshfs_sync"), without=("tar",)),
        # gocryptfs opens a file of its own mount when it has mounted, and a successor sees none.
        _of_zoo("fsspec"),
    )
}
"""All daemons by name."""
