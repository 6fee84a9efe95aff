# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run an unmodified libfuse daemon on eFuse, and attach the built-in handlers to its mounts."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import re
import resource
import select
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from efuse.control import Connection, Mount
from efuse.control.mounts import (
    MOUNTINFO,
    Numbered,
    all_mounts,
    is_mounted,
    numbered,
    numbers,
    place_of,
    read_table,
    resolve,
)
from efuse.display import shown
from efuse.errors import ControlError, EfuseError, MountError, reason
from efuse.fs.acceleration import Acceleration, accelerate, compile_set
from efuse.fs.ending import not_ignored
from efuse.fs.forking import forked
from efuse.fs.marking import is_marked, marked
from efuse.fs.mountpoint import DEVICE, detach
from efuse.fs.options import Options
from efuse.fs.overriding import Shortcuts
from efuse.fs.own_mount import connection_of, is_served_by
from efuse.fs.preload import preload_library

__all__ = [
    "PLAIN_HINT",
    "Daemon",
    "Ended",
    "Forwarding",
    "PlainMount",
    "Running",
    "mounted_nothing",
    "run_plain",
    "start_daemon",
    "wait_for_daemon",
]

PLAIN_HINT = "docs/limits.md lists the daemons that `efuse run` can run"
"""The hint for a daemon that mounts plain FUSE."""

_log = logging.getLogger("efuse.fs")

_GRACE_S = 10.0
_TOO_EARLY = "it was unmounted before the handlers were attached"
_PR_SET_CHILD_SUBREAPER = 36
_UCRED = struct.Struct("=iII")
# A report of libefuse/preload.c: the type, the unique number and the path of a mount. The type is
# "own" if a program that knows eFuse has mounted it, such as `efuse mount`. Such a program attaches
# the handlers itself.
_OWN = "own"
_REPORT = re.compile(rb"(own|e?fuse.*?) ([0-9]{1,20}) (/.*)", re.DOTALL)
_MAX_NUMBER = (1 << 64) - 1
_REPORT_S = 2.0
_MOST_REFUSED = 1000
_DEVICE = str(DEVICE)
_FUSE_DEVICE = "/dev/fuse"
_OWNER = re.compile(r"\buser_id=([0-9]+),group_id=([0-9]+)\b")
_ANSWER_S = 2.0
_NO_DAEMON = 3


@dataclass
class Daemon:
    """An eFuse mount of a libfuse daemon.

    :ivar process: the process that was started.
    :ivar mount: the mount, as mountinfo or the report of it describes it.
    :ivar number: unique number of the mount, which no other mount ever gets; see
        `efuse.control.mounts.number_at`.
    :ivar acceleration: the attached handlers, None if there are none.
    :ivar reason: why no handlers are attached, in one sentence; empty if they are.
    """

    process: subprocess.Popen[bytes]
    mount: Mount
    number: int = 0
    acceleration: Acceleration | None = None
    reason: str = "no handlers are attached"

    @property
    def mountpoint(self) -> str:
        return self.mount.mountpoint

    @property
    def connection(self) -> int:
        return self.mount.connection

    @property
    def accelerated(self) -> bool:
        return self.acceleration is not None

    @property
    def is_mounted(self) -> bool:
        """Whether this mount still exists. Another mount at the same path does not count."""
        return is_mounted(self.number) == self.connection

    def attach(self, options: Options) -> None:
        """Declare *options* and attach the built-in handlers.

        :raises EfuseError: the kernel refused it, and the file system stays mounted as it is. Or
            the file system was unmounted meanwhile; then nothing is attached to a later connection
            with the same number. Or another program has attached handlers; then nothing is
            declared, either.
        """
        try:
            self._check_free()
            used = Shortcuts(options)
            self.acceleration = accelerate(
                self.connection, used, compile_set(used, {}), check=self._check
            )
        except EfuseError as error:
            self.reason = str(error) if self.is_mounted else self._why_gone
            # If the mount is gone, the error from sysfs is not the cause.
            self._check()
            raise
        self.reason = ""

    def _check(self) -> None:
        if not self.is_mounted:
            raise MountError(
                f"{self.mountpoint} cannot be accelerated: {self._why_gone}",
                hint="run it again, and unmount it later",
            )

    def _check_free(self) -> None:
        self._check()
        if Connection(self.connection).state == "attached":
            raise MountError(
                f"{self.mountpoint} cannot be accelerated: another program has attached handlers"
                " to it (EBUSY)",
                hint="efuse prog list shows these handlers",
            )

    @property
    def _why_gone(self) -> str:
        # The connection is 0 if this process has never seen the mount.
        return _TOO_EARLY if self.connection else f"{_TOO_EARLY}, or is in another mount namespace"

    def close(self) -> None:
        """Detach the handlers; the file system stays mounted."""
        if self.acceleration is not None:
            self.acceleration.close()
            self.acceleration = None
            self.reason = "the handlers were detached"

    def unmount(self) -> None:
        """Unmount this mount lazily, but nothing that was mounted there since."""
        _detach(self.mountpoint, self.number)


