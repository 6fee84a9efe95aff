# SPDX-License-Identifier: LGPL-2.1-or-later
"""Convert samples of `efuse.stats` to the metrics of `efuse.exporter.metrics`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    SummaryMetricFamily,
)
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector as BaseCollector

from efuse.exporter.buckets import BOUNDS_NS, cumulative
from efuse.exporter.metrics import METRICS, Kind, Metric, Needs, Scope
from efuse.exporter.reading import PlainOpcode, Reading, look
from efuse.stats import PlainMounts

__all__ = ["Collector", "exposition", "registry"]

_Row = tuple[tuple[str, ...], Any]
"""Values of the scope's labels, and the sample that has these labels."""


def _say_nothing(problem: str) -> None:
    pass


class Collector(BaseCollector):
    """A Prometheus collector that reads the counters at each scrape and keeps nothing in between.

    :param times: also export times, which the kernel measures only while they are read.
    :param maps: also export the usage of the BPF maps. Needs root, and time in proportion to their
        content.
    :param plain: also export the samples of plain FUSE mounts from here. The caller closes it.
    :param warn: function that is called with one sentence for each thing that could not be read.
    """

    def __init__(
        self,
        *,
        times: bool = False,
        maps: bool = False,
        plain: PlainMounts | None = None,
        warn: Callable[[str], None] = _say_nothing,
    ) -> None:
        asked = {
            Needs.NOTHING: True,
            Needs.TIMES: times,
            Needs.MAPS: maps,
            Needs.PLAIN: plain is not None,
        }
        self._metrics = tuple(metric for metric in METRICS if asked[metric.needs])
        self._times = times
        self._maps = maps
        self._plain = plain
        self._one_at_a_time = threading.Lock()
        self._warn = warn

    def describe(self) -> Iterator[Family]:
        """Yield all possible metric families, without values."""
        for metric in self._metrics:
            yield _family(metric, ())

    def collect(self) -> Iterator[Family]:
        """Read everything, and yield the metric families that have a value."""
        with self._one_at_a_time:
            reading = look(times=self._times, with_maps=self._maps, plain=self._plain)
        for problem in (*reading.problems, reading.plain_problem):
            if problem is not None:
                self._warn(str(problem))
        rows = _rows(reading)
        for metric in self._metrics:
            if rows[metric.scope]:
                yield _family(metric, rows[metric.scope])


def registry(collector: Collector) -> CollectorRegistry:
    """Return a registry with *collector* only, without metrics of this process or of Python."""
    made = CollectorRegistry()
    made.register(collector)
    return made


def exposition(collector: Collector) -> bytes:
    """Return the present metrics of *collector* in Prometheus' text format, in UTF-8."""
    return generate_latest(registry(collector))


def _rows(reading: Reading) -> Mapping[Scope, Sequence[_Row]]:
    found: dict[Scope, list[_Row]] = {scope: [] for scope in Scope}
    found[Scope.ALL].append(((), reading))
    for sample in reading.mounts:
        mount = (str(sample.connection), sample.mountpoint)
        found[Scope.MOUNT].append((mount, sample))
        found[Scope.OPCODE] += (((*mount, name), c) for name, c in sorted(sample.opcodes.items()))
        found[Scope.PATH] += (((*mount, name), c) for name, c in sample.paths.items())
        found[Scope.CHANNEL] += (
            ((*mount, str(cpu), str(channel.node)), channel)
            for cpu, channel in sorted(sample.channels.items())
        )
        found[Scope.MAP] += (((*mount, usage.name), usage) for usage in sample.maps)
    for sample in reading.plain:
        mount = (str(sample.connection), sample.mountpoint)
        found[Scope.PLAIN].append((mount, sample))
        found[Scope.PLAIN_OPCODE] += (
            ((*mount, name), PlainOpcode(c, sample.latency[name]))
            for name, c in sorted(sample.opcodes.items())
        )
    for device in reading.devices:
        found[Scope.DEVICE].append(((device.name,), device))
        # A disk that is mounted twice at the same place is listed twice.
        found[Scope.DEVICE_MOUNT] += (
            ((device.name, mountpoint), device) for mountpoint in dict.fromkeys(device.mounts)
        )
    if reading.service.up is not None:
        found[Scope.SERVICE].append(((), reading.service))
    found[Scope.SERVICE_MOUNT] += (
        ((each.name, each.mountpoint), each) for each in reading.service.mounts
    )
    return found


def _family(metric: Metric, rows: Iterable[_Row]) -> Family:
    match metric.kind:
        case Kind.COUNTER | Kind.GAUGE:
            return _values(metric, rows)
        case Kind.HISTOGRAM:
            return _histogram(metric, rows)
        case Kind.INFO:
            return _info(metric, rows)
        case Kind.SUMMARY:
            return _summary(metric, rows)


def _values(metric: Metric, rows: Iterable[_Row]) -> Family:
    make = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
    family = make(metric.name, metric.doc, labels=metric.labels)
    for labels, row in rows:
        for value, field in metric.fields.items():
            own = (value,) if metric.label is not None else ()
            if attrgetter(field)(row) is not None:
                family.add_metric(_texts((*labels, *own)), _number(row, field))
    return family


def _histogram(metric: Metric, rows: Iterable[_Row]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.doc, labels=metric.labels)
    bounds = [*(str(bound / 1e9) for bound in BOUNDS_NS), "+Inf"]
    for labels, row in rows:
        counts = cumulative(attrgetter(metric.fields["classes"])(row))
        buckets = list(zip(bounds, counts, strict=True))
        family.add_metric(_texts(labels), buckets, _number(row, metric.fields["sum"]))
    return family


def _info(metric: Metric, rows: Iterable[_Row]) -> Family:
    family = InfoMetricFamily(
        metric.name.removesuffix("_info"), metric.doc, labels=metric.scope.labels
    )
    for labels, row in rows:
        told = {name: _text(attrgetter(field)(row)) for name, field in metric.fields.items()}
        family.add_metric(_texts(labels), told)
    return family


def _summary(metric: Metric, rows: Iterable[_Row]) -> Family:
    family = SummaryMetricFamily(metric.name, metric.doc, labels=metric.labels)
    for labels, row in rows:
        count = attrgetter(metric.fields["count"])(row)
        family.add_metric(_texts(labels), count, _number(row, metric.fields["sum"]))
    return family


def _number(row: Any, field: str) -> float:
    """Return the value of a field, converted from nanoseconds to seconds if necessary."""
    value: int = attrgetter(field)(row)
    return value / 1e9 if field == "ns" or field.endswith("_ns") else value


def _texts(words: Iterable[str]) -> list[str]:
    return [_text(word) for word in words]


def _text(word: str) -> str:
    """Return *word* as valid UTF-8: other bytes of a name become ``\\xNN``."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
