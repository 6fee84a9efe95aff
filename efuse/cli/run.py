# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse run``: run any FUSE daemon on eFuse."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from efuse.cli._daemon import Daemon, RestartCommand, daemon_options, restart_options, tell
from efuse.cli._filesystem import describe
from efuse.display import shown
from efuse.errors import NotSupportedError, reason

if TYPE_CHECKING:
    from efuse.supervisor.running import Running

__all__ = ["cli"]

_log = logging.getLogger("efuse.fs")


@click.command(name="run", cls=RestartCommand, context_settings={"ignore_unknown_options": True})
@restart_options
@daemon_options
def cli(restart: str | None, within_s: int, **given: Any) -> None:
    """Run the FUSE daemon DAEMON with its file systems on eFuse.

    DAEMON may be any program that mounts FUSE, also by fusermount3 or in processes of its own.

    The command returns when the daemon does, with the daemon's exit status. A daemon that goes into
    the background leaves a process that holds the handlers until the file system is unmounted.

    A daemon that uses libfuse 3.14 or later gets channels: see docs/channels.md. With an older
    libfuse, or with a single thread (-s), it reads and writes /dev/efuse instead.

    For a daemon that eFuse knows, a profile says how long answers are true and what it promises.
    Options that are given here win.

    With --restart, the mounts of a daemon that dies stay, their programs wait, and the same command
    is started again to take them over: see docs/recovery.md. It is not started again after an
    unmount, or after this command got SIGINT or SIGTERM.

    \b
    efuse run -- sshfs host:/srv /mnt
    efuse run --consistency exclusive --data-cache 64M -- bindfs -f /srv/data /mnt
    efuse run --restart -- mydaemon -f /mnt
    """
    from efuse.fs.mountpoint import kernel_lacks_efuse
    from efuse.supervisor.forwarding import run_plain

    daemon = Daemon.given(**given)
    why = kernel_lacks_efuse()
    if why is not None:
        if daemon.require:
            raise NotSupportedError(
                f"{daemon.command[0]} cannot be accelerated: {why}", hint="efuse doctor"
            )
        tell(f"{daemon.command[0]}: not accelerated: {why}")
        if restart is not None:
            _log.warning("%s will not be started again: %s", daemon.name, "it mounts plain FUSE")
        sys.exit(run_plain(daemon.command))
    if restart is not None:
        from efuse.cli._restarting import start, supervise

        supervise(daemon, restart, lambda: start(daemon, within_s=within_s))
    _run(daemon)


def _run(daemon: Daemon) -> None:
    """Run a daemon that is started once, and exit."""
    from efuse.fs.forking import forked
    from efuse.supervisor.forwarding import Forwarding
    from efuse.supervisor.running import Running

    with Forwarding() as forwarding:
        running = Running(
            daemon.command,
            daemon.options,
            channels=daemon.channels,
            require=daemon.require,
            adopt=True,
        )
        forwarding.to(running.hand_on)
        status = _attend(running, require=daemon.require)
        # A daemon may have died immediately after it mounted, even in the background.
        running.unmount_dead()
    if running.has_left_something:
        try:
            forked(lambda: _hold(running))
        except OSError as error:
            _log.warning(
                "no handlers stay attached to the mounts of %s: %s", daemon.name, reason(error)
            )
    running.detach()
    sys.stdout.flush()
    os._exit(status)


def _hold(running: Running) -> int:
    """Carry out mounts and hold the handlers in a process of its own, until the daemon ends."""
    from efuse.fs.background import leave

    leave()
    for mount in running.more():
        if not mount.accelerated:
            where = shown(mount.mountpoint)
            _log.warning("%s is not accelerated: %s", where, shown(mount.reason))
    running.detach()
    return 0


def _attend(running: Running, *, require: bool) -> int:
    """Report the new mounts, and return the daemon's exit status.

    :raises NotSupportedError: a mount has no handlers, but they are required.
    :raises MountError: the daemon has mounted nothing.
    """
    from efuse.supervisor.running import Ended, mounted_nothing

    for event in running.events():
        if isinstance(event, Ended):
            break
        if require and not event.accelerated:
            running.end()
            where = shown(event.mountpoint)
            raise NotSupportedError(f"{where} cannot be accelerated: {event.reason}")
        tell(describe(event))
    if not running.has_mounted:
        raise mounted_nothing(running.command, running.status)
    return running.status
