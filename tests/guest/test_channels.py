# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test channels by hand: what a daemon sees when it uses them correctly and incorrectly."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import select
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.guest.support import channel as by_hand
from tests.guest.support import wire
from tests.guest.support.channel import NO_SLOT, REQUEST_START, Channel, Message
from tests.guest.support.daemons import Call, eventually, running
from tests.guest.support.manual_daemon import DEADLINE_S, ManualDaemon, root_attributes, until


def reply(to: Message, size: int) -> bytes:
    return wire.reply(to.request.unique, 0, root_attributes(size))


def answer(channel: Channel, to: Message, size: int) -> int:
    """Put the answer into the request's slot, and return its length."""
    return channel.put(to.slot, reply(to, size))


def refused(manual_daemon: ManualDaemon) -> int:
    """Return the number of refused calls of workers on all CPUs."""
    return sum(manual_daemon.channel(cpu, "refused") for cpu in (0, 1))


# Requests, replies and sleeping workers


@pytest.mark.parametrize("cpu", [0, 1])
def test_request_and_reply_go_through_a_slot(
    manual_daemon: ManualDaemon, channels: list[Channel], cpu: int
) -> None:
    size = manual_daemon.ask(cpu)
    message = channels[cpu].next()
    assert (message.request.opcode, message.request.nodeid) == ("getattr", 1)
    assert message.slot != NO_SLOT
    channels[cpu].reply(message.slot, answer(channels[cpu], message, 1234))
    assert size.result(DEADLINE_S) == 1234
    assert manual_daemon.channel(cpu, "stolen") == 0


