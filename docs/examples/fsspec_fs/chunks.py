# SPDX-License-Identifier: LGPL-2.1-or-later
"""Chunks of remote files, stored as PATH/VERSION/NUMBER, with digests for path and version."""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:32]


class Chunks:
    """A cache of chunks of *size* bytes. Readers never see a part of a chunk."""

    def __init__(self, directory: Path, url: str, size: int) -> None:
        self.size = size
        self._directory = directory
        self._key = f"{url} {size} "

    def _of(self, path: str, version: str) -> Path:
        return self._directory / _digest(self._key + path) / _digest(version)

    def open(self, path: str, version: str, number: int, length: int) -> BinaryIO | None:
        """Open a chunk, or return None if the cache does not have it."""
        try:
            file = (self._of(path, version) / str(number)).open("rb")
        except FileNotFoundError:
            return None
        if os.fstat(file.fileno()).st_size == length:
            return file
        file.close()  # The machine crashed before all of it was on the disk.
        return None

    def put(self, path: str, version: str, number: int, data: bytes) -> BinaryIO:
        """Store a chunk, and open it."""
        directory = self._of(path, version)
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=directory, delete=False) as file:
            file.write(data)
        Path(file.name).replace(directory / str(number))
        return (directory / str(number)).open("rb")

    def remove_others(self, path: str, version: str) -> None:
        """Remove the chunks of all other versions of a file."""
        keep = self._of(path, version)
        for other in keep.parent.glob("*"):
            if other != keep:
                shutil.rmtree(other, ignore_errors=True)
