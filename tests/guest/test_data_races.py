# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test bytes on each path while the file is truncated, removed or mapped, or its daemon dies."""

from __future__ import annotations

import errno
import mmap
import os
import random
import signal
import struct
import threading
from pathlib import Path

import pytest

from efuse.errors import MountError
from tests.guest.support.daemons import Call, eventually
from tests.guest.support.forced import WORDS, forced
from tests.guest.support.progress import Progress

BLOCK = 4096
SIZE = 24 * BLOCK


def words(letter: str, size: int = SIZE) -> bytes:
    """Return words of eight bytes, each of which tells its file and its place."""
    return b"".join(f"{letter}{n:07}".encode() for n in range(size // 8))


class Readers:
    """Threads that read a file until they are stopped: each word has to be its own or zeros."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.foreign: list[str] = []
        self.reads = [0, 0]
        self._data = data
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(n, os.open(path, os.O_RDONLY | flags)))
            for n, flags in enumerate((0, os.O_DIRECT))
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int, fd: int) -> None:
        rng = random.Random(number)
        buffer = mmap.mmap(-1, 4 * BLOCK)
        try:
            while not self._stop.is_set():
                at = rng.randrange(SIZE // 8) * 8
                size = rng.choice((8, BLOCK, 4 * BLOCK))
                done = os.preadv(fd, [memoryview(buffer)[:size]], at)
                self._check(buffer[:done], at)
                self.reads[number] += 1
        finally:
            os.close(fd)

    def _check(self, got: bytes, at: int) -> None:
        own = self._data[at : at + len(got)]
        if got in (own, bytes(len(got))):
            return
        pairs = zip(memoryview(got).cast("Q"), memoryview(own).cast("Q"), strict=True)
        self.foreign += [
            f"{struct.pack('=Q', word)!r} at {at + 8 * n:#x}"
            for n, (word, right) in enumerate(pairs)
            if word and word != right
        ]


@pytest.mark.parametrize("path", WORDS)
def test_reads_during_truncation_return_no_bytes_of_other_files(
    lower: Path, mountpoint: Path, path: str
) -> None:
    """Other files get the blocks meanwhile, and in the end the file has no name."""
    own, foreign = words("f"), words("x")
    rng = random.Random(20261121)
    with forced(lower, mountpoint, path) as m:
        (m / "f").write_bytes(own)
        readers = Readers(m / "f", own)
        try:
            with open(m / "f", "r+b", buffering=0) as file:
                for round_ in range(12):
                    if round_ == 8:
                        os.unlink(m / "f")
                    os.ftruncate(file.fileno(), rng.randrange(0, SIZE, 8))
                    (m / "g").unlink(missing_ok=True)
                    (m / "g").write_bytes(foreign)
                    os.ftruncate(file.fileno(), SIZE)
                    at, end = sorted(rng.randrange(0, SIZE + 8, 8) for _ in range(2))
                    os.pwrite(file.fileno(), own[at:end], at)
                seen = list(readers.reads)
                eventually(lambda: all(n > s for n, s in zip(readers.reads, seen, strict=True)))
        finally:
            readers.stop()
        assert not readers.foreign, readers.foreign[:10]
        m.show_that_it_ran(50)


@pytest.mark.parametrize("path", WORDS)
def test_direct_read_after_msync_returns_the_stored_bytes(
    lower: Path, mountpoint: Path, path: str
) -> None:
    with forced(lower, mountpoint, path) as m:
        (m / "f").write_bytes(bytes(SIZE))
        progress = Progress()
        fd = os.open(m / "f", os.O_RDWR)
        past = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)
        buffer = mmap.mmap(-1, BLOCK)
        rng = random.Random(20261121)

        def change(number: int) -> None:
            memory[BLOCK : 2 * BLOCK] = struct.pack("=Q", number) * (BLOCK // 8)
            memory.flush(BLOCK, BLOCK)

        def ask() -> int:
            assert os.preadv(past, [buffer], BLOCK) == BLOCK
            (number,) = struct.unpack_from("=Q", buffer, rng.randrange(0, BLOCK, 8))
            return int(number)

        with mmap.mmap(fd, SIZE) as memory:
            reader = Call(progress.read, ask)
            Call(progress.write, change).result()
            assert reader.result() > 0
        os.close(fd)
        os.close(past)
        m.show_that_it_ran(10)


class Writer(threading.Thread):
    """A thread that writes a file from its start on until a write fails."""

    # The length is odd, so that no two places near each other have the same bytes.
    TEXT = random.Random(0).randbytes((1 << 20) - 3)

    def __init__(self, path: Path, flags: int, size: int) -> None:
        super().__init__()
        self.name = path.name
        self.acknowledged = self.writes = 0
        self.error = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags)
        self._buffer = mmap.mmap(-1, size)

    def expected(self) -> bytes:
        """Return the bytes that write(2) has acknowledged."""
        return self._text(0, self.acknowledged)

    def _text(self, at: int, size: int) -> bytes:
        start = at % len(self.TEXT)
        copies = self.TEXT * ((start + size) // len(self.TEXT) + 1)
        return copies[start : start + size]

    def run(self) -> None:
        try:
            while True:
                self._buffer[:] = self._text(self.acknowledged, len(self._buffer))
                self.acknowledged += os.pwrite(self._fd, self._buffer, self.acknowledged)
                self.writes += 1
        except OSError as error:
            self.error = error.errno or 0

    def close(self) -> None:
        os.close(self._fd)


@pytest.mark.parametrize("path", WORDS)
def test_acknowledged_writes_survive_a_kill_of_the_daemon(
    lower: Path, mountpoint: Path, path: str
) -> None:
    with (
        pytest.raises(MountError, match=f"ended with -{int(signal.SIGKILL)}"),
        forced(lower, mountpoint, path) as m,
    ):
        writers = [
            Writer(m / "few", 0, 40),
            Writer(m / "blocks", os.O_DIRECT, BLOCK),
            Writer(m / "many", 0, 150_000),
        ]
        for writer in writers:
            writer.start()
        eventually(lambda: all(writer.writes > 12 for writer in writers))
        m.show_that_it_ran(30, kept=False)
        os.kill(m.pid, signal.SIGKILL)
        for writer in writers:
            writer.join()
    for writer in writers:
        assert writer.error in (errno.ENOTCONN, errno.ECONNABORTED)
        data = (lower / writer.name).read_bytes()
        assert data[: writer.acknowledged] == writer.expected(), writer.name
        try:
            writer.close()
        except OSError as error:
            assert error.errno == errno.ENOTCONN
