# SPDX-License-Identifier: LGPL-2.1-or-later
"""How functions look on the command line: ``efuse csd run NAME``.

Beside each shipped function's class lies a ``COMMAND``. It needs little::

    COMMAND = Command(
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
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from efuse.functions.catalog import Shipped

__all__ = ["BYTES", "Command", "result_fields", "result_lines"]


class _Bytes(click.ParamType[bytes]):
    """Bytes as a person typed them."""

    name = "text"

    def convert(
        self, value: str | bytes, param: click.Parameter | None, ctx: click.Context | None
    ) -> bytes:
        return os.fsencode(value)


BYTES = _Bytes()


def result_fields(result: Any) -> dict[str, Any]:
    """Return the fields of a result that is a dataclass."""
    return dataclasses.asdict(result)


def result_lines(fields: Mapping[str, Any]) -> list[str]:
    """Return a line for each field; what there is not is a dash."""
    width = max(map(len, fields), default=0) + 2
    return [f"{name:<{width}}{'-' if value is None else value}" for name, value in fields.items()]


@dataclasses.dataclass(frozen=True)
class Command:
    """A function on the command line.

    :ivar function: the class of its calls.
    :ivar example: of what follows the function's name.
    :ivar options: its own options and arguments; the file comes behind them.
    :ivar make: makes the call of their values, by name; None: the class does.
    :ivar fields: what JSON has of a result.
    :ivar lines: what is printed of a result; None: the fields.
    :ivar found: of a function whose output is a stream: what is printed, while it comes, of the
        pieces of its output; None: it is none.
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
        """Of the function."""
        return self.function.name

    @property
    def doc(self) -> str:
        """What it does: the first paragraph of the class's documentation."""
        return (self.function.__doc__ or "").partition("\n\n")[0].strip()

    def call(self, **values: Any) -> Shipped:
        """Return the call that the options' values make.

        :raises UsageError: they make none.
        """
        return (self.make or self.function)(**values)

    def text(self, result: Any) -> Iterable[str]:
        """Return the lines that are printed of a result."""
        return self.lines(result) if self.lines else result_lines(self.fields(result))
