# SPDX-License-Identifier: LGPL-2.1-or-later
"""Unmount the mounts of a daemon, each in a process of its own.

The way to a mount point may lead through a mount whose daemon does not answer, for as long as that
daemon wants. So only the end of the supervisor waits for these processes, and not for ever.
"""

from __future__ import annotations

import errno
import functools
import logging
import os
import socket
import time

from efuse.control.mounts import place_of
from efuse.display import shown
from efuse.errors import reason
from efuse.fs.mountpoint import detach
from efuse.supervisor import reports
from efuse.supervisor.admission import Busy, Owner
from efuse.supervisor.daemon_mount import DaemonMount
from efuse.supervisor.spawner import Spawner
from efuse.supervisor.worker import Worker

__all__ = ["Unmounting"]

_log = logging.getLogger("efuse.fs")
# After such a time an unmount is reported to hang, and one that failed is tried again.
_PATIENCE_S = 5.0
_HANGS = "a file system on the way to it does not answer"


class _Unmount:
    """An unmount that is under way."""

    def __init__(self, mount: DaemonMount, worker: Worker) -> None:
        self.mount, self.worker, self.begun = mount, worker, time.monotonic()


class Unmounting:
    """Unmounts mounts of the daemon.

    :param spawner: makes the processes.
    """

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner
        self._under_way: dict[int, _Unmount] = {}
        self._again: dict[int, float] = {}
        self._said: set[int] = set()

    @property
    def fds(self) -> list[int]:
        """Descriptors that become readable when `advance` has something to do."""
        return [each.worker.watched for each in [*self._under_way.values()]]

    @property
    def processes(self) -> set[int]:
        """The processes that unmount."""
        return {each.worker.process for each in self._under_way.values()}

    def begin(self, mount: DaemonMount) -> None:
        """Begin to unmount a mount lazily, but nothing that was mounted there since.

        It does nothing while this is under way, or has just failed, or while too many others of the
        same user are under way.
        """
        number = mount.number
        if not number or time.monotonic() < self._again.get(number, 0.0):
            return
        under_way = self._under_way.get(number)
        if under_way is not None:
            if time.monotonic() >= under_way.begun + _PATIENCE_S:
                self._warn(mount, _HANGS)
            return
        busy = Busy(_owner_of(each.mount) for each in self._under_way.values())
        if not busy.has_room(_owner_of(mount)):
            return
        try:
            job = functools.partial(_unmount, number, mount.mountpoint)
            self._under_way[number] = _Unmount(mount, self._spawner.start(job))
        except OSError as error:
            self._again[number] = time.monotonic() + _PATIENCE_S
            self._warn(mount, reason(error))

    def advance(self, fd: int) -> None:
        """Hear what a process reports.

        :param fd: one of `fds`; others are ignored.
        """
        for number, each in [*self._under_way.items()]:
            if each.worker.watched == fd:
                self._hear(each)
                if each.worker.has_ended:
                    self._again[number] = time.monotonic() + _PATIENCE_S
                    each.worker.close()
                    del self._under_way[number]

    def forget(self, mount: DaemonMount) -> None:
        """Forget a mount, which has ended."""
        under_way = self._under_way.pop(mount.number, None)
        if under_way is not None:
            under_way.worker.kill()
            under_way.worker.close()
        self._again.pop(mount.number, None)
        self._said.discard(mount.number)

    def close(self) -> None:
        """Kill the processes, and say what they have not unmounted."""
        for each in self._under_way.values():
            self._warn(each.mount, _HANGS)
            each.worker.kill()
            each.worker.close()
        self._under_way.clear()

    def _hear(self, unmount: _Unmount) -> None:
        try:
            report, fds = unmount.worker.received()
        except OSError as error:
            report, fds = reports.Trouble(reason(error)), []
        for fd in fds:
            os.close(fd)
        if isinstance(report, reports.Trouble):
            self._warn(unmount.mount, report.text)

    def _warn(self, mount: DaemonMount, why: str) -> None:
        if mount.number not in self._said:
            self._said.add(mount.number)
            _log.warning("%s cannot be unmounted: %s", shown(mount.mountpoint), shown(why))


def _owner_of(mount: DaemonMount) -> Owner:
    return Owner(mount.number, mount.user)  # its process is long gone


def _unmount(number: int, mountpoint: str, _supervisor: socket.socket) -> None:
    """Unmount a mount.

    :raises OSError: the kernel refused it.
    :raises ControlError: mountinfo cannot be read.
    """
    try:
        detach(place_of(number) or mountpoint, number)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: another process has just unmounted it
            raise
