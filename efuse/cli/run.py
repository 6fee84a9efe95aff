# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse run``: run any FUSE daemon on eFuse."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from efuse.cli._filesystem import data_cache_capacity, describe, size_options
from efuse.cli._output import echo
from efuse.cli._sizes import parse_size
from efuse.control import CONSISTENCY
from efuse.display import shown
from efuse.errors import NotSupportedError, reason

if TYPE_CHECKING:
    from efuse.profiles import Profile
    from efuse.supervisor.running import Running

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
    help="How long the kernel believes an answer. Default: as the profile says, or ttl: for the"
    " daemon's timeouts.",
)
@click.option(
    "--promise",
    "promises",
    multiple=True,
    type=click.Choice(_PROMISES),
    help="Promise that holds for this daemon; see docs/writing-a-file-system.md.",
)
@click.option(
    "--profile",
    metavar="NAME",
    help="Profile of the daemon, see `efuse profiles list`; none: no profile. Default: the one that"
    " applies to DAEMON.",
)
@size_options(data_cache="Default: as the profile says, or 0.")
@click.option(
    "--channels/--no-channels",
    default=True,
    show_default=True,
    help="Deliver requests to a daemon with several threads through shared memory, for each CPU.",
)
@click.option(
    "--revalidate/--no-revalidate",
    default=None,
    help="Keep data beyond its timeout while its file has the same times and size. Default: yes, if"
    " the profile does not say otherwise.",
)
@click.option("--require", is_flag=True, help="Fail if a mount cannot be accelerated.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- DAEMON ...")
def cli(
    consistency: str | None,
    promises: tuple[str, ...],
    profile: str | None,
    data_cache: int | None,
    max_request: int | None,
    max_readdir: int | None,
    channels: bool,
    revalidate: bool | None,
    require: bool,
    command: tuple[str, ...],
) -> None:
    """Run the FUSE daemon DAEMON with its file systems on eFuse.

    DAEMON may be any program that mounts FUSE, also by fusermount3 or in processes of its own.

    The command returns when the daemon does, with the daemon's exit status. A daemon that goes into
    the background leaves a process that holds the handlers until the file system is unmounted.

    A daemon that uses libfuse 3.14 or later gets channels: see docs/channels.md. With an older
    libfuse, or with a single thread (-s), it reads and writes /dev/efuse instead.

    For a daemon that eFuse knows, a profile says how long answers are true and what it promises.
    Options that are given here win.

    \b
    efuse run -- sshfs host:/srv /mnt
    efuse run --consistency exclusive --data-cache 64M -- bindfs -f /srv/data /mnt
    """
    from efuse.fs.forking import forked
    from efuse.fs.mountpoint import kernel_lacks_efuse
    from efuse.fs.options import Options
    from efuse.supervisor.forwarding import Forwarding, run_plain
    from efuse.supervisor.running import Running

    known = _profile(profile, command)
    given = {
        "consistency": consistency,
        "revalidate": revalidate,
        "max_request": max_request,
        "max_readdir": max_readdir,
        **dict.fromkeys(promises, True),
    }
    declared = known.declared | {name: value for name, value in given.items() if value is not None}
    cached = parse_size(known.data_cache) if data_cache is None else data_cache
    options = Options(capacity=data_cache_capacity(cached), **declared)
    why = kernel_lacks_efuse()
    if why is not None:
        if require:
            raise NotSupportedError(
                f"{command[0]} cannot be accelerated: {why}", hint="efuse doctor"
            )
        _tell(f"{command[0]}: not accelerated: {why}")
        sys.exit(run_plain(command))
    with Forwarding() as forwarding:
        running = Running(command, options, channels=channels, require=require, adopt=True)
        forwarding.to(running.hand_on)
        status = _attend(running, require=require)
        # A daemon may have died immediately after it mounted, even in the background.
        running.unmount_dead()
    if running.has_left_something:
        name = shown(command[0])
        try:
            forked(lambda: _hold(running))
        except OSError as error:
            _log.warning("no handlers stay attached to the mounts of %s: %s", name, reason(error))
    running.detach()
    sys.stdout.flush()
    os._exit(status)


def _profile(name: str | None, command: Sequence[str]) -> Profile:
    """Return the profile to use, and print why it is used if the command does not name it.

    :raises UsageError: there is no profile with this name.
    """
    from efuse.profiles import NO_PROFILE, matching, named

    if name is not None:
        return NO_PROFILE if name == "none" else named(name)
    found = matching(command)
    if found is None:
        return NO_PROFILE
    _tell(f"{shown(command[0])}: profile {found.name}: {found.reason}")
    return found


def _tell(text: str) -> None:
    """Print lines for the user. The mounts go on if standard error is closed, or its disk full."""
    with contextlib.suppress(OSError):
        echo(text, err=True)


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
        _tell(describe(event))
    if not running.has_mounted:
        raise mounted_nothing(running.command, running.status)
    return running.status
