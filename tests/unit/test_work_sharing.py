# SPDX-License-Identifier: LGPL-2.1-or-later
"""How guests share the test files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.guest import conftest
from tests.guest.support.work_sharing import VARIABLE, failed, failures, passed, takes


def test_file_is_taken_by_the_first_worker(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    assert takes(one, Path("/a/test_1.py"))
    assert not takes(other, Path("/a/test_1.py"))
    assert takes(other, Path("/b/test_1.py"))
    assert not takes(one, Path("/b/test_1.py"))


def test_worker_takes_its_own_file_again(tmp_path: Path) -> None:
    for _ in range(2):
        assert takes(tmp_path / "one", Path("/a/test_1.py"))


def test_worker_does_not_take_a_file_that_it_has_passed(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    assert takes(one, Path("/a/test_1.py"))
    passed(one, Path("/a/test_1.py"))
    assert not takes(one, Path("/a/test_1.py"))
    assert not takes(other, Path("/a/test_1.py"))
    assert takes(one, Path("/a/test_2.py"))


@pytest.mark.parametrize(("status", "end"), [(0, 1), (1, 1), (2, 2)])
def test_failure_before_a_guest_was_booted_again_fails_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, end: int
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "one"))
    report = SimpleNamespace(failed=True, nodeid="test_a.py::test_b", longreprtext="wrong")
    conftest.pytest_runtest_logreport(cast(pytest.TestReport, report))
    assert failures(tmp_path / "one") == ["test_a.py::test_b"]
    session = cast(pytest.Session, SimpleNamespace(exitstatus=status))
    conftest.pytest_sessionfinish(session)
    assert session.exitstatus == end


def test_failure_of_another_guest_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed(tmp_path / "other", "test_a.py::test_b")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "one"))
    session = cast(pytest.Session, SimpleNamespace(exitstatus=0))
    conftest.pytest_sessionfinish(session)
    assert session.exitstatus == 0
