# SPDX-License-Identifier: LGPL-2.1-or-later
"""The results of a benchmark: their JSON form, and the tables for people."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

__all__ = [
    "COPIED",
    "Ratio",
    "Report",
    "Result",
    "RoundCounters",
    "Series",
    "measure_tables",
    "ratios",
    "table",
]


COPIED = "bytes_copied"
"""The measure of the bytes that the kernel copied to and from the daemon, per round or request."""

# So many columns fit into 80 characters.
_VALUES_WIDE, _TIMES_WIDE = 4, 3


@dataclass(frozen=True, slots=True)
class Series:
    """What was measured in each round in addition to the round's value.

    :ivar value: median of the rounds.
    :ivar unit: unit of the values.
    :ivar rounds: value of each round.
    :ivar compared: whether systems are compared by it; less is better.
    """

    value: float
    unit: str
    rounds: tuple[float, ...]
    compared: bool = True


@dataclass(frozen=True, slots=True)
class RoundCounters:
    """The kernel's counters for one round on eFuse.

    :ivar requests: number of all requests.
    :ivar hits: number of requests that the kernel answered itself.
    :ivar daemon: number of requests that went to the daemon.
    :ivar paths: number of READs and WRITEs by the path that answered them.
    """

    requests: int
    hits: int
    daemon: int
    paths: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Result:
    """The results of one workload on one system.

    :ivar workload: name of the workload.
    :ivar system: name of the system.
    :ivar daemon: name of the daemon.
    :ivar value: median of `rounds`.
    :ivar unit: unit of `value` and `rounds`.
    :ivar better: which values are better, ``higher`` or ``lower``.
    :ivar rounds: value of each round.
    :ivar daemon_requests: median of the daemon's requests per round.
    :ivar context_switches: median of the daemon's voluntary context switches per round.
    :ivar verified: whether every round saw the contents of the lower file system.
    :ivar paths: number of READs and WRITEs in all rounds by the path that answered them; empty
        without eFuse.
    :ivar channels: the kernel's counters for each CPU, of all rounds; only of workloads that
        measure how requests reach the daemon.
    :ivar measures: further measures, by name.
    :ivar rounds_counters: the kernel's counters of each round; empty without eFuse.
    """

    workload: str
    system: str
    daemon: str
    value: float
    unit: str
    better: str
    rounds: tuple[float, ...]
    daemon_requests: int
    context_switches: int
    verified: bool
    paths: dict[str, int] = field(default_factory=dict)
    channels: tuple[dict[str, int], ...] = ()
    measures: dict[str, Series] = field(default_factory=dict)
    rounds_counters: tuple[RoundCounters, ...] = ()

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> Result:
        """Convert a result that :meth:`Report.json` wrote.

        :raises KeyError, TypeError: *value* is not such a result.
        """
        series = {
            name: Series(**{**one, "rounds": tuple(one["rounds"])})
            for name, one in value["measures"].items()
        }
        return cls(
            **{
                **value,
                "rounds": tuple(value["rounds"]),
                "channels": tuple(value["channels"]),
                "measures": series,
                "rounds_counters": tuple(RoundCounters(**one) for one in value["rounds_counters"]),
            }
        )


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times better one system is than another, round by round.

    :ivar workload: name of the workload.
    :ivar daemon: name of the daemon.
    :ivar of: name of the system that is compared.
    :ivar over: name of the system with which it is compared.
    :ivar median: median of the ratios; above 1, `of` is better.
    :ivar min: least ratio.
    :ivar max: greatest ratio.
    :ivar measure: ``value``, or the name of one of the results' ``measures``.
    """

    workload: str
    daemon: str
    of: str
    over: str
    median: float
    min: float
    max: float
    measure: str = "value"


@dataclass(frozen=True, slots=True)
class Report:
    """A whole report, as ``--json`` writes it."""

    machine: dict[str, Any]
    kernel: str
    versions: dict[str, str]
    settings: dict[str, Any]
    results: tuple[Result, ...]
    ratios: tuple[Ratio, ...] = field(default=())

    def json(self) -> dict[str, Any]:
        """Return the report as plain values for ``json.dumps``."""
        return asdict(self)

    @property
    def workloads(self) -> frozenset[str]:
        """Names of the workloads that have results."""
        return frozenset(result.workload for result in self.results)

    def extended(self, results: Iterable[Result], of: Iterable[str]) -> Report:
        """Return the report with more results, and all ratios of the systems *of*."""
        every = (*self.results, *results)
        return replace(
            self,
            results=every,
            ratios=tuple(ratio for system in of for ratio in ratios(every, system)),
        )


