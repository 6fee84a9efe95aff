# SPDX-License-Identifier: LGPL-2.1-or-later
"""The queue of each CPU, as a daemon sees it that reads by hand."""

import errno
import os
import select
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.guest import wire
from tests.guest.hand import DEADLINE_S, Hand

RESENT = 1 << 63
NOTIFY_RESEND = 7


def test_a_request_waits_in_the_queue_of_the_cpu_that_sent_it(hand: Hand) -> None:
    for cpu in (0, 1):
        size = hand.ask(cpu)
        assert [hand.channel(c, "depth") for c in (0, 1)] == [int(c == cpu) for c in (0, 1)]
        hand.answer(hand.read(), 1000 + cpu)
        assert size.result(DEADLINE_S) == 1000 + cpu
        assert hand.channel(cpu, "depth") == 0
    assert [hand.channel(c, "sent") for c in (0, 1)] == [1, 1]


@pytest.mark.parametrize("sent", [0, 1])
@pytest.mark.parametrize("read", [0, 1])
def test_a_reader_of_another_cpu_steals_it(hand: Hand, sent: int, read: int) -> None:
    size = hand.ask(sent)
    hand.answer(hand.read(read), 7)
    assert size.result(DEADLINE_S) == 7
    assert hand.channel(sent, "stolen") == int(sent != read)
    assert hand.channel(1 - sent, "stolen") == 0


def test_a_reader_prefers_the_queue_of_its_own_cpu(hand: Hand) -> None:
    asked = [hand.ask(0), hand.ask(1)]
    requests = [hand.read(1), hand.read(0)]
    assert [hand.channel(c, "stolen") for c in (0, 1)] == [0, 0]
    for request, size in zip(requests, (11, 10), strict=True):
        hand.answer(request, size)
    assert [a.result(DEADLINE_S) for a in asked] == [10, 11]


def test_requests_of_all_queues_have_different_numbers(hand: Hand) -> None:
    asked = [hand.ask(cpu) for _ in range(10) for cpu in (0, 1)]
    requests = [hand.read() for _ in asked]
    assert len({r.unique for r in requests}) == len(requests)
    assert not any(r.unique & 1 for r in requests)  # an interrupt's
    for size, request in enumerate(requests):
        hand.answer(request, size)
    assert sorted(a.result(DEADLINE_S) for a in asked) == list(range(len(asked)))


def test_a_queue_that_nobody_reads_is_not_starved(hand: Hand) -> None:
    mine = [hand.ask(0) for _ in range(40)]
    other = hand.ask(1)
    for _ in range(16):
        hand.answer(hand.read(0), 5)
    assert other.result(DEADLINE_S) == 5
    assert hand.channel(1, "stolen") == 1
    for _ in range(25):
        hand.answer(hand.read(0), 5)
    assert [a.result(DEADLINE_S) for a in mine] == [5] * 40


def test_with_nothing_to_read_a_reader_does_not_wait_if_it_need_not(hand: Hand) -> None:
    with pytest.raises(BlockingIOError):
        hand.read()


@pytest.mark.parametrize("sent", [0, 1])
@pytest.mark.parametrize("read", [0, 1])
def test_poll_tells_of_a_request_on_any_cpu(hand: Hand, sent: int, read: int) -> None:
    os.sched_setaffinity(0, {read})
    poll = select.poll()
    poll.register(hand.fd, select.POLLIN)
    assert poll.poll(0) == []
    size = hand.ask(sent)
    assert poll.poll(DEADLINE_S * 1000) == [(hand.fd, select.POLLIN)]
    hand.answer(hand.read(), 3)
    assert size.result(DEADLINE_S) == 3
    assert poll.poll(0) == []


@pytest.mark.parametrize("sent", [0, 1])
def test_a_request_wakes_a_reader_of_another_cpu(hand: Hand, sent: int) -> None:
    os.set_blocking(hand.fd, True)
    with ThreadPoolExecutor(1) as pool:
        sleeper = pool.submit(hand.read, 1 - sent)
        size = hand.ask(sent)
        hand.answer(sleeper.result(DEADLINE_S), 9)
    assert size.result(DEADLINE_S) == 9
    assert hand.channel(sent, "stolen") == 1


def test_each_of_many_sleeping_readers_is_woken(hand: Hand) -> None:
    os.set_blocking(hand.fd, True)
    with ThreadPoolExecutor(8) as pool:
        sleepers = [pool.submit(hand.read, number % 2) for number in range(8)]
        asked = [hand.ask(cpu) for _ in range(4) for cpu in (0, 1)]
        for size, sleeper in enumerate(sleepers):
            hand.answer(sleeper.result(DEADLINE_S), size)
    assert sorted(a.result(DEADLINE_S) for a in asked) == list(range(8))


def test_an_interrupt_reaches_a_reader_of_another_cpu(hand: Hand) -> None:
    program = hand.program(1)
    with program:
        request = hand.read(1)
        program.send_signal(signal.SIGTERM)
        os.sched_setaffinity(0, {0})
        poll = select.poll()
        poll.register(hand.fd, select.POLLIN)
        assert poll.poll(DEADLINE_S * 1000)
        interrupt = hand.read(0)
        assert (interrupt.opcode, interrupt.target) == ("interrupt", request.unique)
        os.write(hand.fd, wire.reply(request.unique, errno.EINTR))
        assert program.wait(DEADLINE_S) == -signal.SIGTERM


def test_a_request_whose_caller_died_is_not_read(hand: Hand) -> None:
    for cpu in (0, 1):
        with hand.program(cpu) as program:
            program.kill()
            assert program.wait(DEADLINE_S) == -signal.SIGKILL
        assert hand.channel(cpu, "depth") == 0
    with pytest.raises(BlockingIOError):
        hand.read()


def test_requests_of_every_queue_fail_when_the_connection_is_aborted(hand: Hand) -> None:
    asked = [hand.ask(cpu) for _ in range(3) for cpu in (0, 1)]
    hand.connection.abort()
    for size in asked:
        error = size.exception(DEADLINE_S)
        assert isinstance(error, OSError)
        assert error.errno == errno.ECONNABORTED
    with pytest.raises(OSError, match=os.strerror(errno.ENODEV)):
        hand.read()
    assert [hand.channel(cpu, "depth") for cpu in (0, 1)] == [0, 0]


def test_what_was_read_and_not_answered_is_sent_again_in_its_order(hand: Hand) -> None:
    asked = [hand.ask(cpu) for _ in range(3) for cpu in (0, 1)]
    first = [hand.read(cpu) for cpu in (0, 0, 1, 1)]
    os.write(hand.fd, wire.notification(NOTIFY_RESEND, b""))
    assert [hand.channel(cpu, "depth") for cpu in (0, 1)] == [3, 3]
    again = [hand.read() for _ in asked]
    assert {r.unique for r in first} == {r.unique & ~RESENT for r in again if r.unique & RESENT}
    for cpu in (0, 1):
        assert hand.numbers(cpu, again)[:-1] == hand.numbers(cpu, first)
    for request in again:
        hand.answer(request, 4)
    assert [a.result(DEADLINE_S) for a in asked] == [4] * 6
