# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse advise``: estimate from a mount's own requests what eFuse would save."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from efuse.cli._output import ANY_MOUNT, echo, json_option, print_json, print_table
from efuse.cli._watched import until_interrupted, watched_mount
from efuse.control import Mount
from efuse.control.daemons import command_of
from efuse.display import shown
from efuse.profiles import matching
from efuse.tracing import Advice, Advisor, OpcodeAdvice, Watch
from efuse.tracing.advice import NEEDS
from efuse.units import duration, share

__all__ = ["cli"]

_LOOK_S = 0.2
_HEADERS = ("OPCODE", "REQUESTS", "KERNEL", "REPEATS", "SAME", "HITS", "HIT", "WAITED", "SAVED")


@click.command()
@click.argument("mount", type=ANY_MOUNT)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0.1),
    default=10.0,
    show_default=True,
    help="Time to watch.",
)
@json_option
def cli(mount: str, seconds: float, as_json: bool) -> None:
    """Watch MOUNT for a while and report what eFuse could have answered in the kernel.

    MOUNT is a path on a FUSE or eFuse mount, or the number of its connection. Let the mount do its
    usual work meanwhile. For each opcode, the report has the requests that repeat an earlier one,
    how many of these had the same answer, how many eFuse could have answered because nothing done
    on the mount had made the answer invalid, and how long callers waited. At the end stands the
    command that runs the daemon of the mount on eFuse. Ctrl-C ends it early. Needs root.

    \b
    efuse advise /mnt/data
    efuse advise --seconds 60 --json /mnt/data
    """
    where = watched_mount(mount)
    with until_interrupted() as ended, Watch(where, digests=True) as watch:
        found = _watch(watch, seconds, ended, tell=sys.stderr.isatty() and not as_json)
    command = _command(where, found)
    if as_json:
        kind = {"mount": where.mountpoint, "kind": _kind(where)}
        print_json({**kind, **found.json(), "command": command})
    else:
        _print(where, found)
        if command is not None and not where.is_efuse:
            echo(_advice(command))


def _command(mount: Mount, found: Advice) -> list[str] | None:
    """Return the command that runs the daemon of a mount on eFuse.

    None if the daemon is not visible, or is a program of eFuse, which mounts eFuse by itself.
    """
    command = command_of(mount)
    if command is None or "efuse" in {Path(word).name for word in command[:2]}:
        return None
    certain = matching(command) is None and found.total.requests and not found.total.changed
    return ["efuse", "run", *(["--consistency", "exclusive"] if certain else []), "--", *command]


def _advice(command: list[str]) -> str:
    profile = matching(command[command.index("--") + 1 :])
    told = f"Run it by:  {shown(shlex.join(command))}"
    if profile is not None:
        return f"{told}\nProfile {profile.name}: {profile.reason}."
    if "exclusive" in command:
        return f"{told}\nWithout --consistency if something else changes the files."
    return told


def _watch(watch: Watch, seconds: float, ended: Callable[[], bool], *, tell: bool) -> Advice:
    advisor = Advisor()
    begun = now = time.monotonic()
    seen = 0
    while not ended() and now - begun < seconds:
        watch.wait(min(_LOOK_S, seconds - (now - begun)))
        for request in watch.read():
            advisor.add(request)
            seen += 1
        now = time.monotonic()
        if tell:
            left = max(0, round(seconds - (now - begun)))
            click.echo(f"\rwatching: {seen} requests, {left} s left \x1b[K", err=True, nl=False)
    watch.stop()
    for request in watch.read():
        advisor.add(request)
    if tell:
        click.echo("\r\x1b[K", err=True, nl=False)
    return advisor.advice(now - begun, watch.lost)


def _kind(mount: Mount) -> str:
    return "efuse" if mount.is_efuse else "fuse"


def _print(mount: Mount, found: Advice) -> None:
    echo(f"{shown(mount.mountpoint)}  {_kind(mount)}  watched for {found.seconds:.1f} s")
    rows = [_row(name, a) for name, a in sorted(found.opcodes.items())]
    rows.append(_row("total", found.total))
    print_table((*_HEADERS, "IF"), rows, right=" rrrrrrrr", gap=1)
    echo()
    for line in _sentences(mount, found):
        echo(line)


def _row(name: str, a: OpcodeAdvice) -> tuple[str, ...]:
    return (
        name,
        str(a.requests),
        str(a.in_kernel),
        str(a.repeats),
        str(a.same),
        str(a.hits),
        share(a.hit_ratio),
        duration(a.daemon_ns),
        duration(a.saved_ns or None),
        NEEDS.get(name, ""),
    )


def _sentences(mount: Mount, found: Advice) -> list[str]:
    total, declared = found.total, found.declared
    if not total.requests:
        return ["No requests were made meanwhile: let programs use the mount, and watch longer."]
    sure = total.hits - declared.hits
    saved = total.saved_ns - declared.saved_ns
    more = "more " if mount.is_efuse else ""
    share_of = share(sure / total.daemon if total.daemon else None)
    lines = [
        f"In exclusive mode eFuse would have answered {sure} {more}of the {total.daemon} requests"
        f" to the daemon ({share_of}) in the kernel, for which callers waited"
        f" {duration(saved)} of {duration(total.daemon_ns)}, if nothing else changes the files."
    ]
    if declared.hits:
        lines.append(
            f"With the promises of column IF declared by the file system: {declared.hits} more,"
            f" {duration(declared.saved_ns)}."
        )
    if mount.is_efuse:
        lines.append(f"{total.in_kernel} requests are already answered in the kernel.")
    if total.changed:
        lines.append(
            f"{total.changed} answers changed without a change by the mount: something else"
            " changes the files, so keep the mode ttl or cto, in which fewer are kept."
        )
    if found.lost:
        lines.append(f"{found.lost} requests are missing: they arrived too fast to be counted.")
    return lines