def ratios(results: Iterable[Result], of: str = "efuse") -> tuple[Ratio, ...]:
    """Compare *of* with every other system that ran the same workload with the same daemon.

    A measure that was 0 in any round has no ratio.

    :raises ValueError: two systems have different numbers of rounds.
    """
    known = list(results)
    found = []
    for mine in (r for r in known if r.system == of):
        for other in known:
            same = (other.workload, other.daemon) == (mine.workload, mine.daemon)
            if same and other.system != of:
                names = (mine.workload, mine.daemon, of, other.system)
                less = mine.better == "lower"
                found.append(Ratio(*names, *_spread(mine.rounds, other.rounds, less)))
                compared = {n: s.rounds for n, s in mine.measures.items() if s.compared}
                for name, rounds in compared.items():
                    theirs = other.measures[name].rounds
                    if all(rounds) and all(theirs):
                        found.append(Ratio(*names, *_spread(rounds, theirs, True), name))
    return tuple(found)


def _spread(
    mine: Iterable[float], others: Iterable[float], less: bool
) -> tuple[float, float, float]:
    """Return the median, the least and the greatest ratio; *less* means that less is better."""
    each = [b / a if less else a / b for a, b in zip(mine, others, strict=True)]
    return statistics.median(each), min(each), max(each)


def table(report: dict[str, Any]) -> Table:
    """Make the main table for people from the JSON's values."""
    made = _table(["VALUE", "REQUESTS", "SWITCHES", "EFUSE IS BETTER"])
    made.add_column("TRUE")
    for result in report["results"]:
        made.add_row(
            result["workload"],
            result["system"],
            f"{result['value']:.4g} {result['unit']}",
            str(result["daemon_requests"]),
            str(result["context_switches"]),
            _times(report, result, "value"),
            "yes" if result["verified"] else "NO",
        )
    return made


def measure_tables(report: dict[str, Any]) -> list[Table]:
    """Make the tables of the further measures, and of their ratios if there are any."""
    results = [result for result in report["results"] if result["measures"]]
    if not results:
        return []
    series = {name: one for result in results for name, one in result["measures"].items()}
    values = [
        _filled(results, names, [f"{name} {series[name]['unit']}" for name in names], _value)
        for names in _parts(list(series), _VALUES_WIDE)
    ]
    compared = [name for name in series if series[name]["compared"]]
    times = [
        _filled(
            results,
            names,
            [f"efuse is better: {name}" for name in names],
            lambda result, name: _times(report, result, name),
        )
        for names in _parts(compared, _TIMES_WIDE)
    ]
    return [*values, *(table for table in times if table.row_count)]


def _parts(names: list[str], length: int) -> list[list[str]]:
    return [names[first : first + length] for first in range(0, len(names), length)]


def _value(result: dict[str, Any], name: str) -> str:
    return f"{result['measures'][name]['value']:.4g}" if name in result["measures"] else ""


def _filled(
    results: list[dict[str, Any]],
    names: list[str],
    titles: list[str],
    cell: Callable[[dict[str, Any], str], str],
) -> Table:
    """Make a table with a row for each of *results* that has at least one of *names*."""
    made = _table(title.replace("_", " ") for title in titles)
    for result in results:
        cells = [cell(result, name) for name in names]
        if any(cells):
            made.add_row(result["workload"], result["system"], *cells)
    return made


def _table(titles: Iterable[str]) -> Table:
    from rich.table import Table  # imported late: the measured daemons print no tables

    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for title in ("WORKLOAD", "SYSTEM"):
        made.add_column(title, no_wrap=True)
    for title in titles:
        made.add_column(title.upper(), justify="right")
    return made


def _times(report: dict[str, Any], result: dict[str, Any], measure: str) -> str:
    """Return how many times better ``efuse`` is than the system of *result*; empty for itself."""
    for ratio in report["ratios"]:
        same = all(ratio[name] == result[name] for name in ("workload", "daemon"))
        pair = (ratio["of"], ratio["over"], ratio["measure"])
        if same and pair == ("efuse", result["system"], measure):
            return f"{ratio['median']:.3g} x ({ratio['min']:.3g}-{ratio['max']:.3g})"
    return ""
