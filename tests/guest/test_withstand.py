# SPDX-License-Identifier: LGPL-2.1-or-later
"""The short form of ``make withstand``: programs do not notice that a daemon is killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.withstand.daemons import DAEMONS
from tests.withstand.loads import LOADS
from tests.withstand.run import differences, withstood

_KILLS = 3


@pytest.mark.parametrize("loads", [("names", "opened", "git"), ("sqlite_wal", "tar", "mapped")])
def test_programs_do_not_notice_that_a_daemon_is_killed(
    loads: tuple[str, ...], tmp_path: Path
) -> None:
    report = withstood(DAEMONS["passthrough_ll"], tmp_path, kills=_KILLS, seed=1, loads=loads)
    print(report)
    assert report.faults == []
    assert report.kills == _KILLS
    assert report.steps.keys() == set(loads)
    assert report.resent > 0


def test_load_that_fails_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of the load does not know it."""
    monkeypatch.setitem(LOADS, "no_load", LOADS["names"])
    report = withstood(
        DAEMONS["passthrough_ll"], tmp_path, kills=1, seed=1, loads=("names", "no_load")
    )
    found = {fault.partition(":")[0]: fault for fault in report.faults}
    assert found.keys() == {"no_load", "efuse run printed"}
    assert "KeyError" in found["no_load"]


def test_differences_are_named(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for top in (one, other):
        (top / "d").mkdir(parents=True)
        (top / "d/same").write_bytes(b"x")
        (top / "link").symlink_to("d")
    assert [*differences(one, other)] == []
    (one / "d/same").write_bytes(b"y")
    (other / "more").touch()
    assert [line.partition(":")[0] for line in differences(one, other)] == ["d/same", "more"]
