# SPDX-License-Identifier: LGPL-2.1-or-later
import pytest

from efuse.tables.spark import sparkline
from efuse.units import count, duration, share


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.5, "0.50"),
        (3, "3"),
        (12.3, "12"),
        (999.4, "999"),
        (999.6, "1.0k"),
        (12_345, "12.3k"),
        (123_456, "123k"),
        (1.5e6, "1.5M"),
    ],
)
def test_count_is_shortened_by_a_unit(value: float, text: str) -> None:
    assert count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0%"), (0.0001, "<0.1%"), (0.5, "50.0%"), (0.99999, "99.9%"), (1, "100%")],
)
def test_share_rounds_only_exact_ends(value: float | None, text: str) -> None:
    assert share(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0 ns"),
        (870, "870 ns"),
        (9_830, "9.8 us"),
        (7.8e5, "780 us"),
        (2e9, "2.0 s"),
    ],
)
def test_duration_has_a_fitting_unit(value: float | None, text: str) -> None:
    assert duration(value) == text


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ((), "    "),
        ((0, 0), "    "),
        ((1, 2, 4, 8), "▂▃▅█"),
        ((9, 8, 0, 4, 1), "█ ▅▂"),
        ((1e-9, 5), "  ▁█"),
    ],
)
def test_sparkline_is_scaled_to_the_largest_value_shown(
    values: tuple[float, ...], bars: str
) -> None:
    assert sparkline(values, 4) == bars


def test_sparkline_of_no_width_is_empty() -> None:
    assert sparkline((1, 2), 0) == ""
