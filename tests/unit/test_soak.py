# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test which samples of a soak count as growth."""

from __future__ import annotations

import random

import pytest

from tests.soak.growth import BOUNDS, grown, growth


def test_growth_of_a_line_is_its_rise_in_the_second_half() -> None:
    assert growth([3.0 * n for n in range(100)]) == pytest.approx(3 * 49)
    assert growth([500.0] * 100) == 0


def test_growth_in_the_first_half_does_not_count() -> None:
    samples = [float(min(n, 50)) for n in range(100)]
    assert growth(samples) == 0
    assert grown({"bpf_maps": samples}) == []


def test_one_object_that_leaks_in_the_second_half_is_growth() -> None:
    """In the last quarter it is too late to tell from an object that a late round still holds."""
    samples = [7.0] * 60 + [8.0] * 40
    found = grown({"bpf_maps": samples, "bpf_links": [4.0] * 100})
    assert len(found) == 1 and found[0].startswith("bpf_maps grew by ")
    assert found[0].endswith("from 7 to 8")


def test_memory_that_goes_up_and_down_does_not_grow() -> None:
    noise = random.Random(1)
    samples = [float(noise.randrange(100 << 20, 101 << 20)) for _ in range(100)]
    assert grown({"mount_daemon_rss_bytes": samples}) == []


def test_leak_of_a_page_in_each_round_of_many_is_growth() -> None:
    samples = [4096.0 * n for n in range(600)]
    assert growth(samples) > BOUNDS["mount_daemon_rss_bytes"]
    assert len(grown({"mount_daemon_rss_bytes": samples})) == 1


def test_single_sample_is_refused() -> None:
    with pytest.raises(ValueError, match="too few"):
        growth([1.0, 2.0])
