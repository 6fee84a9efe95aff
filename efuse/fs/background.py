# SPDX-License-Identifier: LGPL-2.1-or-later
"""Serve a file system in a child process, while this process goes on."""

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
    """A mounted file system that another process serves."""

    pid: int
    """Id of the process that serves the file system."""

    mountpoint: str
    """Absolute path of the mount point."""

    type: str
    """Type of the mount: ``efuse`` or ``fuse``."""

    accelerated: bool
    """Whether handlers in the kernel answer requests of this mount."""

    reason: str
    """Why the mount is not accelerated, in one sentence; empty if it is."""

    connection: int | None
    """Number of the connection below /sys/fs/efuse; None if the mount is not accelerated."""

    channels: bool
    """Whether requests come through a channel."""

    channels_reason: str
    """Why requests do not come through a channel although that was wanted, in one sentence;
    otherwise empty."""

    given_up: str
    """What the kernel does not do because a subclass overrides handlers, in one sentence; empty if
    no handler is overridden, and without acceleration."""


def start(
    make: Callable[[], pyfuse3.Operations],
    mountpoint: str | os.PathLike[str],
    options: Collection[str] = DEFAULT_OPTIONS,
    *,
    plain: bool = False,
    required: bool = False,
    channels: bool = True,
    recovery: int = 0,
    daemonize: bool = False,
) -> Mounted:
    """Serve a file system in a child process, and return once it is mounted.

    :func:`efuse.serve` describes the parameters that are not listed here.

    :param make: returns the file system; called in the child.
    :param daemonize: let the child outlive this process: it starts a session of its own, and its
        standard streams become /dev/null.
    :returns: a description of the mount.
    :raises EfuseError: the file system could not be mounted, or *make* failed.
    """
    run = functools.partial(
        serve, plain=plain, required=required, channels=channels, recovery=recovery
    )
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
                f"{os.fspath(mountpoint)} cannot be mounted: no process can be created for it:"
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
    """Pass a signal that ends this process to a child that is mounting, as SIGTERM.

    After the block this process gets the signal itself. The caller gives the child's process id to
    the function that is yielded. A child that does not serve yet ends by the signal.

    :raises MountError: a signal came, and did not end this process.
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
            # The child has ended, or a signal has interrupted this very loop.
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
        # The program may have a handler of its own for the signal, and go on.
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
    recovery: int = 0,
) -> Iterator[Mounted]:
    """Mount *operations* on *mountpoint* for the length of a ``with`` block.

    A child process serves the file system. It has a copy of *operations*, so changes that its
    handlers make are not visible here. If a process that was forked within the block leaves the
    block, the file system stays mounted. Within trio use
    ``await nursery.start(efuse.serve, operations, mountpoint)`` instead.

    :func:`efuse.serve` describes the parameters.

    :raises MountError: the file system could not be mounted, or its process failed.
    """
    parent = os.getpid()
    mounted = start(
        lambda: operations,
        mountpoint,
        options,
        plain=plain,
        required=required,
        channels=channels,
        recovery=recovery,
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
            hint="its output above gives the reason",
        )


def _child(
    run: Callable[..., Awaitable[None]],
    make: Callable[[], pyfuse3.Operations],
    mountpoint: str,
    options: Collection[str],
    daemonize: bool,
    send: int,
) -> int:
    """Serve the file system, and report to the parent that it is mounted or has failed.

    :param send: descriptor of a pipe to the parent.
    :returns: the exit status of the child.
    """
    parent = _Parent(send, daemonize)
    if daemonize and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A shell script starts a command with & so that it ignores SIGINT, which the terminal sends
        # to all its processes. A daemon has no terminal: a SIGINT was sent to it on purpose.
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
    """Report to the parent, which waits at the other end of a pipe. A ``trio.TaskStatus``."""

    def __init__(self, send: int, daemonize: bool) -> None:
        self._send: int | None = send
        self._daemonize = daemonize

    def started(self, value: State | None = None) -> None:
        """Report that the file system is mounted."""
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
            given_up=state.given_up,
        )

    def take(self, number: int, _frame: object) -> None:
        """Handle a signal while :func:`serve` does not: before the mount, and after its end.

        Before the parent has the report, the signal ends this process. Afterwards it does nothing.
        """
        if self._send is not None:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def failed(self, error: EfuseError) -> None:
        """Report the error, or print it if the parent no longer waits."""
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
    """Leave the terminal, and send log messages to syslog from now on."""
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
