# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a command of a function consists of: ``efuse csd run NAME``. Few fields suffice::

Command(
    Grep,
    example="--pattern error /var/log/syslog",
    options=(
        click.Option(
            ["--pattern"], type=BYTES, required=True, metavar="TEXT", help="Look for TEXT."
        ),
    ),
    fields=lambda lines: {"lines": [line.decode(errors="replace") for line in lines]},
    found=lambda call, pieces: pieces,
)
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import click

from efuse.functions import Shipped

__all__ = ["BYTES", "Command", "result_fields"]


class _Bytes(click.ParamType[bytes]):
    """Bytes that a person typed as text."""

    name = "text"

    def convert(
        self, value: str | bytes, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        return os.fsencode(value)


BYTES = _Bytes()


def result_fields(result: Any) -> dict[str, Any]:
    """Return the fields of a result, which must be a dataclass."""
    return dataclasses.asdict(result)


def result_lines(fields: Mapping[str, Any]) -> list[str]:
    """Return one line per field; a missing value is printed as a dash."""
    width = max(map(len, fields), default=0) + 2
    return [f"{name:<{width}}{'-' if value is None else value}" for name, value in fields.items()]


@dataclasses.dataclass(frozen=True)
class Command:
    """The command of a function.

    :ivar function: class of the function's calls.
    :ivar example: what follows the function's name in the example of the help.
    :ivar options: options and arguments of this function; the argument FILE follows them.
    :ivar make: makes a call from the values of the options; None: the class `function` does.
    :ivar fields: converts a result to the fields that ``--json`` prints.
    :ivar lines: converts a result to the lines that are printed; None: one line per field.
    :ivar found: for a function whose output is a stream: converts the pieces of its output, as
        they arrive, to what is printed; None: the output is one result.
    """

    function: type[Shipped]
    example: str
    options: tuple[click.Parameter, ...] = ()
    make: Callable[..., Shipped] | None = None
    fields: Callable[[Any], dict[str, Any]] = result_fields
    lines: Callable[[Any], Iterable[str]] | None = None
    found: Callable[[Any, Iterator[bytes]], Iterator[bytes]] | None = None

    @property
    def name(self) -> str:
        """Name of the function."""
        return self.function.name

    @property
    def doc(self) -> str:
        """What the function does: the first paragraph of its class's docstring."""
        return (self.function.__doc__ or "").partition("\n\n")[0].strip()

    def call(self, **values: Any) -> Shipped:
        """Make a call from the values of the options.

        :raises UsageError: the values are not valid.
        """
        return (self.make or self.function)(**values)

    def text(self, result: Any) -> Iterable[str]:
        """Return the lines to print for a result."""
        return self.lines(result) if self.lines else result_lines(self.fields(result))
