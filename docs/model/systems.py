# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ways of requests to a daemon, step by step: which lines are touched, who is woken.

``fuse`` has one queue with one lock; ``queues`` one for each CPU, and readers that sleep in one
place; ``channels`` one for each CPU with a worker that looks before it sleeps. Each CPU that takes
part has callers, who ask again when they are answered, and one worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field

from docs.model.machine import RESCHED, SLEEP, SPIN, Hardware, Line, Machine, Pause, Steps, Thread

SYSTEMS = ("fuse", "queues", "channels")

ROTATION = 4
MAX_SPIN_CREDIT, SPIN_PAUSE = 8, 32


@dataclass(frozen=True)
class Costs:
    """What code takes: instructions.

    :ivar caller: of a request, without the switch to another thread.
    :ivar daemon: likewise, what the daemon does for it included.
    :ivar wake: of who wakes another.
    :ivar switch: of a CPU from one thread to another.
    :ivar hold: while a lock is held.
    :ivar look: at one queue.
    :ivar look_for_worker: at one channel.
    :ivar spin_ns: nanoseconds of looking before sleeping.
    :ivar hands_over: who gets a reply gets the CPU, before the worker looks for the next request.
    """

    caller: float
    daemon: float
    wake: float
    switch: float
    hold: float
    look: float
    look_for_worker: float
    spin_ns: float
    hands_over: bool


@dataclass(frozen=True)
class Load:
    """What is asked.

    :ivar cpus: how many take part, the first of the machine's; each has a worker.
    :ivar callers: on each of them.
    :ivar idle: the last of them that have no caller.
    :ivar think_ns: mean time between an answer and the next request of a caller.
    :ivar background: every request is one: it takes fc->bg_lock, to be sent and to be ended.
    :ivar considerate: see `Machine`.
    :ivar without: names of locks and counters that cost nothing.
    :ivar migrated: every reply comes on another descriptor: it takes fc->lock.
    """

    cpus: int
    callers: int = 1
    idle: int = 0
    think_ns: float = 0.0
    background: bool = False
    migrated: bool = False
    considerate: bool = True
    without: frozenset[str] = frozenset()


@dataclass
class Result:
    """What came of it: requests a second, times of requests (ns), CPU time of a request (ns)."""

    rate: float
    p50: float
    p99: float
    spent: dict[str, float]


@dataclass
class _SpinCredit:
    credit: int = MAX_SPIN_CREDIT
    skipped: int = 0

    def tries(self) -> bool:
        if self.credit:
            return True
        self.skipped = (self.skipped + 1) % SPIN_PAUSE
        return not self.skipped

    def tell(self, hit: bool) -> None:
        self.credit = min(self.credit + 1, MAX_SPIN_CREDIT) if hit else max(self.credit - 1, 0)


@dataclass
class _Request:
    caller: Thread
    done: bool = False


@dataclass
class _Queue:
    """A queue of requests, the channel's state beside it, and the channel's worker."""

    cpu: int
    line: Line = field(default_factory=Line)
    items: deque[_Request] = field(default_factory=deque)
    channel: Line = field(default_factory=Line)
    replying: bool = False
    polls: bool = False
    claimed: bool = False
    sleeper: Thread | None = None
    looks: int = 0
    worker_credit: _SpinCredit = field(default_factory=_SpinCredit)
    caller_credit: _SpinCredit = field(default_factory=_SpinCredit)


