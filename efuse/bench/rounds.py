# SPDX-License-Identifier: LGPL-2.1-or-later
"""The rounds of a workload: the systems take turns, and each round is verified."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from efuse.bench.clock import CLOCKS, Clock
from efuse.bench.copied import CopiedBytes
from efuse.bench.environment import Settings
from efuse.bench.lines import copied_line, round_line
from efuse.bench.systems import System, is_efuse
from efuse.bench.usage import Usage
from efuse.bench.workload import Measure, Outcome, Workload
from efuse.errors import AttachError, NotSupportedError, VerifierError

__all__ = ["Measured", "Round", "run_workload"]

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one round, and what the daemon did in it."""

    value: float
    requests: int
    switches: int
    verified: bool
    before: Usage
    after: Usage
    measures: dict[str, Measure]


@dataclass(slots=True)
class Measured:
    """The measured rounds of a workload on one system.

    :ivar rounds: the rounds.
    :ivar copied: bytes that the kernel copied to and from the daemon in a further round; None if
        they could not be counted.
    """

    rounds: list[Round]
    copied: Measure | None = None

    def mark_unverified(self) -> None:
        """Mark all rounds as not verified: one of them, or the files they left, were wrong."""
        self.rounds = [replace(each, verified=False) for each in self.rounds]


@dataclass(frozen=True, slots=True)
class _Task:
    """One round, the same on each system."""

    workload: Workload
    count: int
    number: int
    clock: Clock

    def seen(self, reference: Path) -> str:
        """Run it on the lower file system, if the workload allows; return what it saw there."""
        return self._do(reference).seen if self.workload.has_reference else ""

    def on(self, system: System) -> Outcome:
        return self._do(system.root / self.workload.name)

    def _do(self, root: Path) -> Outcome:
        return self.workload.measure(root, self.count, self.number, self.clock)


def run_workload(
    workload: Workload,
    systems: Sequence[System],
    lower: Path,
    settings: Settings,
    say: Callable[[str], None],
) -> dict[str, Measured]:
    """Run a warm-up round, then the measured rounds; in each the systems take turns.

    A further round counts the copied bytes. It is not measured, because counting takes time.
    """
    count, clock = workload.scaled(settings.scale), CLOCKS[settings.clock]
    # A copy of the files over which nothing is mounted shows what the systems should see.
    reference = lower / "reference" / workload.name
    done = {system.name: Measured([]) for system in systems}
    for system in systems:
        place = lower / system.name / workload.name
        if not workload.warm_up(system.root / workload.name, place, count):
            say(f"{workload.name}: {system.name} is WRONG")
    for number in range(settings.rounds + 1):
        task = _Task(workload, count, number, clock)
        wanted = task.seen(reference)
        for system in systems:
            measured = _run_round(task, system, wanted)
            if number:
                done[system.name].rounds.append(measured)
            found = f"{measured.value:.4g} {workload.unit}, {measured.requests} requests"
            wrong = "" if measured.verified else ", WRONG"
            say(round_line(workload.name, number, settings.rounds, system.name, found + wrong))
    _count_copied(_Task(workload, count, settings.rounds + 1, clock), systems, reference, done, say)
    for system in systems:
        place = lower / system.name / workload.name
        if not workload.verify(system.root / workload.name, place, reference):
            say(f"{workload.name}: {system.name} left other files than expected: WRONG")
            done[system.name].mark_unverified()
    return done


def _run_round(task: _Task, system: System, wanted: str) -> Round:
    task.workload.sync()
    before = system.usage()
    outcome = task.on(system)
    after = system.usage()
    measures = outcome.measures
    system.prove(before, after, outcome.requests)
    if outcome.requests:
        measures = {**measures, **_switches(before, after, outcome)}
    return Round(
        value=outcome.value,
        requests=after.total - before.total,
        switches=after.switches - before.switches,
        verified=outcome.seen == wanted,
        before=before,
        after=after,
        measures=measures,
    )


def _switches(before: Usage, after: Usage, outcome: Outcome) -> dict[str, Measure]:
    """Return the context switches per request: the daemon's by kind, and all together.

    Only the total is compared. If a daemon loses its CPU to the caller it has woken, this counts as
    involuntary and not as voluntary, but it is a context switch in either case.
    """
    slept, preempted = after.switches - before.switches, after.preempted - before.preempted
    every = outcome.switches + slept + preempted
    return {
        "daemon_switches": Measure(slept / outcome.requests, "/req", compared=False),
        "daemon_preempted": Measure(preempted / outcome.requests, "/req", compared=False),
        "switches": Measure(every / outcome.requests, "/req"),
    }


def _count_copied(
    task: _Task,
    systems: Sequence[System],
    reference: Path,
    done: Mapping[str, Measured],
    say: Callable[[str], None],
) -> None:
    """Run a round on each system, and count the bytes that are copied for its daemon."""
    name = task.workload.name
    pids = [system.pid for system in systems if system.pid is not None]
    modules = dict.fromkeys(
        "efuse" if is_efuse(system.name) else "fuse" for system in systems if system.pid is not None
    )
    try:
        counter = CopiedBytes(pids, modules)
    except (AttachError, NotSupportedError, VerifierError) as error:
        say(f"{name}: bytes copied are not counted: {error}")
        for system in systems:
            say(copied_line(name, system.name, "not counted"))
        return
    with counter:
        wanted = task.seen(reference)
        for system in systems:
            task.workload.sync()
            before = counter.read(system.pid) + system.moved_bytes()
            outcome = task.on(system)
            after = counter.read(system.pid) + system.moved_bytes()
            copied = _copied(after - before, outcome)
            done[system.name].copied = copied
            found = f"{copied.value:.4g} {copied.unit}"
            if outcome.seen != wanted:
                done[system.name].mark_unverified()
                found += ", WRONG"
            say(copied_line(name, system.name, found))


def _copied(count: int, outcome: Outcome) -> Measure:
    """Return the copied bytes per request for rounds of a fixed time, else per round."""
    if outcome.requests:
        return Measure(count / outcome.requests, "B/req")
    return Measure(count / _MIB, "MiB", compared=False)
