# SPDX-License-Identifier: LGPL-2.1-or-later
"""The command line of `efuse` that mounts what a description describes."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from efuse.service.description import Description

__all__ = ["mounting", "taking_over"]

_EFUSE = (sys.executable, "-P", "-m", "efuse.cli.main")


def mounting(given: Description, *, succeeds: bool = False) -> list[str]:
    """Return the command that mounts.

    :param succeeds: whether a mount of a *type* waits, which the command takes over.
    """
    if given.command:
        return [*_EFUSE, "run", *_run_options(given), "--", *given.command]
    recovery = 0 if given.restart == "never" and not succeeds else given.recovery
    options = (*given.options, f"recovery={recovery}")
    # In the foreground: the process that is started is the daemon.
    words = [*_EFUSE, "mount", "--foreground", *_options(given), "-o", ",".join(options)]
    for argument in given.arguments:
        words += ["--arg", argument]
    return [*words, "--", given.type, *([given.source] if given.source else []), given.mountpoint]


def taking_over(given: Description, connection: int, number: int, *, force: bool) -> list[str]:
    """Return the command that replaces the daemon of a *command*.

    :param connection: number of the connection.
    :param number: unique number of the mount, see `efuse.control.mounts.number_at`; 0 if it is not
        known.
    :param force: whether a daemon is killed that does not end otherwise.
    """
    words = [*_EFUSE, "takeover", *(["--force"] if force else []), *_run_options(given)]
    if number:
        words.append(f"--mount-number={number}")
    return [*words, str(connection), "--", *given.command]


def _run_options(given: Description) -> Iterator[str]:
    if given.restart != "never":
        yield f"--restart={given.restart}"
    yield f"--restart-within={given.recovery}"
    if given.profile:
        yield f"--profile={given.profile}"
    for promise in given.promises:
        yield f"--promise={promise}"
    yield from _options(given)


def _options(given: Description) -> Iterator[str]:
    if given.consistency:
        yield f"--consistency={given.consistency}"
    for option, size in given.sizes:
        yield f"{option}={size}"
    if not given.channels:
        yield "--no-channels"
    if given.require:
        yield "--require"
