# SPDX-License-Identifier: LGPL-2.1-or-later
import json

from tests.perf.compare import BASELINE, compare

OLD = {"lookup": 10_000, "passed": 200_000, "passed_by_program": 201_000}


def test_equal_figures_pass() -> None:
    assert compare(OLD, OLD) == []
    assert compare(OLD, OLD | {"lookup": 10_100}) == []


def test_a_figure_that_grew_fails() -> None:
    (line,) = compare(OLD, OLD | {"lookup": 10_500})
    assert line == "lookup went from 10000 to 10500 instructions (+5.0%)"


def test_lower_figure_asks_for_a_new_baseline() -> None:
    assert len(compare(OLD, OLD | {"lookup": 9_000})) == 1


def test_a_figure_that_is_missing_fails() -> None:
    assert compare(OLD | {"open": 1}, OLD) == ["open is not measured"]
    assert compare(OLD, OLD | {"open": 1}) == ["open is not in the baseline"]


def test_a_program_that_costs_too_much_fails() -> None:
    dear = OLD | {"passed_by_program": 210_000}
    assert compare(dear, dear) == ["an attached program adds 5.0% to a request that it passes"]


def test_baseline_has_valid_figures() -> None:
    figures = json.loads(BASELINE.read_text())["instructions"]
    assert compare(figures, figures) == []
    assert all(count > 0 for count in figures.values())


def test_a_path_that_loses_to_fuses_own_passthrough_fails() -> None:
    slow = OLD | {"direct_read_128k": 1_060, "passthrough_read_128k": 1_000}
    assert compare(slow, slow) == ["read_128k takes 6.0% more than through FUSE's own passthrough"]
