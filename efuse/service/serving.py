# SPDX-License-Identifier: LGPL-2.1-or-later
"""The service: start what is described, and start it again when it has ended."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from efuse.control import Connection, Mount, all_mounts
from efuse.control.mounts import MOUNTINFO, numbered
from efuse.display import shown
from efuse.errors import ControlError, EfuseError
from efuse.service.actions import begin, obstacle
from efuse.service.description import Description
from efuse.service.parsing import described
from efuse.service.records import Record, Records
from efuse.service.seeing import Seen, State, see, settled
from efuse.service.silence import Silence
from efuse.supervisor.policy import End, Restarts

__all__ = ["Service", "serve"]

_log = logging.getLogger("efuse.service")
# What no event reports is seen after so many seconds.
_LOOK_S = 5.0
_STARTED = (State.DOWN, State.WAITING, State.ABORTED)


class Service:
    """Attends to the mounts that a directory describes.

    :param directory: the directory.
    :param records: what is remembered of the mounts.
    :param clock: returns the time in seconds.
    :ivar wanted: the valid descriptions by name.
    :ivar invalid: how many others there are.
    """

    def __init__(
        self, directory: Path, records: Records, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directory, self._records, self._clock = directory, records, clock
        self.wanted: dict[str, Description] = {}
        self.invalid = 0
        self._restarts: dict[str, Restarts] = {}
        self._due: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._statuses: dict[int, int] = {}
        self._told: dict[str, str] = {}
        self._silence = Silence(clock=clock)
        self._has_begun = False

    def reload(self) -> None:
        """Read the descriptions. A mount whose description is no longer there goes on.

        :raises EfuseError: the directory cannot be read, or that of the records not be written.
        """
        found = described(self._directory)
        for error in found.errors.values():
            _log.warning("%s", shown(str(error)))
        for name in self.wanted.keys() - found.mounts.keys():
            self._due.pop(name, None)
            self._silence.forget(name)
            _log.warning("%s is not attended to: its description is gone or invalid", name)
        self.wanted, self.invalid = {**found.mounts}, len(found.errors)
        for name in self._records.names():
            if name not in self.wanted:  # nothing looks at it any more
                self._records.note_silence(name, is_silent=False)

    def step(self) -> float:
        """Look at each mount, and start what is to be started.

        :returns: how long nothing has to be done unless something happens, in seconds.
        """
        self._reap()
        self._has_begun = False
        try:
            table = all_mounts()
        except ControlError as error:
            _log.warning("%s", shown(str(error)))
            return _LOOK_S
        for given in self.wanted.values():
            try:
                self._attend(given, table)
            except EfuseError as error:
                self._tell(given.name, str(error))
        if self._has_begun:  # a process that is not watched yet
            return 0.0
        now = self._clock()
        # What is due already has to wait for a command that has the lock of the mount.
        return min([_LOOK_S, *(due - now for due in self._due.values() if due > now)])

    def watched(self) -> Iterator[tuple[int, int]]:
        """Yield a descriptor for each event after which `step` has to look again.

        With each one come the events to poll for. The caller opens them before it calls `step`, so
        that no event is lost, and closes them.
        """
        for given in self.wanted.values():
            with contextlib.suppress(EfuseError):  # `step` has reported it
                yield from self._watched(given)

    def _watched(self, given: Description) -> Iterator[tuple[int, int]]:
        record = self._records.load(given.name)
        if record is None:
            return
        for process in record.started:
            if (fd := process.opened()) >= 0:
                yield fd, select.POLLIN
        # That it is mounted, the table of mounts tells.
        if (found := numbered(record.number)) is not None and found.is_of_fuse:
            with contextlib.suppress(OSError):  # it has ended, or is plain FUSE
                path = Connection(found.connection).path / "daemon"
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                yield fd, select.POLLPRI
                os.pread(fd, 16, 0)  # only a later change is reported

    def _attend(self, given: Description, table: Sequence[Mount]) -> None:
        # A command that has the lock starts, replaces or stops the mount.
        with self._records.locked(given.name, wait=False) as is_locked:
            if not is_locked:
                return
            record = self._records.load(given.name)
            seen = see(record, given.mountpoint, table)
            self._records.shorten_log(given.name)
            if record is not None:
                record = self._settled(given, record, seen)
            if seen.state is State.SERVING:
                self._note_service(given.name, seen)
            elif self._records.is_silent(given.name):
                self._records.note_silence(given.name, is_silent=False)
            why = obstacle(given, record, seen)
            if why:
                self._tell(given.name, why)
            if seen.state not in _STARTED or seen.attendant or why or (record and record.rest):
                self._due.pop(given.name, None)
            else:
                self._start_when_due(given, record, seen)

    def _settled(self, given: Description, record: Record, seen: Seen) -> Record:
        """Record what was seen of a mount."""
        after = settled(record, seen)
        if after.rest == "ended" and given.restart == "always":  # its description was changed
            after = dataclasses.replace(after, rest="")
        if after != record:
            self._records.save(after)
        return after

    def _note_service(self, name: str, seen: Seen) -> None:
        self._restarts.setdefault(name, Restarts("always"))
        self._since.setdefault(name, self._clock())
        self._told.pop(name, None)
        is_silent = self._silence.is_silent(name, seen.connection)
        if is_silent != self._records.is_silent(name):
            self._records.note_silence(name, is_silent=is_silent)
            if is_silent:
                _log.warning("%s does not answer", name)
            else:
                _log.warning("%s answers again", name)

    def _start_when_due(self, given: Description, record: Record | None, seen: Seen) -> None:
        name = given.name
        if name not in self._due:
            delay_s = self._delay(given, record, seen)
            if delay_s is None:
                assert record is not None
                self._records.save(dataclasses.replace(record, rest="ended"))
                _log.warning("%s has ended, and is not started again", name)
                return
            self._due[name] = self._clock() + delay_s
        if self._clock() < self._due[name]:
            return
        del self._due[name]
        # The table of mounts may have changed since.
        seen = see(record, given.mountpoint, all_mounts())
        if seen.state in _STARTED and not seen.attendant:
            self._has_begun = True
            begin(given, self._records, record, seen)

    def _delay(self, given: Description, record: Record | None, seen: Seen) -> float | None:
        """Return how long to wait before a mount is started, in seconds; None: it is not."""
        name = given.name
        if record is None:
            self._restarts[name] = Restarts("always")
            return 0.0
        status = self._statuses.pop(record.process.pid, None)
        served_s = self._clock() - self._since.pop(name) if name in self._since else 0.0
        if self._records.has_begun(name):  # its starter was not killed before that
            if given.restart == "never":
                return None
            if given.restart == "on-failure" and self._has_ended_well(record, seen, status):
                return None
        is_known = name in self._restarts
        restarts = self._restarts.setdefault(name, Restarts("always"))
        if not is_known:  # it has ended while there was no service
            return 0.0
        delay_s = restarts.delay_after(
            End(waiting=True, was_asked=False, failed=True, served_s=served_s)
        )
        how = "its daemon has ended" if seen.connection else "it is not mounted"
        if status:
            how = self._records.last_error(name) or how
        _log.warning("%s is started again in %s s: %s", name, f"{delay_s:g}", shown(how))
        return delay_s

    @staticmethod
    def _has_ended_well(record: Record, seen: Seen, status: int | None) -> bool:
        """Tell whether a mount has ended without a failure.

        A daemon that fails leaves its mount. How a process has ended that another one has started
        is not known: it counts as a failure.
        """
        if seen.state is not State.DOWN:
            return False
        return status == 0 if record.has_command else record.number != 0

    def _reap(self) -> None:
        """Note how the processes have ended that this one has started."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                self._statuses[pid] = os.waitstatus_to_exitcode(status)

    def _tell(self, name: str, what: str) -> None:
        """Log a problem, but only once until the mount is served."""
        if self._told.get(name) != what:
            self._told[name] = what
            _log.warning("%s is not started: %s", name, shown(what))


