# SPDX-License-Identifier: LGPL-2.1-or-later
"""Functions over records of a fixed size: ``aggregate`` and ``histogram``."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from efuse.errors import UsageError
from efuse.functions.reference import ReferenceImplementation, whole

__all__ = [
    "Aggregate",
    "Aggregated",
    "Field",
    "Filter",
    "Histogram",
    "Histogrammed",
    "Records",
    "decode_sums",
    "encode_sums",
]

_BLOCK = 4096
_LEAST_RECORD = 8
_MOST_RANGES = 1022
_BIAS = 1 << 63
_WORD = (1 << 64) - 1
_AGGREGATED = struct.Struct("<QQQQ")


@dataclass(frozen=True)
class Field:
    """A little-endian number in a record.

    :param offset: offset in the record, bytes: a multiple of *size*.
    :param size: 1, 2, 4 or 8 bytes.
    :param signed: whether the number has a sign; must be true for 8 bytes.
    :raises UsageError: the values do not meet these conditions.
    """

    offset: int
    size: int = 8
    signed: bool = True

    def __post_init__(self) -> None:
        if self.size not in (1, 2, 4, 8) or self.offset < 0 or self.offset % self.size:
            raise UsageError(
                f"a field cannot have {self.size} bytes at offset {self.offset}",
                hint="a field has 1, 2, 4 or 8 bytes and lies at a multiple of its size",
            )
        if self.size == 8 and not self.signed:
            raise UsageError("a field of 8 bytes is always signed")

    def encode(self) -> bytes:
        """Return the field in the form in which functions take it (``struct record_field``)."""
        bits = 8 * self.size
        sign = 1 << bits - 1 if self.signed else 0
        return struct.pack("<IIQQ", self.offset & ~7, 8 * (self.offset & 7), (1 << bits) - 1, sign)

    def number(self, record: bytes) -> int:
        """Return the field's number in *record*."""
        raw = record[self.offset : self.offset + self.size]
        return int.from_bytes(raw, "little", signed=self.signed)


@dataclass(frozen=True)
class Filter:
    """A condition on records: a field is in a range.

    :param field: field of the record.
    :param least: smallest number of the range.
    :param most: greatest number of the range.
    """

    field: Field
    least: int = -_BIAS
    most: int = _BIAS - 1

    def encode(self) -> bytes:
        """Return the filter in the form in which functions take it (``struct record_filter``)."""
        return self.field.encode() + struct.pack("<QQ", _biased(self.least), _biased(self.most))

    def passes(self, record: bytes) -> bool:
        """Return whether *record* meets the condition."""
        return self.least <= self.field.number(record) <= self.most


@dataclass(frozen=True)
class Records:
    """The division of a file into records, and the choice of those that count.

    :param size: bytes of a record: 8 to 4096, a divisor of 4096.
    :param filter: condition on the records that count; None: all count.
    :raises UsageError: the size is not valid, or the filter's field does not lie in a record.
    """

    size: int
    filter: Filter | None = None

    def __post_init__(self) -> None:
        if self.size < _LEAST_RECORD or self.size > _BLOCK or _BLOCK % self.size:
            raise UsageError(
                f"a record cannot have {self.size} bytes",
                hint="a record has 8, 16, 32, ... or 4096 bytes",
            )
        if self.filter is not None:
            self.check(self.filter.field)

    def check(self, wanted: Field) -> None:
        """Check a field.

        :raises UsageError: the field does not lie in a record.
        """
        if wanted.offset + wanted.size > self.size:
            raise UsageError(
                f"a record of {self.size} bytes has no field of {wanted.size} bytes at"
                f" {wanted.offset}"
            )

    def encode(self) -> bytes:
        """Return the records in the form in which functions take them (``struct records``)."""
        chosen = self.filter or Filter(Field(0))
        return struct.pack("<II", self.size, 0) + chosen.encode()

    def wanted(self, data: bytes) -> Iterator[bytes]:
        """Iterate over the records of *data* that count."""
        for start in range(0, len(data) - self.size + 1, self.size):
            record = data[start : start + self.size]
            if self.filter is None or self.filter.passes(record):
                yield record


@dataclass(frozen=True)
class Aggregated:
    """The result of `Aggregate`.

    :ivar count: number of records that pass the filter.
    :ivar sum: sum of their fields as a signed 64-bit number, which wraps around.
    :ivar least: smallest of their fields; None: no record passes.
    :ivar most: greatest of their fields; None: no record passes.
    """

    count: int
    sum: int
    least: int | None
    most: int | None

    @property
    def mean(self) -> float | None:
        """Sum divided by count; None: no record passes."""
        return self.sum / self.count if self.count else None


