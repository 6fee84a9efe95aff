# SPDX-License-Identifier: LGPL-2.1-or-later
"""A file system served by a process of its own, while this one goes on."""

from __future__ import annotations

import contextlib
import functools
import json
import logging.handlers
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyfuse3
import trio

from efuse.display import shown_lines
from efuse.errors import EfuseError, MountError, NotSupportedError, UsageError, reason
from efuse.fs.ending import not_ignored, not_mounted
from efuse.fs.forking import forked
from efuse.fs.session import DEFAULT_OPTIONS, serve
from efuse.fs.state import State

__all__ = ["Mounted", "leave", "mount", "start"]

_ERRORS: dict[str, type[EfuseError]] = {
    kind.__name__: kind for kind in (MountError, NotSupportedError, UsageError)
}


@dataclass(frozen=True)
class Mounted:
    """A file system that another process serves."""

    pid: int
    mountpoint: str
    type: str
    """``efuse`` or ``fuse``."""

    accelerated: bool
    reason: str
    """Why it is not accelerated, in one sentence; empty when it is."""

    connection: int | None
    """Its number below /sys/fs/efuse; None where it is not accelerated."""

    channels: bool
    """Whether its requests come through a channel."""

    channels_reason: str
    """Why they do not although that was wanted, in one sentence; else empty."""


def start(
    make: Callable[[], pyfuse3.Operations],
    mountpoint: str | os.PathLike[str],
    options: Collection[str] = DEFAULT_OPTIONS,
    *,
    plain: bool = False,
    required: bool = False,
    channels: bool = True,
    daemonize: bool = False,
) -> Mounted:
    """Serve what *make* returns in a child process; return when it is mounted.

    *make* is called in the child. With *daemonize* the child leaves the session and its standard
    streams and survives this process. See :func:`efuse.serve` for the other parameters.

    :raises EfuseError: it could not be mounted, or *make* failed.
    """
    run = functools.partial(serve, plain=plain, required=required, channels=channels)
    receive, send = os.pipe()
    with _handing_on() as started:

        def child() -> int:
            os.close(receive)
            return _child(run, make, os.fspath(mountpoint), options, daemonize, send)

        try:
            pid = forked(child)
        except OSError as error:
            os.close(receive)
            raise MountError(
                f"{os.fspath(mountpoint)} cannot be mounted: no process can be made for it:"
                f" {reason(error)}",
                hint="ulimit -u",
            ) from error
        finally:
            os.close(send)
        started(pid)
        with os.fdopen(receive, "rb") as pipe:
            message = pipe.read()
    if not message:
        _, status = os.waitpid(pid, 0)
        raise MountError(
            f"{os.fspath(mountpoint)} cannot be mounted: its process ended with "
            f"{os.waitstatus_to_exitcode(status)}",
            hint="run it in the foreground",
        )
    told = json.loads(message)
    if "error" in told:
        os.waitpid(pid, 0)
        raise _ERRORS.get(told["kind"], EfuseError)(told["error"], hint=told["hint"])
    return Mounted(pid=pid, **told)


@contextlib.contextmanager
def _handing_on() -> Iterator[Callable[[int], None]]:
    """Hand signals that end this process on to a child that mounts; then end as they want it.

    The function that is yielded says which child it is. Before it serves, it ends by such a signal.

    :raises MountError: a signal came, and this process has gone on after it.
    """
    parent = os.getpid()
    seen: list[int] = []
    waiting: list[int] = []
    children: list[int] = []

    def take(number: int, _frame: object) -> None:
        if os.getpid() != parent:
            os._exit(128 + number)
        seen.append(number)
        waiting.append(signal.SIGTERM)
        hand_on()

    def hand_on() -> None:
        while waiting and children:
            # It has ended; or a signal interrupted this very loop.
            with contextlib.suppress(ProcessLookupError, IndexError):
                os.kill(children[0], waiting.pop())

    def started(pid: int) -> None:
        children.append(pid)
        hand_on()

    before = {number: signal.signal(number, take) for number in not_ignored()}
    try:
        yield started
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if seen:
        for pid in children:
            os.waitpid(pid, 0)
        os.kill(os.getpid(), seen[0])
        # What the signal does here is this program's to say: it may go on.
        raise not_mounted(seen[0])


