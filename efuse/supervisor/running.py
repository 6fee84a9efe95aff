# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run any FUSE daemon on eFuse, and attach the built-in handlers to its mounts."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efuse.control.daemons import has_open
from efuse.errors import MountError
from efuse.fs.acceleration import Acceleration, accelerate, compile_set
from efuse.fs.mountpoint import DEVICE
from efuse.fs.options import Options
from efuse.fs.overriding import Shortcuts
from efuse.fs.preload import preload_library
from efuse.supervisor import children
from efuse.supervisor.daemon_mount import DaemonMount
from efuse.supervisor.errands import Errands
from efuse.supervisor.forwarding import status_of
from efuse.supervisor.launch import launch

# How often to look for the end of mounts that no process serves, in seconds.
_LOOK_S = 5.0
# How long an unmount may take at the end, and how long before the daemon is ended.
_UNMOUNT_S, _CLEAN_S = 5.0, 1.0

__all__ = ["Ended", "Running", "attaching", "mounted_nothing", "started"]


@dataclass(frozen=True)
class Ended:
    """The process that was started has ended.

    :ivar status: its exit status, as a shell reports it: 128 + N after signal N.
    """

    status: int


class Running:
    """A daemon that was started on eFuse, and its mounts.

    :param command: the daemon and its arguments.
    :param options: what is declared for each of its mounts; None: no handlers are attached.
    :param channels: whether requests come through channels, if the daemon has several threads and
        its libfuse supports channels.
    :param require: whether a mount fails (EPERM) if no handlers can be attached to it.
    :param adopt: whether processes that the daemon leaves in the background become children of this
        process, see `efuse.supervisor.children.adopting`.
    :param recovery_s: how long callers wait for a successor of the daemon; 0: not at all.
    :param predecessor: a mount whose daemon has died, and that this daemon is to take over.
    :param streams: its ``stdin``, ``stdout`` and ``stderr``, as for `subprocess.Popen`.
    :raises MountError: the daemon cannot be started, or its mounts cannot be carried out.
    :raises EfuseError: the handlers cannot be compiled.
    :ivar process: the process that was started.
    :ivar ended: exit statuses of other processes of the daemon that have ended, by their ids, as
        in `subprocess.Popen.returncode`; only with *adopt*.
    """

    def __init__(
        self,
        command: Sequence[str],
        options: Options | None,
        *,
        channels: bool = True,
        require: bool = False,
        adopt: bool = False,
        recovery_s: int = 0,
        predecessor: DaemonMount | None = None,
        **streams: Any,
    ) -> None:
        if str(Path("/proc/self").readlink()) != str(os.getpid()):
            raise MountError(
                f"{command[0]} cannot be run: /proc shows the processes of another PID namespace",
                hint="mount -t proc proc /proc",
            )
        self.command, self._streams = command, streams
        self._environment = _environment(channels=channels)
        self._recovery_s, self._poll = recovery_s, select.poll()
        self._most_descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._watched: set[int] = set()
        self._states: list[tuple[int, str]] = []
        self.ended: dict[int, int] = {}
        attach = attaching(options)
        with contextlib.ExitStack() as stack:
            self._child_ended = stack.enter_context(children.adopting()) if adopt else None
            self._started = contextlib.ExitStack()
            stack.callback(lambda: self._started.close())
            namespace = self._start([] if predecessor is None else [predecessor])
            if adopt:  # this process has no other purpose
                _take_all_descriptors()
            try:
                self._errands = Errands(
                    self._listener,
                    attach,
                    first=self.process.pid,
                    namespace=namespace,
                    require=require,
                    recovery_s=recovery_s,
                )
            except BaseException:  # nothing would answer its calls
                self.process.kill()
                self.process.wait()
                raise
            stack.callback(self._errands.close)
            if predecessor is not None:
                self._errands.mounts.append(predecessor)
            self._open = stack.pop_all()

    def _start(self, predecessors: Sequence[DaemonMount]) -> str:
        """Start the command, and return the name of the mount namespace that was made for it.

        :param predecessors: the mounts that it is to take over.
        :raises MountError: it cannot be started.
        """
        launched = launch(
            self.command,
            self._environment,
            self._streams,
            uncovered=[mount.connection for mount in predecessors],
            unmounting=self._recovery_s > 0,
            most_descriptors=self._most_descriptors,
        )
        with contextlib.ExitStack() as stack:
            stack.callback(launched.listener.close)
            try:
                pidfd = os.pidfd_open(launched.process.pid)
            except BaseException:  # nothing would answer its calls
                launched.process.kill()
                launched.process.wait()
                raise
            stack.callback(os.close, pidfd)
            self._started.close()
            self._started = stack.pop_all()
        self.process, self._listener, self._pidfd = launched.process, launched.listener, pidfd
        self._poll.register(pidfd, select.POLLIN)
        self.has_ended = False
        self.ended.clear()
        return launched.namespace

    def close(self) -> None:
        """Stop watching. The mounts go on, but the daemon cannot make further ones (ENOSYS)."""
        self._open.close()
        for mount in self.mounts:
            mount.close_watched()

    @property
    def mounts(self) -> list[DaemonMount]:
        """The daemon's mounts on eFuse."""
        return self._errands.mounts

    @property
    def has_mounted(self) -> bool:
        """Whether the daemon has mounted anything, maybe by a program that knows eFuse."""
        return self._errands.has_mounted

    @property
    def is_gone(self) -> bool:
        """Whether no process of the daemon is left, and no call of it."""
        return self.has_ended and not self._listener.has_callers() and not self._errands.has_calls

    @property
    def has_left_something(self) -> bool:
        """Whether a process or a mount of the daemon is left."""
        return self._listener.has_callers() or any(m.is_mounted for m in self.mounts)

    def events(self) -> Iterator[DaemonMount | Ended]:
        """Yield each mount of the daemon once it can be reached, and at last the daemon's end.

        If the process ends with status 0 and has not mounted anything, it may have left a process
        in the background that is about to mount. The iterator waits for this mount, but at most
        10 s.
        """
        until = None
        while until is None or not (self._is_done() or time.monotonic() >= until):
            left = None if until is None else max(0.0, until - time.monotonic())
            yield from self.wait(left)
            if self.has_ended and until is None:
                until = time.monotonic() + children.GRACE_S
        yield Ended(self.status)

    def more(self) -> Iterator[DaemonMount]:
        """Yield further mounts of a daemon in the background, until it has ended.

        The iterator ends when no process of the daemon and none of its mounts is left.
        """
        while self.has_left_something:
            yield from self.wait(None)
        self._errands.sweep()

    @property
    def status(self) -> int:
        """Exit status of the process that was started, once it has ended, as a shell reports it."""
        return status_of(self.process)

    def hand_on(self, number: int) -> None:
        """Send the signal to the process that was started.

        If that process has ended, the signal goes to the processes that it left in the background.

        :param number: number of the signal.
        """
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if self.process.returncode is None and not poll.poll(0):
            signal.pidfd_send_signal(self._pidfd, number)
            return
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def detach(self) -> None:
        """Detach the handlers from the mounts of the daemon, which stay mounted."""
        for mount in self.mounts:
            mount.detach()

    def end(self) -> int:
        """Unmount the mounts of the daemon, end it, and return its exit status.

        Whatever waits for a daemon is waited for only after that daemon has been killed, and not
        for ever.
        """
        self._errands.end_all()
        for mount in [*self.mounts]:
            self._errands.unmount(mount)
        self._errands.await_unmounts(_CLEAN_S)
        children.end(self._processes())
        self._errands.await_unmounts(_UNMOUNT_S)
        with contextlib.suppress(subprocess.TimeoutExpired):  # killed, but it waits for a file
            self.process.wait(_UNMOUNT_S)
            return self.status
        return 128 + signal.SIGKILL

    def restart(self) -> None:
        """Start the command again, to take over the mounts. No process of the daemon may be left.

        :raises MountError: it cannot be started.
        """
        namespace = self._start(self.mounts)
        self._errands.succeed(self._listener, first=self.process.pid, namespace=namespace)

    def end_processes(self) -> None:
        """End what is left of the daemon. Its calls are answered meanwhile, and its mounts stay."""
        self._errands.ignores_umounts = True
        for number, most_s in ((signal.SIGTERM, children.GRACE_S), (signal.SIGKILL, _UNMOUNT_S)):
            for pid in self._processes():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            until = time.monotonic() + most_s
            while not self.is_gone and (left_s := until - time.monotonic()) > 0:
                self.wait(left_s)

    def give_up(self) -> None:
        """Let all mounts end with the daemon; those that wait for a successor end now."""
        for mount in [*self.mounts]:
            mount.give_up()

    def holders(self) -> set[int]:
        """Return the processes in the background that have /dev/efuse open."""
        found = self._processes() - {self.process.pid}
        return {pid for pid in found if has_open(Path(f"/proc/{pid}"), str(DEVICE))}

    def lingers(self, processes: set[int]) -> bool:
        """Tell whether one of some processes of the daemon is there, or its status not known yet.

        A process leaves its filter before it closes its files, and then waits for its parent.
        """
        return any(Path(f"/proc/{pid}").exists() for pid in processes - self.ended.keys())

    def unmount_dead(self) -> None:
        """Unmount the mounts of this daemon that no process serves any more."""
        for mount in [*self.mounts]:
            if mount.is_dead:
                self._errands.unmount(mount)
        self._errands.await_unmounts(_UNMOUNT_S)

    def _processes(self) -> set[int]:
        """Return the processes of the daemon, which all have its filter.

        A shell that has executed this program may have had other children, which are now its own.
        """
        if self._child_ended is not None:
            found = children.descendants(os.getpid()) - self._errands.processes
            ours = children.filters_of(os.getpid())
            return {pid for pid in found if children.filters_of(pid) > ours}
        if self.process.returncode is not None:
            return set()
        return {self.process.pid, *children.descendants(self.process.pid)}

    def _is_done(self) -> bool:
        """Tell whether the process that has ended left nothing to wait for."""
        if self._errands.has_calls:
            return False
        has_failed = bool(self.process.returncode)
        return self.has_mounted or has_failed or not self._listener.has_callers()

    def wait(self, left_s: float | None) -> list[DaemonMount]:
        """Wait for system calls, ends of children, daemons and mounts, and what `_poll` watches.

        A mount with the option ``auto_unmount``, or of a user who may not unmount it, is unmounted
        when no process serves it any more. A mount whose daemon another process replaces is left to
        that process.

        :param left_s: how long at most; None: for ever.
        :returns: the mounts that were carried out, or taken over.
        """
        self._errands.sweep()
        if self._watch_mounts():
            return []
        # Without a caller, the listener would be ready for ever.
        more = [self._listener.fd] if self._listener.has_callers() else []
        more += self._errands.fds
        if self.has_ended and left_s is None and not (more or self._watched):
            return []
        more += [] if self._child_ended is None else [self._child_ended.fileno()]
        for fd in more:
            self._poll.register(fd, select.POLLIN)
        # The end of a mount that no process serves is not reported.
        if any(mount.is_dead for mount in self.mounts):
            left_s = _LOOK_S if left_s is None else min(left_s, _LOOK_S)
        ready = dict(self._poll.poll(None if left_s is None else left_s * 1000))
        for fd in more:
            self._poll.unregister(fd)
        if self._child_ended is not None:
            self.ended |= children.reap(self._child_ended, self.process)
        if self._pidfd in ready:
            self._poll.unregister(self._pidfd)
            self.process.wait()
            self.has_ended = True
        found = [
            mount
            for fd in self._errands.fds
            if fd in ready and (mount := self._errands.advance(fd)) is not None
        ]
        if ready.get(self._listener.fd, 0) & select.POLLIN:
            self._errands.take()
        return found

    def _watch_mounts(self) -> bool:
        """Watch the mounts that there are now, and tell whether something has changed."""
        for mount in [*self.mounts]:
            if mount.is_being_replaced:
                self._errands.let_go(mount)
            elif mount.is_dead and (mount.auto_unmount or mount.by_user):
                self._errands.unmount(mount)
        there = [mount for mount in self.mounts if mount.is_mounted]
        watched = {fd for m in there for fd in (m.watched, m.watched_daemon) if fd >= 0}
        for fd in self._watched - watched:
            self._poll.unregister(fd)
        for fd in watched - self._watched:
            self._poll.register(fd, select.POLLPRI)
        self._watched = watched
        # What has been read is not reported any more.
        states = [(mount.number, mount.daemon) for mount in there]
        changed, self._states = states != self._states, states
        return changed


