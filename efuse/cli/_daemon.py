# SPDX-License-Identifier: LGPL-2.1-or-later
"""The options of the commands that run any FUSE daemon on eFuse."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from efuse.cli._filesystem import data_cache_capacity, size_options
from efuse.cli._output import echo
from efuse.cli._sizes import parse_size
from efuse.control import CONSISTENCY, MOST_RECOVERY_S, PROMISES
from efuse.display import shown
from efuse.supervisor.policy import POLICIES

if TYPE_CHECKING:
    from efuse.fs.options import Options
    from efuse.profiles import Profile

__all__ = ["Daemon", "RestartCommand", "daemon_options", "restart_options", "tell"]

_F = TypeVar("_F", bound=Callable[..., Any])


def daemon_options(command: _F) -> _F:
    """Add the options that say how the kernel may treat the files of a daemon."""
    options = (
        click.option(
            "--consistency",
            type=click.Choice(CONSISTENCY),
            help="How long the kernel believes an answer. Default: as the profile says, or ttl: for"
            " the daemon's timeouts.",
        ),
        click.option(
            "--promise",
            "promises",
            multiple=True,
            type=click.Choice(PROMISES),
            help="Promise that holds for this daemon; see docs/writing-a-file-system.md.",
        ),
        click.option(
            "--profile",
            metavar="NAME",
            help="Profile of the daemon, see `efuse profiles list`; none: no profile. Default: the"
            " one that applies to DAEMON.",
        ),
        size_options(data_cache="Default: as the profile says, or 0."),
        click.option(
            "--channels/--no-channels",
            default=True,
            show_default=True,
            help="Deliver requests to a daemon with several threads through shared memory, for each"
            " CPU.",
        ),
        click.option(
            "--revalidate/--no-revalidate",
            default=None,
            help="Keep data beyond its timeout while its file has the same times and size. Default:"
            " yes, if the profile does not say otherwise.",
        ),
        click.option("--require", is_flag=True, help="Fail if a mount cannot be accelerated."),
        click.argument(
            "command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="-- DAEMON ..."
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def restart_options(command: _F) -> _F:
    """Add the options that say whether a daemon is started again; see `RestartCommand`."""
    options = (
        click.option(
            "--restart",
            type=click.Choice(POLICIES),
            metavar="[=always|on-failure]",
            help="Start DAEMON again when it has ended and its mounts are left: always (also"
            " without a value), or only if it has failed.",
        ),
        click.option(
            "--restart-within",
            "within_s",
            type=click.IntRange(1, MOST_RECOVERY_S),
            metavar="SECONDS",
            default=60,
            show_default=True,
            help="How long programs wait for the next daemon before their calls fail.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


class RestartCommand(click.Command):
    """A command with `restart_options`; ``--restart`` may come without its value."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = args.index("--") if "--" in args else len(args)
        words = ["--restart=always" if word == "--restart" else word for word in args[:own]]
        return super().parse_args(ctx, [*words, *args[own:]])


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon to run.

    :ivar command: the program and its arguments.
    :ivar options: what is declared for its mounts.
    :ivar channels: whether it may get channels.
    :ivar require: whether each of its mounts has to be accelerated.
    """

    command: tuple[str, ...]
    options: Options
    channels: bool
    require: bool

    @classmethod
    def given(
        cls,
        *,
        command: tuple[str, ...],
        profile: str | None,
        promises: tuple[str, ...],
        data_cache: int | None,
        channels: bool,
        require: bool,
        **declared: Any,
    ) -> Daemon:
        """Return the daemon that `daemon_options` describe. Its profile is printed.

        :raises UsageError: a value is not valid, or there is no such profile.
        """
        from efuse.fs.options import Options

        known = _profile(profile, command)
        given = {name: value for name, value in declared.items() if value is not None}
        given |= dict.fromkeys(promises, True)
        cached = parse_size(known.data_cache) if data_cache is None else data_cache
        options = Options(capacity=data_cache_capacity(cached), **known.declared | given)
        return cls(command, options, channels, require)

    @property
    def name(self) -> str:
        """The name of the program, with control characters escaped."""
        return shown(self.command[0])


def tell(text: str) -> None:
    """Print lines for the user. The mounts go on if standard error is closed, or its disk full."""
    with contextlib.suppress(OSError):
        echo(text, err=True)


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
    tell(f"{shown(command[0])}: profile {found.name}: {found.reason}")
    return found
