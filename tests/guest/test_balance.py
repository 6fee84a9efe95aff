# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test which channel a request is sent to: the kernel's balancer, the one in BPF, and programs."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from efuse import bpf, locations
from efuse.errors import VerifierError
from tests.guest.support import wire
from tests.guest.support.channel import NO_SLOT, Channel, Message
from tests.guest.support.manual_daemon import DEADLINE_S, ManualDaemon, root_attributes, until
from tests.guest.support.wire import FUSE_ASYNC_READ

EXAMPLES = locations.data("bpf_programs") / "examples"
GETATTR = 3
# The size of a part of a READ, by the daemon's reply to INIT, in bytes.
PART = 128 << 10


@pytest.fixture
def manual_daemon(mountpoint: Path) -> Iterator[ManualDaemon]:
    made = ManualDaemon(mountpoint)
    made.connection.spin_ns = 0  # Tests of polling set it themselves.
    made.connection.consistency = "strict"
    yield made
    made.close()


@pytest.fixture(params=["kernel", "program"])
def balanced(request: pytest.FixtureRequest, manual_daemon: ManualDaemon) -> Iterator[None]:
    """Balance by the kernel or by the program that does the same."""
    with contextlib.ExitStack() as stack:
        if request.param == "program":
            text = (EXAMPLES / "least_loaded.c").read_text()
            stack.enter_context(
                bpf.attach(manual_daemon.connection.id, handlers={"select_channel": text})
            )
        yield


def depths(manual_daemon: ManualDaemon) -> list[int]:
    return [manual_daemon.channel(cpu, "depth") for cpu in (0, 1)]


def put_answer(channel: Channel, to: Message, size: int) -> int:
    """Put the answer into the request's slot, and return its length."""
    assert to.slot != NO_SLOT
    return channel.put(to.slot, wire.reply(to.request.unique, 0, root_attributes(size)))


def answer(channel: Channel, to: Message, size: int) -> None:
    channel.reply(to.slot, put_answer(channel, to, size))


def serve(channels: list[Channel], sizes: list[Future[int]]) -> None:
    """Answer all waiting requests, and check that every caller gets an answer."""
    for number in range(len(sizes)):
        answer(channels[0], channels[0].next(), 100 + number)
    assert sorted(s.result(DEADLINE_S) for s in sizes) == [100 + n for n in range(len(sizes))]


# Where requests go