@dataclass(frozen=True)
class PlainMount:
    """A plain FUSE mount of a daemon, or an eFuse mount that may belong to another daemon.

    :ivar mount: the mount, as mountinfo or the report of it describes it.
    :ivar number: unique number of the mount, see `efuse.control.mounts.number_at`.
    :ivar is_certain: whether the mount surely belongs to the daemon: the daemon has reported it, or
        the kernel shows that the daemon serves it.
    :ivar is_dead: whether no process served the mount when it was found.
    """

    mount: Mount
    number: int
    is_certain: bool
    is_dead: bool = False

    @property
    def reason(self) -> str:
        """Why it is not accelerated, in one sentence."""
        if self.is_dead:
            return "the daemon has ended, so no process serves it"
        if self.mount.is_efuse:
            return "it was not reported, so it may be the mount of another daemon"
        if self.mount.fstype.split(".")[0] == "fuseblk":
            return "the daemon mounts the type fuseblk, which eFuse does not have"
        has = "has" if self.is_certain else "may have"
        return (
            f"it is of the type {self.mount.fstype}, and the daemon {has} mounted it past libc's"
            " mount(2), where the preloaded library does not see it"
        )


@dataclass(frozen=True)
class Ended:
    """The process that was started has ended.

    :ivar status: its exit status, as a shell reports it: 128 + N after signal N.
    """

    status: int


