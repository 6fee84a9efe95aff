# SPDX-License-Identifier: LGPL-2.1-or-later
"""The state of a mounted file system: acceleration, counters and maps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from efuse.fs.acceleration import Acceleration
from efuse.fs.overriding import Shortcuts

if TYPE_CHECKING:  # plain FUSE does without efuse.bpf
    from efuse.bpf.maps import BpfMap

__all__ = ["State", "Statistics"]


@dataclass(frozen=True)
class Statistics:
    """Counters of the daemon. For the kernel's counters see ``efuse.stats``."""

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
    """The state of a mount, which is ``Operations.efuse``."""

    acceleration: Acceleration | None = None
    """The attached handlers; None before the mount and without acceleration."""

    reason: str = "it is not mounted"
    """Why the mount is not accelerated, in one sentence; empty if it is."""

    mountpoint: str | None = None
    """Absolute path of the mount point; None before the mount."""

    mount_options: frozenset[str] | None = None
    """Mount options with which it was mounted; None before the mount."""

    mounted_connection: int | None = None
    """Number of the mount's connection, accelerated or not; None before the mount, and if this
    process does not see the mount."""

    device: int | None = None
    """Descriptor of /dev/efuse; None before the mount and on plain FUSE."""

    mounted_type: str | None = None
    """Type of the mount: ``fuse`` or ``efuse``; None unless it is mounted."""

    channels: bool = False
    """Whether requests come through a channel; see docs/channels.md."""

    channels_reason: str = ""
    """Why requests do not come through a channel although that was wanted, in one sentence;
    otherwise empty."""

    shortcuts: Shortcuts | None = None
    """What the kernel may do instead of calling handlers; None before the mount."""

    # Not Counter: it is a class of Python, and storing into it takes twice as long.
    _requests: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int), repr=False)
    _errors: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int), repr=False)

    @property
    def accelerated(self) -> bool:
        """Whether handlers in the kernel answer requests of this mount."""
        return self.acceleration is not None

    @property
    def connection(self) -> int | None:
        """Number of the connection below /sys/fs/efuse; None without acceleration."""
        return self.acceleration.connection if self.acceleration else None

    @property
    def maps(self) -> Mapping[str, BpfMap[Any, Any]]:
        """Maps of the attached handlers by name, as mappings; empty without acceleration."""
        return self.acceleration.maps if self.acceleration else MappingProxyType({})

    @property
    def overridden(self) -> tuple[str, ...]:
        """Names of handlers that a subclass overrides, so that they get every request."""
        return self.shortcuts.overridden if self.acceleration and self.shortcuts else ()

    @property
    def given_up(self) -> str:
        """What the kernel does not do because a subclass overrides handlers, in one sentence.

        It is empty if no handler is overridden, and without acceleration.
        """
        return self.shortcuts.description if self.acceleration and self.shortcuts else ""

    def epoch(self) -> int:
        """Return the connection's current epoch; 0 without acceleration.

        Call it before reading values to publish.

        :raises ControlError: the file system has been unmounted.
        """
        return self.acceleration.epoch() if self.acceleration else 0

    def statistics(self) -> Statistics:
        """Return a snapshot of the daemon's counters."""
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
