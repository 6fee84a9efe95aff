# SPDX-License-Identifier: LGPL-2.1-or-later
"""The report ``docs/conformance.json``, and the tables of ``docs/conformance.md`` made from it.

A table goes from ``<!-- conformance: NAME -->`` to ``<!-- /conformance -->``. ``scripts/conformance
--write`` writes the report and the tables; ``python -m tests.conformance.document`` only the
tables.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.conformance.compare import differences, reasons
from tests.conformance.outcome import FAILED, PASSED, SKIPPED
from tests.conformance.results import Result
from tests.conformance.systems import SYSTEMS
from tests.conformance.versions import packages
from tests.documents import ROOT

REPORT = ROOT / "docs" / "conformance.json"
DOCUMENT = ROOT / "docs" / "conformance.md"

_TABLE = re.compile(r"(<!-- conformance: ([\w-]+) -->\n).*?(<!-- /conformance -->)", re.S)


def report(results: Sequence[Result]) -> dict[str, Any]:
    """Return the report of a run, as JSON's types."""
    return {
        "kernels": sorted({result.kernel for result in results}),
        "versions": [list(package) for package in packages()],
        "results": [_summary(result) for result in results],
        "differences": [list(difference) for difference in differences(results)],
    }


def _summary(result: Result) -> dict[str, Any]:
    counts = {status: result.count(status) for status in (PASSED, FAILED, SKIPPED)}
    return {
        "suite": result.suite,
        "system": result.system,
        **counts,
        "answers": result.answers,
        "took_s": result.took_s,
    }


def load() -> dict[str, Any]:
    """Return the report that is checked in."""
    loaded: dict[str, Any] = json.loads(REPORT.read_text())
    return loaded


def filled(text: str, made: dict[str, Any]) -> str:
    """Return *text* with all tables made from a report."""
    return _TABLE.sub(lambda found: f"{found[1]}{_TABLES[found[2]](made)}{found[3]}", text)


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """Return a table whose last *numbers* columns hold numbers."""
    rule = ["---"] * (len(head) - numbers) + ["---:"] * numbers
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *rows))


def _versions(made: dict[str, Any]) -> str:
    registries = {"crate": "crates.io", "deb": "Debian 12"}
    rows = [[f"`{n}`", version, registries[kind]] for kind, n, version in made["versions"]]
    return _markdown(["package", "version", "from"], rows)


def _results(made: dict[str, Any]) -> str:
    cells = {(one["suite"], one["system"]): one for one in made["results"]}
    suites = list(dict.fromkeys(suite for suite, _ in cells))
    rows = []
    for system in SYSTEMS:
        found = [cells[suite, system] for suite in suites if (suite, system) in cells]
        if found:
            answers = sum(one["answers"] for one in found)
            counts = [_counts(cells.get((suite, system))) for suite in suites]
            rows.append([system, *counts, f"{answers}" if answers else "-"])
    return _markdown(["", *suites, "answers of the kernel"], rows, len(suites) + 1)


def _counts(one: dict[str, Any] | None) -> str:
    if one is None:
        return "-"
    words = [f"{one[PASSED]}"]
    words += [f"{one[status]} {status}" for status in (FAILED, SKIPPED) if one[status]]
    return ", ".join(words)


def _differences(made: dict[str, Any]) -> str:
    there = {tuple(difference) for difference in made["differences"]}
    rows = []
    for reason in reasons():
        systems = [d.system for d in reason.explains() if reason.sometimes or tuple(d) in there]
        if systems:
            status = f"sometimes {reason.status}" if reason.sometimes else reason.status
            where = ", ".join(systems)
            rows.append([reason.suite, f"`{reason.test}`", where, status, reason.reason])
    return _markdown(["suite", "test", "systems", "there", "reason"], rows)


_TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "versions": _versions,
    "results": _results,
    "differences": _differences,
}


def write(made: dict[str, Any]) -> None:
    """Write the tables of the document."""
    DOCUMENT.write_text(filled(DOCUMENT.read_text(), made))


if __name__ == "__main__":
    write(load())
