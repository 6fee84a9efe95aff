# SPDX-License-Identifier: LGPL-2.1-or-later
"""Daemons of others that are killed, and whose mount another process takes over."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from efuse.control import Connection, DaemonExit, find
from efuse.errors import ControlError
from efuse.fs.mountpoint import MountOptions, mount_efuse, unmount
from tests.guest.support.daemons import eventually
from tests.guest.support.succession import RECOVERY_S, successor_of


class Starter:
    """A process that starts daemons, so that they have no files open that the test opens later.

    A daemon that has files of its own mount open waits for itself when it closes them.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._socket, end = socket.socketpair()
        self._pid = os.fork()
        if not self._pid:
            self._socket.close()
            self._serve(end, command)
        end.close()

    @staticmethod
    def _serve(end: socket.socket, command: Sequence[str]) -> NoReturn:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            _, devices, _, _ = socket.recv_fds(end, 1, 1)
            if not devices:
                os._exit(0)
            pid = os.fork()
            if not pid:
                os.set_inheritable(devices[0], True)
                os.execv(command[0], [*command, f"/dev/fd/{devices[0]}"])
            os.close(devices[0])
            end.send(struct.pack("i", pid))

    def start(self, device: int) -> int:
        """Start a daemon that serves the descriptor *device*, which is closed; return its PID."""
        try:
            socket.send_fds(self._socket, [b"."], [device])
        finally:
            os.close(device)
        return int(struct.unpack("i", self._socket.recv(4))[0])

    def close(self) -> None:
        self._socket.close()
        os.waitpid(self._pid, 0)


class UnmodifiedDaemon:
    """A libfuse daemon that serves a descriptor of /dev/efuse: its mountpoint is /dev/fd/N."""

    def __init__(self, mountpoint: Path, command: Sequence[str]) -> None:
        self.path = mountpoint
        self._starter = Starter(command)
        options = MountOptions.parse(["allow_other"])
        self._pid = self._starter.start(mount_efuse(str(mountpoint), options))
        self.connection = Connection(find(mountpoint).connection)

    def dies(self) -> None:
        """Kill the daemon; the mount waits for a successor then."""
        os.kill(self._pid, signal.SIGKILL)
        eventually(lambda: self.connection.daemon == "dead", "the daemon to be dead")

    def follow(self) -> None:
        """Start a successor, and wait until it serves."""
        self._pid = self._starter.start(successor_of(self.path))
        eventually(lambda: self.connection.daemon == "serving", "the successor to serve")

    def replace(self) -> None:
        self.dies()
        self.follow()

    @property
    def record(self) -> DaemonExit:
        return self.connection.daemon_exit

    def close(self) -> None:
        with contextlib.suppress(ControlError):
            self.connection.recovery = 0
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        unmount(str(self.path))
        self._starter.close()


@contextlib.contextmanager
def unmodified(
    mountpoint: Path, command: Sequence[str], *, consistency: str = "exclusive"
) -> Iterator[UnmodifiedDaemon]:
    """Mount by a daemon of others, with recovery.

    :param command: command of the daemon in the foreground, without the mountpoint.
    :param consistency: mode of the connection.
    """
    daemon = UnmodifiedDaemon(mountpoint, command)
    try:
        daemon.connection.consistency = consistency
        daemon.connection.recovery = RECOVERY_S
        # A connection without an answer to INIT ends with its daemon.
        mountpoint.stat()
        yield daemon
        # No daemon has ended by itself, such as by an account of lookups that is not balanced.
        assert daemon.connection.daemon == "serving"
    finally:
        daemon.close()
