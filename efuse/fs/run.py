# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs an unmodified libfuse daemon so that its mount is eFuse's, and attaches the handlers."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from efuse.control import Mount, find
from efuse.control.mounts import MOUNTINFO, parse
from efuse.errors import ControlError, EfuseError, MountError, reason
from efuse.fs.acceleration import Acceleration, accelerate
from efuse.fs.options import Options
from efuse.fs.overriding import Shortcuts
from efuse.fs.preload import preload_library

__all__ = [
    "Daemon",
    "forwarding",
    "run_plain",
    "start_daemon",
    "wait_for_daemon",
    "wait_until_gone",
]


@dataclass
class Daemon:
    """A libfuse daemon whose file system is mounted on eFuse."""

    process: subprocess.Popen[bytes]
    mount: Mount
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

    def attach(self, options: Options) -> None:
        """Declare *options* and attach the built-in handlers.

        :raises EfuseError: the kernel refused it; the file system stays mounted as it is.
        """
        try:
            self.acceleration = accelerate(self.connection, Shortcuts(options), {})
        except EfuseError as error:
            self.reason = str(error)
            raise
        self.reason = ""

    def close(self) -> None:
        """Detach the handlers; the file system stays mounted."""
        if self.acceleration is not None:
            self.acceleration.close()
            self.acceleration = None
            self.reason = "the handlers were detached"


def start_daemon(command: Sequence[str], *, channels: bool = True) -> Daemon:
    """Start *command* on eFuse and return when it has mounted its file system.

    :param channels: whether its requests shall come through channels, if it has several threads
        and a libfuse that can.
    :raises MountError: it ended, or failed, without mounting anything on eFuse.
    """
    environment = dict(os.environ)
    already = environment.get("LD_PRELOAD")
    shim = str(preload_library())
    environment["LD_PRELOAD"] = f"{shim}:{already}" if already else shim
    if not channels:
        environment["EFUSE_CHANNELS"] = "0"
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            environment["EFUSE_REPORT_FD"] = str(theirs.fileno())
            process = _start(command, environment, (theirs.fileno(),))
        # A record comes when it mounts; end of file when nobody is left who could.
        record = ours.recv(4096)
    if not record:
        return _did_not_mount(command, process)
    mountpoint = os.fsdecode(record)
    try:
        return Daemon(process, find(mountpoint))
    except ControlError as error:
        raise MountError(
            f"{command[0]} mounted {mountpoint}, but that is no eFuse mount here: {error}",
            hint="does it use a mount namespace of its own?",
        ) from error


def _start(
    command: Sequence[str], environment: dict[str, str] | None = None, keep: tuple[int, ...] = ()
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(list(command), env=environment, pass_fds=keep)
    except OSError as error:
        raise MountError(
            f"{command[0]} cannot be started: {reason(error)}", hint="check the command"
        ) from error


def _did_not_mount(command: Sequence[str], process: subprocess.Popen[bytes]) -> Daemon:
    status = process.wait()
    raise MountError(
        f"{command[0]} ended with status {status} and mounted nothing on eFuse",
        hint="it has to be a dynamically linked libfuse daemon, run as root",
    )


def run_plain(command: Sequence[str]) -> int:
    """Run *command* as it is, with its signals, and return its exit status.

    :raises MountError: it cannot be started.
    """
    process = _start(command)
    with forwarding(process):
        return wait_for_daemon(process)


def wait_for_daemon(process: subprocess.Popen[bytes]) -> int:
    """Wait for *process* and return its exit status; see :func:`forwarding`."""
    status = process.wait()
    return 128 - status if status < 0 else status


@contextlib.contextmanager
def forwarding(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Hand SIGINT and SIGTERM on to *process* instead of dying of them."""

    def forward(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def wait_until_gone(mount: Mount, *, mountinfo: Path = MOUNTINFO) -> None:
    """Wait until *mount* is unmounted."""
    fd = os.open(mountinfo, os.O_RDONLY | os.O_CLOEXEC)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLPRI)  # the kernel signals a change of the table
        while any(m.mount_id == mount.mount_id for m in parse(_read(fd))):
            poll.poll()
    finally:
        os.close(fd)


def _read(fd: int) -> str:
    parts = []
    offset = 0
    while part := os.pread(fd, 1 << 16, offset):
        parts.append(part)
        offset += len(part)
    return os.fsdecode(b"".join(parts))