def test_next_delivers_a_reply_and_fetches_a_request(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    manual_daemon.connection.policy = "own"
    sizes = [manual_daemon.ask(0) for _ in range(20)]
    message = channels[0].next()
    for number in range(19):
        message = channels[0].next(message.slot, answer(channels[0], message, number))
    channels[0].reply(message.slot, answer(channels[0], message, 19))
    assert [size.result(DEADLINE_S) for size in sizes] == list(range(20))


@pytest.mark.parametrize("sent", [0, 1])
def test_worker_takes_a_request_that_waits_for_another_channel(
    manual_daemon: ManualDaemon, channels: list[Channel], sent: int
) -> None:
    size = manual_daemon.ask(sent)
    other = channels[1 - sent]
    os.sched_setaffinity(0, {1 - sent})
    message = other.next()
    other.reply(message.slot, answer(other, message, 7))
    assert size.result(DEADLINE_S) == 7
    assert manual_daemon.channel(sent, "stolen") == 1


@pytest.mark.parametrize("sent", [0, 1])
@pytest.mark.parametrize("works", [0, 1])
def test_sleeping_worker_is_woken_by_a_request_of_any_cpu(
    manual_daemon: ManualDaemon, channels: list[Channel], sent: int, works: int
) -> None:
    """The other channel has no worker."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(channels[works].next)
        size = manual_daemon.ask(sent)
        message = waiting.result(DEADLINE_S)
    channels[works].reply(message.slot, answer(channels[works], message, 5))
    assert size.result(DEADLINE_S) == 5


def test_reader_of_the_device_is_woken_if_no_worker_sleeps(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    os.set_blocking(manual_daemon.fd, True)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(manual_daemon.read)
        size = manual_daemon.ask(1)
        manual_daemon.answer(waiting.result(DEADLINE_S), 6)
    assert size.result(DEADLINE_S) == 6


@pytest.mark.parametrize("policy", ["least", "own"])
@pytest.mark.parametrize("spin_ns", [0, 1_000_000])
def test_nonblocking_worker_polls_and_is_woken_in_epoll(
    manual_daemon: ManualDaemon, policy: str, spin_ns: int
) -> None:
    """One worker for all CPUs sleeps in epoll_wait(2) on another descriptor of the mount."""
    manual_daemon.connection.policy = policy
    manual_daemon.connection.spin_ns = spin_ns
    channel = Channel(manual_daemon.fd, 0, slots=1)
    os.set_blocking(channel.fd, False)
    # Like an event loop, the worker tries once to get a request, and then relies on being woken.
    sleeping = select.epoll()
    sleeping.register(manual_daemon.fd, select.EPOLLIN | select.EPOLLET)
    wanted = 400
    os.sched_setaffinity(0, {0})
    with sleeping, ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(_ask, manual_daemon, cpu, wanted // 2) for cpu in (0, 1)]
        slot, length = NO_SLOT, 0
        for size in range(wanted):
            while True:
                try:
                    message = channel.next(slot, length)
                    break
                except BlockingIOError:
                    slot, length = NO_SLOT, 0
                    assert sleeping.poll(DEADLINE_S), f"nobody woke it for request {size}"
            slot, length = message.slot, answer(channel, message, size)
        channel.reply(slot, length)
        sizes = [size for each in asked for size in each.result(DEADLINE_S)]
    channel.close()
    assert sorted(sizes) == list(range(wanted))
    looks = sum(manual_daemon.channel(0, name) for name in ("poll_hits", "poll_misses"))
    assert (looks > 0) == (spin_ns > 0)


def _ask(manual_daemon: ManualDaemon, cpu: int, times: int) -> list[int]:
    os.sched_setaffinity(0, {cpu})
    return [os.stat(manual_daemon.mountpoint).st_size for _ in range(times)]


def test_request_larger_than_a_slot_comes_in_the_buffer(manual_daemon: ManualDaemon) -> None:
    channel = Channel(manual_daemon.fd, 0)
    value = os.urandom(20000)
    with ThreadPoolExecutor(1) as pool:
        set_ = pool.submit(os.setxattr, manual_daemon.mountpoint, "user.large", value)
        message = channel.next()
        assert (message.request.opcode, message.slot) == ("setxattr", NO_SLOT)
        assert message.request.rest == b"user.large\0" + value
        os.write(channel.fd, wire.reply(message.request.unique, 0))
        set_.result(DEADLINE_S)
    channel.close()


@pytest.mark.parametrize(("beyond", "fits"), [(0, True), (1, False)])
def test_request_of_exactly_the_slot_size_fits(
    manual_daemon: ManualDaemon, beyond: int, fits: bool
) -> None:
    """REQUEST_START bytes in front stay free, so that the data of a WRITE begins at a page."""
    channel = Channel(manual_daemon.fd, 0)
    # The sizes of fuse_in_header, the first half of fuse_setxattr_in, and the name.
    heads = 40 + 8 + len(b"user.large\0")
    value = os.urandom(channel.slot_size - REQUEST_START - heads + beyond)
    with ThreadPoolExecutor(1) as pool:
        set_ = pool.submit(os.setxattr, manual_daemon.mountpoint, "user.large", value)
        message = channel.next()
        assert (message.slot != NO_SLOT) == fits
        assert message.request.rest == b"user.large\0" + value
        os.write(channel.fd, wire.reply(message.request.unique, 0))
        set_.result(DEADLINE_S)
    channel.close()


def test_next_small_leaves_a_request_larger_than_a_slot(
    manual_daemon: ManualDaemon,
) -> None:
    """The reply that goes with the failing call is delivered."""
    channel = Channel(manual_daemon.fd, 0)
    value = os.urandom(20000)
    size = manual_daemon.ask(0)
    message = channel.next(size=0, flags=by_hand.NEXT_SMALL)
    with ThreadPoolExecutor(1) as pool:
        set_ = pool.submit(os.setxattr, manual_daemon.mountpoint, "user.large", value)
        until(lambda: manual_daemon.connection.waiting == 2)
        length = answer(channel, message, 9)
        with pytest.raises(OSError, match=re_errno(errno.EMSGSIZE)):
            channel.next(message.slot, length, size=0, flags=by_hand.NEXT_SMALL)
        assert size.result(DEADLINE_S) == 9
        large = channel.next()
        assert (large.slot, large.request.rest) == (NO_SLOT, b"user.large\0" + value)
        os.write(channel.fd, wire.reply(large.request.unique, 0))
        set_.result(DEADLINE_S)
    channel.close()


@pytest.mark.parametrize("worker", ["with-a-buffer", "of-small-ones"])
@pytest.mark.parametrize("behind", [False, True])
def test_request_larger_than_slot_and_buffer_fails_alone(
    mountpoint: Path, worker: str, behind: bool
) -> None:
    manual_daemon = ManualDaemon(mountpoint, max_write=4096)
    channel = Channel(manual_daemon.fd, 0)
    os.set_blocking(channel.fd, False)

    def set_xattr() -> None:
        os.sched_setaffinity(0, {0})
        os.setxattr(mountpoint, "user.large", b"x" * 60000)

    with ThreadPoolExecutor(1) as pool:
        set_ = pool.submit(set_xattr)
        until(lambda: manual_daemon.connection.waiting == 1)
        size = manual_daemon.ask(0) if behind else None
        if worker == "of-small-ones":
            with pytest.raises(OSError, match=re_errno(errno.EMSGSIZE)):
                channel.next(size=0, flags=by_hand.NEXT_SMALL)
        if size is None:
            with pytest.raises(OSError, match=re_errno(errno.EAGAIN)):
                channel.next(size=8192)
        else:
            message = channel.next(size=8192)
            os.write(channel.fd, reply(message, 4))
            assert size.result(DEADLINE_S) == 4
        error = set_.exception(DEADLINE_S)
    assert isinstance(error, OSError)
    assert error.errno == errno.E2BIG
    size = manual_daemon.ask(0)
    message = channel.next(size=8192)
    assert message.slot != NO_SLOT
    channel.reply(message.slot, answer(channel, message, 5))
    assert size.result(DEADLINE_S) == 5
    channel.close()
    manual_daemon.close()


def test_worker_that_waits_for_a_free_slot_is_woken(manual_daemon: ManualDaemon) -> None:
    channel = Channel(manual_daemon.fd, 0, slots=1)
    first = manual_daemon.ask(0)
    message = channel.next()
    second = manual_daemon.ask(0)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(channel.next)
        try:
            until(lambda: manual_daemon.channel(0, "sleeping") == 1)
            channel.reply(message.slot, answer(channel, message, 1))
            assert first.result(DEADLINE_S) == 1
            message = waiting.result(DEADLINE_S)
            channel.reply(message.slot, answer(channel, message, 2))
            assert second.result(DEADLINE_S) == 2
        finally:
            manual_daemon.connection.abort()  # This wakes the worker if nothing else has.
    channel.close()


def test_slot_is_free_again_after_a_reply_by_write(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    for number in range(10):  # There are fewer slots.
        size = manual_daemon.ask(0)
        message = channels[0].next()
        os.write(channels[0].fd, reply(message, number))
        assert size.result(DEADLINE_S) == number
        channels[0].reply(message.slot, 0)


def test_requests_wait_and_can_be_read_while_all_slots_are_in_use(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    manual_daemon.connection.policy = "own"
    sizes = [manual_daemon.ask(0) for _ in range(5)]
    messages = [channels[0].next() for _ in range(4)]
    os.set_blocking(channels[0].fd, False)
    with pytest.raises(BlockingIOError):
        channels[0].next()
    manual_daemon.answer(manual_daemon.read(), 4)
    for number, message in enumerate(messages):
        channels[0].reply(message.slot, answer(channels[0], message, number))
    assert [s.result(DEADLINE_S) for s in sizes] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("on", ["channel", "mount"])
def test_reply_on_any_descriptor_is_taken(
    manual_daemon: ManualDaemon, channels: list[Channel], on: str
) -> None:
    for number in range(10):
        size = manual_daemon.ask(0)
        message = channels[0].next()
        os.write(channels[1].fd if on == "channel" else manual_daemon.fd, reply(message, number))
        assert size.result(DEADLINE_S) == number
        channels[0].reply(message.slot, 0)


def test_only_one_of_several_replies_is_taken(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    for number in range(200):
        size = manual_daemon.ask(0)
        message = channels[0].next()
        ready = threading.Barrier(3)
        fds = (manual_daemon.fd, channels[0].fd, channels[1].fd)
        with ThreadPoolExecutor(3) as pool:
            tries = [pool.submit(_answer, ready, fd, reply(message, number)) for fd in fds]
            assert [t.result(DEADLINE_S) for t in tries].count(0) == 1
        assert size.result(DEADLINE_S) == number
        channels[0].reply(message.slot, 0)


def _answer(ready: threading.Barrier, fd: int, raw: bytes) -> int:
    """Write a reply to *fd*, and return 0 or the errno."""
    ready.wait(DEADLINE_S)
    try:
        os.write(fd, raw)
    except OSError as error:
        return error.errno or -1
    return 0


def test_interrupt_comes_through_a_slot(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    with manual_daemon.program(0) as program:
        message = channels[0].next()
        program.send_signal(signal.SIGTERM)
        interrupt = channels[0].next()
        assert interrupt.request.opcode == "interrupt"
        assert interrupt.request.target == message.request.unique
        channels[0].reply(interrupt.slot, 0)
        failed = wire.reply(message.request.unique, errno.EINTR)
        channels[0].reply(message.slot, channels[0].put(message.slot, failed))
        assert program.wait(DEADLINE_S) == -signal.SIGTERM


# The end of workers, channels and connections


def test_worker_interrupted_by_a_signal_loses_no_reply(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    """The reply that went with the interrupted call was delivered."""
    first = manual_daemon.ask(0)
    message = channels[0].next()
    length = answer(channels[0], message, 1)
    before = signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    with pytest.raises(_Stopped):
        channels[0].next(message.slot, length)
    signal.signal(signal.SIGALRM, before)
    assert first.result(DEADLINE_S) == 1
    second = manual_daemon.ask(0)
    message = channels[0].next()
    channels[0].reply(message.slot, answer(channels[0], message, 2))
    assert second.result(DEADLINE_S) == 2


class _Stopped(Exception):
    """A signal arrived."""


def _stop(_number: int, _frame: Any) -> None:
    raise _Stopped


def test_abort_wakes_workers_with_enodev(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    sizes = [manual_daemon.ask(cpu) for cpu in (0, 1)]
    held = channels[0].next()
    channels[1].next()
    with running(channels[0].next) as first, running(channels[1].next) as second:
        until(lambda: first.sleeps_in("efuse_channel") and second.sleeps_in("efuse_channel"))
        manual_daemon.connection.abort()
        for each in (first, second):
            eventually(each.done, "the worker hears of the end", deadline_s=DEADLINE_S)
            with pytest.raises(OSError, match=os.strerror(errno.ENODEV)):
                each.result()
    for size in sizes:
        assert isinstance(size.exception(DEADLINE_S), OSError)
    with pytest.raises(OSError, match=os.strerror(errno.ENODEV)):
        channels[0].next(held.slot, answer(channels[0], held, 1))


def test_close_of_a_channel_fails_taken_requests_and_leaves_others(
    manual_daemon: ManualDaemon,
) -> None:
    """Taken requests fail, as they do for a closed reader. Other readers get the others."""
    channel = Channel(manual_daemon.fd, 0)
    taken = manual_daemon.ask(0)
    channel.next()
    left = manual_daemon.ask(0)
    channel.close()
    error = taken.exception(DEADLINE_S)
    assert isinstance(error, OSError)
    assert error.errno == errno.ECONNABORTED
    manual_daemon.answer(manual_daemon.read(), 8)
    assert left.result(DEADLINE_S) == 8
    again = Channel(manual_daemon.fd, 0)  # The CPU may have a new channel.
    again.close()


def test_close_of_the_last_channel_wakes_a_reader(manual_daemon: ManualDaemon) -> None:
    channel = Channel(manual_daemon.fd, 0, slots=1)
    first, second = manual_daemon.ask(0), manual_daemon.ask(0)
    message = channel.next()
    os.write(channel.fd, reply(message, 1))
    assert first.result(DEADLINE_S) == 1
    os.set_blocking(manual_daemon.fd, True)
    channel.close()
    manual_daemon.answer(manual_daemon.read(), 2)
    assert second.result(DEADLINE_S) == 2


# Errors of a daemon

WRONG_SETUPS: list[tuple[dict[str, int], int]] = [
    ({"cpu": 4096}, errno.EINVAL),
    ({"cpu": 0xFFFFFFFF}, errno.EINVAL),
    ({"slots": 0}, errno.EINVAL),
    ({"slots": 65}, errno.EINVAL),
    ({"slot_size": 0}, errno.EINVAL),
    ({"slot_size": 4096}, errno.EINVAL),
    ({"slot_size": 8191}, errno.EINVAL),
    ({"slot_size": 0xFFFFF000}, errno.EINVAL),
    ({"slots": 64, "slot_size": 1 << 20}, errno.EINVAL),
    ({"flags": 1}, errno.EINVAL),
]


@pytest.mark.parametrize(("wrong", "number"), WRONG_SETUPS, ids=str)
def test_channel_with_invalid_setup_fails(
    manual_daemon: ManualDaemon, wrong: dict[str, int], number: int
) -> None:
    fd = by_hand.tied(manual_daemon.fd)
    with pytest.raises(OSError, match=re_errno(number)):
        by_hand.make(fd, **({"cpu": 0} | wrong))
    by_hand.make(fd, 0)  # Nothing remains of the failed channel.
    os.close(fd)


def re_errno(number: int) -> str:
    return rf"\[Errno {number}\]"


def test_second_channel_of_a_cpu_or_descriptor_fails(manual_daemon: ManualDaemon) -> None:
    one, two = by_hand.tied(manual_daemon.fd), by_hand.tied(manual_daemon.fd)
    by_hand.make(one, 0)
    with pytest.raises(OSError, match=re_errno(errno.EBUSY)):
        by_hand.make(two, 0)
    with pytest.raises(OSError, match=re_errno(errno.EBUSY)):
        by_hand.make(one, 1)
    os.close(one)
    by_hand.make(two, 0)
    os.close(two)


def test_channel_without_a_mount_fails() -> None:
    fd = os.open("/dev/efuse", os.O_RDWR)
    with pytest.raises(OSError, match=re_errno(errno.ENOTCONN)):
        by_hand.make(fd, 0)
    os.close(fd)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda m: {"slot": 4, "length": 16},
        lambda m: {"slot": 0x80000000, "length": 16},
        lambda m: {"slot": (m.slot + 1) % 4, "length": 16},
        lambda m: {"slot": m.slot, "length": 8193},
        lambda m: {"slot": m.slot, "length": 0xFFFFFFFF},
        lambda m: {"slot": m.slot, "length": 16, "size": 8191},
        lambda m: {"slot": m.slot, "length": 16, "size": 0},
        lambda m: {"slot": m.slot, "length": 16, "flags": 3},
        lambda m: {"slot": m.slot, "length": 16, "flags": 4},
    ],
    ids=[
        *("slot", "large-slot", "free-slot", "length", "large-length", "buffer", "no-buffer"),
        *("two-flags", "flag"),
    ],
)
def test_next_with_invalid_arguments_fails_and_changes_nothing(
    manual_daemon: ManualDaemon, channels: list[Channel], wrong: Callable[[Message], dict[str, int]]
) -> None:
    size = manual_daemon.ask(0)
    message = channels[0].next()
    with pytest.raises(OSError, match=re_errno(errno.EINVAL)):
        channels[0].next(**wrong(message))
    assert not size.done()
    # The kernel checks the other arguments before it looks at the slot.
    assert refused(manual_daemon) == (wrong(message).keys() <= {"slot", "length"})
    channels[0].reply(message.slot, answer(channels[0], message, 3))
    assert size.result(DEADLINE_S) == 3


def test_second_reply_by_the_same_slot_fails(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    size = manual_daemon.ask(0)
    message = channels[0].next()
    length = answer(channels[0], message, 3)
    channels[0].reply(message.slot, length)
    with pytest.raises(OSError, match=re_errno(errno.EINVAL)):
        channels[0].next(message.slot, length)
    assert size.result(DEADLINE_S) == 3
    assert refused(manual_daemon) == 1


@pytest.mark.parametrize(
    "make_wrong",
    [
        lambda right: right[:15],
        lambda right: struct.pack("=I", len(right) + 1) + right[4:],
        lambda right: struct.pack("=I", len(right) - 1) + right[4:],
    ],
    ids=["short", "too-long", "too-short"],
)
def test_malformed_reply_leaves_the_request_unanswered(
    manual_daemon: ManualDaemon, channels: list[Channel], make_wrong: Callable[[bytes], bytes]
) -> None:
    size = manual_daemon.ask(0)
    message = channels[0].next()
    length = channels[0].put(message.slot, make_wrong(reply(message, 1)))
    with pytest.raises(OSError, match=re_errno(errno.EBADMSG)):
        channels[0].next(message.slot, length)
    assert not size.done()
    assert refused(manual_daemon) == 1
    os.write(channels[0].fd, reply(message, 2))
    assert size.result(DEADLINE_S) == 2


@pytest.mark.parametrize("number", [-1, 512, 524, 999, 2000])
@pytest.mark.parametrize("by", ["slot", "write"])
@pytest.mark.parametrize("body", [b"", root_attributes(1)], ids=["bare", "with-a-body"])
def test_reply_with_an_invalid_errno_fails_the_request(
    manual_daemon: ManualDaemon, channels: list[Channel], by: str, number: int, body: bytes
) -> None:
    size = manual_daemon.ask(0)
    message = channels[0].next()
    wrong = wire.reply(message.request.unique, number, body)
    if by == "slot":
        with pytest.raises(OSError, match=re_errno(errno.EBADMSG)):
            channels[0].reply(message.slot, channels[0].put(message.slot, wrong))
        assert refused(manual_daemon) == 1
    else:
        with pytest.raises(OSError, match=re_errno(errno.EINVAL)):
            os.write(manual_daemon.fd, wrong)
        channels[0].reply(message.slot, 0)
    error = size.exception(DEADLINE_S)
    assert isinstance(error, OSError)
    assert error.errno == errno.EIO
    # Nothing is left of the request.
    with pytest.raises(OSError, match=re_errno(errno.ENOENT)):
        os.write(manual_daemon.fd, reply(message, 2))


def test_reply_to_an_interrupt_with_an_invalid_errno_leaves_the_request(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    size = manual_daemon.ask(0)
    message = channels[0].next()
    with pytest.raises(OSError, match=re_errno(errno.EINVAL)):
        os.write(manual_daemon.fd, wire.reply(message.request.unique | 1, 524))
    assert not size.done()
    channels[0].reply(message.slot, answer(channels[0], message, 3))
    assert size.result(DEADLINE_S) == 3


def test_reply_of_a_wrong_size_fails_the_request(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    size = manual_daemon.ask(0)
    message = channels[0].next()
    wrong = wire.reply(message.request.unique, 0, root_attributes(1) + b"more")
    with pytest.raises(OSError, match=re_errno(errno.EBADMSG)):
        channels[0].next(message.slot, channels[0].put(message.slot, wrong))
    error = size.exception(DEADLINE_S)
    assert isinstance(error, OSError)
    assert error.errno == errno.EIO


def test_reply_to_an_unknown_request_is_dropped(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    size = manual_daemon.ask(0)
    message = channels[0].next()
    wrong = wire.reply(message.request.unique + 2, 0, root_attributes(1))
    channels[0].reply(message.slot, channels[0].put(message.slot, wrong))
    assert not size.done()
    assert refused(manual_daemon) == 0
    os.write(channels[0].fd, reply(message, 2))
    assert size.result(DEADLINE_S) == 2


# The memory mapping


def test_map_other_than_shared_and_within_a_channel_fails(
    manual_daemon: ManualDaemon,
) -> None:
    with pytest.raises(OSError, match=re_errno(errno.ENODEV)):
        mmap.mmap(manual_daemon.fd, 4096)
    channel = Channel(manual_daemon.fd, 0)
    with pytest.raises(OSError, match=re_errno(errno.EINVAL)):
        mmap.mmap(channel.fd, 4096, mmap.MAP_PRIVATE)
    with pytest.raises(OSError, match=re_errno(errno.ENXIO)):
        mmap.mmap(channel.fd, len(channel.memory) + 4096)
    with pytest.raises(OSError, match=re_errno(errno.ENXIO)):
        mmap.mmap(channel.fd, 4096, offset=len(channel.memory))
    channel.close()


def test_slots_of_a_new_channel_are_zero(manual_daemon: ManualDaemon) -> None:
    for _ in range(2):
        channel = Channel(manual_daemon.fd, 0, slots=64)
        assert channel.memory[:].count(0) == len(channel.memory)
        channel.memory[:] = b"x" * len(channel.memory)
        channel.close()


_FORKED = """
import mmap, os, sys
memory = mmap.mmap(int(sys.argv[1]), 4096)
if not os.fork():
    memory[0]
    os._exit(0)
print(os.WTERMSIG(os.wait()[1]))
"""


def test_forked_child_does_not_inherit_the_mapping(manual_daemon: ManualDaemon) -> None:
    channel = Channel(manual_daemon.fd, 0)
    command = [sys.executable, "-c", _FORKED, str(channel.fd)]
    done = subprocess.run(
        command, pass_fds=[channel.fd], stdout=subprocess.PIPE, text=True, timeout=DEADLINE_S
    )
    assert done.stdout == f"{int(signal.SIGSEGV)}\n"
    channel.close()


def test_reply_that_changes_while_it_is_read_is_copied_once(
    manual_daemon: ManualDaemon,
) -> None:
    """Another thread overwrites the reply's memory. Each answer is one of the two values."""
    channel = Channel(manual_daemon.fd, 0)
    stop = threading.Event()
    states = [root_attributes(size) for size in (1, 2)]
    at = channel.slot_size

    def scribble() -> None:
        while not stop.is_set():
            for state in states:
                channel.memory[at + 16 : at + 16 + len(state)] = state

    with ThreadPoolExecutor(1) as pool:
        scribbler = pool.submit(scribble)
        seen = set()
        try:
            for _ in range(300):
                size = manual_daemon.ask(1)
                message = channel.next()
                assert message.slot == 0
                head = wire.reply(message.request.unique, 0, states[0])[:16]
                channel.memory[at : at + 16] = head
                channel.reply(0, 16 + len(states[0]))
                seen.add(size.result(DEADLINE_S))
        finally:
            stop.set()
        scribbler.result(DEADLINE_S)
    assert seen <= {1, 2}
    channel.close()


def test_reply_to_a_request_of_another_mount_fails(
    manual_daemon: ManualDaemon, tmp_path: Path
) -> None:
    """The request waits for its own daemon, by a descriptor and by a channel of the other one."""
    point = tmp_path / "other"
    point.mkdir()
    other = ManualDaemon(point)
    channel = Channel(other.fd, 0)
    try:
        size = manual_daemon.ask(0)
        request = manual_daemon.read()
        for fd in (other.fd, channel.fd):
            with pytest.raises(OSError) as caught:
                os.write(fd, wire.reply(request.unique, 0, root_attributes(7)))
            assert caught.value.errno == errno.ENOENT
        assert manual_daemon.connection.waiting == 1
        assert not size.done()
        manual_daemon.answer(request, 9)
        assert size.result(DEADLINE_S) == 9
    finally:
        channel.close()
        other.close()


@contextlib.contextmanager
def _memory_cgroup() -> Iterator[Path]:
    """Make an empty cgroup whose memory is counted, if the kernel can count it."""
    root = Path("/sys/fs/cgroup")
    if "memory" not in (root / "cgroup.controllers").read_text().split():
        pytest.skip("this kernel has no memory cgroups")
    (root / "cgroup.subtree_control").write_text("+memory")
    group = root / "efuse-test"
    group.mkdir()
    try:
        yield group
    finally:
        group.rmdir()


def test_slots_are_charged_to_the_cgroup_of_their_maker(manual_daemon: ManualDaemon) -> None:
    with _memory_cgroup() as group:

        def used() -> int:
            return int((group / "memory.current").read_text())

        def charged() -> int:
            (group / "cgroup.procs").write_text("0")
            before = used()
            channel = Channel(manual_daemon.fd, 0, slots=64)
            after = used()
            channel.close()
            return after - before

        # A slot has twice this size. A part of it may be charged to what was reserved before.
        assert Call(charged).result() > 64 * 8192