class Running:
    """A daemon that was started on eFuse, and its mounts.

    With *adopt*, processes that the daemon leaves in the background become children of this
    process, which identifies them. It requires the main thread, and uses SIGCHLD. A process that
    the main thread starts meanwhile is mistaken for one of the daemon's. So is a process that
    another thread has started, once that thread has ended. Without *adopt*, a process in the
    background is not waited for if it has closed the descriptors that it inherited.

    :param command: the daemon and its arguments.
    :param channels: whether requests come through channels, if the daemon has several threads and
        its libfuse supports channels.
    :param adopt: whether this process adopts background processes of the daemon.
    :raises MountError: the daemon cannot be started.
    :ivar mounts: eFuse mounts of the daemon that were found so far.
    :ivar plain: other mounts of the daemon that were found so far.
    :ivar has_left_mounts: whether another eFuse program that the daemon has started has mounted
        something, which that program manages itself.
    """

    def __init__(
        self, command: Sequence[str], *, channels: bool = True, adopt: bool = False
    ) -> None:
        self.command = command
        self.mounts: list[Daemon] = []
        self.plain: list[PlainMount] = []
        self.has_left_mounts = False
        table = all_mounts()
        # Unique numbers of the mounts. A mount may be attached long after it got its number.
        self._before = frozenset(numbers())
        self._seen = set(self._before)
        words = {part for word in command[1:] for part in (word, word.rpartition("=")[2]) if part}
        self._named: set[str] = set()
        for word in words:
            with contextlib.suppress(ControlError):  # a loop of symbolic links: not a mount point
                self._named.add(resolve(word, table))
        # In the /proc of another PID namespace, a process id means another process.
        self._knows_processes = str(Path("/proc/self").readlink()) == str(os.getpid())
        self._knows_children = (
            self._knows_processes and _main_thread().joinpath("children").exists()
        )
        self._adopts = adopt
        if adopt:
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))
        self._others = _children(os.getpid())
        self._unanswered: list[int] = []
        self._handed_on = 0
        self._has_reported = False
        self._refused = 0
        # By unique number: mounts that no report has named yet, and the end of the time for it.
        self._unreported: dict[int, tuple[Mount, float]] = {}
        environment = dict(os.environ)
        already = environment.get("LD_PRELOAD")
        shim = str(preload_library())
        environment["LD_PRELOAD"] = f"{shim}:{already}" if already else shim
        if not channels:
            environment["EFUSE_CHANNELS"] = "0"
        with contextlib.ExitStack() as stack:
            self._child_ended = stack.enter_context(_ends_of_children()) if adopt else None
            self._mountinfo = os.open(MOUNTINFO, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, self._mountinfo)
            self._reports, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.callback(self._reports.close)
            self._reports.setblocking(False)
            # Each program that the daemon starts inherits the socket, even as another user.
            self._reports.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            with theirs:
                # With the inode, because the daemon may close the descriptor and reuse its number.
                inode = os.fstat(theirs.fileno()).st_ino
                self._socket = f"{theirs.fileno()}:{inode}"
                environment["EFUSE_REPORT_FD"] = self._socket
                self.process = _start(command, environment, (theirs.fileno(),))
            self._began = _start_of(self.process.pid)
            stack.enter_context(marked())
            self._pidfd = os.pidfd_open(self.process.pid)
            stack.callback(os.close, self._pidfd)
            self._open = stack.pop_all()

    def close(self) -> None:
        """Stop watching. The daemon goes on, and its mounts stay."""
        self._open.close()

    def events(self) -> Iterator[Daemon | PlainMount | Ended]:
        """Yield each mount of the daemon once it exists, and at last the end of its process.

        If the process ends with status 0 and has not mounted anything, it may have left a process
        in the background that is about to mount. The iterator waits for this mount, but at most
        10 s.
        """
        poll = select.poll()
        poll.register(self._mountinfo, select.POLLPRI)  # the kernel signals a change of the table
        poll.register(self._pidfd, select.POLLIN)
        poll.register(self._reports, select.POLLIN)
        if self._child_ended is not None:
            poll.register(self._child_ended, select.POLLIN)
        end = None
        while True:
            times = [until for _, until in self._unreported.values()]
            until = min(times if end is None else [*times, end], default=None)
            left = None if until is None else max(0.0, until - time.monotonic())
            ready = dict(poll.poll(None if left is None else left * 1000))
            self._reap()
            yield from self._read_reports(poll)
            yield from self._look()
            if self._pidfd in ready:
                poll.unregister(self._pidfd)
                wait_for_daemon(self.process)
                end = time.monotonic() + _GRACE_S
                if self._handed_on and not (self.mounts or self.plain or self.process.returncode):
                    # The daemon may have gone into the background just when the signal came.
                    self.hand_on(self._handed_on)
            if end is None:
                continue
            if time.monotonic() >= end:
                break
            has_mounted = self.mounts or self.plain or self.has_left_mounts
            is_done = has_mounted or self.process.returncode
            if (is_done or self._is_left_alone()) and not self._unreported:
                break
        yield Ended(wait_for_daemon(self.process))

    def more(self) -> Iterator[Daemon]:
        """Yield further eFuse mounts of a daemon in the background until all are unmounted."""
        poll = select.poll()
        poll.register(self._mountinfo, select.POLLPRI)
        if self._reports.fileno() >= 0:
            poll.register(self._reports, select.POLLIN)
        while any(m.is_mounted for m in self.mounts):
            poll.poll()
            for found in self._read_reports(poll):
                if isinstance(found, Daemon):
                    yield found

    def hand_on(self, number: int) -> None:
        """Send the signal to the process that was started.

        If that process has ended, the signal goes to the processes that it left in the background.

        :param number: number of the signal.
        """
        self._handed_on = number
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if not poll.poll(0):
            signal.pidfd_send_signal(self._pidfd, number)
            return
        for pid in self._own_tree() - self._started():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def detach(self) -> None:
        """Detach the handlers from the mounts of the daemon, which stay mounted."""
        for mount in self.mounts:
            try:
                mount.close()
            except EfuseError as error:
                _log.warning(
                    "the handlers of %s cannot be detached: %s",
                    shown(mount.mountpoint),
                    shown(str(error)),
                )

    def end(self) -> int:
        """Unmount the mounts of the daemon, end it, and return its exit status."""
        for mount in self.mounts:
            mount.unmount()
        for plain in self.plain:
            if plain.is_certain:
                _detach(plain.mount.mountpoint, plain.number)
        _end(self._own_tree())
        self.unmount_dead()
        return wait_for_daemon(self.process)

    def unmount_dead(self) -> None:
        """Unmount the mounts of this daemon that no process serves any more."""
        found = [(daemon.mount, daemon.number, True) for daemon in self.mounts]
        found += [(plain.mount, plain.number, plain.is_certain) for plain in self.plain]
        for mount, number, is_certain in found:
            connection = is_mounted(number)
            if connection is None:
                continue
            try:
                where = place_of(number) or mount.mountpoint
                seen = replace(mount, connection=connection, mountpoint=where)
                if self._is_dead(seen, is_certain=is_certain):
                    _detach(where, number)
            except ControlError as error:
                _cannot_tell(mount, error)

    def _is_dead(self, mount: Mount, *, is_certain: bool) -> bool:
        """Tell whether no process serves the mount.

        An answer from the mount alone proves nothing: a live daemon may itself return the error of
        a dead one, or not answer at all. So the mount is asked only if no process is seen to serve
        it. A mount that may belong to another daemon counts as served if any process that is not
        older than this run may serve it.

        :param is_certain: whether the mount surely belongs to this daemon.
        """
        if not self._knows_processes:
            return is_certain and self._answers_nothing(mount)
        device = _device_of(mount)
        if _connections(self._own_tree(), device) & {mount.connection, None}:
            return False
        processes = _processes()
        if mount.connection in _connections(processes, device):
            return False
        younger = {pid for pid in processes if _start_of(pid) >= self._began}
        if not is_certain and any(_may_serve(pid, device) for pid in younger):
            return False
        return self._answers_nothing(mount)

    def _answers_nothing(self, mount: Mount) -> bool:
        """Tell whether the kernel reports that the mount has no daemon.

        A child process asks. There may be a daemon that this process does not see, and if that
        daemon never answers, a process that waits for it cannot be killed.
        """
        try:
            owner = _owner_of(mount)
            asking = forked(lambda: _ask(mount.mountpoint, owner))
            self._others.add(asking)
            self._unanswered.append(asking)
            ended = os.pidfd_open(asking)
        except (OSError, ControlError) as error:
            return _cannot_tell(mount, error)
        try:
            if not _is_readable(ended, _ANSWER_S):
                signal.pidfd_send_signal(ended, signal.SIGKILL)
                return False
            self._unanswered.remove(asking)
            return os.waitstatus_to_exitcode(os.waitpid(asking, 0)[1]) == _NO_DAEMON
        finally:
            os.close(ended)

    def _is_left_alone(self) -> bool:
        """Tell whether no process of the daemon is left that could mount.

        With adoption, the adopted processes are the remaining ones. Without it, the socket tells:
        it is closed once no process has its other end.
        """
        if self._adopts and self._knows_children:
            return not self._adopted()
        return self._reports.fileno() < 0

    def _read_reports(self, poll: select.poll) -> Iterator[Daemon | PlainMount]:
        """Read the reports that have come, and yield the mounts that they name; see `_reported`.

        The socket is closed when no process can send a report any more. It is also closed after too
        many reports that are not believed: each program of the daemon has the socket, even as
        another user, and could keep this process busy with them.
        """
        while self._reports.fileno() >= 0:
            try:
                record = self._receive()
            except BlockingIOError:
                return
            self._refused += record == b""
            if record is None or self._refused > _MOST_REFUSED:
                poll.unregister(self._reports)
                self._reports.close()
                return
            found = self._reported(record)
            if found is not None:
                yield found

    def _receive(self) -> bytes | None:
        """Return a report; empty if another user sent it, None if no process is left to send one.

        Reports are believed only from root and from the user of this process.
        """
        space = socket.CMSG_SPACE(_UCRED.size)  # no space for descriptors: the kernel closes them
        record, ancillary, _, _ = self._reports.recvmsg(8192, space)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                _, user, _ = _UCRED.unpack(content)
                return record if user in (0, os.geteuid()) else b""
        return None

    def _reported(self, record: bytes) -> Daemon | PlainMount | None:
        """Return the mount that a report names.

        The result is None if the mount does not belong to this daemon or is already known.
        """
        words = _REPORT.fullmatch(record)
        if words is None:
            return None
        fstype, path = os.fsdecode(words[1]), os.fsdecode(words[3])
        number = int(words[2])
        if fstype == _OWN:
            self.has_left_mounts = True
            self._seen.add(number)
            self._unreported.pop(number, None)
            return None
        seen = numbered(number) if number <= _MAX_NUMBER else None
        if number > _MAX_NUMBER or (seen is not None and not self._is_later(seen, fstype)):
            return None
        connection = seen.connection if seen else 0
        found = Mount(0, 0, connection, path, fstype, "", "")
        self._has_reported |= not found.is_fuse
        if connection and self._is_known(connection):
            return None
        if found.is_fuse:
            return self._add_plain(found, number, is_certain=True)
        with contextlib.suppress(ControlError):  # without mountinfo, the report has to suffice
            here = (m for m in all_mounts() if m.mountpoint == path)
            found = next((m for m in here if m.connection == connection), found)
        return self._add(found, number)

    def _is_later(self, seen: Numbered, fstype: str) -> bool:
        """Tell whether the mount has the type *fstype*, and its file system is newer than this run.

        A new mount of an old file system has the connection of a mount that existed before.
        """
        if seen.number in self._before or seen.fstype != fstype.partition(".")[0]:
            return False
        before = (numbered(number) for number in self._before)
        return all(mount is None or mount.connection != seen.connection for mount in before)

    def _add(self, mount: Mount, number: int) -> Daemon:
        self.mounts.append(Daemon(self.process, mount, number))
        return self.mounts[-1]

    def _add_plain(
        self, mount: Mount, number: int, *, is_certain: bool, is_dead: bool = False
    ) -> PlainMount:
        self.plain.append(PlainMount(mount, number, is_certain, is_dead))
        return self.plain[-1]

    def _look(self) -> Iterator[Daemon | PlainMount]:
        """Yield one new mount of the daemon that no report names, if there is one."""
        self._note_new_mounts()
        for number, (mount, end) in list(self._unreported.items()):
            if is_mounted(number) != mount.connection or self._is_known(mount.connection):
                del self._unreported[number]
                continue
            is_over = time.monotonic() >= end
            found = self._claim(mount, number, is_over=is_over)
            if found or is_over:
                del self._unreported[number]
            if found:
                yield found
                return  # the caller has used it meanwhile, and reports of others may have come

    def _note_new_mounts(self) -> None:
        new = [number for number in numbers() if number not in self._seen]
        try:
            table = {m.mount_id: m for m in read_table(self._mountinfo)} if new else {}
        except OSError as error:
            raise ControlError(
                f"cannot list the mounts: {reason(error)}", hint="mount proc on /proc"
            ) from error
        for number in new:
            seen = numbered(number)
            mount = table.get(seen.mount_id) if seen else None
            if seen is None or mount is None or mount.connection != seen.connection:
                continue  # unmounted meanwhile, or not yet in the table: the next call finds it
            self._seen.add(number)
            if (mount.is_efuse or mount.is_fuse) and self._is_later(seen, mount.fstype):
                self._unreported[number] = mount, time.monotonic() + _REPORT_S

    def _claim(self, mount: Mount, number: int, *, is_over: bool) -> Daemon | PlainMount | None:
        """Return the mount if it belongs to the daemon.

        If it is unknown which mount a process serves, the mount counts as the daemon's if the
        command names the mount point and no report of the mount comes in time. The time matters for
        eFuse mounts, because another program that knows eFuse reports a mount as its own.

        :param is_over: whether the time for a report is over.
        """
        device = _device_of(mount)
        mine = self._own_tree()
        others = self._tree() - mine
        held = _connections(mine, device) if self._knows_processes else {None}
        if mount.is_fuse and mount.connection in held:
            return self._add_plain(mount, number, is_certain=True)
        theirs = _connections(others, device) if self._knows_processes else set()
        is_theirs = mount.connection in theirs or (None in theirs and not held)
        self.has_left_mounts |= is_theirs
        if not is_over or is_theirs:
            return None
        if mount.connection in held:
            return self._add(mount, number)
        is_named = mount.mountpoint in self._named
        if None not in held and not (is_named and any(map(_is_hidden, mine))):
            if is_named and self._is_dead(mount, is_certain=False):
                # The daemon died just after it mounted. No process serves the mount, so it can go.
                return self._add_plain(mount, number, is_certain=True, is_dead=True)
            return None
        if mount.is_efuse and self._has_reported:
            return None
        if self._knows_processes and mount.connection in _connections(_processes(), device):
            return None  # another daemon's
        if mount.is_efuse and is_named and not theirs:
            return self._add(mount, number)
        if is_named or not (self.plain if mount.is_fuse else self.mounts):
            return self._add_plain(mount, number, is_certain=False)
        return None

    def _is_known(self, connection: int) -> bool:
        known = {mount.number for mount in self.mounts} | {plain.number for plain in self.plain}
        return any(is_mounted(number) == connection for number in known)

    def _started(self) -> set[int]:
        """Return the process that was started; empty once another process may have its id."""
        return {self.process.pid} if self.process.returncode is None else set()

    def _tree(self) -> set[int]:
        found = self._started() | self._adopted()
        more = found if self._knows_processes else set()
        while more:
            more = {child for pid in more for child in _children(pid)} - found
            found |= more
        return found

    def _own_tree(self) -> set[int]:
        """Return the processes of the daemon that this run has to end.

        Programs that manage eFuse mounts themselves are left out, and so are the processes of
        another run, which ends them itself. The process that was started always belongs to the
        daemon.
        """
        found = self._tree()
        if not self._knows_processes:
            return found
        left = {p for p in found if is_marked(p) or _is_of_another_run(p, self._socket)}
        return (found - left) | self._started()

    def _adopted(self) -> set[int]:
        if not (self._adopts and self._knows_children):
            return set()
        # Orphans become children of the main thread. Other threads have their own children.
        return _children_of(_main_thread()) - self._others - self._started()

    def _reap(self) -> None:
        """Take the exit status of adopted processes, which are zombies until then."""
        if self._child_ended is None:
            return
        with contextlib.suppress(BlockingIOError):
            while self._child_ended.recv(4096):
                pass
        for pid in (*self._adopted(), *self._unanswered):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def start_daemon(command: Sequence[str], *, channels: bool = True) -> Daemon:
    """Start *command* on eFuse and return once it has mounted its file system.

    :param command: the daemon and its arguments.
    :param channels: whether requests come through channels, see `Running`.
    :raises MountError: the daemon cannot be started, ended without a mount, or mounted plain FUSE.
    """
    with contextlib.closing(Running(command, channels=channels)) as running:
        event = next(running.events())
        if isinstance(event, Ended):
            raise mounted_nothing(command, event.status)
        if isinstance(event, PlainMount):
            running.end()
            raise MountError(
                f"{event.mount.mountpoint} cannot be accelerated: {event.reason}", hint=PLAIN_HINT
            )
        return event