def serve(directory: Path, records: Records, *, ready: Callable[[], None]) -> Service:
    """Be the service until SIGINT or SIGTERM arrives. The mounts go on after that.

    :param directory: directory of the descriptions.
    :param ready: called once, when everything that is to be started has been started.
    :raises EfuseError: another process is the service, or the directory cannot be read.
    """
    service = Service(directory, records)
    with (
        _signals() as (wakes, seen),
        records.serving(directory),
        MOUNTINFO.open("rb", buffering=0) as table,
    ):
        service.reload()
        records.note_service(directory, invalid=service.invalid)
        is_ready = False
        while True:
            with _watching(service, table.fileno(), wakes) as poll:
                wait_s = service.step()
                if not is_ready:
                    is_ready = True
                    ready()
                poll.poll(wait_s * 1000)
            with contextlib.suppress(BlockingIOError):
                os.read(wakes, 4096)
            if signal.SIGHUP in seen:
                seen.discard(signal.SIGHUP)
                _reload(service, records, directory)
            if seen:
                return service


def _reload(service: Service, records: Records, directory: Path) -> None:
    try:
        service.reload()
        records.note_service(directory, invalid=service.invalid)
    except EfuseError as error:
        _log.warning("%s", shown(str(error)))
    else:
        _log.warning("the descriptions were read again: %d are valid", len(service.wanted))


@contextlib.contextmanager
def _signals() -> Iterator[tuple[int, set[int]]]:
    """Take the signals of the service. Yield a descriptor that a signal makes readable."""
    receive, send = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    seen: set[int] = set()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, lambda n, _: seen.add(n)) for number in numbers}
    wakes = signal.set_wakeup_fd(send, warn_on_full_buffer=False)
    try:
        yield receive, seen
    finally:
        signal.set_wakeup_fd(wakes)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(receive)
        os.close(send)


@contextlib.contextmanager
def _watching(service: Service, table: int, wakes: int) -> Iterator[select.poll]:
    """Watch the mounts and processes. Yield what reports an event since then, or a signal.

    :param table: descriptor of mountinfo.
    :param wakes: descriptor that a signal makes readable.
    """
    poll = select.poll()
    with contextlib.ExitStack() as stack:
        poll.register(table, select.POLLPRI)
        poll.register(wakes, select.POLLIN)
        for fd, events in service.watched():
            stack.callback(os.close, fd)
            poll.register(fd, events)
        yield poll
