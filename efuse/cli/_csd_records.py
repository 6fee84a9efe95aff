# SPDX-License-Identifier: LGPL-2.1-or-later
"""The functions over records on the command line: the syntax of fields and filters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import click

from efuse.cli._csd_command import Command, result_fields
from efuse.functions.records import (
    Aggregate,
    Aggregated,
    Field,
    Filter,
    Histogram,
    Histogrammed,
    Records,
)

__all__ = ["AGGREGATE", "FIELD", "HISTOGRAM", "aggregated"]

_FIELD = r"(\d+)(?::([1248])(u?))?"


class _FieldType(click.ParamType[Field]):
    """A field in the form ``OFFSET[:SIZE[u]]``."""

    name = "field"

    def convert(
        self, value: str | Field, param: click.Parameter | None, ctx: click.Context | None
    ) -> Field:
        if isinstance(value, Field):
            return value
        found = re.fullmatch(_FIELD, value)
        if found is None:
            self.fail(
                f"{value!r} is not a field: write OFFSET:SIZE, such as 8:4, or 8:4u", param, ctx
            )
        return _field(*found.groups())


class _FilterType(click.ParamType[Filter]):
    """A filter in the form ``FIELD=LEAST..MOST``; either bound may be left out."""

    name = "filter"

    def convert(
        self, value: str | Filter, param: click.Parameter | None, ctx: click.Context | None
    ) -> Filter:
        if isinstance(value, Filter):
            return value
        found = re.fullmatch(rf"{_FIELD}=(-?\d+)?\.\.(-?\d+)?", value)
        if found is None:
            self.fail(
                f"{value!r} is not a filter: write OFFSET:SIZE=LEAST..MOST, such as 6:2u=1..100",
                param,
                ctx,
            )
        *field, least, most = found.groups()
        ends = {"least": least, "most": most}
        given = {name: int(number) for name, number in ends.items() if number is not None}
        return Filter(_field(*field), **given)


FIELD = _FieldType()


def aggregated(result: Aggregated) -> dict[str, Any]:
    """Return the fields of a result, with the mean."""
    return {**result_fields(result), "mean": result.mean}


def _field(offset: str, size: str | None, unsigned: str | None) -> Field:
    return Field(int(offset), int(size or 8), signed=not unsigned)


def _options(*more: click.Parameter) -> tuple[click.Parameter, ...]:
    return (
        click.Option(
            ["--record"],
            type=int,
            required=True,
            metavar="BYTES",
            help="Size of a record: 8, 16, ... 4096.",
        ),
        click.Option(
            ["--field"],
            type=FIELD,
            required=True,
            metavar="OFFSET[:SIZE[u]]",
            help="The number in a record: offset, size in bytes (8), u: unsigned.",
        ),
        click.Option(
            ["--where", "filter_"],
            type=_FilterType(),
            metavar="FIELD=LEAST..MOST",
            help="Only records whose FIELD is in this range.",
        ),
        *more,
    )


def _aggregate(record: int, field: Field, filter_: Filter | None) -> Aggregate:
    return Aggregate(Records(record, filter_), field)


AGGREGATE = Command(
    Aggregate,
    example="--record 64 --field 8 --where 6:2u=1000..40000 table",
    options=_options(),
    make=_aggregate,
    fields=aggregated,
)


def _histogram(
    record: int, field: Field, filter_: Filter | None, start: int, width: int, ranges: int
) -> Histogram:
    return Histogram(Records(record, filter_), field, start, width, ranges)


def _histogrammed(result: Histogrammed) -> Iterator[str]:
    yield f"below  {result.below}"
    for number, count in enumerate(result.counts):
        if count:
            yield f"{number:<6} {count}"
    yield f"above  {result.above}"


HISTOGRAM = Command(
    Histogram,
    example="--record 8 --field 0:2u --width 256 --ranges 256 table",
    options=_options(
        click.Option(["--start"], type=int, default=0, help="First number of the first range."),
        click.Option(["--width"], type=int, default=1, help="Numbers in a range: 1, 2, 4, ..."),
        click.Option(["--ranges"], type=int, default=256, help="Number of ranges: up to 1022."),
    ),
    make=_histogram,
    lines=_histogrammed,
)