def mounted_nothing(command: Sequence[str], status: int) -> MountError:
    """Return the error for a daemon that has ended without a mount."""
    return MountError(
        f"{command[0]} ended with status {status} and mounted nothing on eFuse",
        hint="it has to be a dynamically linked libfuse daemon, run as root",
    )


def _detach(mountpoint: str, number: int) -> None:
    """Unmount the mount lazily. Log a failure and go on, because others must be unmounted, too."""
    try:
        detach(mountpoint, number)
    except ControlError as error:
        _log.warning("%s cannot be unmounted: %s", shown(mountpoint), shown(str(error)))
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: another process has just unmounted it
            _log.warning("%s cannot be unmounted: %s", shown(mountpoint), reason(error))


def _cannot_tell(mount: Mount, error: OSError | ControlError) -> bool:
    """Log that *error* hides whether the mount has a daemon. Return False, so the mount stays."""
    _log.warning(
        "whether %s has lost its daemon cannot be determined, so it stays mounted: %s",
        shown(mount.mountpoint),
        reason(error) if isinstance(error, OSError) else shown(str(error)),
    )
    return False


def _ask(mountpoint: str, owner: tuple[str, ...]) -> int:
    """Find out in this forked process whether a mount has a daemon, and return the exit status.

    The process asks as the *owner* of the mount, because for any other user the kernel answers
    instead of the daemon. It closes all descriptors first, because it may never end, and another
    process may wait until the other end of a pipe is closed.

    :param owner: the user id and the group id, or nothing to keep those of this process.
    :returns: `_NO_DAEMON` if the kernel reports that the mount has no daemon.
    """
    signal.set_wakeup_fd(-1)
    for number in not_ignored():
        signal.signal(number, signal.SIG_DFL)
    os.setpgid(0, 0)
    os.closerange(0, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    try:
        fd = os.open(mountpoint, os.O_PATH)
        if owner and os.geteuid() == 0:
            user, group = map(int, owner)
            os.setgroups([])
            os.setresgid(group, group, group)
            os.setresuid(user, user, user)
    except OSError:  # the mount is gone, or this user namespace has no such user
        return 1
    return _NO_DAEMON if _is_refused(fd) else 0


def _is_refused(fd: int) -> bool:
    try:
        os.fstatvfs(fd)
    except OSError as error:
        return error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    return False


def _owner_of(mount: Mount) -> tuple[str, ...]:
    """Return the user id and the group id that own a FUSE mount; empty if they are not visible."""
    here = (m for m in all_mounts() if m.connection == mount.connection)
    told = _OWNER.search(next(here, mount).options)
    return told.groups() if told else ()


def _device_of(mount: Mount) -> str:
    return _FUSE_DEVICE if mount.is_fuse else _DEVICE


@contextlib.contextmanager
def _ends_of_children() -> Iterator[socket.socket]:
    """Yield a socket that becomes readable when a child has ended or a signal was handled."""
    receiver, sender = socket.socketpair()
    with receiver, sender:
        receiver.setblocking(False)
        sender.setblocking(False)
        # Python writes to the descriptor for a signal that has a handler.
        handler = signal.signal(signal.SIGCHLD, lambda *_: None)
        wakeup = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        try:
            yield receiver
        finally:
            signal.set_wakeup_fd(wakeup)
            if handler is not None:  # None: the handler was not set by Python
                signal.signal(signal.SIGCHLD, handler)


def _children(pid: int) -> set[int]:
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found |= _children_of(task)
    return found


def _children_of(task: Path) -> set[int]:
    with contextlib.suppress(OSError):
        return set(map(int, (task / "children").read_text().split()))
    return set()


def _main_thread() -> Path:
    return Path(f"/proc/self/task/{os.getpid()}")


def _processes() -> set[int]:
    return {int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()}


def _start_of(pid: int) -> int:
    """Return the start time of the process, in clock ticks since boot; -1 if it is gone."""
    with contextlib.suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])
    return -1


