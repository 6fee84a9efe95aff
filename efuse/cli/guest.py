# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse guest``: run commands in a guest that has the module loaded."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from efuse.cli._kernels import chosen, kernel_option
from efuse.cli._output import echo, print_json

__all__ = ["cli"]


def _memory(_ctx: click.Context, _parameter: click.Parameter, value: str) -> str:
    if not re.fullmatch(r"[1-9]\d*[MG]", value):
        raise click.BadParameter("give a number and M or G, such as 4G")
    return value


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that all commands that boot a guest share."""
    for option in reversed(
        [
            click.option(
                "--cpus",
                default=2,
                show_default=True,
                type=click.IntRange(1, 64),
                help="Processors of the guest.",
            ),
            click.option(
                "--nodes",
                default=1,
                show_default=True,
                type=click.IntRange(1, 8),
                help="NUMA nodes, which share the processors and the memory.",
            ),
            click.option(
                "--memory",
                metavar="SIZE",
                default="4G",
                show_default=True,
                callback=_memory,
                help="Memory of the guest, in M or G.",
            ),
            click.option(
                "--icount", is_flag=True, help="Let the guest's clock count instructions (one CPU)."
            ),
            kernel_option,
            click.option(
                "--root",
                metavar="DIR",
                default="/",
                type=click.Path(path_type=Path),
                help="Boot this directory, such as one of debootstrap, and the kernel that is "
                "installed in it.",
            ),
            click.option("--no-module", is_flag=True, help="Do not build and load efuse.ko."),
            click.option(
                "--timeout",
                type=click.FloatRange(min=0, min_open=True),
                metavar="SECONDS",
                help="End the guest if the command takes longer.",
            ),
            click.option(
                "--keep-log", is_flag=True, help="Keep the kernel's log and print its path."
            ),
            click.option(
                "--append",
                "parameters",
                multiple=True,
                metavar="WORD",
                help="Another word for the kernel's command line. May be repeated.",
            ),
        ]
    ):
        command = option(command)
    return command


def _run(arguments: list[str], shell: bool, given: dict[str, Any], again: int = 0) -> None:
    from efuse.guest.run import Options, run

    options = Options(
        cpus=given["cpus"],
        memory=given["memory"],
        icount=given["icount"],
        kernel=chosen(given["kernel"]),
        module=not given["no_module"],
        timeout_s=given["timeout"],
        keep_log=given["keep_log"],
        parameters=given["parameters"],
        nodes=given["nodes"],
        again=again,
        root=given["root"],
    )
    result = run(arguments, options, shell=shell)
    if result.kernel_log is not None:
        echo(f"guest: the kernel's log is in {result.kernel_log}", err=True)
    sys.exit(result.status)


@click.group()
def cli() -> None:
    """Boot a kernel in QEMU with this machine's own files and run a command there.

    \b
    efuse guest run -- efuse module status
    """


@cli.command("run", context_settings={"ignore_unknown_options": True})
@_options
@click.option(
    "--again",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Run COMMAND again, at most so many times, if a known fault of the emulator killed it.",
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run_command(command: tuple[str, ...], again: int, **given: Any) -> None:
    """Run COMMAND in a guest, in the current directory, and exit with its status.

    It also fails if the guest dies, reports no status, or its kernel warns.

    \b
    efuse guest run --cpus 4 --timeout 300 -- make -C project test
    efuse guest run --root /srv/trixie -- cat /etc/debian_version
    """
    _run(list(command), False, given, again)


@cli.command("shell")
@_options
def shell_command(**given: Any) -> None:
    """Open a shell in a guest: bash without its start-up files, which are slow under emulation.

    \b
    efuse guest shell --memory 2G
    """
    _run(["bash", "--norc", "-i"], True, given)


@cli.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status_command(as_json: bool) -> None:
    """Show what a guest would consist of.

    \b
    efuse guest status --json
    """
    from efuse.guest.status import status

    fields = status()
    if as_json:
        print_json(fields)
        return
    for key, value in fields.items():
        echo(f"{key:<14} {'-' if value is None else value}")
