# SPDX-License-Identifier: LGPL-2.1-or-later
"""A mount of a daemon that this process has carried out."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from efuse.control import Connection
from efuse.control.daemon_locks import DaemonLock, is_locked, locked
from efuse.control.takeover import why_it_ends
from efuse.display import shown
from efuse.errors import ControlError, EfuseError
from efuse.fs.acceleration import Acceleration
from efuse.supervisor.asking import Asked

__all__ = ["DaemonMount"]

_log = logging.getLogger("efuse.fs")


@dataclass
class DaemonMount:
    """A mount that a daemon has asked for.

    :ivar mountpoint: path on which it was mounted.
    :ivar auto_unmount: whether it is to be unmounted when its daemon has ended.
    :ivar user: real user id of the process that mounted it.
    :ivar reason: why it has no handlers, in one sentence; empty if it has.
    :ivar hint: what to try then; may be empty.
    :ivar connection: number of its connection; 0 if it is not on eFuse. A later connection may get
        the same number.
    :ivar number: unique number of the mount, which no other mount ever gets; see
        `efuse.control.mounts.number_at`. 0 if it is not on eFuse.
    :ivar acceleration: the attached handlers, None if there are none.
    :ivar watched: descriptor of the attribute ``connected``, which poll(2) reports for POLLPRI when
        the connection or the mount has ended; -1 if the mount is not on eFuse.
    :ivar watched_daemon: descriptor of the attribute ``daemon``, which poll(2) reports for POLLPRI
        when a daemon has died, and when a successor serves; -1 if the mount is not on eFuse.
    :ivar asked: the options that the daemon has mounted it with; None if they are not known.
    :ivar ends_because: why it ends with its daemon, in a few words; empty if it does not.
    :ivar is_refused: whether a successor could not take it over because of `reason`.
    """

    mountpoint: str
    auto_unmount: bool = False
    user: int = 0
    reason: str = ""
    hint: str = ""
    connection: int = 0
    number: int = 0
    acceleration: Acceleration | None = None
    watched: int = -1
    watched_daemon: int = -1
    asked: Asked | None = None
    ends_because: str = "it is not wanted otherwise"
    is_refused: bool = False
    _lock_fd: int = -1
    # Another thread may ask about the mount while it is released, and the handler of a signal may
    # give it up.
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)

    def begin(self, connection: int, attach: Callable[[int], Acceleration]) -> None:
        """Attach handlers to its connection, which cannot be reached yet. Note why not otherwise.

        :raises OSError: the module is too old to tell when the connection ends.
        """
        path = Connection(connection).path
        self.watched = os.open(path / "connected", os.O_RDONLY | os.O_CLOEXEC)
        self.watched_daemon = os.open(path / "daemon", os.O_RDONLY | os.O_CLOEXEC)
        self.connection = connection
        try:
            self.acceleration = attach(connection)
        except EfuseError as error:
            self.reason, self.hint = str(error), error.hint or ""

    def outlive(self, seconds: int) -> None:
        """Let the mount outlive its daemon. Note in `ends_because` why not otherwise.

        :param seconds: how long callers wait for a successor.
        """
        try:
            connection = Connection(self.connection)
            self.ends_because = why_it_ends(connection)
            if not self.ends_because:
                self._lock_fd = locked(connection, DaemonLock.RESTARTING)
                connection.recovery = seconds
        except ControlError as error:
            self.ends_because = str(error)
            self._unlock()

    def give_up(self) -> None:
        """Let the mount end with its daemon. If it waits for a successor, it ends now."""
        self.ends_because = "it is not wanted otherwise"
        try:
            connection = Connection(self.connection)
            connection.recovery = 0
            if self.daemon == "dead":
                connection.abort()
        except ControlError:  # it has ended
            pass
        self._unlock()

    def abandon(self) -> None:
        """Take `begin` back: the mount was refused."""
        self.detach()
        self.connection = 0
        self.close_watched()

    def close_watched(self) -> None:
        """Close `watched` and `watched_daemon`, and unlock the daemon."""
        with self._lock:
            for fd in (self.watched, self.watched_daemon):
                if fd >= 0:
                    os.close(fd)
            self.watched = self.watched_daemon = -1
        self._unlock()

    def _unlock(self) -> None:
        with self._lock:
            if self._lock_fd >= 0:
                os.close(self._lock_fd)
                self._lock_fd = -1

    @property
    def by_user(self) -> bool:
        """Whether it was made for a user, whose fusermount(1) refuses to unmount eFuse."""
        return self.user != 0

    @property
    def accelerated(self) -> bool:
        return self.acceleration is not None

    @property
    def is_mounted(self) -> bool:
        """Whether it is still mounted, at any place and in any mount namespace."""
        return self._connected() is not None

    @property
    def is_dead(self) -> bool:
        """Whether it is mounted, but no process serves it."""
        return self._connected() == b"0\n"

    @property
    def outlives_daemon(self) -> bool:
        """Whether it outlives its daemon."""
        return not self.ends_because

    @property
    def daemon(self) -> str:
        """Whether a daemon serves it: the attribute ``daemon``; ``none`` if it is not mounted."""
        with self._lock:
            told = _content(self.watched_daemon)
        return "none" if told is None else told.decode().strip()

    @property
    def is_being_replaced(self) -> bool:
        """Whether another process replaces its daemon, which has died."""
        try:
            return self.daemon == "dead" and is_locked(
                Connection(self.connection), DaemonLock.REPLACING
            )
        except ControlError:  # it has ended
            return False

    def _connected(self) -> bytes | None:
        with self._lock:
            return _content(self.watched)

    def close(self) -> None:
        """Detach the handlers; the file system stays mounted."""
        with self._lock:
            acceleration, self.acceleration = self.acceleration, None
        if acceleration is not None:
            self.reason = "the handlers were detached"
            acceleration.close()

    def detach(self) -> None:
        """Detach the handlers as `close` does, but log a failure."""
        try:
            self.close()
        except EfuseError as error:
            where = shown(self.mountpoint)
            _log.warning("the handlers of %s cannot be detached: %s", where, shown(str(error)))


def _content(attribute: int) -> bytes | None:
    """Return the content of an open attribute; None if the mount has ended."""
    if attribute < 0:
        return None
    try:
        return os.pread(attribute, 16, 0)
    except OSError:  # ENODEV; with any other, nothing would be known of it any more
        return None
