# SPDX-License-Identifier: LGPL-2.1-or-later
"""The description of a mount: what is mounted, where, and what happens when its daemon ends."""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass

__all__ = ["RESTARTS", "Description"]

RESTARTS = ("always", "on-failure", "never")
"""When a mount is started again that has ended."""


@dataclass(frozen=True, slots=True)
class Description:
    """A mount as its file describes it. docs/service.md has the keys.

    :ivar name: name of the file, without ``.toml``.
    :ivar mountpoint: absolute path.
    :ivar command: the daemon and its arguments; empty for a file system of the package.
    :ivar type: what `efuse mount` mounts; empty for a command.
    :ivar source: the directory that ``passthrough`` shows; empty for other types.
    :ivar arguments: arguments of the file system's class, each as ``NAME=VALUE``.
    :ivar options: mount options of a *type*.
    :ivar profile: profile of a *command*; empty for the one that applies.
    :ivar consistency: mode of the connection; empty for the default.
    :ivar promises: promises that hold for a *command*.
    :ivar sizes: options of the command line with their values, such as ``--data-cache``.
    :ivar channels: whether the daemon may get channels.
    :ivar require: whether the mount has to be accelerated.
    :ivar recovery: how long callers wait for a successor, in seconds.
    :ivar restart: one of `RESTARTS`.
    """

    name: str
    mountpoint: str
    command: tuple[str, ...] = ()
    type: str = ""
    source: str = ""
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    profile: str = ""
    consistency: str = ""
    promises: tuple[str, ...] = ()
    sizes: tuple[tuple[str, str], ...] = ()
    channels: bool = True
    require: bool = False
    recovery: int = 60
    restart: str = "always"

    @property
    def what(self) -> str:
        """The program or the type, for people."""
        return self.command[0] if self.command else self.type

    @property
    def digest(self) -> str:
        """A text that differs for descriptions that differ."""
        return _digest(dataclasses.astuple(self))

    @property
    def identity(self) -> str:
        """A text that differs for descriptions whose mounts cannot take each other's place."""
        if self.command:
            return _digest((self.mountpoint,))
        return _digest((self.mountpoint, self.type, self.source, sorted(self.options)))


def _digest(values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]
