# SPDX-License-Identifier: LGPL-2.1-or-later
"""The model of queues and channels: its machine, and its agreement with measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from docs.model.__main__ import modelled, print_checks
from docs.model.machine import RESCHED, SLEEP, SPIN, Hardware, Line, Machine, Pause, Steps, Thread
from docs.model.measurements import costs, guest, large, ratio
from docs.model.systems import SYSTEMS, Load, Result, Simulation
from tests.documents import named

HARDWARE = Hardware(8, 4, 1.0, near_ns=10.0, far_ns=100.0, overlap=2.0, idle_ns=1000.0)


def machine(hardware: Hardware = HARDWARE) -> Machine:
    return Machine(hardware, switch_ns=5.0, wake_ns=3.0, spin_ns=50.0, seed=1)


# Memory


def test_cache_line_costs_depend_on_its_location() -> None:
    m, line = machine(), Line()  # CPU 0 has the line in its cache.
    assert m.read(0, line) == 0
    assert [m.read(1, line), m.read(1, line)] == [10, 0]
    assert [m.read(4, line), m.read(5, line)] == [100, 10]
    assert m.write(0, line) == 100
    assert m.write(0, line) == 0
    assert [m.write(1, line), m.write(1, line)] == [10, 0]


def test_concurrent_changes_of_a_line_wait_for_each_other() -> None:
    m, lock, counter = machine(), Line(), Line()
    assert m.change(0, lock, 7.0, "lock") == 7
    assert m.change(1, lock, 7.0, "lock") == 7 + 2 * 10 + 7
    assert m.change(4, lock, 7.0, "lock") == 34 + 2 * 100 + 7
    assert m.change(4, counter, 0.0, "counter") == 100
    assert m.change(0, counter, 0.0, "counter") == 100 + 100
    assert m.spent["lock"] == 7 + 34 + 241


def test_scan_of_many_lines_overlaps_their_latencies() -> None:
    m, lines = machine(), [Line() for _ in range(6)]
    assert m.scan(1, lines, 1.0, "scan") == 6 * 1 + 6 * 10 / 2
    assert m.scan(1, lines, 1.0, "scan") == 6


# Threads


def test_sleeper_is_woken_and_each_cpu_runs_one_thread() -> None:
    m, output = machine(), []

    def sleeper(thread: Thread) -> Steps:
        yield SLEEP
        output.append(("woken", m.now))

    def worker(thread: Thread) -> Steps:
        yield Pause(5000.0)
        yield 100.0
        output.append(("wakes", m.now))
        yield m.wake(asleep, thread.cpu.number)
        yield RESCHED
        output.append(("goes on", m.now))
        yield Pause(1e9)

    asleep = m.start(0, sleeper)
    m.start(0, worker)
    with pytest.raises(StopIteration):
        m.run(1e6)
    # 1000 for the wake-up of an idle CPU from its pause, and a switch; the woken thread runs first.
    assert output == [("wakes", 7115.0), ("woken", 7123.0)]


def test_polling_ends_with_a_wake_up_or_if_another_thread_wants_the_cpu() -> None:
    m, output = machine(), []

    def looks(thread: Thread) -> Steps:
        for _ in range(3):
            yield SPIN
            output.append(m.now)
        yield SLEEP

    def other(thread: Thread) -> Steps:
        yield 20.0
        m.wake(looking, thread.cpu.number)
        yield SLEEP

    def intruder(thread: Thread) -> Steps:
        yield Pause(70.0)
        yield SLEEP

    looking = m.start(0, looks)
    m.start(1, other)
    m.start(2, intruder).cpu = m.cpus[0]
    m.run(1e6)
    # The first is woken across nodes; for the others the time is over, or the intruder arrives.
    assert output[0] == 1005 + 20 + 10
    assert output == sorted(output)
    assert len(output) == 3


# The systems


def run(system: str, hardware: Hardware, load: Load, ns: float = 5e5) -> Result:
    return Simulation(system, hardware, costs(system), load, seed=1).run(ns)


@pytest.mark.parametrize("system", SYSTEMS)
def test_runs_with_the_same_seed_are_equal(system: str) -> None:
    first, second = (run(system, large(), Load(20, think_ns=5000.0)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("system", SYSTEMS)
def test_time_of_one_cpu_is_the_sum_of_its_parts(system: str) -> None:
    """All of the time is accounted for, and none counted twice: the CPU is never idle."""
    result = run(system, guest(1), Load(1), 1e8)
    assert sum(result.spent.values()) * result.rate == pytest.approx(1e9, rel=0.02)


MARGIN = {1: 0.1, 2: 0.35}
"""Relative error allowed for the guest with one CPU, by instructions, and with two, by time."""


@pytest.mark.parametrize(
    ("system", "cpus", "callers"),
    [
        ("queues", 1, 1),
        ("queues", 1, 2),
        ("queues", 2, 1),
        ("queues", 2, 2),
        ("channels", 1, 1),
        ("channels", 1, 2),
        ("channels", 2, 1),
        ("channels", 2, 2),
    ],
)
def test_modelled_ratios_equal_measured_ones_within_the_margin(
    system: str, cpus: int, callers: int
) -> None:
    output = modelled(cpus, callers, system) / modelled(cpus, callers, "fuse")
    assert output == pytest.approx(ratio(cpus, callers, system, "fuse"), rel=MARGIN[cpus])


def test_document_has_the_modelled_figures(capsys: pytest.CaptureFixture[str]) -> None:
    print_checks()
    (block,) = named("test", "tests/unit/test_model.py::test_document_has_the_modelled_figures")
    assert capsys.readouterr().out == block.text


def test_one_queue_is_limited_by_its_lock() -> None:
    by_cpus = [run("fuse", large(), Load(n)).rate for n in (16, 32, 128)]
    assert by_cpus[1] > 1.7 * by_cpus[0]
    assert by_cpus[2] < by_cpus[1]
    assert run("fuse", large(), Load(128)).spent["queue"] > 10_000


def test_channels_are_limited_by_shared_counters() -> None:
    load = Load(128)
    assert run("channels", large(), load).rate > 2 * run("fuse", large(), load).rate
    free = run("channels", large(near_ns=0.0, far_ns=0.0), load)
    assert free.rate > 1.5 * run("channels", large(), load).rate
    most = run("channels", large(), replace(load, background=True))
    assert most.spent["bg_lock"] > most.spent["caller"]
