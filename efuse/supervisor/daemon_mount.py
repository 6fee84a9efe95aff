# SPDX-License-Identifier: LGPL-2.1-or-later
"""A mount of a daemon that this process has carried out."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from efuse.control import Connection
from efuse.display import shown
from efuse.errors import EfuseError
from efuse.fs.acceleration import Acceleration

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
        the daemon or the mount has ended; -1 if the mount is not on eFuse.
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
    # Another thread may ask about the mount while it is released.
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def begin(self, connection: int, attach: Callable[[int], Acceleration]) -> None:
        """Attach handlers to its connection, which cannot be reached yet. Note why not otherwise.

        :raises OSError: the module is too old to tell when the connection ends.
        """
        path = Connection(connection).path / "connected"
        self.watched = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.connection = connection
        try:
            self.acceleration = attach(connection)
        except EfuseError as error:
            self.reason, self.hint = str(error), error.hint or ""

    def abandon(self) -> None:
        """Take `begin` back: the mount was refused."""
        self.detach()
        self.connection = 0
        self.close_watched()

    def close_watched(self) -> None:
        """Close `watched`."""
        with self._lock:
            if self.watched >= 0:
                os.close(self.watched)
                self.watched = -1

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

    def _connected(self) -> bytes | None:
        with self._lock:
            if self.watched < 0:
                return None
            try:
                return os.pread(self.watched, 8, 0)
            except OSError:  # ENODEV; with any other, nothing would be known of it any more
                return None

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
