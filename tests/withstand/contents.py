# SPDX-License-Identifier: LGPL-2.1-or-later
"""Loads of contents: open files, maps, a file system exerciser, and files that are only read."""

from __future__ import annotations

import mmap
import os
import random

from tests.guest.support.fsx import Exerciser, View
from tests.withstand.place import Place

_SIZE = 64 << 10
_OPERATIONS = 200


def opened(place: Place) -> int:
    """Write, append, truncate and read files that stay open; compare all bytes."""
    models = [bytearray() for _ in range(3)]
    fds = [
        os.open(place.directory / str(number), os.O_RDWR | os.O_CREAT, 0o644) for number in range(3)
    ]
    steps = 0
    try:
        while place.goes_on(steps):
            steps += 1
            number = place.rng.randrange(len(fds))
            fd, model = fds[number], models[number]
            _change(place, fd, model)
            place.compare("a file's bytes", os.pread(fd, 2 * _SIZE, 0), bytes(model))
            place.compare("a file's size", os.fstat(fd).st_size, len(model))
    finally:
        for fd in fds:
            os.close(fd)
    for number, model in enumerate(models):
        found = (place.directory / str(number)).read_bytes()
        place.compare(f"the file {number}", found, bytes(model))
    return steps


def _change(place: Place, fd: int, model: bytearray) -> None:
    data = place.rng.randbytes(place.rng.randrange(1, _SIZE // 4))
    act = place.rng.choice(("write", "append", "truncate", "drop"))
    if act == "truncate" and len(model) > _SIZE // 2:
        del model[place.rng.randrange(len(model)) :]
        os.ftruncate(fd, len(model))
    elif act == "drop":
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    else:
        at = len(model) if act == "append" else place.rng.randrange(len(model) + 1)
        at = min(at, _SIZE)
        place.compare("a write's length", os.pwrite(fd, data, at), len(data))
        model[at : at + len(data)] = data


def mapped(place: Place) -> int:
    """Store to a map, read it by read(2), and the other way round."""
    path = place.directory / "mapped"
    path.write_bytes(bytes(_SIZE))
    model = bytearray(_SIZE)
    steps = 0
    with path.open("r+b", buffering=0) as file, mmap.mmap(file.fileno(), _SIZE) as memory:
        while place.goes_on(steps):
            steps += 1
            at = place.rng.randrange(_SIZE - 3000)
            data = place.rng.randbytes(place.rng.randrange(1, 3000))
            memory[at : at + len(data)] = data
            model[at : at + len(data)] = data
            if steps % 4 == 0:
                memory.flush()
                place.compare("the file", os.pread(file.fileno(), _SIZE, 0), bytes(model))
            if steps % 16 == 0:
                memory.madvise(mmap.MADV_DONTNEED)
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            place.compare("the map", memory[:], bytes(model))
    place.compare("the file in the end", path.read_bytes(), bytes(model))
    return steps


def exercised(place: Place) -> int:
    """Run the file system exerciser of the guest tests, each time with another seed."""
    steps = 0
    while place.goes_on(steps):
        path = place.directory / "exercised"
        path.write_bytes(b"")
        Exerciser([View(path), View(path)], path, place.rng.randrange(1 << 30)).run(_OPERATIONS)
        steps += _OPERATIONS
    return steps


def reads(place: Place) -> int:
    """Read the files that the daemon shows, in random order and by parts; compare all bytes.

    They are in `place.scratch`, too.
    """
    steps = 0
    files = sorted(p for p in place.scratch.rglob("*") if p.is_file() and not p.is_symlink())
    wanted = {str(p.relative_to(place.scratch)): p.read_bytes() for p in files}
    while place.goes_on(steps):
        for name, data in random.Random(steps).sample([*wanted.items()], len(wanted)):
            steps += 1
            with (place.directory / name).open("rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                found = b""
                while part := file.read(4096):
                    found += part
            place.compare(name, found, data)
            if not place.goes_on(steps):
                break
    return steps
