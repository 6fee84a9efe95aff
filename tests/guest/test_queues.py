# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test the queues of the CPUs with a daemon that reads by hand."""

import errno
import os
import select
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.guest.support import wire
from tests.guest.support.daemons import eventually
from tests.guest.support.manual_daemon import DEADLINE_S, ManualDaemon

RESENT = 1 << 63
NOTIFY_RESEND = 7


def test_request_waits_in_the_queue_of_the_cpu_that_sent_it(manual_daemon: ManualDaemon) -> None:
    for cpu in (0, 1):
        size = manual_daemon.ask(cpu)
        assert [manual_daemon.channel(c, "depth") for c in (0, 1)] == [
            int(c == cpu) for c in (0, 1)
        ]
        manual_daemon.answer(manual_daemon.read(), 1000 + cpu)
        assert size.result(DEADLINE_S) == 1000 + cpu
        assert manual_daemon.channel(cpu, "depth") == 0
    assert [manual_daemon.channel(c, "sent") for c in (0, 1)] == [1, 1]


@pytest.mark.parametrize("sent", [0, 1])
@pytest.mark.parametrize("read", [0, 1])
def test_reader_on_another_cpu_steals_a_request(
    manual_daemon: ManualDaemon, sent: int, read: int
) -> None:
    size = manual_daemon.ask(sent)
    manual_daemon.answer(manual_daemon.read(read), 7)
    assert size.result(DEADLINE_S) == 7
    assert manual_daemon.channel(sent, "stolen") == int(sent != read)
    assert manual_daemon.channel(1 - sent, "stolen") == 0


def test_reader_prefers_the_queue_of_its_own_cpu(manual_daemon: ManualDaemon) -> None:
    asked = [manual_daemon.ask(0), manual_daemon.ask(1)]
    requests = [manual_daemon.read(1), manual_daemon.read(0)]
    assert [manual_daemon.channel(c, "stolen") for c in (0, 1)] == [0, 0]
    for request, size in zip(requests, (11, 10), strict=True):
        manual_daemon.answer(request, size)
    assert [a.result(DEADLINE_S) for a in asked] == [10, 11]


def test_requests_of_all_queues_have_different_unique_numbers(manual_daemon: ManualDaemon) -> None:
    asked = [manual_daemon.ask(cpu) for _ in range(10) for cpu in (0, 1)]
    requests = [manual_daemon.read() for _ in asked]
    assert len({r.unique for r in requests}) == len(requests)
    assert not any(r.unique & 1 for r in requests)  # INTERRUPTs have odd numbers.
    for size, request in enumerate(requests):
        manual_daemon.answer(request, size)
    assert sorted(a.result(DEADLINE_S) for a in asked) == list(range(len(asked)))


def test_queue_without_a_reader_is_served_by_another_cpu(manual_daemon: ManualDaemon) -> None:
    mine = [manual_daemon.ask(0) for _ in range(40)]
    other = manual_daemon.ask(1)
    for _ in range(16):
        manual_daemon.answer(manual_daemon.read(0), 5)
    assert other.result(DEADLINE_S) == 5
    assert manual_daemon.channel(1, "stolen") == 1
    for _ in range(25):
        manual_daemon.answer(manual_daemon.read(0), 5)
    assert [a.result(DEADLINE_S) for a in mine] == [5] * 40


def test_nonblocking_read_without_requests_fails_with_eagain(
    manual_daemon: ManualDaemon,
) -> None:
    with pytest.raises(BlockingIOError):
        manual_daemon.read()


@pytest.mark.parametrize("sent", [0, 1])
@pytest.mark.parametrize("read", [0, 1])
def test_poll_reports_a_request_of_any_cpu(
    manual_daemon: ManualDaemon, sent: int, read: int
) -> None:
    os.sched_setaffinity(0, {read})
    poll = select.poll()
    poll.register(manual_daemon.fd, select.POLLIN)
    assert poll.poll(0) == []
    size = manual_daemon.ask(sent)
    assert poll.poll(DEADLINE_S * 1000) == [(manual_daemon.fd, select.POLLIN)]
    manual_daemon.answer(manual_daemon.read(), 3)
    assert size.result(DEADLINE_S) == 3
    assert poll.poll(0) == []