def _may_serve(pid: int, device: str) -> bool:
    """Tell whether the process may serve any mount, because it is not visible what it serves."""
    return None in _connections({pid}, device) or _is_hidden(pid)


def _is_of_another_run(pid: int, socket_of_this: str) -> bool:
    """Tell whether the process was started by another `efuse run`, below this one.

    :param socket_of_this: EFUSE_REPORT_FD of this run.
    """
    words = b""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/environ").read_bytes()
    told = [word for word in words.split(b"\0") if word.startswith(b"EFUSE_REPORT_FD=")]
    return told not in ([], [b"EFUSE_REPORT_FD=" + socket_of_this.encode()])


def _connections(processes: set[int], device: str) -> set[int | None]:
    """Return the connections that the processes serve by open descriptors of *device*.

    None in the result stands for a descriptor whose connection the kernel does not show, as before
    Linux 6.17, or that nothing is mounted with. A connection that has ended is left out, because a
    later one may have its number.
    """
    found: set[int | None] = set()
    for pid in processes:
        for fd in _open_on(pid, device):
            with contextlib.suppress(OSError):  # the descriptor was closed, or the process ended
                connection = connection_of(Path(f"/proc/{pid}/fdinfo/{fd}"))
                if connection is None or is_served_by(pid, int(fd)):
                    found.add(connection)
    return found


