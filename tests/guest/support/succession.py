# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mounts that outlive their daemon: killing the daemon, and taking the mount over."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from efuse.control import DaemonExit
from efuse.errors import ControlError
from efuse.fs.mountpoint import DEVICE
from tests.guest.support.channel import closed_if_it_fails
from tests.guest.support.daemons import Call, Mount, eventually, running
from tests.guest.support.model_file_system import Nodeids
from tests.guest.support.scripted_daemon import Options, State

EFUSE_IOC_TAKEOVER = 1 << 30 | 16 << 16 | 229 << 8 | 68
RECOVERY_S = 600


def take_over(device: int, target: int, flags: int = 0, reserved: int = 0) -> None:
    """Call EFUSE_IOC_TAKEOVER of an open /dev/efuse for the mount of the file *target*."""
    fcntl.ioctl(device, EFUSE_IOC_TAKEOVER, struct.pack("=iIQ", target, flags, reserved))


def open_device() -> int:
    return os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)


def successor_of(mountpoint: Path) -> int:
    """Return a new descriptor of /dev/efuse that has taken a mount over."""
    device = open_device()
    with closed_if_it_fails(device):
        target = os.open(mountpoint, os.O_PATH | os.O_CLOEXEC)
        try:
            take_over(device, target)
        finally:
            os.close(target)
    return device


class Recovering(Mount):
    """A mount that waits for a successor of its daemon."""

    def dies(self) -> State:
        """Kill the daemon; return what a successor needs, when the mount waits for one."""
        state = self.die()
        eventually(lambda: self.connection.daemon == "dead", "the daemon to be dead")
        return state

    def follow(self, state: State, hold: tuple[str, str] | None = None) -> None:
        """Start a successor, and wait until it serves.

        :param hold: the first requests that it holds; see `ScriptedDaemon.hold`.
        """
        self.succeed(successor_of(self.path), state, hold)
        eventually(lambda: self.connection.daemon == "serving", "the successor to serve")

    def replace(self) -> None:
        """Kill the daemon and let a successor take its place."""
        self.follow(self.dies())

    @contextlib.contextmanager
    def replaced_during(
        self, opcode: str, point: str, act: Callable[..., Any], *arguments: Any
    ) -> Iterator[Call[Any]]:
        """Replace the daemon while it has a request of a call; see `ScriptedDaemon.hold`."""
        self.hold(opcode, point)
        with running(act, *arguments) as call:
            self.wait_held()
            self.replace()
            yield call

    @property
    def record(self) -> DaemonExit:
        return self.connection.daemon_exit


class Renumbering(Recovering):
    """A mount whose daemons number inodes and open files for themselves.

    Each counts nodeids from 2 on, and handles from `Options.first_handle` on. A file has the same
    st_ino at all of them.
    """

    def dies(self) -> State:
        state = super().dies()
        nodeids = Nodeids(
            reuse=True,
            per_name=self.options.nodeid_per_name,
            one_generation=self.options.one_generation,
        )
        return State(state.model, nodeids, {}, self.options.first_handle - 1, state.strange)


@contextlib.contextmanager
def renumbering(
    mountpoint: Path, *, consistency: str = "ttl", recovery: bool = True, **answers: Any
) -> Iterator[Renumbering]:
    """Mount an empty file system whose daemons number inodes and open files for themselves.

    :param consistency: mode of the connection.
    :param recovery: whether the mount outlives its daemon from the beginning.
    :param answers: members of `Options`.
    """
    options = Options(reuse_nodeids=True, one_generation=True, **answers)
    mount = Renumbering(mountpoint, options, ("default_permissions",))
    try:
        mount.connection.consistency = consistency
        if recovery:
            mount.connection.recovery = RECOVERY_S
        _prepare(mount)
        yield mount
    finally:
        _end(mount)


def _prepare(mount: Recovering) -> None:
    # A connection without an answer to INIT ends with its daemon.
    eventually(lambda: mount.call("minor"), "INIT to be answered")
    mount.prepare_successor()


def _end(mount: Recovering) -> None:
    # No caller waits for a successor any more.
    with contextlib.suppress(ControlError):
        mount.connection.recovery = 0
    mount.close()


@contextlib.contextmanager
def recovering(
    mountpoint: Path,
    *,
    consistency: str = "ttl",
    seconds: int = RECOVERY_S,
    attach: bool = False,
    **answers: Any,
) -> Iterator[Recovering]:
    """Mount an empty file system that outlives its daemon.

    The daemon takes part in the accounts of lookups only as far as they are kept: FORGETs are
    dropped while no daemon serves.

    :param consistency: mode of the connection.
    :param seconds: how long callers wait for a successor.
    :param attach: whether to attach the built-in handlers.
    :param answers: members of `Options`.
    """
    mount = Recovering(mountpoint, Options(**answers), ("default_permissions",))
    try:
        mount.connection.consistency = consistency
        mount.connection.stable_nodeids = True
        mount.connection.recovery = seconds
        if attach:
            mount.attach()
        _prepare(mount)
        yield mount
    finally:
        _end(mount)