@pytest.mark.parametrize("sent", [0, 1])
def test_request_wakes_a_reader_on_another_cpu(manual_daemon: ManualDaemon, sent: int) -> None:
    os.set_blocking(manual_daemon.fd, True)
    with ThreadPoolExecutor(1) as pool:
        sleeper = pool.submit(manual_daemon.read, 1 - sent)
        size = manual_daemon.ask(sent)
        manual_daemon.answer(sleeper.result(DEADLINE_S), 9)
    assert size.result(DEADLINE_S) == 9
    assert manual_daemon.channel(sent, "stolen") == 1


def test_each_of_many_sleeping_readers_is_woken(manual_daemon: ManualDaemon) -> None:
    os.set_blocking(manual_daemon.fd, True)
    with ThreadPoolExecutor(8) as pool:
        sleepers = [pool.submit(manual_daemon.read, number % 2) for number in range(8)]
        asked = [manual_daemon.ask(cpu) for _ in range(4) for cpu in (0, 1)]
        for size, sleeper in enumerate(sleepers):
            manual_daemon.answer(sleeper.result(DEADLINE_S), size)
    assert sorted(a.result(DEADLINE_S) for a in asked) == list(range(8))


def test_interrupt_reaches_a_reader_on_another_cpu(manual_daemon: ManualDaemon) -> None:
    program = manual_daemon.program(1)
    with program:
        request = manual_daemon.read(1)
        program.send_signal(signal.SIGTERM)
        os.sched_setaffinity(0, {0})
        poll = select.poll()
        poll.register(manual_daemon.fd, select.POLLIN)
        assert poll.poll(DEADLINE_S * 1000)
        interrupt = manual_daemon.read(0)
        assert (interrupt.opcode, interrupt.target) == ("interrupt", request.unique)
        os.write(manual_daemon.fd, wire.reply(request.unique, errno.EINTR))
        assert program.wait(DEADLINE_S) == -signal.SIGTERM


def test_request_of_a_dead_caller_is_not_read(manual_daemon: ManualDaemon) -> None:
    for cpu in (0, 1):
        with manual_daemon.program(cpu) as program:
            program.kill()
            assert program.wait(DEADLINE_S) == -signal.SIGKILL
        assert manual_daemon.channel(cpu, "depth") == 0
    with pytest.raises(BlockingIOError):
        manual_daemon.read()


def test_abort_fails_the_requests_of_every_queue(
    manual_daemon: ManualDaemon,
) -> None:
    """If the requests do not end, no signal ends their programs: the test then leaves them."""
    programs = [manual_daemon.program(cpu) for _ in range(3) for cpu in (0, 1)]
    manual_daemon.connection.abort()
    eventually(
        lambda: all(program.poll() is not None for program in programs),
        "the requests of all queues end",
        deadline_s=DEADLINE_S,
    )
    for program in programs:
        _, printed = program.communicate()
        assert os.strerror(errno.ECONNABORTED) in printed.decode()
    with pytest.raises(OSError, match=os.strerror(errno.ENODEV)):
        manual_daemon.read()
    assert [manual_daemon.channel(cpu, "depth") for cpu in (0, 1)] == [0, 0]


def test_resend_sends_unanswered_requests_in_their_order(
    manual_daemon: ManualDaemon,
) -> None:
    asked = [manual_daemon.ask(cpu) for _ in range(3) for cpu in (0, 1)]
    first = [manual_daemon.read(cpu) for cpu in (0, 0, 1, 1)]
    os.write(manual_daemon.fd, wire.notification(NOTIFY_RESEND, b""))
    assert [manual_daemon.channel(cpu, "depth") for cpu in (0, 1)] == [3, 3]
    again = [manual_daemon.read() for _ in asked]
    assert {r.unique for r in first} == {r.unique & ~RESENT for r in again if r.unique & RESENT}
    for cpu in (0, 1):
        assert manual_daemon.numbers(cpu, again)[:-1] == manual_daemon.numbers(cpu, first)
    for request in again:
        manual_daemon.answer(request, 4)
    assert [a.result(DEADLINE_S) for a in asked] == [4] * 6
