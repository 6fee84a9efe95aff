# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse takeover``: replace the daemon of a mount while programs use it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import click

from efuse.cli._daemon import Daemon, RestartCommand, daemon_options, restart_options
from efuse.cli._output import MOUNT, connection
from efuse.control import Connection, mounts
from efuse.errors import MountError, NotSupportedError, UsageError

if TYPE_CHECKING:
    from efuse.control import Mount
    from efuse.supervisor.running import Running

__all__ = ["cli"]


@click.command(cls=RestartCommand, context_settings={"ignore_unknown_options": True})
@restart_options
@click.option(
    "--force",
    is_flag=True,
    help="Kill the running daemon if it does not end otherwise. What it has not written is lost.",
)
@click.option(
    "--mount-number",
    "number",
    type=int,
    default=0,
    metavar="NUMBER",
    help="Unique number of MOUNT, as statmount(2) has it. Any other mount is refused.",
)
@click.argument("mount", type=MOUNT)
@daemon_options
def cli(
    restart: str | None, within_s: int, force: bool, number: int, mount: str, **given: Any
) -> None:
    """Replace the daemon of MOUNT by DAEMON, while programs use the mount.

    MOUNT is a path on an eFuse mount, or the number of its connection. The running daemon is ended,
    programs wait, and DAEMON is started, with the mount point as one of its arguments as usual. In
    place of a mount of its own it gets the one that there is. It needs the same mount options, and
    the options that `efuse run` would need.

    A daemon of `efuse run --restart` is ended by SIGTERM, and its attempt to unmount is ignored.
    Any other daemon with libfuse would unmount, so it can only be killed: with --force. A daemon
    that has no handler for SIGTERM ends by it. If the daemon has died already and its mount waits,
    DAEMON is started immediately.

    If DAEMON fails, the mount waits for the next try until the time of --restart-within has passed.

    \b
    efuse takeover /mnt -- mydaemon-2.0 -f /mnt
    efuse takeover --force --restart /mnt -- mydaemon -f /mnt
    """
    from efuse.cli._restarting import supervise
    from efuse.control.mounts import number_of
    from efuse.fs.mountpoint import kernel_lacks_efuse

    found = connection(mount)
    seen = next((m for m in mounts() if m.connection == found.id), None)
    if seen is None:
        raise MountError(
            f"connection {found.id} cannot be taken over: it is not mounted here (ENOENT)",
            hint="run this in the mount namespace of the mount",
        )
    why = kernel_lacks_efuse()
    if why is not None:
        raise NotSupportedError(
            f"{seen.mountpoint} cannot be taken over: {why}", hint="run it as root"
        )
    daemon = Daemon.given(**given)
    if shutil.which(daemon.command[0]) is None:
        raise UsageError(f"{daemon.command[0]} cannot be started: it is no program (ENOENT)")
    number = number or number_of(found.id)
    supervise(
        daemon, restart, lambda: _begin(daemon, found, seen, within_s, force=force, number=number)
    )


def _begin(
    daemon: Daemon, found: Connection, seen: Mount, within_s: int, *, force: bool, number: int
) -> Running:
    """End the daemon of a mount, and start its successor."""
    from efuse.cli._restarting import start
    from efuse.supervisor.asking import Asked
    from efuse.supervisor.daemon_mount import DaemonMount
    from efuse.supervisor.replacing import without_daemon
    from efuse.supervisor.running import attaching

    attach = attaching(daemon.options)
    mount = DaemonMount(seen.mountpoint, number=number, asked=Asked.of_mount(seen))
    with without_daemon(found, seen.mountpoint, within_s=within_s, force=force, number=number):
        mount.begin(found.id, attach)
        if mount.reason and daemon.require:
            raise NotSupportedError(f"{seen.mountpoint} cannot be accelerated: {mount.reason}")
        mount.outlive(within_s)
    if not mount.outlives_daemon:
        raise MountError(f"{seen.mountpoint} cannot be taken over: {mount.ends_because}")
    return start(daemon, within_s=within_s, predecessor=mount)
