# SPDX-License-Identifier: LGPL-2.1-or-later
"""A machine to think with: CPUs on nodes, cache lines that move between them, threads that wait.

A thread is a generator. It yields how many nanoseconds it computes, or `SLEEP`, `SPIN` or a
`Pause`, and goes on when that is over; sleeping may end for nothing. All of a run follows from its
seed.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import defaultdict, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass

SLEEP = "sleep"
"""Yielded to wait until somebody wakes the thread."""

SPIN = "spin"
"""Yielded to look for `Machine.spin_ns`, until that, or until another thread wants the CPU."""

RESCHED = "resched"
"""Yielded where the CPU goes to who has preempted the thread: cond_resched(), or to user space."""

SLICE_NS = 3e6
"""How long a thread keeps its CPU from others that wait for it (base_slice_ns of the scheduler)."""


@dataclass(frozen=True)
class Pause:
    """Yielded to leave the CPU for so long."""

    ns: float


Steps = Generator[float | str | Pause, None, None]


@dataclass(frozen=True)
class Hardware:
    """What the machine costs.

    :ivar cpus: as many as could ever be plugged in: the kernel has a queue for each.
    :ivar per_node: of them on one node.
    :ivar instruction_ns: of the code that is measured in instructions.
    :ivar near_ns: a cache line from another CPU of the node.
    :ivar far_ns: from one of another node.
    :ivar overlap: how many lines are on their way at once where one after the other is looked at.
    :ivar idle_ns: until a CPU that had nothing to do runs what was woken on it.
    """

    cpus: int
    per_node: int
    instruction_ns: float
    near_ns: float
    far_ns: float
    overlap: float
    idle_ns: float


class Line:
    """A cache line, and when the last of those who want to change it will have done so."""

    __slots__ = ("free_at", "holders")

    def __init__(self) -> None:
        self.holders = 1
        self.free_at = 0.0


class Cpu:
    """A CPU: who runs, and who waits for it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.current: Thread | None = None
        self.waiting: deque[Thread] = deque()
        self.resched = False
        self.online = False
        self.since = 0.0


class Thread:
    """A thread. One that is not pinned may find itself on another CPU when it was woken."""

    def __init__(self, cpu: Cpu, pinned: bool) -> None:
        self.cpu = cpu
        self.pinned = pinned
        self.state = "ready"
        self.woken = False
        self.spins = 0
        self.steps: Steps


class Machine:
    """Runs threads; *spent* counts nanoseconds of CPUs by what they were spent on.

    With *considerate* nobody looks while another thread waits for the CPU, also one that was not
    woken but had to make room.
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
        """How long the farthest of *holders* takes."""
        return self.hardware.far_ns if holders & ~self._node[cpu] else self.hardware.near_ns

    def read(self, cpu: int, line: Line) -> float:
        """Return what a look at a line costs."""
        if line.holders >> cpu & 1:
            return 0.0
        near = line.holders & self._node[cpu]
        line.holders |= 1 << cpu
        return self.hardware.near_ns if near else self.hardware.far_ns

    def write(self, cpu: int, line: Line) -> float:
        """Return what it costs to have a line alone."""
        others = line.holders & ~(1 << cpu)
        line.holders = 1 << cpu
        return self._distance(cpu, others) if others else 0.0

    def change(self, cpu: int, line: Line, hold_ns: float, what: str) -> float:
        """Return how long an atomic operation, or a lock held for *hold_ns*, takes in its turn.

        Who waits for a lock is told by another line. What is in `free` costs nothing.
        """
        if what in self.free:
            return 0.0
        waits = max(0.0, line.free_at - self.now)
        cost = self.write(cpu, line) * (2 if waits and hold_ns else 1)
        line.free_at = self.now + waits + cost + hold_ns
        self.spent[what] += waits + cost + hold_ns
        return waits + cost + hold_ns

    def scan(self, cpu: int, lines: list[Line], look_ns: float, what: str) -> float:
        """Return what it costs to look at many lines."""
        cost = look_ns * len(lines)
        cost += sum(self.read(cpu, line) for line in lines) / self.hardware.overlap
        self.spent[what] += cost
        return cost

    # Threads

    def start(self, cpu: int, make: Callable[[Thread], Steps], pinned: bool = True) -> Thread:
        """Add a thread. A CPU takes part if one starts there."""
        self.cpus[cpu].online = True
        thread = Thread(self.cpus[cpu], pinned)
        thread.steps = make(thread)
        thread.state = "sleeping"
        self._at(0.0, lambda: self._enqueue(thread))
        return thread

    def wake(self, thread: Thread, by: int, preempts: bool = True) -> float:
        """Wake a thread; return what it costs the one who does, on the CPU *by*.

        :param preempts: it need not wait until the one who runs there sleeps.
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
        """Go on until that time."""
        while self._events and self._events[0][0] <= until_ns:
            self.now, _, happen = heapq.heappop(self._events)
            happen()

    def _at(self, delay: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._order), happen))

    def _place(self, thread: Thread) -> Cpu:
        """Where a thread is to run: where it was, unless another CPU of the node is idle."""
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
        # Who was woken slept longest: it goes first.
        cpu.waiting.appendleft(thread)
        cpu.resched |= preempts
        if cpu.current.state == "spinning":
            self._end_spin(cpu.current, 0.0)

    def _end_spin(self, thread: Thread, delay: float) -> None:
        thread.state = "running"
        thread.spins += 1
        self._at(delay, lambda: self._step(thread))

    def _leave(self, cpu: Cpu) -> None:
        """Give the CPU to whoever waits for it."""
        cpu.resched = False
        cpu.current = cpu.waiting.popleft() if cpu.waiting else None
        cpu.since = self.now
        if (following := cpu.current) is not None:
            self.spent["switch"] += self._switch_ns
            self._at(self._switch_ns, lambda: self._step(following))

    def _step(self, thread: Thread) -> None:
        cpu = thread.cpu
        thread.state = "running"
        said = next(thread.steps)
        while said in (SLEEP, SPIN) and thread.woken:
            thread.woken = False
            said = next(thread.steps)
        if said == RESCHED:
            if cpu.waiting and (cpu.resched or self.now - cpu.since > SLICE_NS):
                thread.state = "ready"
                self._leave(cpu)
                cpu.waiting.append(thread)
            else:
                self._at(0.0, lambda: self._step(thread))
        elif said == SLEEP:
            thread.state = "sleeping"
            self._leave(cpu)
        elif said == SPIN and self.considerate and cpu.waiting:
            self._at(0.0, lambda: self._step(thread))
        elif said == SPIN:
            thread.state = "spinning"
            self._at(self.spin_ns, self._timeout(thread, thread.spins))
        elif isinstance(said, Pause):
            thread.state = "pausing"
            self._at(said.ns, lambda: self._enqueue(thread))
            self._leave(cpu)
        else:
            assert isinstance(said, float)
            self._at(said, lambda: self._step(thread))

    def _timeout(self, thread: Thread, spins: int) -> Callable[[], None]:
        def happen() -> None:
            if thread.state == "spinning" and thread.spins == spins:
                self._end_spin(thread, 0.0)

        return happen
