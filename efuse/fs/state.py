# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a mounted file system can know of itself: acceleration, counters and maps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from efuse.fs.events import Events
from efuse.fs.overriding import Shortcuts

__all__ = ["Accelerator", "State", "Statistics"]


class Accelerator(Protocol):
    """The kernel's side of an eFuse mount, as the state uses it."""

    @property
    def connection(self) -> int: ...
    @property
    def maps(self) -> Mapping[str, Any]: ...
    def invalidate_all(self) -> None: ...
    def withdraw(self, changes: Mapping[str, Any]) -> None: ...
    def epoch(self) -> int: ...
    def publish(self, entries: Any, *, epoch: int, uid: int, gid: int) -> int: ...
    def publish_data(self, inode: int, offset: int, data: Any, **valid: Any) -> int: ...
    def events(self) -> Events: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Statistics:
    """What the daemon has seen so far. For the kernel's own counters see ``efuse.stats``."""

    requests: Mapping[str, int]
    """Requests that reached the daemon, by handler."""

    errors: Mapping[str, int]
    """Exceptions that became EIO, by handler."""

    accelerated: bool
    """Whether handlers in the kernel answer requests of this mount."""

    @property
    def requests_total(self) -> int:
        return sum(self.requests.values())

    @property
    def errors_total(self) -> int:
        return sum(self.errors.values())


@dataclass
class State:
    """``Operations.efuse``: plain before the mount and without eFuse, filled when it is there."""

    accelerator: Accelerator | None = None
    reason: str = "it is not mounted"
    """Why the mount is not accelerated, in one sentence; empty when it is."""

    mountpoint: str | None = None
    mount_options: frozenset[str] | None = None
    """The mount options it was mounted with; None before the mount."""

    mounted_connection: int | None = None
    """The number that the kernel has for the mount's connection, accelerated or not; None before
    the mount, and where this process does not see it."""

    device: int | None = None
    """The descriptor of /dev/efuse while mounted with eFuse."""

    mounted_type: str | None = None
    """``fuse`` or ``efuse`` while mounted."""

    channels: bool = False
    """Whether requests come through a channel; see docs/channels.md."""

    channels_reason: str = ""
    """Why they do not although that was wanted, in one sentence; else empty."""

    shortcuts: Shortcuts | None = None
    """What the kernel may do in the place of handlers, decided at the mount; None before it."""

    _requests: Counter[str] = field(default_factory=Counter, repr=False)
    _errors: Counter[str] = field(default_factory=Counter, repr=False)

    @property
    def accelerated(self) -> bool:
        """Whether handlers in the kernel answer requests of this mount."""
        return self.accelerator is not None

    @property
    def connection(self) -> int | None:
        """The number of the connection below /sys/fs/efuse; None without acceleration."""
        return self.accelerator.connection if self.accelerator else None

    @property
    def maps(self) -> Mapping[str, Any]:
        """The maps of the attached handlers by name, as mappings; empty without acceleration."""
        return self.accelerator.maps if self.accelerator else MappingProxyType({})

    @property
    def overridden(self) -> tuple[str, ...]:
        """Handlers that a subclass overrides, in whose place the kernel does nothing."""
        return self.shortcuts.overridden if self.accelerator and self.shortcuts else ()

    def epoch(self) -> int:
        """Return the connection's epoch, to be read before what is to be published; or 0.

        :raises ControlError: the file system has been unmounted.
        """
        return self.accelerator.epoch() if self.accelerator else 0

    def statistics(self) -> Statistics:
        """Return the daemon's counters as they are now."""
        return Statistics(
            requests=MappingProxyType(dict(self._requests)),
            errors=MappingProxyType(dict(self._errors)),
            accelerated=self.accelerated,
        )

    def count_request(self, handler: str) -> None:
        """Count a request that reached the daemon."""
        self._requests[handler] += 1

    def count_error(self, handler: str) -> None:
        """Count an exception that became EIO."""
        self._errors[handler] += 1
