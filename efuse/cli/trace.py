# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse trace``: print the requests of a mount, one line each, as they are answered."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator

import click

from efuse import opcodes
from efuse.cli._durations import DURATION
from efuse.cli._output import ANY_MOUNT, console, echo, json_option, print_json
from efuse.cli._sizes import SIZE
from efuse.cli._watched import until_interrupted, watched_mount
from efuse.tracing import ANSWERED_BY, Filter, Names, Request, Watch, as_json, header, line
from efuse.tracing.watch import RING_BYTES

__all__ = ["cli"]

_LOOK_S = 0.2


@click.command()
@click.argument("mount", type=ANY_MOUNT)
@click.option(
    "--opcode",
    "wanted",
    multiple=True,
    metavar="NAME",
    type=click.Choice(opcodes.COUNTED, case_sensitive=False),
    help="Only this opcode, such as lookup or READ. May be repeated.",
)
@click.option(
    "--nodeid", multiple=True, type=int, help="Only requests for this inode. May be repeated."
)
@click.option(
    "--name",
    default="",
    metavar="PATTERN",
    help="Only requests for names that match, such as '*.c'.",
)
@click.option(
    "--answered-by",
    multiple=True,
    type=click.Choice(tuple(ANSWERED_BY.values())),
    help="Only requests that this answered. May be repeated.",
)
@click.option("--pid", multiple=True, type=int, help="Only requests of this process or thread.")
@click.option(
    "--slower-than", type=DURATION, help="Only requests that took longer, such as 500us or 2ms."
)
@click.option("--errors", is_flag=True, help="Only requests that failed.")
@click.option("--count", type=click.IntRange(min=1), help="Exit after so many lines.")
@click.option(
    "--buffer",
    type=SIZE,
    default=str(RING_BYTES),
    metavar="SIZE",
    help="Size of the kernel's buffer for requests not yet printed. Default: 4M.",
)
@json_option
def cli(
    mount: str,
    wanted: tuple[str, ...],
    nodeid: tuple[int, ...],
    name: str,
    answered_by: tuple[str, ...],
    pid: tuple[int, ...],
    slower_than: int | None,
    errors: bool,
    count: int | None,
    buffer: int,
    as_json: bool,
) -> None:
    """Print each request of MOUNT when it is answered: what answered it, why, and how long it took.

    MOUNT is a path on a FUSE or eFuse mount, or the number of its connection. Requests are recorded
    only while this command runs. Ctrl-C ends it with status 0. Requests for which the kernel had no
    room are counted at the end. With --json each line is an object. Needs root.

    \b
    efuse trace /mnt/data
    efuse trace --opcode lookup --opcode getattr --answered-by daemon /mnt/data
    efuse trace --slower-than 5ms --name '*.c' --json /mnt/data
    """
    chosen = Filter(
        opcodes=frozenset(word.lower() for word in wanted),
        nodeids=frozenset(nodeid),
        name=name,
        answered_by=frozenset(answered_by),
        pids=frozenset(pid),
        slower_than_ns=slower_than,
        errors=errors,
    )
    with until_interrupted() as ended, Watch(watched_mount(mount), ring_bytes=buffer) as watch:
        _print_all(_wanted(watch, chosen, ended), count, as_json=as_json)
        watch.close()
        if watch.lost:
            echo(
                f"efuse: {watch.lost} requests are missing: they arrived faster than they were"
                f" printed\ntry: --buffer {2 * buffer >> 10}K",
                err=True,
            )


def _print_all(found: Iterator[tuple[Request, str]], count: int | None, *, as_json: bool) -> None:
    width = console().width if sys.stdout.isatty() else None
    wall_ns = time.time_ns() - time.monotonic_ns()
    if not as_json:
        echo(header(width))
        sys.stdout.flush()
    for request, shown in itertools.islice(found, count):
        _print(request, shown, wall_ns, width, json=as_json)


def _wanted(
    watch: Watch, chosen: Filter, ended: Callable[[], bool]
) -> Iterator[tuple[Request, str]]:
    """Iterate over the wanted requests and their paths, up to the last one before the end."""
    names = Names()
    more = True
    while more:
        more = not ended()
        if more:
            watch.wait(_LOOK_S)
        else:
            watch.stop()
        for request in watch.read():
            names.learn(request)
            shown = names.shown(request)
            if chosen.wants(request, shown):
                yield request, shown
        sys.stdout.flush()


def _print(request: Request, shown: str, wall_ns: int, width: int | None, *, json: bool) -> None:
    if json:
        print_json(as_json(request, shown, wall_ns=wall_ns), indent=None)
    else:
        echo(line(request, shown, wall_ns=wall_ns, width=width))
