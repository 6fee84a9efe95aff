# SPDX-License-Identifier: LGPL-2.1-or-later
"""An index that is asked where it lies: ``bpf_kv.py FILE [ITEMS]``, as root, with csd.ko loaded.

FILE is made, on a file system on a /dev/csdN. Each question is asked in three ways: the device
goes from block to block, or the kernel does, or this program, with a pread(2) for each. The file is
open with O_DIRECT, and whoever it is finds no block of it in the page cache.
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
"""What is emitted, and the blocks that the device and the kernel have looked at."""
SPACING = 7  # One number in so many is a key.


def make_items(count: int) -> dict[int, bytes]:
    """An account and what is in it, for example."""
    return {SPACING * n: struct.pack("<q56s", n % 1000 - 500, b"item %d" % n) for n in range(count)}


class InPlace:
    """The function goes from block to block, at the device or in the kernel."""

    def __init__(self, fd: int, first: Question, place: Place) -> None:
        """One run is for all questions: where the file's blocks are is found out once."""
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
        self._block = mmap.mmap(-1, BLOCK)  # Direct I/O wants pages.

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
    """How to ask, with all found out that is found out once: each question was asked."""
    one = WAYS[way](fd, questions[0])
    for question in questions:
        one.ask(question)
    yield one.ask
    one.close()


def make_questions(count: int) -> dict[str, list[Question]]:
    """By what they are called: keys, half of them of no item, and ranges of up to 500 items."""
    source = random.Random(count)
    firsts = [source.randrange(SPACING * count) for _ in range(40)]
    last = 500 * SPACING
    return {
        "lookup": [BtreeLookup(at - at % SPACING * (at % 2)) for at in firsts],
        "range": [BtreeRange(at, at + last) for at in firsts[:10]],
        "aggregate": [BtreeAggregate(at, at + last) for at in firsts[:10]],
    }


def link_counter(fd: int) -> Path:
    """The device's count of the bytes that it was read by its link."""
    number = os.fstat(fd).st_dev
    disk = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve().name
    for index in Path("/sys/kernel/config/csd").glob("*/index"):
        if disk == f"csd{index.read_text().strip()}":
            return index.with_name("link_read_bytes")
    raise SystemExit(f"{disk} is not a csd device")


def timed(
    ask: Callable[[Question], Answer], questions: list[Question], fd: int
) -> tuple[list[Answer], float]:
    """The answers, and how many microseconds one took, with nothing in the page cache."""
    answers, took_ns = [], 0
    for question in questions:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        before = time.perf_counter_ns()
        answers.append(ask(question))
        took_ns += time.perf_counter_ns() - before
    return answers, took_ns / len(questions) / 1000


def compare(what: str, questions: list[Question], fd: int) -> None:
    """Print a line for each way, and see that the answers are the same."""
    counter, said = link_counter(fd), set()
    for way in WAYS:
        with asking(way, fd, questions) as ask:
            before = int(counter.read_text())
            answers, us = timed(ask, questions, fd)
            link = int(counter.read_text()) - before
        raws, device, kernel = zip(*answers, strict=True)
        said.add(raws)
        print(f"{what:10}{way:8}{us:10.0f}{sum(device):12}{sum(kernel):12}{link:12}")
    assert len(said) == 1, f"the answers to {what} differ"


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
