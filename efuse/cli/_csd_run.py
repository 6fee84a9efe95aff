# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse csd run``: one subcommand per function."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from efuse.cli._csd_command import Command
from efuse.cli._csd_functions import COMMANDS
from efuse.cli._output import echo, print_json
from efuse.errors import UsageError
from efuse.functions.anywhere import WHERE, Execution, Outcome, begin, begin_loaded

__all__ = ["run"]

# A scan that ends sooner needs no progress bar.
_BAR_AFTER_S = 1.0


class _Functions(click.Group):
    """A subcommand for each shipped function, and one for any other name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        found = COMMANDS.get(name)
        return _of_shipped(found) if found is not None else _of_loaded(name)


@click.group(cls=_Functions, subcommand_metavar="FUNCTION [OPTIONS] FILE")
def run() -> None:
    """Run FUNCTION over FILE: at its device, else in the kernel, else in this process.

    A line on stderr tells where the blocks were looked at, and why there. A FUNCTION that is not
    one of these has to be loaded. It takes --args, and its output is printed as it is.

    \b
    efuse csd run count --pattern error /mnt/log
    efuse csd run mine --args 0100000000000000 /mnt/log
    """


def _of_shipped(command: Command) -> click.Command:
    def act(file: Path, place: str, as_json: bool, progress: bool | None, **values: object) -> None:
        call = command.call(**values)
        show = _Bar(progress, streams=command.found is not None and not as_json)
        with begin(call, file, place) as execution, show:
            if as_json:
                result = command.fields(call.decode(b"".join(show.pieces(execution))))
                _print_json(command.name, file, result, execution.outcome())
                return
            if command.found is not None:
                _stream(command.found(call, show.pieces(execution)))
            else:
                result = call.decode(b"".join(show.pieces(execution)))
                show.close()
                for line in command.text(result):
                    click.echo(line)
            outcome = execution.outcome()
        echo(f"{command.name}: {outcome}", err=True)

    example = f"\b\nefuse csd run {command.name} {command.example}"
    return click.Command(
        command.name,
        callback=act,
        params=[*command.options, *_common()],
        help=f"{command.doc}\n\n{example}",
    )


def _of_loaded(name: str) -> click.Command:
    def act(args: str, file: Path, place: str, as_json: bool, progress: bool | None) -> None:
        try:
            raw = bytes.fromhex(args)
        except ValueError as error:
            raise UsageError(
                f"the arguments {args!r} are invalid: {error}",
                hint="write two digits for each byte: --args 0a00",
            ) from error
        show = _Bar(progress, streams=not as_json)
        with begin_loaded(name, raw, file, place) as execution, show:
            if as_json:
                result = {"output": b"".join(show.pieces(execution)).hex()}
                _print_json(name, file, result, execution.outcome())
                return
            _stream(show.pieces(execution))
            outcome = execution.outcome()
        echo(f"{name}: {outcome}", err=True)

    option = click.Option(
        ["--args"],
        default="",
        metavar="HEX",
        help="Arguments of the function: bytes as hexadecimal digits.",
    )
    return click.Command(
        name,
        callback=act,
        params=[option, *_common()],
        help=f"Run the function {name}, which must be loaded, and print its output.",
    )


def _common() -> list[click.Parameter]:
    """Return the parameters of all subcommands."""
    return [
        click.Argument(["file"], type=click.Path(exists=True, dir_okay=False, path_type=Path)),
        click.Option(
            ["--place"],
            type=click.Choice(WHERE),
            default="auto",
            show_default=True,
            help="Place of the run; daemon is this process.",
        ),
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON."),
        click.Option(
            ["--progress/--no-progress"],
            default=None,
            help="Show the progress on a terminal. Default: for runs that take a while.",
        ),
    ]


def _print_json(name: str, file: Path, result: dict[str, Any], outcome: Outcome) -> None:
    print_json(
        {
            "function": name,
            "file": str(file),
            "result": result,
            "blocks": {
                "device": outcome.device,
                "kernel": outcome.kernel,
                "daemon": outcome.daemon,
            },
            "why": outcome.why,
            "loaded_for_this": outcome.loaded,
        }
    )


def _stream(pieces: Iterator[bytes]) -> None:
    """Print the output as it arrives."""
    for piece in pieces:
        click.echo(piece, nl=False)


class _Bar(ExitStack):
    """A progress bar on stderr, shown only if it is wanted and stderr is a terminal.

    :param wanted: whether to show it; None: if nothing else is printed on the terminal
        meanwhile, and the scan takes a while.
    :param streams: whether results are printed while they arrive.
    """

    def __init__(self, wanted: bool | None, *, streams: bool) -> None:
        super().__init__()
        if wanted is None:
            wanted = sys.stderr.isatty() and not (streams and sys.stdout.isatty())
            self._from = time.monotonic() + _BAR_AFTER_S
        else:
            self._from = 0.0
        self._wanted = wanted
        self._update: Callable[[int, int], None] | None = None

    def pieces(self, execution: Execution) -> Iterator[bytes]:
        """Iterate over the function's output, and show the progress."""
        while (some := execution.step()) != b"":
            if self._wanted and time.monotonic() >= self._from:
                self._show(execution)
            if some is not None:
                yield some

    def _show(self, execution: Execution) -> None:
        if self._update is None:
            self._update = self._begin()
        status = execution.status()
        self._update(status.position, status.end)

    def _begin(self) -> Callable[[int, int], None]:
        from rich.console import Console  # slow to import
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        console = Console(stderr=True)
        if not console.is_terminal:
            self._wanted = False
            return lambda position, end: None
        columns = (BarColumn(), DownloadColumn(True), TransferSpeedColumn(), TimeRemainingColumn())
        bar = self.enter_context(Progress(*columns, console=console, transient=True))
        task = bar.add_task("")
        return lambda position, end: bar.update(task, completed=position, total=end)
