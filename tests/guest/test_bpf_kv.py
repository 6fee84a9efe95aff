# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test docs/examples/bpf_kv: each of the three ways gives the same answers as a dict."""

from __future__ import annotations

import importlib.util
import os
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from efuse import functions
from efuse.functions import Aggregated
from tests.guest.support.functions import BLOCK
from tests.guest.support.shell import run

EXAMPLE = Path(__file__).parents[2] / "docs/examples/bpf_kv/bpf_kv.py"
COUNT = 20_000
AGGREGATE_BYTES = 32


@pytest.fixture(scope="module")
def kv() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bpf_kv", EXAMPLE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def index(kv: ModuleType, files: Path) -> Iterator[int]:
    """Yield a descriptor of the file that the example makes."""
    path = files / "index"
    path.write_bytes(kv.build(kv.make_items(COUNT).items()))
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    yield fd
    os.close(fd)


def _aggregated(values: list[bytes]) -> Aggregated:
    numbers = [struct.unpack_from("<q", value)[0] for value in values]
    return Aggregated(len(numbers), sum(numbers), min(numbers), max(numbers))


@pytest.mark.parametrize("way", ["device", "kernel", "pread"])
def test_lookups_ranges_and_aggregates_match_a_dict(kv: ModuleType, index: int, way: str) -> None:
    items = kv.make_items(COUNT)
    for what, questions in kv.make_questions(COUNT).items():
        with functions.load(questions[0].name), kv.asking(way, index, questions) as ask:
            for question in questions:
                raw, device, kernel = ask(question)
                found = question.decode(raw)
                if what == "lookup":
                    assert found == items.get(question.key)
                else:
                    wanted = {
                        k: v for k, v in items.items() if question.first <= k <= question.last
                    }
                    values = list(wanted.values())
                    assert found == (
                        _aggregated(values) if what == "aggregate" else list(wanted.items())
                    )
                assert (device > 0, kernel > 0) == (way == "device", way == "kernel")


def test_queries_of_the_example_have_results(kv: ModuleType) -> None:
    """Some of the keys have values, and all ranges have items."""
    items, questions = kv.make_items(COUNT), kv.make_questions(COUNT)
    assert 0 < sum(question.key in items for question in questions["lookup"]) < 40
    assert all(question.first < max(items) for question in questions["range"])


def test_example_prints_a_table(files: Path) -> None:
    printed = run(sys.executable, EXAMPLE, files / "index", "20000").stdout
    rows = re.findall(r"^(\w+) +(\w+) +(\d+) +(\d+) +(\d+) +(\d+)$", printed, re.MULTILINE)
    assert [row[:2] for row in rows] == [
        (what, way)
        for what in ("lookup", "range", "aggregate")
        for way in ("device", "kernel", "pread")
    ]
    for _, way, us, device, kernel, _ in rows:
        assert int(us) > 0
        assert (int(device) > 0, int(kernel) > 0) == (way == "device", way == "kernel")
    # Only the answers come from the device.
    links = {row[:2]: int(row[5]) for row in rows}
    assert links["aggregate", "device"] == 10 * AGGREGATE_BYTES
    assert links["lookup", "device"] < BLOCK < links["lookup", "pread"]
