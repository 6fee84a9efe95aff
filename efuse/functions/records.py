# SPDX-License-Identifier: LGPL-2.1-or-later
"""Functions over records of a fixed size: ``aggregate`` and ``histogram``."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from efuse.errors import UsageError
from efuse.functions.twin import Twin, whole

__all__ = ["Aggregate", "Aggregated", "Field", "Filter", "Histogram", "Histogrammed", "Records"]

_BLOCK = 4096
_LEAST_RECORD = 8
_MOST_RANGES = 1022
_BIAS = 1 << 63
_WORD = (1 << 64) - 1
_AGGREGATED = struct.Struct("<QQQQ")


@dataclass(frozen=True)
class Field:
    """A number in a record, little-endian.

    :param offset: where it begins, bytes: a multiple of its size.
    :param size: 1, 2, 4 or 8 bytes.
    :param signed: whether it has a sign. One of 8 bytes has.
    :raises UsageError: it is none of these.
    """

    offset: int
    size: int = 8
    signed: bool = True

    def __post_init__(self) -> None:
        if self.size not in (1, 2, 4, 8) or self.offset < 0 or self.offset % self.size:
            raise UsageError(
                f"there is no field of {self.size} bytes at {self.offset}",
                hint="1, 2, 4 or 8 bytes at a multiple of as many",
            )
        if self.size == 8 and not self.signed:
            raise UsageError("a field of 8 bytes has a sign")

    def encode(self) -> bytes:
        """Return it as the functions take it (``struct record_field``)."""
        bits = 8 * self.size
        sign = 1 << bits - 1 if self.signed else 0
        return struct.pack("<IIQQ", self.offset & ~7, 8 * (self.offset & 7), (1 << bits) - 1, sign)

    def number(self, record: bytes) -> int:
        """Return the number in a record."""
        raw = record[self.offset : self.offset + self.size]
        return int.from_bytes(raw, "little", signed=self.signed)


@dataclass(frozen=True)
class Filter:
    """Which records count: those whose field is in a range.

    :param field: of the record.
    :param least: the first number of the range.
    :param most: the last one.
    """

    field: Field
    least: int = -_BIAS
    most: int = _BIAS - 1

    def encode(self) -> bytes:
        """Return it as the functions take it (``struct record_filter``)."""
        return self.field.encode() + struct.pack("<QQ", _biased(self.least), _biased(self.most))

    def passes(self, record: bytes) -> bool:
        """Return whether a record counts."""
        return self.least <= self.field.number(record) <= self.most


@dataclass(frozen=True)
class Records:
    """How a file is divided.

    :param size: of a record in bytes: 8 to 4096, a divisor of 4096.
    :param filter: which of them count; None: all.
    :raises UsageError: it is another size, or the filter's field is not in a record.
    """

    size: int
    filter: Filter | None = None

    def __post_init__(self) -> None:
        if self.size < _LEAST_RECORD or self.size > _BLOCK or _BLOCK % self.size:
            raise UsageError(
                f"there are no records of {self.size} bytes",
                hint="8, 16, 32, ... or 4096 bytes",
            )
        if self.filter is not None:
            self.check(self.filter.field)

    def check(self, wanted: Field) -> None:
        """Raise `UsageError` if a field is not in a record."""
        if wanted.offset + wanted.size > self.size:
            raise UsageError(
                f"a record of {self.size} bytes has no field of {wanted.size} at {wanted.offset}"
            )

    def encode(self) -> bytes:
        """Return it as the functions take it (``struct records``)."""
        chosen = self.filter or Filter(Field(0))
        return struct.pack("<II", self.size, 0) + chosen.encode()

    def wanted(self, data: bytes) -> Iterator[bytes]:
        """Iterate the records that count."""
        for start in range(0, len(data) - self.size + 1, self.size):
            record = data[start : start + self.size]
            if self.filter is None or self.filter.passes(record):
                yield record


@dataclass(frozen=True)
class Aggregated:
    """What `Aggregate` found.

    :ivar count: records that pass the filter.
    :ivar sum: of their fields, as a signed number of 64 bits: it wraps.
    :ivar least: of them; None: there is no such record.
    :ivar most: likewise.
    """

    count: int
    sum: int
    least: int | None
    most: int | None

    @property
    def mean(self) -> float | None:
        """The sum by the count."""
        return self.sum / self.count if self.count else None


class Sums:
    """What functions emit of the numbers of some records (``struct record_sums``)."""

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0
        self._ends: list[int] = []
        """The least and the most so far, once there is one."""

    def add(self, numbers: Sequence[int]) -> None:
        """Add numbers."""
        if numbers:
            self._count += len(numbers)
            self._sum += sum(numbers)
            self._ends = [min([*numbers, *self._ends]), max([*numbers, *self._ends])]

    def encode(self) -> bytes:
        """Return it as it is emitted."""
        if not self._ends:
            return bytes(_AGGREGATED.size)
        least, most = self._ends
        return _AGGREGATED.pack(
            self._count, self._sum & _WORD, ~_biased(least) & _WORD, _biased(most)
        )


def encode_sums(numbers: Sequence[int]) -> bytes:
    """Return what functions emit of all numbers."""
    sums = Sums()
    sums.add(numbers)
    return sums.encode()


def decode_sums(raw: bytes) -> Aggregated:
    """Return the same as Python has it."""
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

    :param records: how the file is divided, and which of them count.
    :param field: which is added up.
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
        """Return what the function emits over *data*."""
        return whole(self.twin(), data)

    def twin(self) -> Twin:
        """Return its twin in Python."""
        return _AggregateTwin(self)

    def decode(self, raw: bytes) -> Aggregated:
        """Return what the function emitted."""
        return decode_sums(raw)


@dataclass(frozen=True)
class Histogrammed:
    """What `Histogram` found.

    :ivar below: records whose field is below the first range.
    :ivar counts: by range.
    :ivar above: records whose field is above the last range.
    """

    below: int
    counts: tuple[int, ...]
    above: int


@dataclass(frozen=True)
class Histogram:
    """Count records by ranges of one of their fields.

    :param records: how the file is divided, and which of them count.
    :param field: which is looked at.
    :param start: the first number of the first range.
    :param width: how many numbers a range has: a power of two.
    :param ranges: how many there are, up to 1022.
    :raises UsageError: the ranges are others.
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
                f"cannot count by {self.ranges} ranges of {self.width}",
                hint=f"1 to {_MOST_RANGES} ranges of 1, 2, 4, ... numbers",
            )

    def encode(self) -> bytes:
        """Return the arguments as the function takes them (``struct histogram_args``)."""
        shift = self.width.bit_length() - 1
        ranges = struct.pack("<QII", self.start & _WORD, shift, self.ranges)
        return self.records.encode() + self.field.encode() + ranges

    def reference(self, data: bytes) -> bytes:
        """Return what the function emits over *data*."""
        return whole(self.twin(), data)

    def twin(self) -> Twin:
        """Return its twin in Python."""
        return _HistogramTwin(self)

    def decode(self, raw: bytes) -> Histogrammed:
        """Return what the function emitted."""
        below, *counts, above = struct.unpack(f"<{self.ranges + 2}Q", raw)
        return Histogrammed(below, tuple(counts), above)


class _AggregateTwin:
    def __init__(self, call: Aggregate) -> None:
        self._call = call
        self._sums = Sums()

    def step(self, data: bytes) -> bytes:
        call = self._call
        self._sums.add([call.field.number(record) for record in call.records.wanted(data)])
        return b""

    def finish(self) -> bytes:
        return self._sums.encode()


class _HistogramTwin:
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
