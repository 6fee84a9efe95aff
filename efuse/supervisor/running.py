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

from efuse.errors import MountError
from efuse.fs.acceleration import Acceleration, accelerate, compile_set
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

__all__ = ["Ended", "Running", "mounted_nothing", "started"]


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
    :param streams: its ``stdin``, ``stdout`` and ``stderr``, as for `subprocess.Popen`.
    :raises MountError: the daemon cannot be started, or its mounts cannot be carried out.
    :raises EfuseError: the handlers cannot be compiled.
    :ivar process: the process that was started.
    """

    def __init__(
        self,
        command: Sequence[str],
        options: Options | None,
        *,
        channels: bool = True,
        require: bool = False,
        adopt: bool = False,
        **streams: Any,
    ) -> None:
        if str(Path("/proc/self").readlink()) != str(os.getpid()):
            raise MountError(
                f"{command[0]} cannot be run: /proc shows the processes of another PID namespace",
                hint="mount -t proc proc /proc",
            )
        self.command = command
        attach = _attaching(options)
        with contextlib.ExitStack() as stack:
            self._child_ended = stack.enter_context(children.adopting()) if adopt else None
            self.process, self._listener = launch(command, _environment(channels=channels), streams)
            stack.callback(self._listener.close)
            if adopt:  # this process has no other purpose
                _take_all_descriptors()
            try:
                self._pidfd = os.pidfd_open(self.process.pid)
                stack.callback(os.close, self._pidfd)
                first = self.process.pid
                self._errands = Errands(self._listener, attach, first=first, require=require)
            except BaseException:  # nothing would answer its calls
                self.process.kill()
                self.process.wait()
                raise
            stack.callback(self._errands.close)
            self._open = stack.pop_all()
        self._has_ended = False
        self._watched: set[int] = set()
        self._poll = select.poll()
        self._poll.register(self._pidfd, select.POLLIN)

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
            yield from self._wait(left)
            if self._has_ended and until is None:
                self.process.wait()
                until = time.monotonic() + children.GRACE_S
        yield Ended(self.status)

    def more(self) -> Iterator[DaemonMount]:
        """Yield further mounts of a daemon in the background, until it has ended.

        The iterator ends when no process of the daemon and none of its mounts is left.
        """
        while self.has_left_something:
            yield from self._wait(None)
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

    def _wait(self, left_s: float | None) -> list[DaemonMount]:
        """Wait for system calls, the ends of children and of mounts, and what `_poll` watches.

        A mount with the option ``auto_unmount``, or of a user who may not unmount it, is unmounted
        when no process serves it any more.

        :returns: the mounts that were carried out.
        """
        self._errands.sweep()
        self._watch_mounts()
        # Without a caller, the listener would be ready for ever.
        more = [self._listener.fd] if self._listener.has_callers() else []
        more += self._errands.fds
        if self._has_ended and left_s is None and not (more or self._watched):
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
            children.reap(self._child_ended, self.process)
        if self._pidfd in ready:
            self._poll.unregister(self._pidfd)
            self._has_ended = True
        found = [
            mount
            for fd in self._errands.fds
            if fd in ready and (mount := self._errands.advance(fd)) is not None
        ]
        if ready.get(self._listener.fd, 0) & select.POLLIN:
            self._errands.take()
        return found

    def _watch_mounts(self) -> None:
        for mount in self.mounts:
            if mount.is_dead and (mount.auto_unmount or mount.by_user):
                self._errands.unmount(mount)
        watched = {mount.watched for mount in self.mounts if mount.is_mounted}
        for fd in self._watched - watched:
            self._poll.unregister(fd)
        for fd in watched - self._watched:
            self._poll.register(fd, select.POLLPRI)
        self._watched = watched


def _take_all_descriptors() -> None:
    """Let this process have as many descriptors as the kernel allows: calls and mounts take some.

    The daemon, which has been started, keeps its own limit.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _attaching(options: Options | None) -> Callable[[int], Acceleration]:
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
