# SPDX-License-Identifier: LGPL-2.1-or-later
"""A simulated machine: CPUs on nodes, cache lines that move between CPUs, threads that wait.

A thread is a generator. It yields the number of nanoseconds for which it computes, or `SLEEP`,
`SPIN`, `RESCHED` or a `Pause`, and is resumed after that. Sleeping may end without a reason. The
seed determines the whole run.

SimPy would replace only the queue of events, which takes ten lines here. What a cache line costs,
and which thread has a CPU, is the model itself.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import defaultdict, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass

SLEEP = "sleep"
"""Yielded to wait until another thread wakes this one."""

SPIN = "spin"
"""Yielded to poll until the thread is woken, `Machine.spin_ns` have passed, or another thread is
woken on the CPU."""

RESCHED = "resched"
"""Yielded where another thread may preempt this one: cond_resched(), a return to user space."""

SLICE_NS = 3e6
"""How long a thread may keep its CPU while others wait for it (the scheduler's base_slice_ns)."""


@dataclass(frozen=True)
class Pause:
    """Yielded to leave the CPU for *ns* nanoseconds."""

    ns: float


Steps = Generator[float | str | Pause, None, None]


@dataclass(frozen=True)
class Hardware:
    """The size of the machine, and the times that its hardware takes, in nanoseconds.

    :ivar cpus: the number of possible CPUs; the kernel has a queue for each.
    :ivar per_node: the number of CPUs on one node.
    :ivar instruction_ns: the time of an instruction, for code that is measured in instructions.
    :ivar near_ns: the time to fetch a cache line from another CPU of the same node.
    :ivar far_ns: the time to fetch a cache line from a CPU of another node.
    :ivar overlap: the number of cache lines that a scan fetches in parallel.
    :ivar idle_ns: the time from waking a thread on an idle CPU until it runs.
    """

    cpus: int
    per_node: int
    instruction_ns: float
    near_ns: float
    far_ns: float
    overlap: float
    idle_ns: float


class Line:
    """A cache line.

    :ivar holders: the CPUs that have a copy, as a bit mask.
    :ivar free_at: the time at which the last change that was begun so far ends, in ns.
    """

    __slots__ = ("free_at", "holders")

    def __init__(self) -> None:
        self.holders = 1
        self.free_at = 0.0


class Cpu:
    """A CPU, with the thread that runs and the threads that wait to run."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.current: Thread | None = None
        self.waiting: deque[Thread] = deque()
        self.resched = False
        self.online = False
        self.since = 0.0


class Thread:
    """A thread. Unless it is pinned, it may run on another CPU of its node after it was woken."""

    def __init__(self, cpu: Cpu, pinned: bool) -> None:
        self.cpu = cpu
        self.pinned = pinned
        self.state = "ready"
        self.woken = False
        self.spins = 0
        self.steps: Steps


class Machine:
    """Run threads.

    :ivar spent: the CPU time by purpose, in nanoseconds.
    :ivar considerate: whether a thread does not start polling while another thread waits for its
        CPU, even if that thread was not woken but had to make room.
    :ivar free: the names of the locks and counters that cost nothing.
    """

    def __init__(
        self, hardware: Hardware, switch_ns: float, wake_ns: float, spin_ns: float, seed: int
    ) -> None:
        self.hardware = hardware
        self.spin_ns = spin_ns
        self.considerate = False
        self.free: frozenset[str] = frozenset()
        self.now = 0.0
        self.random = random.Random(seed)
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.cpus = [Cpu(n) for n in range(hardware.cpus)]
        self._switch_ns = switch_ns
        self._wake_ns = wake_ns
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        nodes = range(0, hardware.cpus, hardware.per_node)
        masks = [(1 << min(hardware.per_node, hardware.cpus - n)) - 1 << n for n in nodes]
        self._node = [masks[cpu // hardware.per_node] for cpu in range(hardware.cpus)]

    # Memory

    def _distance(self, cpu: int, holders: int) -> float:
        """Return the time to reach the farthest of *holders*, in nanoseconds."""
        return self.hardware.far_ns if holders & ~self._node[cpu] else self.hardware.near_ns

    def read(self, cpu: int, line: Line) -> float:
        """Return the time to read a cache line, in nanoseconds."""
        if line.holders >> cpu & 1:
            return 0.0
        near = line.holders & self._node[cpu]
        line.holders |= 1 << cpu
        return self.hardware.near_ns if near else self.hardware.far_ns

    def write(self, cpu: int, line: Line) -> float:
        """Return the time to get a cache line exclusively, in nanoseconds."""
        others = line.holders & ~(1 << cpu)
        line.holders = 1 << cpu
        return self._distance(cpu, others) if others else 0.0

    def change(self, cpu: int, line: Line, hold_ns: float, what: str) -> float:
        """Return the time of an atomic operation, or of a lock that is held for *hold_ns*.

        The time includes waiting for earlier changes of the line. A thread that waits for a lock is
        notified through a second cache line.
        """
        if what in self.free:
            return 0.0
        waits = max(0.0, line.free_at - self.now)
        cost = self.write(cpu, line) * (2 if waits and hold_ns else 1)
        line.free_at = self.now + waits + cost + hold_ns
        self.spent[what] += waits + cost + hold_ns
        return waits + cost + hold_ns

    def scan(self, cpu: int, lines: list[Line], look_ns: float, what: str) -> float:
        """Return the time to read *lines*, with *look_ns* of code for each, in nanoseconds."""
        cost = look_ns * len(lines)
        cost += sum(self.read(cpu, line) for line in lines) / self.hardware.overlap
        self.spent[what] += cost
        return cost

    # Threads

    def start(self, cpu: int, make: Callable[[Thread], Steps], pinned: bool = True) -> Thread:
        """Add a thread, and bring its CPU online."""
        self.cpus[cpu].online = True
        thread = Thread(self.cpus[cpu], pinned)
        thread.steps = make(thread)
        thread.state = "sleeping"
        self._at(0.0, lambda: self._enqueue(thread))
        return thread

    def wake(self, thread: Thread, by: int, preempts: bool = True) -> float:
        """Wake a thread, and return the time that this takes the waker, in nanoseconds.

        :param by: the number of the waker's CPU.
        :param preempts: whether the woken thread may preempt the running thread of its CPU.
        """
        if thread.state == "sleeping":
            self._enqueue(thread, preempts)
            self.spent["wake"] += self._wake_ns
            return self._wake_ns
        if thread.state == "spinning":
            node = self._node[by] >> thread.cpu.number & 1
            self._end_spin(thread, self.hardware.near_ns if node else self.hardware.far_ns)
        else:
            thread.woken = True
        return 0.0

    def run(self, until_ns: float) -> None:
        """Run until the time *until_ns*."""
        while self._events and self._events[0][0] <= until_ns:
            self.now, _, happen = heapq.heappop(self._events)
            happen()

    def _at(self, delay: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), happen))

    def _place(self, thread: Thread) -> Cpu:
        """Return the thread's CPU, or an idle CPU of its node if its CPU is busy."""
        own = thread.cpu
        if own.current is None or thread.pinned:
            return own
        first = own.number - own.number % self.hardware.per_node
        node = self.cpus[first : first + self.hardware.per_node]
        return next((cpu for cpu in node if cpu.online and cpu.current is None), own)

    def _enqueue(self, thread: Thread, preempts: bool = True) -> None:
        cpu = thread.cpu = self._place(thread)
        thread.state = "ready"
        if cpu.current is None:
            cpu.current = thread
            cpu.since = self.now
            self.spent["switch"] += self._switch_ns
            self._at(self.hardware.idle_ns + self._switch_ns, lambda: self._step(thread))
            return
        # A woken thread goes first, because it has not run for the longest time.
        cpu.waiting.appendleft(thread)
        cpu.resched |= preempts
        if cpu.current.state == "spinning":
            self._end_spin(cpu.current, 0.0)

    def _end_spin(self, thread: Thread, delay: float) -> None:
        thread.state = "running"
        thread.spins += 1
        self._at(delay, lambda: self._step(thread))

    def _leave(self, cpu: Cpu) -> None:
        """Give the CPU to the next waiting thread."""
        cpu.resched = False
        cpu.current = cpu.waiting.popleft() if cpu.waiting else None
        cpu.since = self.now
        if (following := cpu.current) is not None:
            self.spent["switch"] += self._switch_ns
            self._at(self._switch_ns, lambda: self._step(following))

    def _step(self, thread: Thread) -> None:
        cpu = thread.cpu
        thread.state = "running"
        action = next(thread.steps)
        while action in (SLEEP, SPIN) and thread.woken:
            thread.woken = False
            action = next(thread.steps)
        if action == RESCHED:
            if cpu.waiting and (cpu.resched or self.now - cpu.since > SLICE_NS):
                thread.state = "ready"
                self._leave(cpu)
                cpu.waiting.append(thread)
            else:
                self._at(0.0, lambda: self._step(thread))
        elif action == SLEEP:
            thread.state = "sleeping"
            self._leave(cpu)
        elif action == SPIN and self.considerate and cpu.waiting:
            self._at(0.0, lambda: self._step(thread))
        elif action == SPIN:
            thread.state = "spinning"
            self._at(self.spin_ns, self._timeout(thread, thread.spins))
        elif isinstance(action, Pause):
            thread.state = "pausing"
            self._at(action.ns, lambda: self._enqueue(thread))
            self._leave(cpu)
        else:
            assert isinstance(action, float)
            self._at(action, lambda: self._step(thread))

    def _timeout(self, thread: Thread, spins: int) -> Callable[[], None]:
        def happen() -> None:
            if thread.state == "spinning" and thread.spins == spins:
                self._end_spin(thread, 0.0)

        return happen
