# SPDX-License-Identifier: LGPL-2.1-or-later
"""How guests share the test files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from tests.documents import ROOT
from tests.guest import conftest
from tests.guest.support import work_sharing
from tests.guest.support.work_sharing import (
    VARIABLE,
    failed,
    failures,
    longest_first,
    passed,
    takes,
)


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


def test_longest_files_are_taken_first() -> None:
    names = {path.name for path in (ROOT / "tests/guest").rglob("test_*.py")}
    assert {*work_sharing._LONGEST} <= names
    files = [Path("/g/test_a.py"), Path("/g/b/test_csd.py"), Path("/g/test_conformance.py")]
    assert [f.name for f in longest_first(files)] == [
        *("test_conformance.py", "test_csd.py", "test_a.py")
    ]


_CONFTEST = """
import os
from pathlib import Path
import pytest
from tests.guest.conftest import pytest_runtestloop

@pytest.fixture(scope="session", autouse=True)
def session():
    print("begin")
    yield
    print("end")

@pytest.fixture
def free():
    \"\"\"Return how many files no guest has taken.\"\"\"
    taken = list(Path(os.environ["EFUSE_SHARE"]).parent.glob("*.py"))
    return 4 - len(taken)
"""
_TESTS = """
def test_1(): pass
def test_2(free): print("free", free)
"""


def test_guest_takes_a_file_when_the_one_before_is_done(tmp_path: Path) -> None:
    """Fixtures of the session stay, whatever file another guest takes meanwhile."""
    share, tests = tmp_path / "share", tmp_path / "tests"
    for directory in (share, tests / "below", tests / "other"):
        directory.mkdir(parents=True)
    (tests / "conftest.py").write_text(_CONFTEST)
    files = ["below/test_a.py", "below/test_b.py", "other/test_c.py", "test_d.py"]
    for name in files:
        (tests / name).write_text(_TESTS)
    assert takes(share / "other", tests / files[1])
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-s",
        "-q",
        "-c",
        os.devnull,
        "--import-mode=importlib",
    ]
    done = subprocess.run(
        [*words, "-p", "no:cacheprovider", str(tests)],
        env={**os.environ, VARIABLE: str(share / "one"), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stdout
    told = [line.lstrip(".") for line in done.stdout.splitlines()]
    assert [line for line in told if line.startswith(("begin", "end", "free"))] == [
        *("begin", "free 2", "free 1", "free 0", "end")
    ]
