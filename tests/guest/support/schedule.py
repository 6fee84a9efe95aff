# SPDX-License-Identifier: LGPL-2.1-or-later
"""A random schedule: workers on an exclusive mount, whose daemon delays and reorders its answers.

A seed chooses the operations of the workers, the changes that the daemon makes by itself, and the
schedule. The daemon keeps each request. When all workers wait, the seed chooses what happens next:
a worker starts an operation, a request is handled, an answer is sent, the daemon changes a file, or
it notifies the kernel. Several of these may happen at the same time. In addition the workers are
delayed at functions of the kernel (`delays`), so that the answer to one of them finds another one
in the middle of something.

The same seed makes the same choices. It repeats the same schedule, as far as the kernel itself does
the same in the same order.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import select
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tests.guest.support import wire
from tests.guest.support.delays import Delays
from tests.guest.support.history import ViolationError
from tests.guest.support.schedule_mount import ScheduleMount
from tests.guest.support.schedule_operations import (
    DIRECTORY,
    FILES,
    FIRST_VALUE,
    NAMES,
    SIZE,
    XATTR,
    Chooser,
    Operation,
    Profile,
)
from tests.guest.support.schedule_record import DAEMON, Call, Record
from tests.guest.support.schedule_worker import QUIT, Worker
from tests.guest.support.wire import Request

WORKERS = 3
OPERATIONS = 12
CHANGES = 5
_SETTLE_MS = 4
_HANGS_S = 30
_PROMPT = ("release", "releasedir", "flush", "statfs", "interrupt", "init")
"""Requests that are answered immediately, because nothing depends on when."""

_LONG_S = 3600.0


@dataclass
class _Held:
    """A request that the daemon has, and its answer once it is handled."""

    request: Request
    call: Call | None
    order: tuple[Any, ...]
    answer: bytes | None = None


class Schedule:
    """One random schedule; `run` runs it, `close` ends it, however it went.

    :param mount: the mount, which no other schedule uses at the same time.
    :param top: name of a new directory of the mount.
    :param lower: a directory for backing files.
    """

    def __init__(
        self,
        mount: ScheduleMount,
        top: str,
        lower: Path,
        profile: Profile,
        seed: int,
        delays: Delays,
    ) -> None:
        self._mount, self._daemon = mount, mount.daemon
        self._top = top
        self._profile = profile
        self._delays = delays
        self._random = random.Random(f"{seed} {profile.name}")
        # A schedule is eager if answers come soon, and lazy if they wait for one another.
        self._weights = {
            "start": self._random.choice((1, 3)),
            "handle": self._random.choice((1, 3)),
            "answer": self._random.choice((1, 3)),
            "change": 1,
            "notify": self._random.choice((1, 2)),
        }
        self._daemon.set_timeouts(self._random.choice((0.0, _LONG_S)))
        model = self._daemon.model
        model.mkdir(top)
        self._inos = [model.create(f"{top}/{f}", bytes([FIRST_VALUE]) * SIZE) for f in FILES]
        model.mkdir(f"{top}/{DIRECTORY}")
        model.hard_link(f"{top}/{FILES[0]}", f"{top}/{DIRECTORY}/{NAMES[0]}")
        self._backing: dict[int, int] = {}
        if profile.extents:
            self._make_backing(lower)
        self._record = Record(model, self._inos, self._directory, known_ends=not profile.extents)
        chooser = Chooser(profile, f"{seed}")
        self._left = [list(chooser.operations(OPERATIONS)) for _ in range(WORKERS)]
        self._changes = list(chooser.changes(CHANGES))
        self._changed: list[Call] = []
        self._notifying: dict[int, Call] = {}
        self._threads: list[threading.Thread] = []
        self._errors: dict[int, Exception] = {}
        self._notified, self._tell = os.pipe()
        self._held: list[_Held] = []
        self._busy: dict[int, Call] = {}
        self._workers: list[Worker] = []
        self._prompt = True
        self._poll = select.poll()
        self._poll.register(mount.device, select.POLLIN)
        self._poll.register(self._notified, select.POLLIN)
        for number in range(WORKERS):
            self._add_worker(number)

    @property
    def _directory(self) -> str:
        return f"{self._top}/{DIRECTORY}"

    def _make_backing(self, lower: Path) -> None:
        for ino, name in zip(self._inos, FILES, strict=True):
            fd = os.open(lower / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            os.pwrite(fd, bytes([FIRST_VALUE]) * SIZE, 0)
            self._backing[ino] = fd
        self._daemon.set_backing(self._backing)

    def _add_worker(self, number: int) -> None:
        outer, inner = multiprocessing.Pipe()
        strange = {self._mount.device, self._notified, self._tell, outer.fileno()}
        strange |= set(self._backing.values())
        strange |= {worker.pipe.fileno() for worker in self._workers}
        place = self._mount.point / self._top
        worker = Worker(place, inner, outer, strange, mapped=self._profile.mapped)
        self._workers.append(worker)
        self._poll.register(worker.pipe, select.POLLIN)
        self._delays.add(worker.pid, self._random.getrandbits(63) | 1)

    @property
    def lines(self) -> list[str]:
        """What happened so far, for a message."""
        return self._record.lines

    def run(self) -> None:
        """Run the schedule, and check its results.

        :raises ViolationError: a result is wrong, or a call hangs.
        """
        for number in range(WORKERS):
            self._start(number, Operation("open"))
        self._pump_until(lambda: not self._busy)
        for ino, fd in self._backing.items():
            self._mount.map(ino, fd, SIZE)
        self._prompt = False
        while self._step():
            pass
        self._prompt = True
        self._finish()
        self._record.check()

    # What happens

    def _pump(self, timeout_ms: float) -> bool:
        """Take everything that has arrived; return whether there was anything."""
        events = self._poll.poll(timeout_ms)
        ready = {fd for fd, _ in events}
        if self._mount.device in ready:
            request = self._daemon.take()
            if request:
                self._arrive(request)
        if self._notified in ready:
            number = os.read(self._notified, 1)[0]
            call = self._notifying.pop(number)
            if number in self._errors:
                raise ViolationError(f"notifying of {call.operation}: {self._errors[number]!r}")
            self._record.end(call, True, None)
        for number, worker in enumerate(self._workers):
            if worker.pipe.fileno() in ready:
                try:
                    good, result = worker.pipe.recv()
                except EOFError:
                    raise ViolationError(f"worker {number} has died") from None
                self._record.end(self._busy.pop(number), good, result)
        return bool(ready)

    def _arrive(self, request: Request) -> None:
        numbers = [n for n, worker in enumerate(self._workers) if worker.pid == request.pid]
        call = self._busy.get(numbers[0]) if numbers else None
        if self._prompt or request.opcode in _PROMPT:
            self._record.arrive(call, request)
            answer = self._daemon.handle(request)
            self._record.apply(call, request)
            self._daemon.send(answer)
            return
        self._record.arrive(call, request)
        order = (*(numbers or [WORKERS]), request.opcode, request.nodeid)
        offset = request.offset if "offset" in request.fields else 0
        self._held.append(_Held(request, call, (*order, offset)))

    def _settle(self) -> None:
        """Take what arrives, until all workers wait for the daemon or nothing arrives any more."""
        while True:
            held = {held.request.pid for held in self._held}
            waits = all(self._workers[n].pid in held for n in self._busy) and not self._notifying
            if not self._pump(0 if waits else _SETTLE_MS):
                return

    def _pump_until(self, condition: Callable[[], bool], timeout_ms: float = 1000) -> None:
        end = time.monotonic() + _HANGS_S
        while not condition():
            self._pump(timeout_ms)
            if time.monotonic() > end:
                raise self._hang()

    def _hang(self) -> ViolationError:
        waiting = {f"w{n}": f"{call}\n{self._workers[n].stack()}" for n, call in self._busy.items()}
        told = ", ".join(map(str, self._notifying.values()))
        text = "\n".join(f"{name}: {where}" for name, where in waiting.items())
        return ViolationError(f"nothing goes on; notifications: {told or 'none'}; calls:\n{text}")

    def _possible(self) -> list[tuple[str, Callable[[], None]]]:
        """Return what may happen next, in an order that depends on the seed only."""
        found: list[tuple[str, Callable[[], None]]] = []
        for number, left in enumerate(self._left):
            if left and number not in self._busy:
                found.append(("start", partial(self._start_next, number)))
        for held in sorted(self._held, key=lambda held: held.order):
            if held.answer is None:
                found.append(("handle", partial(self._handle, held)))
            else:
                found.append(("answer", partial(self._answer, held)))
        if self._changes:
            found.append(("change", self._change))
        for call in self._changed:
            found.append(("notify", partial(self._notify, call)))
        return found

    def _step(self) -> bool:
        """Let one or more things happen; return False if the schedule is over."""
        self._settle()
        for _ in range(self._random.choice((1, 1, 1, 2, 3))):
            possible = self._possible()
            if not possible:
                break
            weights = [self._weights[kind] for kind, _ in possible]
            self._random.choices(possible, weights)[0][1]()
        else:
            return True
        if not self._busy and not self._notifying:
            return bool(self._held)
        end = time.monotonic() + _HANGS_S
        while not self._pump(1000):
            if time.monotonic() > end:
                raise self._hang()
        return True

    def _start_next(self, number: int) -> None:
        self._start(number, self._left[number].pop())

    def _start(self, number: int, operation: Operation) -> None:
        self._busy[number] = self._record.start(operation, f"w{number}")
        self._workers[number].pipe.send(operation)

    def _handle(self, held: _Held) -> None:
        held.answer = self._daemon.handle(held.request)
        self._record.apply(held.call, held.request)
        if self._random.random() < 0.5:
            self._answer(held)

    def _answer(self, held: _Held) -> None:
        assert held.answer is not None
        self._held.remove(held)
        whose = held.call.caller if held.call else "-"
        self._record.note(f"{whose} <= {held.request.opcode}")
        self._daemon.send(held.answer)

    # Changes of the daemon

    def _change(self) -> None:
        operation = self._changes.pop()
        call = self._record.start(operation, DAEMON)
        if operation.kind == "daemon_write":
            self._daemon_write(call)
        elif operation.kind.startswith("daemon_"):
            getattr(self, f"_{operation.kind}")(operation)
        self._record.apply_own(call)
        self._changed.append(call)

    def _daemon_write(self, call: Call) -> None:
        """Write the part of the range that the file has: the size stays."""
        o, inode = call.operation, self._daemon.model.get(self._inos[call.operation.file])
        end = max(min(o.at + o.length, inode.size), o.at)
        assert call.change is not None
        call.change.high = end
        if end > o.at:
            self._daemon.model.write(inode.ino, o.at, bytes([o.value]) * (end - o.at))

    def _daemon_truncate(self, o: Operation) -> None:
        self._daemon.model.truncate(self._inos[o.file], o.at)

    def _daemon_chmod(self, o: Operation) -> None:
        inode = self._daemon.model.get(self._inos[o.file])
        inode.mode = inode.mode & ~0o777 | o.value
        self._daemon.model.changed(inode)

    def _daemon_setxattr(self, o: Operation) -> None:
        inode = self._daemon.model.get(self._inos[o.file])
        inode.xattrs[XATTR.encode()] = b"%d" % o.value
        self._daemon.model.changed(inode)

    def _daemon_link(self, o: Operation) -> None:
        directory = self._daemon.model.walk(self._directory)
        if o.name.encode() not in directory.entries:
            self._daemon.model.link(self._inos[o.file], directory.ino, o.name.encode())

    def _daemon_unlink(self, o: Operation) -> None:
        if o.name.encode() in self._daemon.model.walk(self._directory).entries:
            self._daemon.model.remove(f"{self._directory}/{o.name}")

    def _notify(self, call: Call) -> None:
        """Notify the kernel of a change, in a thread, since the kernel may wait for an answer."""
        self._changed.remove(call)
        number = next(n for n in range(256) if n not in self._notifying)
        self._notifying[number] = call
        self._record.note(f"daemon notifies of {call.operation}")
        messages = self._messages(call.operation)

        def send() -> None:
            try:
                for message in messages:
                    message()
            except Exception as error:  # noqa: BLE001 - the main thread raises it
                self._errors[number] = error
            os.write(self._tell, bytes([number]))

        thread = threading.Thread(target=send, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _messages(self, o: Operation) -> list[Callable[[], None]]:
        """Return the notifications of a change."""
        mount, nodeids = self._mount, self._daemon.nodeids
        ino = self._inos[o.file]
        if o.kind == "unmap":
            return [partial(mount.unmap, ino)]
        if o.kind == "map":
            return [partial(mount.map, ino, self._backing[ino], SIZE)]
        inos, found = [ino], []
        if o.kind in ("daemon_link", "daemon_unlink"):
            directory = nodeids.known(self._daemon.model.walk(self._directory).ino)
            found.append(wire.inval_entry(directory, o.name.encode()))
            inos = self._inos
        found += [wire.inval_inode(nodeids.known(ino), 0, 0) for ino in inos]
        return [partial(mount.notify, message) for message in found]

    # The end

    def _finish(self) -> None:
        """Check that the mount shows what the daemon has, when nothing is under way any more."""
        for file, name in enumerate(FILES):
            inode = self._daemon.model.get(self._inos[file])
            facts = inode.ino, inode.mode, inode.size, inode.nlink
            self._do(Operation("fsync", file))
            data = self._daemon.data(inode.ino, 2 * SIZE)
            value = inode.xattrs.get(XATTR.encode())
            self._same(self._do(Operation("stat", file)), facts, f"stat of {name}")
            self._same(self._do(Operation("stat_forced", file)), facts, f"statx of {name}")
            everything = Operation("read", file, 0, 2 * SIZE)
            self._same(self._do(everything), data, f"read of {name}")
            self._same(self._do(Operation("whole", file)), data, f"direct read of {name}")
            self._do(Operation("drop", file))
            self._same(self._do(everything), data, f"read of {name} again")
            listed = self._do(Operation("listxattr", file))
            self._same(listed, [] if value is None else [XATTR], f"listxattr of {name}")
        entries = self._daemon.model.walk(self._directory).entries
        names = sorted(name.decode() for name in entries)
        self._same(sorted(self._do(Operation("list"))), names, "the names")
        for name in names:
            ino = self._do(Operation("stat_name", name=name))[0]
            self._same(ino, entries[name.encode()], f"the inode of {name}")
        for worker in self._workers:
            worker.pipe.send(QUIT)
            self._poll.unregister(worker.pipe)
        self._pump_until(self._workers_end, 10)
        faults = self._daemon.faults()
        if faults:
            raise ViolationError(f"{faults}")

    def _workers_end(self) -> bool:
        """Return whether all workers have ended; they need answers to close their files."""
        for worker in list(self._workers):
            if os.waitpid(worker.pid, os.WNOHANG)[0]:
                self._delays.remove(worker.pid)
                worker.pipe.close()
                self._workers.remove(worker)
        return not self._workers

    def _do(self, operation: Operation) -> Any:
        self._start(0, operation)
        call = self._busy[0]
        self._pump_until(lambda: not self._busy)
        if not call.good:
            raise ViolationError(f"{operation} fails with {os.strerror(call.result)} in the end")
        return call.result

    def _same(self, seen: Any, true: Any, what: str) -> None:
        if seen == true:
            return
        if isinstance(seen, bytes):
            pairs = enumerate(zip(seen, true, strict=False))
            wrong = next((n for n, (s, t) in pairs if s != t), -1)
            what += f", {len(seen)} bytes, not {len(true)}, different at {wrong:#x}"
            seen, true = seen[wrong : wrong + 4], true[wrong : wrong + 4]
        raise ViolationError(f"in the end, {what} is {seen}, not {true}")

    def close(self) -> None:
        """End the workers; if the schedule has failed, the mount cannot be used any more."""
        for worker in self._workers:
            os.kill(worker.pid, signal.SIGKILL)
            self._delays.remove(worker.pid)
            worker.pipe.close()
        for thread in self._threads:
            thread.join(_HANGS_S)
        # A thread that hangs would write to a descriptor of the next schedule.
        pipe = () if any(map(threading.Thread.is_alive, self._threads)) else self._pipe()
        for fd in (*pipe, *self._backing.values()):
            os.close(fd)
        self._daemon.set_backing({})

    def _pipe(self) -> tuple[int, int]:
        return self._notified, self._tell
