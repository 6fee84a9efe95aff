# SPDX-License-Identifier: LGPL-2.1-or-later
"""Query an index where it is stored: ``bpf_kv.py FILE [ITEMS]``, as root, with csd.ko loaded.

The program makes FILE, which must be on a file system on a /dev/csdN. It asks each question in
three ways: the device goes from block to block, the kernel does, or this program does, with a
pread(2) for each block. The page cache has no block of the file: the program opens it with O_DIRECT
and drops the file's pages before each question.
"""

import mmap
import os
import random
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from efuse import functions
from efuse.functions import BtreeAggregate, BtreeLookup, BtreeRange, Place
from efuse.functions.btree_file import BLOCK, build

Question = BtreeLookup | BtreeRange | BtreeAggregate
Answer = tuple[bytes, int, int]
"""The function's output, and the numbers of blocks that the device and the kernel examined."""
SPACING = 7  # Every multiple of this number is a key.


def make_items(count: int) -> dict[int, bytes]:
    """Return *count* keys and their values: for example accounts and their balances."""
    return {SPACING * n: struct.pack("<q56s", n % 1000 - 500, b"item %d" % n) for n in range(count)}


class InPlace:
    """A storage function goes from block to block, at the device or in the kernel."""

    def __init__(self, fd: int, first: Question, place: Place) -> None:
        """Start one run for all questions, so that the file's blocks are located only once."""
        self._run = functions.run(first.name, fd, first.encode(), place=place)
        self._run.result()

    def ask(self, question: Question) -> Answer:
        self._run.restart(question.encode())
        raw, status = self._run.result(), self._run.status()
        return raw, status.device_steps, status.kernel_steps

    def close(self) -> None:
        self._run.close()


class ByPread:
    """This program goes from block to block."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._block = mmap.mmap(-1, BLOCK)  # Direct I/O needs an aligned buffer.

    def _read(self, number: int) -> bytes:
        return self._block[: os.preadv(self._fd, [self._block], number * BLOCK)]

    def ask(self, question: Question) -> Answer:
        return question.walk(self._read), 0, 0

    def close(self) -> None:
        self._block.close()


WAYS: dict[str, Callable[[int, Question], InPlace | ByPread]] = {
    "device": lambda fd, first: InPlace(fd, first, Place.DEVICE),
    "kernel": lambda fd, first: InPlace(fd, first, Place.KERNEL),
    "pread": lambda fd, _: ByPread(fd),
}


@contextmanager
def asking(way: str, fd: int, questions: list[Question]) -> Iterator[Callable[[Question], Answer]]:
    """Yield a function that asks a question in one way.

    Each question has been asked once before, so that only repeated work is measured.
    """
    one = WAYS[way](fd, questions[0])
    for question in questions:
        one.ask(question)
    yield one.ask
    one.close()


def make_questions(count: int) -> dict[str, list[Question]]:
    """Return the questions of each kind: 40 keys, and 10 ranges of up to 500 items.

    About half of the keys exist.
    """
    source = random.Random(count)
    firsts = [source.randrange(SPACING * count) for _ in range(40)]
    last = 500 * SPACING
    return {
        "lookup": [BtreeLookup(at - at % SPACING * (at % 2)) for at in firsts],
        "range": [BtreeRange(at, at + last) for at in firsts[:10]],
        "aggregate": [BtreeAggregate(at, at + last) for at in firsts[:10]],
    }


def link_counter(fd: int) -> Path:
    """Return the configfs file that counts the bytes read over the device's link."""
    number = os.fstat(fd).st_dev
    disk = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve().name
    for index in Path("/sys/kernel/config/csd").glob("*/index"):
        if disk == f"csd{index.read_text().strip()}":
            return index.with_name("link_read_bytes")
    raise SystemExit(f"{disk} is not a csd device")


def timed(
    ask: Callable[[Question], Answer], questions: list[Question], fd: int
) -> tuple[list[Answer], float]:
    """Return the answers, and the mean time of one in us, with nothing in the page cache."""
    answers, took_ns = [], 0
    for question in questions:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        before = time.perf_counter_ns()
        answers.append(ask(question))
        took_ns += time.perf_counter_ns() - before
    return answers, took_ns / len(questions) / 1000


def compare(what: str, questions: list[Question], fd: int) -> None:
    """Print a line for each way, and check that the answers are the same."""
    counter, outputs = link_counter(fd), set()
    for way in WAYS:
        with asking(way, fd, questions) as ask:
            before = int(counter.read_text())
            answers, us = timed(ask, questions, fd)
            link = int(counter.read_text()) - before
        raws, device, kernel = zip(*answers, strict=True)
        outputs.add(raws)
        print(f"{what:10}{way:8}{us:10.0f}{sum(device):12}{sum(kernel):12}{link:12}")
    assert len(outputs) == 1, f"the answers to {what} differ"


def main(file: str, count: int = 100_000) -> None:
    with Path(file).open("wb") as made:
        made.write(build(make_items(count).items()))
        made.flush()
        os.fsync(made.fileno())
    fd = os.open(file, os.O_RDONLY | os.O_DIRECT)
    print(f"{'':18}{'us each':>10}{'at device':>12}{'in kernel':>12}{'link bytes':>12}")
    for what, questions in make_questions(count).items():
        with functions.load(questions[0].name):
            compare(what, questions, fd)
    os.close(fd)


if __name__ == "__main__":
    main(sys.argv[1], *(int(count) for count in sys.argv[2:3]))
