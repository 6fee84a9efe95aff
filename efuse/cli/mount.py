# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse mount``: mount a file system written in Python."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from efuse.cli._filesystem import Request, absolute_source, describe, size_options, split_options
from efuse.cli._output import echo, print_json
from efuse.control import CONSISTENCY
from efuse.errors import UsageError

__all__ = ["cli", "mount"]


def _complete_what(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(word) for word in ("passthrough",) if word.startswith(incomplete)]


def _complete_place(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    return [CompletionItem(incomplete, type="dir")]


def _complete_option(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    from efuse.cli._mount_options import complete

    return [CompletionItem(words) for words in complete(incomplete)]


@click.command(name="mount")
@click.argument("what", shell_complete=_complete_what)
@click.argument(
    "places",
    nargs=-1,
    required=True,
    metavar="[SOURCE] MOUNTPOINT",
    shell_complete=_complete_place,
)
@click.option(
    "-o",
    "options",
    multiple=True,
    metavar="OPTION,...",
    help="Mount options.",
    shell_complete=_complete_option,
)
@click.option(
    "--arg", "arguments", multiple=True, metavar="NAME=VALUE", help="Argument of the class."
)
@click.option(
    "--consistency",
    type=click.Choice(CONSISTENCY),
    help="How long the kernel believes an answer.",
)
@size_options(data_cache="Default: the file system's choice, or 16M.")
@click.option(
    "--channels/--no-channels",
    default=True,
    show_default=True,
    help="Deliver requests through shared memory.",
)
@click.option("--plain", is_flag=True, help="Mount plain FUSE, even if the kernel has eFuse.")
@click.option("--require", is_flag=True, help="Fail if the mount cannot be accelerated.")
@click.option(
    "-f",
    "--foreground",
    is_flag=True,
    help="Stay in the foreground until the file system is unmounted.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cli(
    what: str,
    places: tuple[str, ...],
    options: tuple[str, ...],
    arguments: tuple[str, ...],
    consistency: str | None,
    data_cache: int | None,
    max_request: int | None,
    max_readdir: int | None,
    channels: bool,
    plain: bool,
    require: bool,
    foreground: bool,
    as_json: bool,
) -> None:
    """Mount the file system WHAT on MOUNTPOINT.

    WHAT is the dotted name of a Python module (module:Class if the module has several classes), or
    the word passthrough, which shows the directory SOURCE. The command returns when the file system
    is mounted.

    \b
    efuse mount passthrough --consistency exclusive /srv/data /mnt/data
    efuse mount passthrough --data-cache 1G --max-request 8M /srv/data /mnt/data
    efuse mount mypackage.myfs:MyFs --arg size=10 -o allow_other /mnt/my
    """
    request = Request(what, plain=plain, require=require)
    request.take(split_options(options))
    request.channels = request.channels and channels
    for text in arguments:
        request.add_argument(text)
    request.consistency = consistency or request.consistency
    request.data_cache = request.data_cache if data_cache is None else data_cache
    request.max_request = request.max_request if max_request is None else max_request
    request.max_readdir = request.max_readdir if max_readdir is None else max_readdir
    wanted = 2 if what == "passthrough" else 1
    if len(places) != wanted:
        raise UsageError(
            f"{what} takes {wanted} paths, not {len(places)} (EINVAL)",
            hint="efuse mount --help shows both forms",
        )
    if what == "passthrough":
        request.arguments["source"] = absolute_source(places[0])
        request.options.add(f"fsname={places[0]}")
    mount(request, places[-1], foreground=foreground, as_json=as_json)


def mount(request: Request, mountpoint: str, *, foreground: bool, as_json: bool) -> None:
    """Carry out *request*, and print how the file system is mounted.

    :raises EfuseError: the file system cannot be mounted.
    """
    make = request.operations()
    logging.basicConfig(format="%(name)s: %(message)s")
    if foreground:
        _serve_here(request, mountpoint, as_json)
        return
    # The result is printed below, so the log need not repeat it.
    logging.getLogger("efuse.fs").setLevel(logging.ERROR)
    from efuse.fs import start

    mounted = start(
        make,
        Path(mountpoint).absolute(),
        request.options,
        plain=request.plain,
        required=request.require,
        channels=request.channels,
        recovery=request.recovery,
        daemonize=True,
    )
    if as_json:
        print_json(dataclasses.asdict(mounted))
    else:
        echo(describe(mounted))


def _serve_here(request: Request, mountpoint: str, as_json: bool) -> None:
    import trio

    from efuse.fs import State, serve

    class Said(trio.TaskStatus[State]):
        def started(self, value: State | None = None) -> None:
            state = value or State()
            if as_json:
                print_json(
                    {
                        "mountpoint": state.mountpoint,
                        "type": state.mounted_type,
                        "accelerated": state.accelerated,
                        "reason": state.reason,
                        "connection": state.connection,
                        "channels": state.channels,
                        "channels_reason": state.channels_reason,
                        "given_up": state.given_up,
                    }
                )
            else:
                echo(describe(state))

    async def main() -> None:
        await serve(
            request.operations()(),
            mountpoint,
            request.options,
            plain=request.plain,
            required=request.require,
            channels=request.channels,
            recovery=request.recovery,
            task_status=Said(),
        )

    logging.getLogger("efuse.fs").setLevel(logging.ERROR)
    trio.run(main)
