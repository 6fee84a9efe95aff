# SPDX-License-Identifier: LGPL-2.1-or-later
"""Changes of a few files on a mount, whose bytes are compared with a model and with those below."""

from __future__ import annotations

import os
import random
from pathlib import Path

_FILES = 12
_MOST_BYTES = 40_000


class Files:
    """The files of one mount.

    :ivar compared: number of bytes that were compared.
    """

    def __init__(self, root: Path, lower: Path, seed: int) -> None:
        self._root = root
        self._lower = lower
        self._random = random.Random(seed)
        self._model: dict[str, bytes] = {}
        self._made = 0
        self.compared = 0

    def work(self) -> None:
        """Make, change, move and remove files, then compare all."""
        while len(self._model) < _FILES:
            self._made += 1
            self._put(f"f{self._made}", self._bytes())
        for name in self._random.sample(sorted(self._model), 6):
            self._random.choice((self._overwrite, self._append, self._truncate, self._move))(name)
        for name in self._random.sample(sorted(self._model), 2):
            os.unlink(self._root / name)
            del self._model[name]
        self.compare()

    def compare(self) -> None:
        """Compare the listing and all bytes, through the mount twice and below it."""
        assert sorted(os.listdir(self._root)) == sorted(self._model)
        for name, content in self._model.items():
            for root in (self._root, self._root, self._lower):
                assert (root / name).read_bytes() == content, f"{root / name} has other bytes"
                self.compared += len(content)

    def _bytes(self) -> bytes:
        return self._random.randbytes(self._random.randint(1, _MOST_BYTES))

    def _put(self, name: str, content: bytes) -> None:
        (self._root / name).write_bytes(content)
        self._model[name] = content

    def _overwrite(self, name: str) -> None:
        old, data = self._model[name], self._bytes()
        offset = self._random.randint(0, len(old))
        fd = os.open(self._root / name, os.O_WRONLY)
        assert os.pwrite(fd, data, offset) == len(data)
        os.fsync(fd)
        os.close(fd)
        self._model[name] = old[:offset] + data + old[offset + len(data) :]

    def _append(self, name: str) -> None:
        if len(self._model[name]) > 4 * _MOST_BYTES:
            self._truncate(name)
            return
        data = self._bytes()
        with (self._root / name).open("ab") as file:
            file.write(data)
        self._model[name] += data

    def _truncate(self, name: str) -> None:
        size = self._random.randint(0, _MOST_BYTES)
        os.truncate(self._root / name, size)
        self._model[name] = self._model[name][:size].ljust(size, b"\0")

    def _move(self, name: str) -> None:
        self._made += 1
        os.rename(self._root / name, self._root / f"m{self._made}")
        self._model[f"m{self._made}"] = self._model.pop(name)
