# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read the same sysfs files again and again, quickly."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterable, Mapping
from pathlib import Path

from efuse.closing import Closing
from efuse.control.attributes import read_files

__all__ = ["KeptFiles"]

_MOST = 65536  # descriptors that are used, even if the limits allow more
_SPARE = 256  # descriptors left for the rest of the process


class KeptFiles(Closing):
    """Read files, and keep them open: reading an open one again costs a quarter of opening it.

    A file is opened for each read if no descriptor is left for it. A context manager.

    :param most: limit on the files that are kept open. None raises the process's soft limit of open
        files to its hard limit or to 65536, whichever is lower, and uses all but 256 of that
        number. A soft limit that is already higher stays.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = _limit() if most is None else most
        self._number = 0
        self._open: dict[Path, dict[str, int]] = {}

    def read(self, directory: Path, names: Iterable[str]) -> list[str]:
        """Return the content of several files of one directory, without final newlines.

        :raises ControlError: a file cannot be read.
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
            pass  # not all of the files could be kept open
        except OSError as error:
            # The file system was unmounted. Another one may have its number by now.
            if error.errno != errno.ENODEV:
                raise
            self._forget(directory)
        return read_files(directory, wanted)

    def close(self) -> None:
        """Close all files. Further calls do nothing."""
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
                return  # read_files() reports the error
            self._number += 1

    def _forget(self, directory: Path) -> None:
        for descriptor in self._open.pop(directory).values():
            os.close(descriptor)
            self._number -= 1


def _texts(kept: Mapping[str, int], names: Iterable[str]) -> list[str]:
    return [os.pread(kept[n], 4096, 0).decode(errors="replace").rstrip("\n") for n in names]


def _limit() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return max(0, limit - _SPARE)