def _take_all_descriptors() -> None:
    """Let this process have as many descriptors as the kernel allows: calls and mounts take some.

    The daemon, which has been started, keeps its own limit.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def attaching(options: Options | None) -> Callable[[int], Acceleration]:
    """Return the function that attaches the handlers to a connection.

    :raises EfuseError: they cannot be compiled.
    """
    if options is None:
        return _attach_nothing
    used = Shortcuts(options)
    programs = compile_set(used, {})
    return lambda connection: accelerate(connection, used, programs)


def _attach_nothing(_connection: int) -> Acceleration:
    raise MountError("no handlers are wanted")


@contextlib.contextmanager
def started(
    command: Sequence[str],
    options: Options | None = None,
    *,
    channels: bool = True,
    **streams: Any,
) -> Iterator[tuple[Running, DaemonMount]]:
    """Start *command* on eFuse, and yield it with its mount once it has mounted its file system.

    The mount is still there at the end of the block if the block has not unmounted it.

    :param command: the daemon and its arguments.
    :param options: what is declared for the mount; None: no handlers are attached.
    :param channels: whether requests come through channels, see `Running`.
    :param streams: see `Running`.
    :raises MountError: the daemon cannot be started, or has mounted nothing on eFuse.
    """
    require = options is not None
    running = Running(command, options, channels=channels, require=require, **streams)
    try:
        event = next(running.events())
        if isinstance(event, Ended):
            raise mounted_nothing(command, event.status)
        if not event.connection or (options is not None and not event.accelerated):
            raise MountError(f"{event.mountpoint} cannot be accelerated: {event.reason}")
        # Each channel of the daemon needs an answer, too.
        threading.Thread(target=_attend, args=(running,), daemon=True).start()
    except BaseException:
        running.end()
        running.close()
        raise
    try:
        yield running, event
    finally:
        running.detach()


def _attend(running: Running) -> None:
    try:
        for _ in running.more():
            pass
    finally:  # otherwise, calls would wait for ever
        running.close()


def mounted_nothing(command: Sequence[str], status: int) -> MountError:
    """Return the error for a daemon that has ended without a mount."""
    return MountError(
        f"{command[0]} ended with status {status} and mounted nothing",
        hint="it has to be a FUSE daemon; see its own messages",
    )


def _environment(*, channels: bool) -> dict[str, str]:
    if not channels:
        return {**os.environ, "EFUSE_CHANNELS": "0"}
    already = os.environ.get("LD_PRELOAD")
    shim = str(preload_library())
    return {**os.environ, "LD_PRELOAD": f"{shim}:{already}" if already else shim}
