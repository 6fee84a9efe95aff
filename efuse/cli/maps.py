# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse maps``: show what the kernel has learned about a mount, from its BPF maps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from typing import Any

import click
from click.shell_completion import CompletionItem

from efuse import bpf, opcodes
from efuse.cli._output import MOUNT, connection, echo, json_option, pause, print_json, print_table
from efuse.errors import UsageError
from efuse.stats.files import WATCHED_S, DataCacheUsage, since, watch
from efuse.stats.maps import usage
from efuse.units import share

__all__ = ["cli"]


class _MapName(click.ParamType[str]):
    """The name of a map of the mount."""

    name = "map"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        # Imported here because it imports pyfuse3 and trio, which is slow.
        from efuse.fs.options import CAPACITY_MAPS

        names = (*CAPACITY_MAPS, "files", "geometry", "tags")
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.group()
def cli() -> None:
    """Show the BPF maps from which the kernel answers requests.

    \b
    efuse maps list /mnt/data
    """


@cli.command("list")
@click.argument("mount", type=MOUNT)
@json_option
def list_(mount: str, as_json: bool) -> None:
    """List the maps of MOUNT, a path or the number of a connection, and how full they are.

    \b
    efuse maps list --json /mnt/data
    """
    found = usage(connection(mount).id)
    if as_json:
        print_json([{"name": m.name, "used": m.used, "capacity": m.capacity} for m in found])
        return
    rows = [(m.name, str(m.used), str(m.capacity), share(m.ratio)) for m in found]
    print_table(("MAP", "USED", "CAPACITY", "FULL"), rows, right=" rrr")


@cli.command()
@click.argument("mount", type=MOUNT)
@click.option(
    "-s",
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    help="Count hits and misses for this time, and show only these.",
)
@click.option(
    "-n", "--most", type=click.IntRange(min=1), default=20, show_default=True, help="Files to list."
)
@json_option
def files(mount: str, seconds: float | None, most: int, as_json: bool) -> None:
    """Show which files the data cache of MOUNT holds, and how often reads hit it.

    BLOCKS are blocks of 4 KiB. Hits and misses, in blocks, are counted only on demand: during
    --seconds, or for 10 s after this command last ran. A file is shown by the path under which the
    kernel last learned of it, or by its nodeid.

    \b
    efuse maps files /mnt/data --seconds 5
    """
    number = connection(mount).id
    found = _watched(number, seconds) if seconds else watch(number)
    if as_json:
        print_json(
            {
                "capacity": found.capacity,
                "used": found.used,
                "evicted": found.evicted,
                "files": [asdict(f) | {"hit_ratio": f.hit_ratio} for f in found.files],
            }
        )
        return
    full = share(found.used / found.capacity if found.capacity else None)
    echo(
        f"data cache: {found.used} of {found.capacity} blocks, {full} full, {found.evicted} evicted"
    )
    rows = [
        (
            f.path if f.path is not None else f"nodeid {f.nodeid}",
            str(f.blocks),
            str(f.hits),
            str(f.misses),
            share(f.hit_ratio),
        )
        for f in found.files[:most]
    ]
    print_table(("FILE", "BLOCKS", "HITS", "MISSES", "HIT"), rows, right=" rrrr")
    if len(found.files) > most:
        echo(f"and {len(found.files) - most} more: --most {len(found.files)}")


def _watched(number: int, seconds: float) -> DataCacheUsage:
    """Return what is counted during the next *seconds*."""
    before = now = watch(number)
    left = seconds
    while left > 0:
        # Ask again before the kernel stops counting.
        step = min(left, WATCHED_S / 2)
        pause(step)
        left -= step
        now = watch(number)
    return since(before, now)


@cli.command()
@click.argument("mount", type=MOUNT)
@click.argument("name", metavar="MAP", type=_MapName())
@json_option
def dump(mount: str, name: str, as_json: bool) -> None:
    """Print all elements of the map MAP of MOUNT: key and value, one element per line.

    \b
    efuse maps dump /mnt/data attrs
    """
    with bpf.Attachment.open(connection(mount).id) as attachment:
        if name not in attachment.maps:
            raise UsageError(
                f"this mount has no map {name!r}",
                hint=f"one of {', '.join(sorted(attachment.maps))}",
            )
        elements = attachment.maps[name].read_all()
    plain = [{"key": _plain(key), "value": _plain(value)} for key, value in elements.items()]
    if as_json:
        print_json(plain)
        return
    for element in plain:
        echo(f"{_words(element['key'])} -> {_words(element['value'])}")


def _plain(value: Any) -> Any:
    """Convert *value* to what JSON can hold: an opcode to its name, bytes to text."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    named = dict(_fields(value))
    if not named:
        return value
    return {
        name: opcodes.name(part) if name == "opcode" else _plain(part)
        for name, part in named.items()
    }


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value):
        for f in fields(value):
            yield f.name, getattr(value, f.name)
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        yield from value._asdict().items()


def _words(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    parts = []
    for name, part in value.items():
        parts.append(f"{name}({_words(part)})" if isinstance(part, dict) else f"{name}={part!r}")
    return " ".join(parts)