class Sums:
    """Count, sum, least and most of numbers, as functions emit them (``struct record_sums``)."""

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0
        self._ends: list[int] = []
        """The least and the most number so far; empty: there was none."""

    def add(self, numbers: Sequence[int]) -> None:
        """Add *numbers* to the sums."""
        if numbers:
            self._count += len(numbers)
            self._sum += sum(numbers)
            self._ends = [min([*numbers, *self._ends]), max([*numbers, *self._ends])]

    def encode(self) -> bytes:
        """Return the sums in the form in which functions emit them."""
        if not self._ends:
            return bytes(_AGGREGATED.size)
        least, most = self._ends
        return _AGGREGATED.pack(
            self._count, self._sum & _WORD, ~_biased(least) & _WORD, _biased(most)
        )


def encode_sums(numbers: Sequence[int]) -> bytes:
    """Return the sums of *numbers* in the form in which functions emit them."""
    sums = Sums()
    sums.add(numbers)
    return sums.encode()


def decode_sums(raw: bytes) -> Aggregated:
    """Convert the sums that a function emitted to a Python object."""
    count, total, least, most = _AGGREGATED.unpack(raw)
    if not count:
        return Aggregated(0, 0, None, None)
    return Aggregated(
        count,
        _signed(total),
        _signed((~least - _BIAS) & _WORD),
        _signed((most - _BIAS) & _WORD),
    )


@dataclass(frozen=True)
class Aggregate:
    """Count records, and find the sum, least and most of one of their fields.

    :param records: how the file is divided into records, and which of them count.
    :param field: field of the record to sum up.
    :raises UsageError: the field does not lie in a record.
    """

    name: ClassVar[str] = "aggregate"

    records: Records
    field: Field

    def __post_init__(self) -> None:
        self.records.check(self.field)

    def encode(self) -> bytes:
        """Return the arguments as the function takes them (``struct aggregate_args``)."""
        return self.records.encode() + self.field.encode()

    def reference(self, data: bytes) -> bytes:
        """Return the function's output over *data*, the contents of the file."""
        return whole(self.stream(), data)

    def stream(self) -> ReferenceImplementation:
        """Return the function's reference implementation, at the beginning of a file."""
        return _AggregateReference(self)

    def decode(self, raw: bytes) -> Aggregated:
        """Return the result that the function emitted."""
        return decode_sums(raw)


@dataclass(frozen=True)
class Histogrammed:
    """The result of `Histogram`.

    :ivar below: number of records whose field is below the first range.
    :ivar counts: number of records whose field is in each range, by range.
    :ivar above: number of records whose field is above the last range.
    """

    below: int
    counts: tuple[int, ...]
    above: int


@dataclass(frozen=True)
class Histogram:
    """Count records by ranges of one of their fields.

    :param records: how the file is divided into records, and which of them count.
    :param field: field of the record to look at.
    :param start: smallest number of the first range.
    :param width: how many numbers a range has: a power of two.
    :param ranges: number of ranges, 1 to 1022.
    :raises UsageError: the ranges do not meet these conditions, or the field does not lie in a
        record.
    """

    name: ClassVar[str] = "histogram"

    records: Records
    field: Field
    start: int = 0
    width: int = 1
    ranges: int = 256

    def __post_init__(self) -> None:
        self.records.check(self.field)
        if self.width.bit_count() != 1 or not 0 < self.ranges <= _MOST_RANGES:
            raise UsageError(
                f"cannot count in {self.ranges} ranges of width {self.width}",
                hint=f"use 1 to {_MOST_RANGES} ranges of 1, 2, 4, ... numbers",
            )

    def encode(self) -> bytes:
        """Return the arguments as the function takes them (``struct histogram_args``)."""
        shift = self.width.bit_length() - 1
        ranges = struct.pack("<QII", self.start & _WORD, shift, self.ranges)
        return self.records.encode() + self.field.encode() + ranges

    def reference(self, data: bytes) -> bytes:
        """Return the function's output over *data*, the contents of the file."""
        return whole(self.stream(), data)

    def stream(self) -> ReferenceImplementation:
        """Return the function's reference implementation, at the beginning of a file."""
        return _HistogramReference(self)

    def decode(self, raw: bytes) -> Histogrammed:
        """Return the result that the function emitted."""
        below, *counts, above = struct.unpack(f"<{self.ranges + 2}Q", raw)
        return Histogrammed(below, tuple(counts), above)


class _AggregateReference:
    def __init__(self, call: Aggregate) -> None:
        self._call = call
        self._sums = Sums()

    def step(self, data: bytes) -> bytes:
        call = self._call
        self._sums.add([call.field.number(record) for record in call.records.wanted(data)])
        return b""

    def finish(self) -> bytes:
        return self._sums.encode()


class _HistogramReference:
    def __init__(self, call: Histogram) -> None:
        self._call = call
        self._counts = [0] * (call.ranges + 2)

    def step(self, data: bytes) -> bytes:
        call = self._call
        for record in call.records.wanted(data):
            number = call.field.number(record)
            at = min((number - call.start) // call.width, call.ranges)
            self._counts[at + 1 if number >= call.start else 0] += 1
        return b""

    def finish(self) -> bytes:
        return struct.pack(f"<{len(self._counts)}Q", *self._counts)


def _biased(number: int) -> int:
    return number + _BIAS & _WORD


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number
