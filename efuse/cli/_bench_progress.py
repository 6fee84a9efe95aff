# SPDX-License-Identifier: LGPL-2.1-or-later
"""Progress of a benchmark: its lines, and on a terminal a bar below them with the time left."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from efuse.bench.lines import done

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["LineSink", "progress"]


class LineSink(io.BytesIO):
    """A stream that passes each line that is written to it to *say*."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say
        self._partial = b""

    def write(self, data: Any) -> int:
        """Take bytes. The beginning of a line is kept until the line ends."""
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._say(line.decode(errors="replace"))
        return len(data)

    def close(self) -> None:
        """Pass on an unfinished last line."""
        if self._partial:
            self.write(b"\n")
        super().close()


@contextmanager
def progress(
    steps: Mapping[str, int], console: Console | None = None
) -> Iterator[Callable[[str], None]]:
    """Yield a function that takes the lines of a run and shows them on standard error.

    :param steps: number of parts that the run reports as done, by workload.
    :param console: where to show them; None: standard error.
    """
    from rich.console import Console

    console = console or Console(file=sys.stderr)
    if not console.is_terminal:
        yield lambda line: click.echo(line, err=True)
        return
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, expand=True) as shown:
        task = shown.add_task("begins", total=sum(steps.values()))

        def say(line: str) -> None:
            shown.console.print(line, markup=False, highlight=False, soft_wrap=True)
            name = done(line)
            if name in steps:
                shown.update(task, advance=1, description=name)

        yield say
