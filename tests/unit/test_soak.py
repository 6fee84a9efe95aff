# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test which samples of a soak count as growth."""

from __future__ import annotations

import random
import sys

import pytest

from tests.soak import __main__ as soak
from tests.soak.growth import BOUNDS, grown, growth
from tests.soak.run import Soak


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


@pytest.mark.parametrize(
    ("quantity", "size"),
    [("efuse_inode_bytes", 900), ("efuse_inode_bytes", 1088), ("efuse_request_bytes", 224)],
)
def test_object_that_leaks_in_each_round_is_growth(quantity: str, size: int) -> None:
    assert len(grown({quantity: [1e6 + size * n for n in range(120)]})) == 1
    # A processor that keeps another slab than before.
    slab = [1e6 + (7 * size if n % 3 else 0) for n in range(120)]
    assert grown({quantity: slab}) == []


def test_run_that_did_nothing_is_no_success() -> None:
    done = {"rounds": 4, "replacements": 8, "mounts": 4, "killed daemons": 1, "channels": 12}
    assert Soak(done=done, hits=1, compared_bytes=1).missing(4) == []
    assert Soak(done=done, compared_bytes=1).missing(4) == ["answers of the kernel"]
    assert Soak(done=done, hits=1).missing(4) == ["compared bytes"]
    assert Soak(done=done | {"channels": 11}, hits=1, compared_bytes=1).missing(4) != []
    assert len(Soak().missing(4)) == 7


@pytest.mark.parametrize("words", [["--rounds", "1"], ["--hours", "-1"], ["--seconds", "x"]])
def test_impossible_length_is_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["soak", *words])
    monkeypatch.setattr(soak, "soaked", lambda *_, **__: pytest.fail("it runs"))
    with pytest.raises(SystemExit):
        soak.main()


def test_no_hours_are_not_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(sys, "argv", ["soak", "--hours", "0"])
    monkeypatch.setattr(soak, "soaked", lambda seconds, *_, **__: asked.append(seconds) or Soak())
    assert soak.main() == 1
    assert asked == [0]
