# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answer the calls of a daemon: what the answer is, a process made for each call finds out."""

from __future__ import annotations

import collections
import contextlib
import errno
import functools
import logging
import os
import re
import select
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from efuse.control.mounts import MOUNTINFO, mounts
from efuse.display import shown
from efuse.errors import ControlError
from efuse.fs.acceleration import Acceleration
from efuse.fs.mountpoint import DEVICE
from efuse.supervisor import reports
from efuse.supervisor.answering import Answering, Situation
from efuse.supervisor.caller import Caller
from efuse.supervisor.children import descendants
from efuse.supervisor.daemon_mount import DaemonMount
from efuse.supervisor.notifications import Listener, Notification
from efuse.supervisor.spawner import Spawner

__all__ = ["Errands"]

_log = logging.getLogger("efuse.fs")

# What this process may look at later.
_NEEDED = ("/dev/efuse", "/sys/fs/efuse", sys.prefix, sys.base_prefix, str(Path(__file__).parent))
# So many calls of one process are answered at the same time.
_MOST_PER_PROCESS = 8


class _Errand:
    """A call whose answer a process is finding.

    :ivar socket: to that process.
    :ivar report: the last thing that the process has reported.
    :ivar mount: the mount that the call asks for, once it has been made.
    :ivar places: the descriptors of the caller that have been replaced.
    :ivar fds: descriptors that came with the reports.
    """

    def __init__(self, call: Notification, owner: int, pidfd: int, to: socket.socket) -> None:
        self.call, self.owner, self.socket, self._pidfd = call, owner, to, pidfd
        self.report: reports.Report | None = None
        self.mount: DaemonMount | None = None
        self.places: Mapping[int, bool] = {}
        self.fds: list[int] = []

    def kill(self) -> None:
        """Kill the process."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def await_end(self) -> None:
        """Wait for the process, which has ended or was killed."""
        self.socket.close()
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        poll.poll()
        os.close(self._pidfd)

    def close_fds(self) -> None:
        """Close the descriptors that came with the reports."""
        while self.fds:
            os.close(self.fds.pop())

    def tell(self, number: int) -> None:
        """Tell the process to go on (0), or that the call is to fail with an errno."""
        with contextlib.suppress(OSError):  # it has ended
            reports.send(self.socket, number)


class Errands:
    """The calls of a daemon that are being answered.

    :param listener: receives them.
    :param attach: attaches the handlers to the connection with a number, or raises an `EfuseError`.
    :param require: whether a mount without handlers is refused (EPERM).
    :ivar mounts: the mounts of the daemon on eFuse, also those that no process can reach yet.
    :ivar has_mounted: whether the daemon has mounted anything, maybe by a program that knows eFuse.
    """

    def __init__(
        self, listener: Listener, attach: Callable[[int], Acceleration], *, require: bool
    ) -> None:
        self.mounts: list[DaemonMount] = []
        self.has_mounted = False
        self._listener, self._attach, self._require = listener, attach, require
        self._errands: dict[int, _Errand] = {}
        self._waiting: collections.deque[Notification] = collections.deque()
        self._confined = False
        self._device, self._device_number = -1, 0
        with contextlib.suppress(FileNotFoundError):  # then, a mount fails for this reason
            self._device = os.open(DEVICE, os.O_PATH | os.O_CLOEXEC)
            self._device_number = os.fstat(self._device).st_rdev
        self._spawner = Spawner(self._device)

    def close(self) -> None:
        """End the processes. Unanswered calls fail, or are left to the kernel."""
        self.end_all()
        self._spawner.close()
        if self._device >= 0:
            os.close(self._device)

    def end_all(self) -> None:
        """End the processes that look for answers."""
        self._waiting.clear()
        for errand in [*self._errands.values()]:
            errand.kill()
            self._finish(errand)

    @property
    def fds(self) -> list[int]:
        """Descriptors that become readable when `advance` has something to do."""
        return [*self._errands]

    @property
    def processes(self) -> set[int]:
        """The processes that look for answers."""
        return {self._spawner.process, *descendants(self._spawner.process)}

    def unmount(self, mount: DaemonMount) -> None:
        """Unmount a mount of the daemon, as `DaemonMount.unmount` does."""
        mount.unmount(self._spawner)

    def take(self) -> None:
        """Receive a call, and let its answer be found."""
        call = self._listener.receive()
        if call is None:
            return
        if call.name == "landlock_restrict_self":
            self._confined = True
        if call.name in ("", "landlock_restrict_self"):
            self._listener.continue_call(call)
            return
        self._waiting.append(call)
        self._begin_waiting()

    def advance(self, fd: int) -> DaemonMount | None:
        """Hear what a process reports, and answer its call if the process has ended.

        :param fd: one of `fds`.
        :returns: a mount that can now be reached by its path, or that is not one of eFuse.
        """
        errand = self._errands.get(fd)
        if errand is None:  # it has just been ended
            return None
        report, fds = reports.receive(errand.socket)
        errand.fds += fds
        if report is None:
            found = self._finish(errand)
            self._begin_waiting()
            return found
        if isinstance(report, reports.Made):
            try:
                errand.tell(self._make(errand, report))
            except Exception:  # noqa: BLE001 - calls of others go on
                _log.exception("a mount of the daemon fails")
                errand.tell(errno.EIO)
        elif not isinstance(report, int):
            errand.report = report
        return None

    def sweep(self) -> None:
        """End errands whose caller has gone, and release what is held for mounts that ended."""
        for errand in self._errands.values():
            if not self._listener.is_valid(errand.call):
                errand.kill()
        in_hand = {id(errand.mount) for errand in self._errands.values()}
        for mount in [*self.mounts]:
            if id(mount) in in_hand:
                continue
            if not mount.is_mounted:
                self._abandon(mount)
            elif mount.is_dead:
                mount.detach()

    def _begin_waiting(self) -> None:
        """Begin with those of the waiting calls whose processes have not too many in hand."""
        busy = collections.Counter(errand.owner for errand in self._errands.values())
        for call in [*self._waiting]:
            try:
                owner = Caller(call.thread).process
                if busy[owner] >= _MOST_PER_PROCESS:
                    continue
                busy[owner] += 1
                self._begin(call, owner)
            except OSError as error:
                # It has ended, or this process has too few descriptors or processes.
                self._listener.answer(call, error.errno or errno.EIO)
            self._waiting.remove(call)

    def _begin(self, call: Notification, owner: int) -> None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            situation = Situation(self._device, self._device_number, self._confined)
            with its:
                job = functools.partial(_find, call, situation)
                pidfd = self._spawner.start(job, [its.fileno()])
            self._errands[ours.fileno()] = _Errand(call, owner, pidfd, ours)
        except OSError:
            ours.close()
            raise

    def _make(self, errand: _Errand, made: reports.Made) -> int:
        """Attach handlers to a new mount, and replace descriptors; return 0 or an errno."""
        where, *swapped = errand.fds
        mount = errand.mount = DaemonMount(
            str(Path(f"/proc/self/fd/{where}").readlink()),
            auto_unmount=made.facts.auto_unmount,
            by_user=made.facts.by_user,
            number=made.number,
        )
        hidden = _hidden_by(mount.mountpoint) if made.facts.hides else ""
        if hidden:
            mount.reason = f"it would hide {hidden} from `efuse run` (EBUSY)"
            return errno.EBUSY
        try:
            if not self._listener.is_valid(errand.call):
                return errno.ESRCH  # it was another process that all this was read from
            mount.begin(made.connection, self._attach)
            self.mounts.append(mount)
            if mount.reason and self._require:
                return errno.EPERM
            for fd, closes in made.places.items():
                self._listener.put(errand.call, swapped[0], fd, cloexec=closes)
            errand.places = made.places
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def _finish(self, errand: _Errand) -> DaemonMount | None:
        """Answer a call whose process has ended; return what `advance` does."""
        del self._errands[errand.socket.fileno()]
        errand.await_end()
        try:
            if errand.mount is not None:
                return self._answer_mount(errand, errand.mount)
            return self._answer(errand)
        except OSError as error:
            _log.warning("a call of the daemon is left to the kernel: %s", shown(str(error)))
            self._listener.continue_call(errand.call)
            return None
        finally:
            errand.close_fds()

    def _answer(self, errand: _Errand) -> DaemonMount | None:
        call, report = errand.call, errand.report
        if isinstance(report, reports.Opened):
            self._listener.give(call, errand.fds[0], cloexec=report.cloexec)
        elif isinstance(report, reports.Swapped):
            for fd, closes in report.places.items():
                self._listener.put(call, errand.fds[0], fd, cloexec=closes)
            errand.close_fds()
            self._listener.continue_call(call)
        elif isinstance(report, reports.Failed):
            self._listener.answer(call, report.number)
        elif isinstance(report, reports.Plain):
            if self._require:
                self._listener.answer(call, errno.EPERM)
            else:
                self.has_mounted = True
                self._listener.continue_call(call)
            return DaemonMount(report.path, reason=report.reason)
        elif isinstance(report, reports.Leave):
            self.has_mounted |= report.uses_efuse
            self._listener.continue_call(call)
        else:  # the process was killed
            self._listener.answer(call, errno.EIO)
        return None

    def _answer_mount(self, errand: _Errand, mount: DaemonMount) -> DaemonMount | None:
        call, report = errand.call, errand.report
        if isinstance(report, reports.Attached) or (
            not isinstance(report, reports.Failed) and _is_attached(mount, call.thread)
        ):
            self.has_mounted = True
            errand.close_fds()
            self._listener.answer(call)
            return mount
        # Why it was refused, if it was for this reason and not by the kernel.
        reason = mount.reason if not errand.places else ""
        self._abandon(mount)
        mount.reason = reason
        with contextlib.suppress(FileNotFoundError):  # the caller is gone
            for fd, closes in errand.places.items():
                self._listener.put(call, errand.fds[-1], fd, cloexec=closes)
        errand.close_fds()
        failed = report.number if isinstance(report, reports.Failed) else errno.EIO
        self._listener.answer(call, failed)
        return mount if reason else None

    def _abandon(self, mount: DaemonMount) -> None:
        mount.abandon()
        self.mounts[:] = [each for each in self.mounts if each is not mount]


def _is_attached(mount: DaemonMount, thread: int) -> bool:
    """Tell whether a mount is attached where this process, or the caller, sees it."""
    for table in (MOUNTINFO, Path(f"/proc/{thread}/mountinfo")):
        with contextlib.suppress(ControlError):  # the caller is gone
            if any(each.connection == mount.connection for each in mounts(mountinfo=table)):
                return True
    return False


def _find(call: Notification, situation: Situation, fds: list[int]) -> int:
    """Find the answer to a call in this process, which was made for it."""
    with socket.socket(fileno=fds[0]) as supervisor:
        Answering(call, situation, supervisor).find()
    return 0


def _hidden_by(path: str) -> str:
    """Return a path that this process needs and that a mount on *path* would hide, or nothing."""
    if re.match(r"/proc(/|$)", path):
        return "/proc"
    return next((needed for needed in _NEEDED if f"{needed}/".startswith(f"{path}/")), "")
