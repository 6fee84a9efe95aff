# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse run``: run an unmodified libfuse daemon on eFuse."""

from __future__ import annotations

import logging
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from efuse.cli._filesystem import data_cache_capacity, describe, size_options
from efuse.cli._output import echo
from efuse.control import CONSISTENCY
from efuse.display import shown
from efuse.errors import ControlError, EfuseError, NotSupportedError, reason

if TYPE_CHECKING:
    from efuse.fs.options import Options
    from efuse.fs.run import Daemon, Running

__all__ = ["cli"]

_log = logging.getLogger("efuse.fs")

_PROMISES = (
    "caller_independent",
    "lazy_atime",
    "no_flush",
    "no_open",
    "nodeid_per_file",
    "stable_nodeids",
)


@click.command(name="run", context_settings={"ignore_unknown_options": True})
@click.option(
    "--consistency",
    type=click.Choice(CONSISTENCY),
    default="ttl",
    show_default=True,
    help="How long the kernel believes an answer; ttl: for the daemon's timeouts.",
)
@click.option(
    "--promise",
    "promises",
    multiple=True,
    type=click.Choice(_PROMISES),
    help="Promise that holds for this daemon; see docs/writing-a-file-system.md.",
)
@size_options(data_cache="Default: 0.")
@click.option(
    "--channels/--no-channels",
    default=True,
    show_default=True,
    help="Deliver requests to a daemon with several threads through shared memory, for each CPU.",
)
@click.option("--require", is_flag=True, help="Fail if a mount cannot be accelerated.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- DAEMON ...")
def cli(
    consistency: str,
    promises: tuple[str, ...],
    data_cache: int | None,
    max_request: int | None,
    max_readdir: int | None,
    channels: bool,
    require: bool,
    command: tuple[str, ...],
) -> None:
    """Run the libfuse daemon DAEMON with its file system on eFuse.

    The command returns when the daemon does, with the daemon's exit status. A daemon that goes into
    the background leaves a process that holds the handlers until the file system is unmounted.

    A daemon that uses libfuse 3.14 or later gets channels: see docs/channels.md. With an older
    libfuse, or with a single thread (-s), it reads and writes /dev/efuse instead.

    \b
    efuse run -- sshfs host:/srv /mnt
    efuse run --consistency exclusive --data-cache 64M -- bindfs -f /srv/data /mnt
    """
    from efuse.fs.forking import forked
    from efuse.fs.mountpoint import kernel_lacks_efuse
    from efuse.fs.options import Options
    from efuse.fs.run import Forwarding, Running, run_plain

    declared: dict[str, Any] = dict.fromkeys(promises, True)
    if max_request is not None:
        declared["max_request"] = max_request
    if max_readdir is not None:
        declared["max_readdir"] = max_readdir
    options = Options(
        consistency=consistency, capacity=data_cache_capacity(data_cache or 0), **declared
    )
    why = kernel_lacks_efuse()
    if why is not None:
        if require:
            raise NotSupportedError(
                f"{command[0]} cannot be accelerated: {why}", hint="efuse doctor"
            )
        echo(f"{command[0]}: not accelerated: {why}", err=True)
        sys.exit(run_plain(command))
    with Forwarding() as forwarding:
        running = Running(command, channels=channels, adopt=True)
        forwarding.to(running.hand_on)
        status = _attend(running, options, require=require)
        # A daemon may have died immediately after it mounted, even in the background.
        running.unmount_dead()
    if status == 0 and any(mount.accelerated for mount in running.mounts):
        # The daemon is in the background, or has ended and taken its mounts with it.
        name = shown(command[0])
        try:
            forked(lambda: _hold(running, options))
        except OSError as error:
            _log.warning("no handlers stay attached to the mounts of %s: %s", name, reason(error))
    running.detach()
    sys.stdout.flush()
    os._exit(status)


def _hold(running: Running, options: Options) -> int:
    """Hold the handlers in a process of its own until everything is unmounted."""
    from efuse.fs.background import leave

    leave()
    for mount in running.more():
        try:
            mount.attach(options)
        except EfuseError as error:
            where = shown(mount.mountpoint)
            _log.warning("%s is not accelerated: %s", where, shown(str(error)))
    running.detach()
    return 0


def _attend(running: Running, options: Options, *, require: bool) -> int:
    """Attach handlers to the new mounts, report them, and return the daemon's exit status."""
    from efuse.fs.run import mounted_nothing, wait_for_daemon

    try:
        status = _attach_all(running, options, require=require)
        if not (running.mounts or running.plain or running.has_left_mounts):
            raise mounted_nothing(running.command, status)
    except ControlError as error:
        if require:
            running.end()
            raise
        # Its daemon goes on: only what it mounts is not seen any more.
        name = shown(running.command[0])
        _log.warning("the mounts of %s are no longer watched: %s", name, shown(str(error)))
        return wait_for_daemon(running.process)
    except EfuseError:
        if require:
            running.end()
        raise
    return status


def _attach_all(running: Running, options: Options, *, require: bool) -> int:
    from efuse.fs.run import PLAIN_HINT, Daemon, Ended

    for event in running.events():
        if isinstance(event, Ended):
            return event.status
        if isinstance(event, Daemon):
            _attach(event, options, require=require)
            continue
        where = shown(event.mount.mountpoint)
        if require:
            raise NotSupportedError(
                f"{where} cannot be accelerated: {event.reason}", hint=PLAIN_HINT
            )
        echo(f"{where}: not accelerated: {event.reason}", err=True)
        echo(f"try: {PLAIN_HINT}", err=True)
    raise AssertionError(f"{running.command[0]} never ends")


def _attach(mount: Daemon, options: Options, *, require: bool) -> None:
    hint = None
    try:
        mount.attach(options)
    except EfuseError as error:
        if require:
            raise
        hint = error.hint
    echo(describe(mount), err=True)
    if hint is not None:
        echo(f"try: {hint}", err=True)
