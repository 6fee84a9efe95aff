# SPDX-License-Identifier: LGPL-2.1-or-later
"""How requests reach a daemon, step by step: cache lines that are touched, threads that are woken.

``fuse`` has one queue with one lock. ``queues`` has a queue for each CPU, and all readers sleep on
one wait queue. ``channels`` has a queue for each CPU, with a worker that polls before it sleeps.
Each online CPU has one worker, and callers that send the next request after each answer.
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
    """The costs of code, in instructions unless noted otherwise.

    :ivar caller: a request in the caller, without the switch to another thread.
    :ivar daemon: a request in the daemon, with its own work, without the switch to another thread.
    :ivar wake: waking a thread, in the waker.
    :ivar switch: a switch of a CPU from one thread to another.
    :ivar hold: the work while a lock is held.
    :ivar look: looking at one queue.
    :ivar look_for_worker: looking at one channel.
    :ivar spin_ns: the time for which a thread polls before it sleeps, in nanoseconds.
    :ivar hands_over: whether the caller that gets a reply gets the CPU before the worker looks for
        the next request.
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
    """The load of a simulation.

    :ivar cpus: the number of online CPUs, from CPU 0; each has a worker.
    :ivar callers: the number of callers on each online CPU.
    :ivar idle: the number of online CPUs without callers: the last ones.
    :ivar think_ns: the mean time between an answer and the caller's next request, in nanoseconds.
    :ivar background: whether every request is a background request, which takes fc->bg_lock when it
        is sent and when it ends.
    :ivar considerate: whether no thread starts polling while another one waits for its CPU.
    :ivar without: the names of the locks and counters that cost nothing.
    :ivar migrated: whether every reply comes on another descriptor, and so takes fc->lock.
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
    """The result of a simulation.

    :ivar rate: requests per second.
    :ivar p50: the median time of a request, in nanoseconds.
    :ivar p99: the 99th percentile of the time of a request, in nanoseconds.
    :ivar spent: the CPU time of a request by purpose, in nanoseconds.
    """

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
    """A queue of requests, with the state of its channel and of the channel's worker."""

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
        """Run for a quarter of *ns* to warm up, then measure for *ns*."""
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
        """Return the queue for a request from *cpu*.

        It is the CPU's own queue, unless a worker of the node polls and the CPU's own worker is not
        about to look at an empty queue after a reply. A polling worker is claimed.
        """
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
        # FUSE takes the lock even if no reader sleeps.
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
                # Callers that found this worker replying or polling have woken no worker.
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
        """Look for a non-empty queue in the order of efuse_queue_find()."""
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
            # Another worker may take the request before this one gets to it.
            yield self.machine.scan(cpu, looked, self.look_ns, "look for a request")
            looked.clear()
            if queue.items and (filled or queue.cpu // size == cpu // size):
                return queue
            if queue.items:
                elsewhere = elsewhere or queue
        yield self.machine.scan(cpu, looked, self.look_ns, "look for a request")
        return elsewhere

    def _rest(self, thread: Thread) -> Steps:
        """Poll for a while if the thread is a channel's worker. Sleep if there is no request."""
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
