# SPDX-License-Identifier: LGPL-2.1-or-later
"""How guests share the test files."""

from __future__ import annotations

from pathlib import Path

from tests.guest.support.work_sharing import passed, takes


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
