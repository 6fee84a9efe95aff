# SPDX-License-Identifier: LGPL-2.1-or-later
"""Failures that the kernel injects on request: of allocations, and of block requests.

This needs CONFIG_FAULT_INJECTION, which tests/debug/kernel.config sets. See the kernel's
Documentation/fault-injection/fault-injection.rst.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

FAIL_NTH = Path("/proc/thread-self/fail-nth")
_DEBUG = Path("/sys/kernel/debug")
_ALLOCATORS = ("failslab", "fail_page_alloc")
_DEPTH = 32
_MOST = 100_000
_EACH = 64
_ANYWHERE = (0, (1 << 64) - 1)


def is_supported() -> bool:
    """Return whether this kernel injects failures."""
    return FAIL_NTH.exists()


def _symbols() -> list[tuple[int, str, str]]:
    """Return address, name and module of each function, by address."""
    found = []
    for line in Path("/proc/kallsyms").read_text().splitlines():
        address, kind, name, *owner = line.split()
        if kind in "tT":
            found.append((int(address, 16), name, owner[0].strip("[]") if owner else ""))
    return sorted(found)


def _text_of(module: str) -> tuple[int, int]:
    """Return where the code of a loaded module begins and ends."""
    addresses = [address for address, _, owner in _symbols() if owner == module]
    # The last function is hardly longer than a page.
    return addresses[0], addresses[-1] + 4096


def _function(name: str) -> tuple[int, int]:
    """Return where a function of the kernel begins and ends."""
    symbols = _symbols()
    at = next(index for index, (_, its_name, _) in enumerate(symbols) if its_name == name)
    begin = symbols[at][0]
    return begin, next(address for address, _, _ in symbols[at:] if address > begin)


def _set(kind: str, **values: object) -> None:
    for name, value in values.items():
        (_DEBUG / kind / name.replace("_", "-")).write_text(f"{value}")


def _limit(module: str | None) -> None:
    """Let only allocations fail that are made within a module, or by what it calls.

    kmemleak's own allocations, one for each of the others, do not fail.
    """
    start, end = _text_of(module) if module else _ANYWHERE
    without = _function("kmemleak_alloc") if module else (0, 0)
    for kind in _ALLOCATORS:
        # Each failure would fill the kernel's log with a backtrace.
        _set(kind, verbose=0, ignore_gfp_wait="N", stacktrace_depth=_DEPTH)
        _set(kind, require_start=hex(start), require_end=hex(end))
        _set(kind, reject_start=hex(without[0]), reject_end=hex(without[1]))
    _set("fail_page_alloc", ignore_gfp_highmem="N", min_order=0)


@dataclass(frozen=True)
class Attempt:
    """A call in which an allocation failed.

    :ivar number: number of the failing allocation within the call.
    :ivar error: errno with which the call failed; 0: it succeeded.
    """

    number: int
    error: int


def _errno_of(error: Exception) -> int:
    """Return the errno of the first OSError in the chain of causes."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError):
            return found.errno or 0
        found = found.__cause__
    raise error


def walk(
    call: Callable[[], T],
    ended: Callable[[T | None, int], None],
    *,
    module: str = "efuse",
    errors: tuple[int, ...] = (errno.ENOMEM,),
) -> list[Attempt]:
    """Make the first, the second, ... allocation of a call fail, until none is left to fail.

    Of a call with many allocations, each of the first 64 fails, and from then on some of the others
    at growing distances. The calls run in this thread. Allocations of other threads succeed.

    :param call: the call. It may fail with an `OSError`, or with an error that one has caused.
    :param ended: called after each call, also the last one, with its result and its errno; checks
        that all is right, and undoes what the call has done.
    :param module: only allocations by code of this module fail, or by what it calls.
    :param errors: errnos with which the call may fail.
    :returns: the calls in which an allocation failed.
    """
    attempts: list[Attempt] = []
    _limit(module)
    fd = os.open(FAIL_NTH, os.O_RDWR)
    try:
        number = 0
        while True:
            number += max(1, number // _EACH)
            assert number < _MOST, f"{number} allocations and no end"
            result, error = None, 0
            os.write(fd, b"%d" % number)
            try:
                result = call()
            except Exception as raised:  # noqa: BLE001
                error = _errno_of(raised)
            finally:
                left = int(os.pread(fd, 16, 0))
                os.write(fd, b"0")
            if not left:
                attempts.append(Attempt(number, error))
            assert not error or (not left and error in errors), (
                f"allocation {number} failed, and the call with {errno.errorcode[error]}"
            )
            ended(result, error)
            if left:
                return attempts
    finally:
        os.close(fd)
        _limit(None)


@contextlib.contextmanager
def failing_once(number: int, *, module: str = "efuse") -> Iterator[None]:
    """Fail one allocation of any thread, about the *number*-th one from now."""
    _limit(module)
    for kind in _ALLOCATORS:
        _set(kind, interval=number, times=1, task_filter="N", probability=100)
    try:
        yield
    finally:
        for kind in _ALLOCATORS:
            _set(kind, probability=0, interval=1)
        _limit(None)


def failures_left() -> int:
    """Return how many allocations are still to fail within `failing_once`."""
    return sum(int((_DEBUG / kind / "times").read_text()) for kind in _ALLOCATORS)


@contextlib.contextmanager
def failing_disk_requests(disk: str) -> Iterator[None]:
    """Fail all requests of a disk.

    :param disk: name of the disk in /sys/block.
    """
    switch = Path("/sys/block", disk, "make-it-fail")
    _set("fail_make_request", verbose=0, interval=1, times=-1, task_filter="N", probability=100)
    switch.write_text("1")
    try:
        yield
    finally:
        switch.write_text("0")
        _set("fail_make_request", probability=0)