def _open_on(pid: int, device: str) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(link.readlink()) == device:
                    found.append(link.name)
    return found


def _is_hidden(pid: int) -> bool:
    """Tell whether the descriptors of *pid* are hidden from this process (see ptrace(2))."""
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            link.readlink()
    except PermissionError:
        return True
    except OSError:  # the process ended, or closed a descriptor, meanwhile
        pass
    return False


def _end(processes: set[int]) -> None:
    """End processes by SIGTERM, and those that are left after `_GRACE_S` seconds by SIGKILL."""
    watched = []
    for pid in processes:
        with contextlib.suppress(ProcessLookupError):
            watched.append(os.pidfd_open(pid))
    end = time.monotonic() + _GRACE_S
    for number in (signal.SIGTERM, signal.SIGKILL):
        for fd in watched:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, number)
        for fd in watched:
            _is_readable(fd, max(0.0, end - time.monotonic()))
    for fd in watched:
        os.close(fd)


def _is_readable(fd: int, within_s: float) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(within_s * 1000))


def _start(
    command: Sequence[str], environment: dict[str, str] | None = None, keep: tuple[int, ...] = ()
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(list(command), env=environment, pass_fds=keep)
    except OSError as error:
        raise MountError(
            f"{command[0]} cannot be started: {reason(error)}", hint="check the command"
        ) from error


def run_plain(command: Sequence[str]) -> int:
    """Run *command* without eFuse, forward signals to it, and return its exit status.

    :raises MountError: the command cannot be started.
    """
    with Forwarding() as forwarding:
        process = _start(command)
        forwarding.to(process.send_signal)
        return wait_for_daemon(process)


def wait_for_daemon(process: subprocess.Popen[bytes]) -> int:
    """Wait for *process* and return its exit status, which is 128 + N after signal N."""
    status = process.wait()
    return 128 - status if status < 0 else status


class Forwarding:
    """Forward SIGINT, SIGTERM and SIGHUP to a daemon, instead of ending by them. A context manager.

    A signal that comes before the daemon is started is forwarded once it is. If the daemon is never
    started, this process gets the signal at the end of the block. A signal that this process
    ignores stays ignored.

    :ivar handed_on: whether a signal was sent to the daemon.
    """

    def __init__(self) -> None:
        self.handed_on = False
        self._waiting: list[int] = []
        self._send: Callable[[int], None] | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Forwarding:
        for number in not_ignored():
            self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._waiting:
            os.kill(os.getpid(), self._waiting[0])

    def to(self, send: Callable[[int], None]) -> None:
        """Forward signals, past and future ones, by calling *send* with the number of each."""
        self._send = send
        self._hand_on()

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self._waiting.append(number)
        self._hand_on()

    def _hand_on(self) -> None:
        while self._waiting and self._send is not None:
            self.handed_on = True
            # Another signal has interrupted this very loop, or the daemon has just been reaped.
            with contextlib.suppress(IndexError, ProcessLookupError):
                self._send(self._waiting.pop(0))
