# SPDX-License-Identifier: LGPL-2.1-or-later
"""Files of sysfs that are read again and again."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterable, Mapping
from pathlib import Path

from efuse.closing import Closing
from efuse.control.attributes import read_files

__all__ = ["KeptFiles"]

_SPARE = 256  # descriptors for all else


class KeptFiles(Closing):
    """Reads files, and keeps them open: to read one anew costs a quarter of opening it.

    What there are no descriptors for is opened each time. A context manager.

    :param most: how many files are kept; None: as many as this process may have open, which is
        raised to what it may be raised to.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = _limit() if most is None else most
        self._number = 0
        self._open: dict[Path, dict[str, int]] = {}

    def read(self, directory: Path, names: Iterable[str]) -> list[str]:
        """Return the texts of several files of a directory, without their newlines.

        :raises ControlError: one cannot be read.
        """
        wanted = list(names)
        kept = self._open.setdefault(directory, {})
        try:
            try:
                return _texts(kept, wanted)
            except KeyError:
                self._keep(directory, kept, wanted)
                return _texts(kept, wanted)
        except KeyError:
            pass  # not all have room
        except OSError as error:
            # It was unmounted; another one may have its number by now.
            if error.errno != errno.ENODEV:
                raise
            self._forget(directory)
        return read_files(directory, wanted)

    def close(self) -> None:
        """Close all files. May be called again."""
        for directory in list(self._open):
            self._forget(directory)

    def _keep(self, directory: Path, kept: dict[str, int], names: Iterable[str]) -> None:
        for name in names:
            if name in kept:
                continue
            if self._number >= self._most:
                return
            try:
                kept[name] = os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return  # read_files() says why
            self._number += 1

    def _forget(self, directory: Path) -> None:
        for descriptor in self._open.pop(directory).values():
            os.close(descriptor)
            self._number -= 1


def _texts(kept: Mapping[str, int], names: Iterable[str]) -> list[str]:
    return [os.pread(kept[n], 4096, 0).decode(errors="replace").rstrip("\n") for n in names]


def _limit() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(0, wanted - _SPARE)
