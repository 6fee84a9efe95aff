# SPDX-License-Identifier: LGPL-2.1-or-later
"""Answer the calls of a daemon: what the answer is, a process made for each call finds out.

Only the supervisor answers, when that process has ended. It never waits for one: a daemon can keep
each of them waiting. Whatever goes wrong with one call ends the work on this call alone, which
fails with EIO: any process of the daemon makes such calls.

A call one of whose descriptors was replaced is answered, and never left to the kernel: the kernel
might refuse it, and the caller would keep a descriptor that it had no right to open.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import select
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from efuse.control.mounts import MOUNTINFO, mounts, number_of
from efuse.display import shown, shown_lines
from efuse.errors import ControlError, reason
from efuse.fs.acceleration import Acceleration
from efuse.fs.mountpoint import DEVICE
from efuse.supervisor import reports
from efuse.supervisor.admission import Busy, Owner, owner_of
from efuse.supervisor.ancestry import Confined
from efuse.supervisor.answering import Answering, Situation
from efuse.supervisor.caller import Caller
from efuse.supervisor.children import descendants
from efuse.supervisor.daemon_mount import DaemonMount
from efuse.supervisor.hiding import Needed
from efuse.supervisor.notifications import Listener, Notification, is_clone
from efuse.supervisor.sharing import is_another_file
from efuse.supervisor.spawner import Spawner
from efuse.supervisor.succeeding import Known
from efuse.supervisor.unmounting import Unmounting
from efuse.supervisor.worker import Worker

__all__ = ["Errands"]

_log = logging.getLogger("efuse.fs")

# The calls that the kernel refuses to a caller without the right to mount. It refuses a clone of
# /dev/efuse, too, to one whose own descriptor is of /dev/fuse: see `Answering`.
_MOUNTING = ("mount", "fsopen", "fsconfig", "move_mount", "umount", "umount2")
# A context gets its descriptor of /dev/fuse soon, or never.
_MOST_CONTEXTS = 64
# So many calls may wait before it is asked whether their callers are still there.
_MANY = 1000
# How long the processes of calls that are given up may take to end.
_END_S = 5.0


class _Errand:
    """A call whose answer a process is finding.

    :ivar owner: the user or process that makes the call.
    :ivar worker: the process.
    :ivar report: the last thing that the process has reported.
    :ivar mount: the mount that the call asks for, once it has been made.
    :ivar replaced: the descriptors of the caller that have been replaced.
    :ivar fds: descriptors that came with the reports; the last is what *replaced* was before.
    """

    def __init__(self, call: Notification, owner: Owner, worker: Worker) -> None:
        self.call, self.owner, self.worker = call, owner, worker
        self.report: reports.Report | None = None
        self.mount: DaemonMount | None = None
        self.replaced: dict[int, bool] = {}
        self.fds: list[int] = []

    def close_fds(self) -> None:
        """Close the descriptors that came with the reports."""
        while self.fds:
            os.close(self.fds.pop())


class Errands:
    """The calls of a daemon that are being answered.

    :param listener: receives them.
    :param attach: attaches the handlers to the connection with a number, or raises an `EfuseError`.
    :param first: id of the first process of the daemon.
    :param require: whether a mount without handlers is refused (EPERM).
    :param namespace: see `Situation`.
    :param recovery_s: how long callers wait for a successor of the daemon; 0: not at all.
    :ivar mounts: the mounts of the daemon on eFuse, also those that no process can reach yet.
    :ivar has_mounted: whether the daemon has mounted anything, maybe by a program that knows eFuse.
    :ivar ignores_umounts: whether the daemon is being ended, and does not unmount anything.
    """

    def __init__(
        self,
        listener: Listener,
        attach: Callable[[int], Acceleration],
        *,
        first: int,
        require: bool,
        namespace: str = "",
        recovery_s: int = 0,
    ) -> None:
        self.mounts: list[DaemonMount] = []
        self.has_mounted = self.ignores_umounts = False
        self._listener, self._attach, self._first = listener, attach, first
        self._require, self._recovery_s, self._namespace = require, recovery_s, namespace
        self._left: list[Known] = []
        self._errands: list[_Errand] = []
        self._given_up: list[tuple[Owner, Worker]] = []
        self._waiting: list[tuple[Notification, Owner]] = []
        self._look_at = _MANY
        self._confined, self._restricted = Confined(), Confined()
        self._contexts: list[int] = []
        self._needed = Needed()
        self._device, self._device_number = -1, 0
        with contextlib.suppress(FileNotFoundError):  # then, a mount fails for this reason
            self._device = os.open(DEVICE, os.O_PATH | os.O_CLOEXEC)
            self._device_number = os.fstat(self._device).st_rdev
        # A program that runs a daemon ends it in one thread, while another attends to its calls.
        self._lock = threading.RLock()
        self._spawner = Spawner(self._device)
        self._unmounting = Unmounting(self._spawner)

    def close(self) -> None:
        """End the processes. Unanswered calls fail."""
        with self._lock:
            self.end_all()
            self._unmounting.close()
            self._spawner.close()
            for _, worker in self._given_up:
                worker.close()
            self._given_up.clear()
            for fd in [*self._contexts, self._device]:
                with contextlib.suppress(OSError):  # there was no /dev/efuse
                    os.close(fd)

    def succeed(self, listener: Listener, *, first: int, namespace: str) -> None:
        """Answer the calls of a successor from now on. The daemon has ended, with all its calls.

        :param listener: receives them.
        :param first: id of the first process of the successor.
        :param namespace: see `Situation`.
        """
        with self._lock:
            self.end_all()
            while self._contexts:
                os.close(self._contexts.pop())
            self._confined, self._restricted = Confined(), Confined()
            self._listener, self._first, self._namespace = listener, first, namespace
            self.ignores_umounts = False

    def let_go(self, mount: DaemonMount) -> None:
        """Leave a mount to another supervisor. The daemon does not unmount it any more."""
        with self._lock:
            # Without its number, a later mount with the same connection would be taken for it.
            if mount.number:
                self._left.append(Known(mount.connection, mount.number, mount.asked))
            self._abandon(mount)

    def end_all(self) -> None:
        """End the processes that look for answers. Their calls fail with EIO.

        Processes in the middle of a mount are awaited together, but not for ever, to know whether
        the mounts were made. The others may hang, and their calls are answered immediately.
        """
        with self._lock:
            while self._waiting:
                self._fail(self._waiting.pop()[0])
            for errand in self._errands:
                errand.worker.kill()
            until = time.monotonic() + _END_S
            for errand in [*self._errands]:
                left_s = max(0.0, until - time.monotonic())
                if errand.mount is not None and errand.worker.await_end(left_s):
                    self._guarded(errand, self._finish)
                else:
                    self._give_up(errand)

    @property
    def fds(self) -> list[int]:
        """Descriptors that become readable when `advance` or `sweep` has something to do."""
        with self._lock:
            fds = [*(errand.worker.watched for errand in self._errands), *self._unmounting.fds]
            if self._waiting:  # for the end of any process
                fds += [worker.end for _, worker in self._given_up]
            return fds

    @property
    def _fds_of_unmounts(self) -> list[int]:
        with self._lock:
            return self._unmounting.fds

    @property
    def has_calls(self) -> bool:
        """Whether a call is being answered."""
        return bool(self._errands or self._waiting)

    @property
    def processes(self) -> set[int]:
        """The processes that look for answers, and those that unmount."""
        workers = [*(errand.worker for errand in self._errands), *(w for _, w in self._given_up)]
        spawner = self._spawner.process
        return {
            spawner,
            *descendants(spawner),
            *(worker.process for worker in workers),
            *self._unmounting.processes,
        }

    def unmount(self, mount: DaemonMount) -> None:
        """Begin to unmount a mount of the daemon, see `Unmounting.begin`."""
        with self._lock:
            self._unmounting.begin(mount)

    def await_unmounts(self, most_s: float) -> None:
        """Wait until what was begun to be unmounted is, but not longer than that."""
        until = time.monotonic() + most_s
        while (fds := self._fds_of_unmounts) and (left_s := until - time.monotonic()) > 0:
            poll = select.poll()
            for fd in fds:
                poll.register(fd, select.POLLIN)
            for fd, _ in poll.poll(left_s * 1000):
                with self._lock:
                    self._unmounting.advance(fd)

    def take(self) -> None:
        """Receive a call, and let its answer be found."""
        call = self._listener.receive()
        if call is None:
            return
        with self._lock:
            with _logged():
                try:
                    return self._consider(call)
                except (FileNotFoundError, ProcessLookupError):
                    pass  # the caller is gone
            self._fail(call)

    def advance(self, fd: int) -> DaemonMount | None:
        """Hear what a process reports, and answer its call if the process has ended.

        :param fd: one of `fds`.
        :returns: a mount that can now be reached by its path, or that a successor has taken over,
            or that is not one of eFuse.
        """
        with self._lock:
            self._unmounting.advance(fd)
            errand = next((each for each in self._errands if each.worker.watched == fd), None)
            if errand is None:  # it has just been ended
                return None
            return self._guarded(errand, self._advance)

    def sweep(self) -> None:
        """Drop the calls whose callers are gone, and release what is held for mounts that ended."""
        with self._lock:
            self._end_unwanted()
            self._forget_ended()
            in_hand = {id(errand.mount) for errand in self._errands}
            for mount in [*self.mounts]:
                if id(mount) not in in_hand:
                    with _logged():
                        self._sweep_mount(mount)

    def _end_unwanted(self) -> None:
        for errand in [*self._errands]:
            if not self._listener.is_valid(errand.call):
                errand.worker.kill()
                if errand.mount is None:
                    self._give_up(errand)

    def _sweep_mount(self, mount: DaemonMount) -> None:
        if not mount.is_mounted:
            self._abandon(mount)
        elif mount.is_dead:
            mount.detach()

    def _forget_ended(self) -> None:
        left = []
        for owner, worker in self._given_up:
            if worker.has_ended:
                worker.close()
            else:
                left.append((owner, worker))
        if len(left) != len(self._given_up):
            self._given_up = left
            self._begin_waiting()

    def _guarded(
        self, errand: _Errand, step: Callable[[_Errand], DaemonMount | None]
    ) -> DaemonMount | None:
        """Take a step with a call. If it fails for any reason, so does the call."""
        with _logged():
            return step(errand)
        with _logged():
            self._give_up(errand)
        return None

    def _give_up(self, errand: _Errand) -> None:
        """Let a call fail with EIO, without waiting for its process."""
        if errand in self._errands:
            self._errands.remove(errand)
            self._given_up.append((errand.owner, errand.worker))
            errand.worker.kill()
        self._restore(errand)
        errand.close_fds()
        self._fail(errand.call)
        if errand.mount is not None:
            self._abandon(errand.mount)

    def _fail(self, call: Notification, number: int = errno.EIO) -> None:
        try:
            self._listener.answer(call, number)
        except OSError as error:
            _log.error("a call of the daemon cannot be answered: %s", shown(reason(error)))

    def _consider(self, call: Notification) -> None:
        if call.name == "landlock_restrict_self" and not call.arguments[0] & 1 << 31:
            self._note_confined(Caller(call.thread))
        if call.name in ("", "landlock_restrict_self") or not call.thread:
            self._listener.continue_call(call)
            return
        caller = Caller(call.thread)
        if (call.name in _MOUNTING or is_clone(call)) and not caller.may_mount():
            # Without a process: any user can make such calls.
            self._listener.continue_call(call)
            return
        self._forget_killed()
        self._waiting.append((call, owner_of(caller)))
        self._begin_waiting()

    def _note_confined(self, caller: Caller) -> None:
        """Note that a process may be confined from now on, unless the kernel refuses it."""
        if caller.has_no_new_privileges:
            self._restricted.add(caller.process)
        elif caller.may_mount() and caller.shares("user"):  # all below others have their namespace
            self._confined.add(caller.process)

    def _begin_waiting(self) -> None:
        """Begin with those of the waiting calls whose owners have not too many in hand."""
        busy = Busy(errand.owner for errand in self._errands)
        for owner, _ in self._given_up:
            busy.add(owner)
        left: list[tuple[Notification, Owner]] = []
        for call, owner in self._waiting:
            if not busy.has_room(owner):
                left.append((call, owner))
            elif self._begin(call, owner):
                busy.add(owner)
        self._waiting = left

    def _forget_killed(self) -> None:
        """Forget the waiting calls whose callers were killed, when there are twice as many."""
        if len(self._waiting) >= self._look_at:
            self._waiting = [each for each in self._waiting if self._listener.is_valid(each[0])]
            self._look_at = max(_MANY, 2 * len(self._waiting))

    def _begin(self, call: Notification, owner: Owner) -> bool:
        if not self._listener.is_valid(call):
            return False
        number = errno.EIO
        with _logged():
            try:
                worker = self._spawner.start(functools.partial(_find, call, self._situation))
                self._errands.append(_Errand(call, owner, worker))
                return True
            except OSError as error:  # this process has too few descriptors, or processes
                _log.warning("a call of the daemon fails: %s", shown(reason(error)))
                number = error.errno or errno.EIO
        self._fail(call, number)
        return False

    @property
    def _situation(self) -> Situation:
        return Situation(
            device=self._device,
            device_number=self._device_number,
            supervisor=os.getpid(),
            first=self._first,
            confined=self._confined.known,
            restricted=self._restricted.known,
            contexts=tuple(self._contexts),
            namespace=self._namespace,
            mounts=tuple(Known(m.connection, m.number, m.asked) for m in self.mounts),
            left=tuple(self._left),
            ignores_umounts=self.ignores_umounts,
        )

    def _advance(self, errand: _Errand) -> DaemonMount | None:
        report, fds = errand.worker.received()
        errand.fds += fds
        if report is None:
            if not errand.worker.has_ended:
                return None
            try:
                return self._finish(errand)
            finally:
                self._begin_waiting()
        if isinstance(report, reports.Made):
            errand.worker.tell(self._make(errand, report))
        elif not isinstance(report, int):
            errand.report = report
        return None

    def _make(self, errand: _Errand, made: reports.Made) -> int:
        """Attach handlers to a new mount, and replace descriptors; return 0 or an errno."""
        where, *swapped = errand.fds
        mount = errand.mount = DaemonMount(
            str(Path(f"/proc/self/fd/{where}").readlink()),
            auto_unmount=made.facts.auto_unmount,
            user=made.facts.user,
            number=made.number,
            asked=made.facts.asked,
        )
        try:
            hidden = self._needed.hidden_by(
                where, mount.mountpoint, errand.call.thread, shared=made.facts.shared
            )
            if hidden:
                mount.reason = f"it would hide {hidden} from `efuse run` (EBUSY)"
                return errno.EBUSY
            if not self._listener.is_valid(errand.call):
                return errno.ESRCH  # it was another process that all this was read from
            if self._namespace and not any(each.is_mounted for each in self.mounts):
                return errno.ENOTCONN  # what the successor is to take over has been unmounted
            mount.begin(made.connection, self._attach)
            self.mounts.append(mount)
            if self._recovery_s and made.facts.shared:
                mount.outlive(self._recovery_s)
            elif self._recovery_s:
                mount.ends_because = "it is in a mount namespace of the daemon"
            if mount.reason and self._require:
                return errno.EPERM
            if swapped:
                self._replace(errand, made.places, swapped[0])
        except OSError as error:
            return error.errno or errno.EIO
        except ControlError:
            return errno.ESRCH  # the caller is gone
        return 0

    def _replace(self, errand: _Errand, places: Mapping[int, bool], new: int) -> None:
        """Replace descriptors of the caller.

        Another of its threads may have closed one meanwhile, and opened another file there. That
        stays.

        :raises OSError: EBADF: none is there any more.
        """
        before = errand.fds[-1]
        for fd, closes in places.items():
            if not is_another_file(errand.call.thread, fd, os.getpid(), before):
                self._listener.put(errand.call, new, fd, cloexec=closes)
                errand.replaced[fd] = closes
        if not errand.replaced:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def _restore(self, errand: _Errand) -> None:
        """Put back the descriptors of the caller that have been replaced."""
        for fd, closes in errand.replaced.items() if errand.fds else ():
            with contextlib.suppress(OSError):  # the caller is gone
                self._listener.put(errand.call, errand.fds[-1], fd, cloexec=closes)
        errand.replaced.clear()

    def _finish(self, errand: _Errand) -> DaemonMount | None:
        """Answer a call whose process has ended; return what `advance` does."""
        self._errands.remove(errand)
        errand.worker.close()
        found = None
        try:
            if errand.mount is not None:
                found = self._answer_mount(errand, errand.mount)
            else:
                found = self._answer(errand)
        except OSError as error:
            if error.errno != errno.ENOENT:  # ENOENT: the caller is gone
                _log.warning("a call of the daemon fails: %s", shown(reason(error)))
            self._restore(errand)
            self._fail(errand.call, error.errno or errno.EIO)
        errand.close_fds()
        return found

    def _answer(self, errand: _Errand) -> DaemonMount | None:
        call, report = errand.call, errand.report
        if isinstance(report, reports.Opened):
            self._listener.give(call, errand.fds[0], cloexec=report.cloexec)
            self._keep_context(errand.fds.pop())
        elif isinstance(report, reports.Replaced):
            self._replace(errand, report.places, errand.fds[0])
            self._drop_context(report.context)
            errand.close_fds()
            self._listener.answer(call)
        elif isinstance(report, reports.TakenOver):
            self._replace(errand, report.places, errand.fds[0])
            errand.close_fds()
            self.has_mounted = True
            self._listener.answer(call)
            return next((m for m in self.mounts if m.connection == report.connection), None)
        elif isinstance(report, reports.Done):
            self._listener.answer(call)
        elif isinstance(report, reports.Unfit):
            self._listener.answer(call, errno.EINVAL)
            return DaemonMount(report.path, reason=report.reason, is_refused=True)
        elif isinstance(report, reports.Failed):
            self._listener.answer(call, report.number)
        elif isinstance(report, reports.Refused):
            self._listener.answer(call, errno.EPERM)
            return DaemonMount(report.path, reason=report.reason)
        elif isinstance(report, reports.Plain):
            return self._answer_plain(call, report)
        elif isinstance(report, reports.Leave):
            self.has_mounted |= report.uses_efuse
            self._listener.continue_call(call)
        else:
            self._say_why(errand)
            self._listener.answer(call, errno.EIO)
        return None

    def _answer_plain(self, call: Notification, report: reports.Plain) -> DaemonMount:
        if self._require:
            self._listener.answer(call, errno.EPERM)
        else:
            self.has_mounted = True
            self._listener.continue_call(call)
        return DaemonMount(report.path, reason=report.reason)

    def _answer_mount(self, errand: _Errand, mount: DaemonMount) -> DaemonMount | None:
        call, report = errand.call, errand.report
        if isinstance(report, reports.Attached) or (
            not isinstance(report, reports.Failed) and _is_attached(mount, call.thread)
        ):
            self.has_mounted = True
            if not mount.number:
                # The process that has made the mount of a user may not ask for its number. That of
                # the connection is not used again as long as the mount is there.
                number = number_of(mount.connection)
                mount.number = number if mount.is_mounted else 0
            errand.close_fds()
            self._listener.answer(call)
            return mount
        # Why it was refused, if it was for this reason and not by the kernel.
        reason = mount.reason if not errand.replaced else ""
        self._abandon(mount)
        mount.reason = reason
        self._restore(errand)
        errand.close_fds()
        if not isinstance(report, reports.Failed):
            self._say_why(errand)
        failed = report.number if isinstance(report, reports.Failed) else errno.EIO
        self._listener.answer(call, failed)
        return mount if reason else None

    def _say_why(self, errand: _Errand) -> None:
        """Log why there is no answer to a call."""
        report = errand.report
        why = report.text if isinstance(report, reports.Trouble) else "its process was killed"
        if self._listener.is_valid(errand.call):
            _log.error("a call of the daemon cannot be answered: %s", shown(why))

    def _keep_context(self, context: int) -> None:
        """Keep a context, to know it again when it gets its descriptor of /dev/fuse.

        It is not kept any longer: it would hold the file system that is made of it.
        """
        self._contexts.append(context)
        if len(self._contexts) > _MOST_CONTEXTS:
            os.close(self._contexts.pop(0))

    def _drop_context(self, context: int) -> None:
        if context in self._contexts:
            self._contexts.remove(context)
            os.close(context)

    def _abandon(self, mount: DaemonMount) -> None:
        self.mounts[:] = [each for each in self.mounts if each is not mount]
        self._unmounting.forget(mount)
        mount.abandon()


def _is_attached(mount: DaemonMount, thread: int) -> bool:
    """Tell whether a mount is attached where this process, or the caller, sees it."""
    for table in (MOUNTINFO, Path(f"/proc/{thread}/mountinfo")):
        with contextlib.suppress(ControlError):  # the caller is gone
            if any(each.connection == mount.connection for each in mounts(mountinfo=table)):
                return True
    return False


def _find(call: Notification, situation: Situation, supervisor: socket.socket) -> None:
    """Find the answer to a call in this process, which was made for it."""
    Answering(call, situation, supervisor).find()


@contextlib.contextmanager
def _logged() -> Iterator[None]:
    """Log whatever goes wrong in the block, and go on behind it."""
    try:
        yield
    except Exception:  # noqa: BLE001 - any process of the daemon makes calls; those of others go on
        text = shown_lines(traceback.format_exc())
        _log.error("a call of the daemon cannot be answered: %s", text)
