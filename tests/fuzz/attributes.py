# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write random text to the files of a connection in sysfs, and read them all."""

from __future__ import annotations

import errno
import os
from collections import Counter
from pathlib import Path
from random import Random

from tests.fuzz.counts import Counts
from tests.fuzz.threads import Fuzzer, Shared

_WORDS = (
    *("strict", "ttl", "cto", "exclusive", "auto", "daemon", "direct", "cache", "device"),
    *("least", "own", "0", "1", "y", "n", "on", "off"),
)
_NUMBERS = (0, 1, 2, 4, 4096, 32768, 65536, 131072, 1 << 20, 8 << 20, 10**9, 1 << 31, 1 << 32,
            1 << 63, 1 << 64)  # fmt: skip
_REFUSED = (errno.EINVAL, errno.ENODEV, errno.ERANGE, errno.E2BIG, errno.ENOENT)


class AttributeWriter(Fuzzer):
    """Writes to the files until the mount ends. It leaves `abort` out, which would end the mount.

    :ivar written: number of the writes to each file, by its path in the connection's directory.
    :ivar accepted: number of those that the kernel accepted.
    """

    PAUSE_S = 0.04

    def __init__(self, shared: Shared, directory: Path, chance: Random) -> None:
        super().__init__(shared, chance)
        self._directory = directory
        patterns = ("*", "paths/*", "channels/*", "stats/read")
        paths = sorted(path for pattern in patterns for path in directory.glob(pattern))
        modes = {path: path.stat().st_mode for path in paths if path.is_file()}
        self._readable = [path for path, mode in modes.items() if mode & 0o400]
        self._writable = [
            path for path, mode in modes.items() if mode & 0o200 and path.name != "abort"
        ]
        self.written: Counter[str] = Counter()
        self.accepted: Counter[str] = Counter()

    def add_to(self, counts: Counts) -> None:
        counts.written += self.written
        counts.accepted += self.accepted

    def step(self) -> bool:
        self._write(self._chance.choice(self._writable))
        self._read(self._chance.choice(self._readable))
        return True

    def names(self) -> set[str]:
        """Return the paths of all files that it writes to."""
        return {str(path.relative_to(self._directory)) for path in self._writable}

    def _text(self) -> bytes:
        number = self._chance.choice(_NUMBERS) * self._chance.choice((1, 1, 1, -1))
        how = self._chance.randrange(6)
        if how == 0:
            return self._chance.randbytes(self._chance.choice((0, 1, 20, 4095, 4096, 5000)))
        if how == 1:
            return str(number).encode().rjust(self._chance.choice((1, 30, 4095)), b"0")
        text = self._chance.choice(_WORDS) if how < 4 else str(number)
        return text.encode() + self._chance.choice((b"", b"\n", b"\0", b" x", b"\n\n"))

    def _write(self, path: Path) -> None:
        name = str(path.relative_to(self._directory))
        self.written[name] += 1
        try:
            # With O_CREAT, the error for a file that a connection no longer has is EACCES.
            fd = os.open(path, os.O_WRONLY)
        except OSError as error:
            assert error.errno in _REFUSED, error
            return
        try:
            os.write(fd, self._text())
        except OSError as error:
            assert error.errno in _REFUSED, error
        else:
            self.accepted[name] += 1
        finally:
            os.close(fd)

    def _read(self, path: Path) -> None:
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError as error:  # The mount has ended, or ends.
            assert error.errno in (errno.ENOENT, errno.ENODEV), error
            return
        try:
            os.read(fd, 8192)
        except OSError as error:
            assert error.errno == errno.ENODEV, error
        finally:
            os.close(fd)