@pytest.mark.usefixtures("balanced")
def test_unloaded_channel_gets_the_requests_of_its_cpu(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    for cpu in (0, 1):
        size = manual_daemon.ask(cpu)
        assert depths(manual_daemon) == [int(cpu == 0), int(cpu == 1)]
        serve(channels, [size])
    assert [manual_daemon.channel(cpu, "elsewhere") for cpu in (0, 1)] == [0, 0]


@pytest.mark.usefixtures("balanced")
def test_loaded_channel_shares_requests_with_one_that_has_fewer(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    sizes, seen = [], []
    for _ in range(6):
        sizes.append(manual_daemon.ask(0))
        seen.append(depths(manual_daemon))
    assert seen == [[1, 0], [1, 1], [2, 1], [2, 2], [3, 2], [3, 3]]
    assert manual_daemon.channel(0, "elsewhere") == 3
    serve(channels, sizes)


@pytest.mark.usefixtures("balanced")
def test_channel_below_the_threshold_shares_no_requests(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    manual_daemon.connection.threshold = 3
    sizes, seen = [], []
    for _ in range(5):
        sizes.append(manual_daemon.ask(1))
        seen.append(depths(manual_daemon))
    assert seen == [[0, 1], [0, 2], [0, 3], [1, 3], [2, 3]]
    serve(channels, sizes)


@pytest.mark.usefixtures("balanced")
def test_requests_in_flight_count_as_load(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    first = manual_daemon.ask(0)
    message = channels[0].next()
    assert [manual_daemon.channel(cpu, "in_flight") for cpu in (0, 1)] == [1, 0]
    second = manual_daemon.ask(0)
    assert depths(manual_daemon) == [0, 1]
    answer(channels[0], message, 1)
    assert manual_daemon.channel(0, "in_flight") == 0
    assert first.result(DEADLINE_S) == 1
    serve(channels, [second])


@pytest.mark.usefixtures("balanced")
def test_slow_channel_gets_fewer_requests(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    """The balancer counts how long a channel takes for its requests, not only their number."""
    quick, slow = channels
    for _ in range(30):  # The first times are longer, because caches are cold.
        size = manual_daemon.ask(0)
        answer(quick, quick.next(), 1)
        size.result(DEADLINE_S)
    size = manual_daemon.ask(1)
    message = slow.next()
    time.sleep(0.3)  # The daemon's work.
    answer(slow, message, 2)
    size.result(DEADLINE_S)
    times = [manual_daemon.channel(cpu, "service_ns") for cpu in (0, 1)]
    assert times[1] >= 250_000_000
    assert 0 < times[0] < times[1] / 8
    sizes = [manual_daemon.ask(0) for _ in range(6)]
    assert depths(manual_daemon) == [6, 0]
    serve(channels, sizes)


def test_policy_own_keeps_requests_on_their_channel(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    manual_daemon.connection.policy = "own"
    sizes = [manual_daemon.ask(0) for _ in range(4)]
    assert depths(manual_daemon) == [4, 0]
    os.set_blocking(channels[1].fd, False)
    with pytest.raises(BlockingIOError):
        channels[1].next()
    serve(channels, sizes)
    assert manual_daemon.channel(0, "elsewhere") == 0


def test_policy_own_lets_a_reader_of_the_device_take_requests(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    manual_daemon.connection.policy = "own"
    os.set_blocking(manual_daemon.fd, True)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(manual_daemon.read)
        size = manual_daemon.ask(1)
        manual_daemon.answer(waiting.result(DEADLINE_S), 6)
    assert size.result(DEADLINE_S) == 6


def test_change_of_policy_wakes_a_worker_for_waiting_requests(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    """A sleeping worker is woken when it becomes allowed to take requests from elsewhere."""
    manual_daemon.connection.policy = "own"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(channels[1].next)
        size = manual_daemon.ask(0)
        until(lambda: manual_daemon.channel(1, "sleeping") == 1)
        assert depths(manual_daemon) == [1, 0]
        manual_daemon.connection.policy = "least"
        message = waiting.result(DEADLINE_S)
    answer(channels[1], message, 8)
    assert size.result(DEADLINE_S) == 8


def test_cpu_without_a_channel_sends_to_the_nearest(manual_daemon: ManualDaemon) -> None:
    sizes = [manual_daemon.ask(1)]
    assert depths(manual_daemon) == [0, 1]  # There is no channel yet.
    only = Channel(manual_daemon.fd, 0, slots=8)
    sizes += [manual_daemon.ask(1), manual_daemon.ask(0)]
    assert depths(manual_daemon) == [2, 1]
    second = Channel(manual_daemon.fd, 1, slots=8)
    manual_daemon.connection.policy = "own"
    sizes.append(manual_daemon.ask(1))
    assert depths(manual_daemon) == [2, 2]
    second.close()
    sizes.append(manual_daemon.ask(1))
    assert depths(manual_daemon) == [3, 2]
    serve([only], sizes)  # This includes the request that waits for the closed channel.
    only.close()


def test_request_of_a_killed_caller_does_not_count_as_load(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    for cpu in (0, 1):
        with manual_daemon.program(cpu) as program:
            assert sum(depths(manual_daemon)) == 1
            program.kill()
            program.wait(DEADLINE_S)
        assert depths(manual_daemon) == [0, 0]


def _open_on(cpu: int, path: Path) -> int:
    os.sched_setaffinity(0, {cpu})
    return os.open(path, os.O_RDONLY)


def _opened_on(cpu: int, manual_daemon: ManualDaemon, channels: list[Channel], size: int) -> int:
    """Open a file of *size* bytes on *cpu*."""
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(_open_on, cpu, manual_daemon.mountpoint / "file")
        while (message := channels[cpu].next()).request.opcode != "open":
            assert message.request.opcode == "lookup"
            attributes = wire.attributes(2, size, (0, 0, 0), 0o100644, 1, 0, 0)
            body = wire.entry(2, 0, 60, 60, attributes)
            raw = wire.reply(message.request.unique, 0, body)
            channels[cpu].reply(message.slot, channels[cpu].put(message.slot, raw))
        raw = wire.reply(message.request.unique, 0, wire.open_out(1, 0))
        channels[cpu].reply(message.slot, channels[cpu].put(message.slot, raw))
        return opened.result(DEADLINE_S)


def _read_ahead_on(cpu: int, fd: int, size: int) -> None:
    os.sched_setaffinity(0, {cpu})
    for offset in range(0, size, PART):  # One call reads at most the device's readahead.
        os.posix_fadvise(fd, offset, PART, os.POSIX_FADV_WILLNEED)


@pytest.mark.parametrize(("spread", "placed"), [(1, [1, 3]), (0, [4, 0])])
def test_parts_of_a_large_read_are_spread_over_channels(
    mountpoint: Path, spread: int, placed: list[int]
) -> None:
    """The parts are background requests: for these a home queue with one request counts as loaded.

    The other channel counts as fast, because it has not had any requests.
    """
    data = os.urandom(4 * PART)
    manual_daemon = ManualDaemon(mountpoint, init_flags=FUSE_ASYNC_READ)
    manual_daemon.connection.spin_ns = 0
    manual_daemon.connection.threshold = 16
    manual_daemon.connection.spread = spread
    channels = [Channel(manual_daemon.fd, cpu) for cpu in (0, 1)]
    with ThreadPoolExecutor(1) as pool:
        fd = _opened_on(0, manual_daemon, channels, len(data))
        before = manual_daemon.channel(0, "elsewhere")
        ahead = pool.submit(_read_ahead_on, 0, fd, len(data))
        try:
            until(lambda: sum(depths(manual_daemon)) == 4)
            assert depths(manual_daemon) == placed
            assert manual_daemon.channel(0, "elsewhere") - before == placed[1]
            for _ in range(4):
                _answer_part(channels[1], data)
            ahead.result(DEADLINE_S)
            assert os.pread(fd, len(data), 0) == data
        finally:
            manual_daemon.connection.abort()  # This wakes callers that still wait.
    for channel in channels:
        channel.close()
    manual_daemon.close(lazy=True)
    with pytest.raises(OSError, match=os.strerror(errno.ENOTCONN)):
        os.close(fd)  # The descriptor is closed, although no daemon could be told.


def _answer_part(channel: Channel, data: bytes) -> None:
    message = channel.next()
    request = message.request
    assert (request.opcode, request.size) == ("read", PART)
    part = data[request.offset : request.offset + PART]
    os.write(channel.fd, wire.reply(request.unique, 0, part))
    channel.reply(message.slot, 0)


# Workers that poll, or are about to


def _ask_until(stop: threading.Event, manual_daemon: ManualDaemon) -> int:
    """Call stat(2) on CPU 0 again and again until *stop*, and return the number of answers."""
    os.sched_setaffinity(0, {0})
    done = 0
    while not stop.is_set():
        os.stat(manual_daemon.mountpoint)
        done += 1
    return done


def _help_out(channel: Channel, got_one: Callable[[], object]) -> None:
    """Answer all requests on the channel's CPU until the connection ends."""
    os.sched_setaffinity(0, {channel.cpu})
    slot, length = NO_SLOT, 0
    with contextlib.suppress(OSError):
        while True:
            message = channel.next(slot, length)
            slot, length = message.slot, put_answer(channel, message, 1)
            got_one()


@pytest.mark.parametrize("spin_ns", [0, 1_000_000])
def test_request_left_to_a_busy_worker_is_taken_by_another(
    manual_daemon: ManualDaemon, channels: list[Channel], spin_ns: int
) -> None:
    """Two callers find the worker of their CPU about to poll, and wake no worker. It takes one
    request.

    It answers this request only after the worker of the other CPU has got the other one.
    """
    manual_daemon.connection.spin_ns = spin_ns
    manual_daemon.connection.threshold = 16  # Both requests are sent to the same channel.
    stop, others = threading.Event(), threading.Semaphore(0)
    os.sched_setaffinity(0, {0})
    with ThreadPoolExecutor(3) as pool:
        helping = pool.submit(_help_out, channels[1], others.release)
        asking = [pool.submit(_ask_until, stop, manual_daemon) for _ in range(2)]
        try:
            slot, length = NO_SLOT, 0
            for number in range(500):
                message = channels[0].next(slot, length)
                while others.acquire(blocking=False):
                    pass
                assert others.acquire(timeout=DEADLINE_S), f"request {number} lets others wait"
                slot, length = message.slot, put_answer(channels[0], message, 1)
            stop.set()
            channels[0].reply(slot, length)
            assert all(each.result(DEADLINE_S) for each in asking)
        finally:
            stop.set()
            manual_daemon.connection.abort()  # This wakes the worker that waits.
            helping.result(DEADLINE_S)


def test_request_goes_to_a_polling_worker(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    """The other channel has no worker, so its requests must be stolen."""
    manual_daemon.connection.spin_ns = 1_000_000

    def work(channel: Channel) -> None:
        message = channel.next()
        while message.request.opcode == "getattr":
            message = channel.next(message.slot, put_answer(channel, message, 4))

    with ThreadPoolExecutor(2) as pool:
        worker = pool.submit(work, channels[0])
        caller = pool.submit(_stat_often, manual_daemon.mountpoint, 1, 3000)
        assert caller.result(DEADLINE_S * 3) == {4}
        assert manual_daemon.channel(1, "elsewhere") > 0
        assert manual_daemon.channel(0, "poll_hits") + manual_daemon.channel(1, "poll_hits") > 0
        manual_daemon.connection.abort()
        assert isinstance(worker.exception(DEADLINE_S), OSError)


def _stat_often(path: Path, cpu: int, times: int) -> set[int]:
    os.sched_setaffinity(0, {cpu})
    return {os.stat(path).st_size for _ in range(times)}


def test_sysfs_counts_the_sleeping_workers(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    assert manual_daemon.channel(0, "sleeping") == 0
    assert [manual_daemon.channel(cpu, "slots") for cpu in (0, 1)] == [4, 4]
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(channels[0].next) for _ in range(2)]
        until(lambda: manual_daemon.channel(0, "sleeping") == 2)
        assert manual_daemon.channel(1, "sleeping") == 0
        sizes = [manual_daemon.ask(0), manual_daemon.ask(0)]
        for number, each in enumerate(waiting):
            answer(channels[0], each.result(DEADLINE_S), number)
    assert sorted(size.result(DEADLINE_S) for size in sizes) == [0, 1]
    assert manual_daemon.channel(0, "brought") + manual_daemon.channel(1, "brought") == 2


# Programs that choose the channel


@contextlib.contextmanager
def program(manual_daemon: ManualDaemon, text: str) -> Iterator[bpf.Attachment]:
    with bpf.attach(manual_daemon.connection.id, handlers={"select_channel": text}) as attachment:
        yield attachment


_SAYING = """
#include "efuse.bpf.h"
BPF_ARRAY(answer, s32, 1);

int select_channel(struct efuse_placement *placement)
{
    int zero = 0;
    s32 *cpu = answer.lookup(&zero);

    return cpu ? *cpu : -2;
}
"""


@contextlib.contextmanager
def saying(manual_daemon: ManualDaemon, cpu: int) -> Iterator[None]:
    with program(manual_daemon, _SAYING) as attachment:
        attachment.maps["answer"][0] = cpu
        yield


def test_select_channel_handler_chooses_the_channel(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    with saying(manual_daemon, 1):
        sizes = [manual_daemon.ask(0) for _ in range(3)]
        assert depths(manual_daemon) == [0, 3]
        manual_daemon.connection.policy = "own"  # The handler also takes precedence over this.
        sizes.append(manual_daemon.ask(0))
        assert depths(manual_daemon) == [0, 4]
        manual_daemon.connection.policy = "least"
        serve(channels, sizes)
        assert manual_daemon.channel(0, "elsewhere") == 4


def test_select_channel_handler_that_declines_leaves_it_to_the_kernel(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    with saying(manual_daemon, -1):
        sizes = [manual_daemon.ask(0), manual_daemon.ask(0)]
        assert depths(manual_daemon) == [1, 1]
        serve(channels, sizes)
        assert manual_daemon.connection.invalid_verdicts == 0


@pytest.mark.parametrize("answer", [2, 4096, 0x7FFFFFFF])
def test_select_channel_handler_that_returns_no_cpu_is_counted(
    manual_daemon: ManualDaemon, channels: list[Channel], answer: int
) -> None:
    with saying(manual_daemon, answer):
        size = manual_daemon.ask(1)
        assert depths(manual_daemon) == [0, 1]
        serve(channels, [size])
        assert manual_daemon.connection.invalid_verdicts == 1


def test_select_channel_handler_that_returns_a_cpu_without_a_channel_is_counted(
    manual_daemon: ManualDaemon,
) -> None:
    only = Channel(manual_daemon.fd, 0)
    with saying(manual_daemon, 1):
        size = manual_daemon.ask(1)
        assert depths(manual_daemon) == [1, 0]
        serve([only], [size])
        assert manual_daemon.connection.invalid_verdicts == 1
    only.close()


def test_select_channel_handler_is_not_called_without_channels(manual_daemon: ManualDaemon) -> None:
    with saying(manual_daemon, 1):
        size = manual_daemon.ask(0)
        assert depths(manual_daemon) == [1, 0]
        manual_daemon.answer(manual_daemon.read(), 3)
        assert size.result(DEADLINE_S) == 3
        assert manual_daemon.connection.invalid_verdicts == 0


_SPY = """
#include "efuse.bpf.h"
BPF_ARRAY(told, struct efuse_placement_info, 1);
BPF_ARRAY(load, struct efuse_channel_load, 2);
BPF_ARRAY(none, u32, 1);

int select_channel(struct efuse_placement *placement)
{
    const struct efuse_placement_info *info = efuse_placement_info(placement, sizeof(*info));
    const struct efuse_channel_load *found;
    u32 cpu = 0, zero = 0, absent;

    if (!info)
        return -2;
    struct efuse_placement_info copy = *info;
    told.update(&zero, &copy);
    found = efuse_channel_load(placement, 0, sizeof(*found));
    if (found) {
        struct efuse_channel_load loaded = *found;
        load.update(&cpu, &loaded);
    }
    cpu = 1;
    found = efuse_channel_load(placement, 1, sizeof(*found));
    if (found) {
        struct efuse_channel_load loaded = *found;
        load.update(&cpu, &loaded);
    }
    absent = !efuse_channel_load(placement, 2, sizeof(*found)) +
             !efuse_channel_load(placement, 0xffffffff, sizeof(*found)) +
             !efuse_channel_load(placement, 0, 4);
    none.update(&zero, &absent);
    return -1;
}
"""


def test_select_channel_handler_sees_the_load_of_each_channel(
    manual_daemon: ManualDaemon, channels: list[Channel]
) -> None:
    first = manual_daemon.ask(0)
    message = channels[0].next()
    manual_daemon.connection.threshold = 7
    with program(manual_daemon, _SPY) as attachment:
        second = manual_daemon.ask(1)
        maps = attachment.maps
        info = _words(maps["told"].read_all()[0], "IIQIIII")
        possible = len(manual_daemon.connection.cpus())
        assert info == (GETATTR, 1, 1, 1, possible, 0, 7)
        load = [_words(maps["load"].read_all()[cpu], "IIIIII") for cpu in (0, 1)]
        assert [each[:5] for each in load] == [(0, 0, 1, 0, 0), (0, 0, 0, 0, 0)]
        assert maps["none"].read_all() == {0: 3}
    answer(channels[0], message, 1)
    assert first.result(DEADLINE_S) == 1
    serve(channels, [second])


def _words(raw: object, form: str) -> tuple[int, ...]:
    assert isinstance(raw, bytes)
    return struct.unpack(f"={form}", raw)


_ASKING_FOR_AN_OPCODE = """
#include "efuse.bpf.h"

int select_channel(struct efuse_placement *placement)
{
    return efuse_req_opcode((void *)placement);
}
"""
_ASKING_FOR_A_PATH = """
#include "efuse.bpf.h"

int select_channel(struct efuse_placement *placement)
{
    return efuse_path_info((void *)placement, 8) != 0;
}
"""


@pytest.mark.parametrize(
    "text", [_ASKING_FOR_AN_OPCODE, _ASKING_FOR_A_PATH], ids=["opcode", "path"]
)
def test_select_channel_handler_with_another_kfunc_fails(
    manual_daemon: ManualDaemon, text: str
) -> None:
    with pytest.raises(VerifierError), program(manual_daemon, text):
        pass
