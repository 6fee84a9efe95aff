# SPDX-License-Identifier: LGPL-2.1-or-later
"""An index that is asked where it lies: ``bpf_kv.py FILE [ITEMS]``, as root, with csd.ko loaded.

FILE is made, on a file system on a /dev/csdN. Each question is asked in three ways: the device
goes from block to block, or the kernel does, or this program, with a pread(2) for each. Whoever it
is finds no block of the file in the page cache.
"""

import os
import random
import struct
import sys
import time
from collections.abc import Callable
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


def ask_in_place(question: Question, fd: int, place: Place) -> Answer:
    with functions.run(question.name, fd, question.encode(), place=place) as run:
        raw, status = run.result(), run.status()
    return raw, status.device_steps, status.kernel_steps


def ask_by_pread(question: Question, fd: int) -> Answer:
    return question.walk(lambda number: os.pread(fd, BLOCK, number * BLOCK)), 0, 0


WAYS: dict[str, Callable[[Question, int], Answer]] = {
    "device": lambda question, fd: ask_in_place(question, fd, Place.DEVICE),
    "kernel": lambda question, fd: ask_in_place(question, fd, Place.KERNEL),
    "pread": ask_by_pread,
}


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


def timed(way: str, questions: list[Question], fd: int) -> tuple[list[Answer], float]:
    """The answers, and how many microseconds one took."""
    answers, took_ns = [], 0
    for question in questions:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        before = time.perf_counter_ns()
        answers.append(WAYS[way](question, fd))
        took_ns += time.perf_counter_ns() - before
    return answers, took_ns / len(questions) / 1000


def compare(what: str, questions: list[Question], fd: int) -> None:
    """Print a line for each way, and see that the answers are the same."""
    counter, said = link_counter(fd), set()
    for way in WAYS:
        before = int(counter.read_text())
        answers, us = timed(way, questions, fd)
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
    fd = os.open(file, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    print(f"{'':18}{'us each':>10}{'at device':>12}{'in kernel':>12}{'link bytes':>12}")
    for what, questions in make_questions(count).items():
        with functions.load(questions[0].name):
            compare(what, questions, fd)
    os.close(fd)


if __name__ == "__main__":
    main(sys.argv[1], *(int(count) for count in sys.argv[2:3]))
