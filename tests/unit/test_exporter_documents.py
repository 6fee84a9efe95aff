# SPDX-License-Identifier: LGPL-2.1-or-later
"""docs/monitoring.md and the dashboard use only metrics that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard as grafana

from efuse import locations
from efuse.cli.exporter import cli as command
from efuse.exporter import Collector, exposition
from efuse.exporter.metrics import METRICS, Kind
from tests.unit.fake_configfs import FakeConfigfs
from tests.unit.fake_sysfs import FakeSysfs

DOCUMENT = Path(__file__).parents[2] / "docs" / "monitoring.md"

_PARTS = {Kind.HISTOGRAM: ("_bucket", "_sum", "_count"), Kind.SUMMARY: ("_sum", "_count")}
# Labels of Prometheus itself, and that of a histogram's buckets.
_OTHERS = {"instance", "job", "le"}

SERIES = {
    metric.name + part: {*metric.labels, *_OTHERS}
    for metric in METRICS
    for part in _PARTS.get(metric.kind, ("",))
}
"""The labels of each name that can be queried."""


def check(expression: str) -> set[str]:
    """Check an expression against the catalog; return the metrics in it."""
    named = set(re.findall(r"\befuse_\w+", expression))
    assert named, f"{expression!r} asks for no metric"
    assert named <= SERIES.keys(), f"{expression!r} asks for what is not exported"
    there = set.intersection(*(SERIES[name] for name in named))
    used = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression))
    for group in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
        used |= {label.strip() for label in group.split(",")}
    assert used <= there, f"{expression!r} uses labels that {named} have not"
    assert expression.count("(") == expression.count(")")
    return named


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    text = (locations.package() / "exporter" / "dashboard.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def lost(given: Any, kept: Any, place: str) -> Iterator[str]:
    """Yield the places where *kept* lacks or changes something of *given*; it may have more."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            yield from lost(value, kept.get(key), f"{place}/{key}")
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for number, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost(one, other, f"{place}/{number}")
    elif given != kept:
        yield place


def test_grafanas_own_types_know_all_of_the_dashboard(dashboard: dict[str, Any]) -> None:
    register_default_plugins()
    kept = json.loads(JSONEncoder().encode(grafana.Dashboard.from_json(dashboard)))
    # The description of a variable's query on the settings page is not part of them.
    assert all(place.endswith("/definition") for place in lost(dashboard, kept, ""))
    assert list(lost({"panels": [{"title": "x", "idd": 1}]}, {"panels": [{"title": "x"}]}, ""))


def targets(dashboard: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel, target


def test_dashboard_queries_only_existing_metrics_and_labels(dashboard: dict[str, Any]) -> None:
    asked = set()
    for _, target in targets(dashboard):
        named = check(target["expr"])
        asked |= named
        labels = set.intersection(*(SERIES[name] for name in named))
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= labels
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            assert variable["query"]["query"] == variable["definition"]
            check(variable["definition"])
    for needed in (
        "efuse_up",
        "efuse_hits_total",
        "efuse_requests_total",
        "efuse_daemon_requests_total",
        "efuse_daemon_errors_total",
        "efuse_path_duration_seconds_bucket",
        "efuse_path_requests_total",
        "efuse_channel_depth",
        "efuse_map_entries",
        "efuse_device_link_read_bytes_total",
    ):
        assert needed in asked


def test_dashboard_legends_show_the_grouping_labels(dashboard: dict[str, Any]) -> None:
    for panel, target in targets(dashboard):
        for group in re.findall(r"^\w+ by \(([^)]*)\)", target["expr"]):
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert shown == set(group.split(", ")), panel["title"]


def test_panels_have_a_place_each(dashboard: dict[str, Any]) -> None:
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
    taken = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, panel["title"]
                taken.add((x, y))


def test_panels_of_optional_metrics_name_the_option(dashboard: dict[str, Any]) -> None:
    for panel, target in targets(dashboard):
        for metric in METRICS:
            if metric.needs.value and metric.name in target["expr"]:
                assert metric.needs.value in panel["description"], panel["title"]


def test_document_table_equals_the_catalog() -> None:
    rows = re.findall(r"^\| (`efuse_.*) \|$", DOCUMENT.read_text(), re.M)
    assert [[cell.strip() for cell in row.split("|")] for row in rows] == [
        [
            f"`{metric.name}`",
            metric.kind.value,
            " ".join(f"`{label}`" for label in metric.labels),
            f"`{metric.needs.value}`" if metric.needs.value else "",
            metric.doc,
        ]
        for metric in METRICS
    ]


def test_rules_ask_for_metrics_that_there_are() -> None:
    expressions = re.findall(r"^ *expr: (.*)$", DOCUMENT.read_text(), re.M)
    assert len(expressions) == 6
    for expression in expressions:
        check(expression)


def test_prometheus_asks_where_the_exporter_answers() -> None:
    (target,) = re.findall(r'targets: \["(.*)"\]', DOCUMENT.read_text())
    (listen,) = [option for option in command.params if option.name == "listen"]
    assert listen.default == target


def test_documented_example_is_what_the_exporter_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = DOCUMENT.read_text().partition("--once | grep getattr\n")[2].partition("\n...")[0]
    FakeConfigfs(tmp_path, monkeypatch)
    sysfs = FakeSysfs(tmp_path)
    sysfs.everywhere(monkeypatch)
    sysfs.add(33, "/mnt/m")
    sysfs.count(33, "getattr", requests=2180, hits=2062, daemon=118, stale=117, miss=1)
    printed = exposition(Collector()).decode().splitlines()
    wanted = example.splitlines()
    assert [line for line in printed if "getattr" in line][: len(wanted)] == wanted


def test_documented_numbers_of_series_are_right() -> None:
    def series(label: str, needs: tuple[str, ...]) -> int:
        return sum(
            len(metric.fields)
            for metric in METRICS
            if label in metric.labels and metric.needs.value in needs
            if metric.kind is not Kind.HISTOGRAM
        )

    (numbers,) = re.findall(
        r"some (\d+) series for each opcode in use, (\d+) for each of the four paths"
        r" \(\d+ with `--times`\), and (\d+) for each CPU",
        " ".join(DOCUMENT.read_text().split()),
    )
    counted = tuple(str(series(label, ("",))) for label in ("opcode", "path", "cpu"))
    assert numbers == counted