class Simulation:
    """One mount on one machine."""

    def __init__(
        self, system: str, hardware: Hardware, costs: Costs, load: Load, seed: int
    ) -> None:
        self.system = system
        self.load = load
        self.hands_over = costs.hands_over
        unit = hardware.instruction_ns
        self.caller_ns = costs.caller * unit / 2
        self.daemon_ns = costs.daemon * unit
        self.hold_ns = costs.hold * unit
        self.look_ns = costs.look * unit
        self.look_for_worker_ns = costs.look_for_worker * unit
        self.machine = Machine(
            hardware, costs.switch * unit, costs.wake * unit, costs.spin_ns, seed
        )
        self.machine.considerate = load.considerate
        self.machine.free = load.without
        number = 1 if system == "fuse" else hardware.cpus
        self.queues = [_Queue(cpu) for cpu in range(number)]
        self.waitq, self.waiting, self.bg, self.lock = Line(), Line(), Line(), Line()
        self.sleepers: deque[Thread] = deque()
        self._pollers: dict[int, Thread] = {}
        self.times: list[tuple[float, float]] = []
        for cpu in range(load.cpus):
            self.machine.start(cpu, self._worker, pinned=system == "channels")
            for _ in range(load.callers if cpu < load.cpus - load.idle else 0):
                self.machine.start(cpu, self._caller)

    def run(self, ns: float) -> Result:
        """Run for a while to warm up, then for *ns*."""
        warm = ns / 4
        self.machine.run(warm)
        self.machine.spent.clear()
        self.machine.run(warm + ns)
        times = sorted(end - begin for begin, end in self.times if end > warm)
        spent = {what: ns_ / len(times) for what, ns_ in self.machine.spent.items()}
        return Result(
            len(times) * 1e9 / ns, times[len(times) // 2], times[len(times) * 99 // 100], spent
        )

    # Callers

    def _caller(self, thread: Thread) -> Steps:
        machine, cpu = self.machine, thread.cpu.number
        yield Pause(machine.random.uniform(0.0, self.caller_ns + self.daemon_ns))
        while True:
            yield RESCHED
            if self.load.think_ns:
                yield Pause(machine.random.expovariate(1 / self.load.think_ns))
            begin = machine.now
            yield self.caller_ns
            yield machine.change(cpu, self.waiting, 0.0, "num_waiting")
            if self.load.background:
                yield machine.change(cpu, self.bg, self.hold_ns, "bg_lock")
            request = _Request(thread)
            thread.woken = False
            queue = self._choose(cpu)
            yield machine.change(cpu, queue.line, self.hold_ns, "queue")
            queue.items.append(request)
            yield from self._wake(cpu, queue)
            if self.system == "channels" and queue.cpu != cpu and queue.caller_credit.tries():
                if not request.done:
                    yield SPIN
                queue.caller_credit.tell(request.done)
            while not request.done:
                yield SLEEP
            yield self.caller_ns
            yield machine.change(cpu, self.waiting, 0.0, "num_waiting")
            machine.spent["caller"] += 2 * self.caller_ns
            self.times.append((begin, machine.now))

    def _choose(self, cpu: int) -> _Queue:
        """The own queue, or a polling worker's of the node if the own worker is not replying."""
        if self.system == "fuse":
            return self.queues[0]
        if self.system == "channels":
            own = self.queues[cpu]
            if own.replying and not own.items:
                return own
            for queue in self._node_from(cpu):
                if queue.polls and not queue.claimed:
                    queue.claimed = True
                    return queue
        return self.queues[cpu]

    def _wake(self, cpu: int, queue: _Queue) -> Steps:
        machine = self.machine
        if self.system == "channels":
            if queue.replying:
                return
            looked: list[Line] = []
            for other in (queue, *self._node_from(cpu), *self._all_from(cpu)):
                looked.append(other.channel)
                if other.polls or other.sleeper:
                    break
            yield machine.scan(cpu, looked, self.look_for_worker_ns, "look for a worker")
            if other.polls:
                machine.wake(self._pollers[other.cpu], cpu)
            elif (worker := other.sleeper) is not None:
                other.sleeper = None
                yield machine.change(cpu, other.channel, self.hold_ns, "queue")
                yield machine.wake(worker, cpu)
            return
        # FUSE takes the lock in any case.
        if self.system == "fuse" or self.sleepers:
            yield machine.change(cpu, self.waitq, self.hold_ns, "waitq")
            if self.sleepers:
                yield machine.wake(self.sleepers.popleft(), cpu)

    # Workers

    def _worker(self, thread: Thread) -> Steps:
        machine = self.machine
        own = self.queues[thread.cpu.number % len(self.queues)]
        while True:
            request = None
            while request is None:
                thread.woken = False
                cpu = thread.cpu.number
                queue = yield from self._find(cpu)
                if queue is None:
                    yield from self._rest(thread)
                    continue
                yield machine.change(cpu, queue.line, self.hold_ns, "queue")
                request = queue.items.popleft() if queue.items else None
                # Whoever found this worker replying or polling has woken nobody.
                if self.system == "channels" and own.items:
                    yield from self._wake(cpu, own)
            work_ns = self.daemon_ns * machine.random.uniform(0.5, 1.5)
            yield work_ns
            machine.spent["daemon"] += work_ns
            if self.load.migrated:
                yield machine.change(cpu, self.lock, self.hold_ns, "fc->lock")
            if self.load.background:
                yield machine.change(cpu, self.bg, self.hold_ns, "bg_lock")
            request.done = True
            own.replying = True
            yield machine.wake(request.caller, cpu, self.hands_over)
            yield RESCHED
            own.replying = False

    def _find(self, cpu: int) -> Generator[float, None, _Queue | None]:
        """Look as efuse_queue_find() does."""
        own = self.queues[cpu % len(self.queues)]
        if self.system == "fuse":
            yield self.machine.scan(cpu, [own.line], self.look_ns, "look for a request")
            return own if own.items else None
        first, filled = cpu, bool(own.items)
        if filled:
            own.looks += 1
            if own.looks % ROTATION == 0:
                first = own.looks // ROTATION % len(self.queues)
        elsewhere = None
        looked: list[Line] = []
        size = self.machine.hardware.per_node
        for queue in self._all_from(first):
            looked.append(queue.line)
            if not queue.items and len(looked) < size:
                continue
            # What was there may have gone before this comes to it.
            yield self.machine.scan(cpu, looked, self.look_ns, "look for a request")
            looked.clear()
            if queue.items and (filled or queue.cpu // size == cpu // size):
                return queue
            if queue.items:
                elsewhere = elsewhere or queue
        yield self.machine.scan(cpu, looked, self.look_ns, "look for a request")
        return elsewhere

    def _rest(self, thread: Thread) -> Steps:
        """Look for a while, if it is a channel's worker; then sleep, unless something is there."""
        machine, cpu = self.machine, thread.cpu.number
        own = self.queues[cpu % len(self.queues)]
        lines = [queue.line for queue in self.queues]
        if self.system == "channels":
            if self.load.cpus > 1 and own.worker_credit.tries():
                yield machine.change(cpu, own.channel, 0.0, "queue")
                own.polls = True
                self._pollers[cpu] = thread
                if not own.items:
                    yield SPIN
                own.polls = own.claimed = False
                own.worker_credit.tell(bool(own.items))
                if own.items:
                    return
            yield machine.change(cpu, own.channel, self.hold_ns, "queue")
            own.sleeper = thread
        else:
            yield machine.change(cpu, self.waitq, self.hold_ns, "waitq")
            self.sleepers.append(thread)
        yield machine.scan(cpu, lines, self.look_ns, "look before sleeping")
        if not any(queue.items for queue in self.queues):
            yield SLEEP
        if own.sleeper is thread:
            own.sleeper = None
        if thread in self.sleepers:
            self.sleepers.remove(thread)

    # Orders of queues

    def _node_from(self, cpu: int) -> list[_Queue]:
        size = self.machine.hardware.per_node
        first = cpu - cpu % size
        node = self.queues[first : first + size]
        return node[cpu - first :] + node[: cpu - first]

    def _all_from(self, cpu: int) -> list[_Queue]:
        return self.queues[cpu:] + self.queues[:cpu]