@contextlib.contextmanager
def mount(
    operations: pyfuse3.Operations,
    mountpoint: str | os.PathLike[str],
    options: Collection[str] = DEFAULT_OPTIONS,
    *,
    plain: bool = False,
    required: bool = False,
    channels: bool = True,
) -> Iterator[Mounted]:
    """Have *operations* mounted on *mountpoint* within the block, served by a child process.

    The child has a copy of *operations*: what its handlers change is not seen here. Within trio use
    ``await nursery.start(efuse.serve, operations, mountpoint)`` instead. See :func:`efuse.serve`.
    A process that is forked within the block may leave it: the mount stays.

    :raises MountError: it could not be mounted, or its process failed.
    """
    parent = os.getpid()
    mounted = start(
        lambda: operations,
        mountpoint,
        options,
        plain=plain,
        required=required,
        channels=channels,
    )
    status = 0
    try:
        yield mounted
    finally:
        if os.getpid() == parent:
            with contextlib.suppress(ProcessLookupError):
                os.kill(mounted.pid, signal.SIGTERM)
            _, status = os.waitpid(mounted.pid, 0)
    if status != 0:
        raise MountError(
            f"the process that served {mounted.mountpoint} ended with "
            f"{os.waitstatus_to_exitcode(status)}",
            hint="what it printed above says why",
        )


def _child(
    run: Callable[..., Awaitable[None]],
    make: Callable[[], pyfuse3.Operations],
    mountpoint: str,
    options: Collection[str],
    daemonize: bool,
    send: int,
) -> int:
    """Serve, and tell the parent once it is mounted or has failed; returns the exit status."""
    parent = _Parent(send, daemonize)
    if daemonize and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A script's shell has what it starts with & ignore the terminal's, which a daemon has none
        # of: who sends it SIGINT means it.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    for number in not_ignored():
        signal.signal(number, parent.take)
    try:
        trio.run(functools.partial(run, task_status=parent), make(), mountpoint, options)
    except EfuseError as error:
        parent.failed(error)
        return error.exit_code
    return 0


class _Parent:
    """The parent that waits at the other end of a pipe; a ``trio.TaskStatus``."""

    def __init__(self, send: int, daemonize: bool) -> None:
        self._send: int | None = send
        self._daemonize = daemonize

    def started(self, value: State | None = None) -> None:
        """Tell it that the file system is mounted."""
        state = value or State()
        if self._daemonize:
            leave()
        self._tell(
            mountpoint=state.mountpoint,
            type=state.mounted_type,
            accelerated=state.accelerated,
            reason=state.reason,
            connection=state.connection,
            channels=state.channels,
            channels_reason=state.channels_reason,
        )

    def take(self, number: int, _frame: object) -> None:
        """Take a signal that :func:`serve` does not: before it is mounted, and while it ends."""
        if self._send is not None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def failed(self, error: EfuseError) -> None:
        """Tell it the error, or print that if the parent has gone on already."""
        if self._send is None:
            print(shown_lines(f"efuse: {error}"), file=sys.stderr)
        else:
            self._tell(error=str(error), hint=error.hint, kind=type(error).__name__)

    def _tell(self, **message: object) -> None:
        assert self._send is not None
        os.write(self._send, json.dumps(message).encode())
        os.close(self._send)
        self._send = None


def leave() -> None:
    """Leave the terminal; what is logged from now on goes to syslog."""
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    os.close(null)
    if Path("/dev/log").exists():
        handler = logging.handlers.SysLogHandler("/dev/log", facility="daemon")
        handler.ident = f"efuse[{os.getpid()}]: "
        logging.getLogger("efuse").addHandler(handler)
