# SPDX-License-Identifier: LGPL-2.1-or-later
"""The list of broken builds fits the sources."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from efuse import locations
from tests.mutants import batch
from tests.mutants.table import Mutant, mutants


@pytest.mark.parametrize("mutant", mutants(), ids=lambda m: m.name)
def test_mutant_applies_and_names_its_tests(mutant: Mutant, tmp_path: Path) -> None:
    (tmp_path / mutant.file).parent.mkdir(parents=True)
    shutil.copy(locations.package().parent / mutant.file, tmp_path / mutant.file)
    mutant.apply(tmp_path)
    assert mutant.tests
    for test in mutant.tests:
        name, _, function = test.partition("::")
        text = (Path(__file__).parents[1] / "guest" / name).read_text()
        assert f"def {function.partition('[')[0]}(" in text or not function


def _roots(directory: Path, *names: str) -> dict[Path, Mutant]:
    roots = {directory / name: Mutant(name, "file", "old", "new", ("test",)) for name in names}
    for root in roots:
        root.mkdir()
    return roots


@pytest.mark.parametrize(
    ("report", "order", "how"),
    [
        ("the guest's kernel complained: BUG", "abc", "the guest's kernel complained: BUG"),
        ("the guest died", "abbc", "the guest ended twice: the guest died"),
    ],
    ids=["complaint", "unknown"],
)
def test_builds_after_one_that_ended_its_guest_run_in_the_next_guest(
    tmp_path: Path, report: str, order: str, how: str
) -> None:
    roots = _roots(tmp_path, "a", "b", "c")
    ran = []

    def guest(directory: Path, number: int) -> str:
        for root in sorted(directory.iterdir()):
            if (root / batch.STATUS).exists():
                continue
            ran.append(root.name)
            batch.store(root / batch.STARTED, "")
            if root.name == "b":
                return report
            batch.store(root / batch.OUTPUT, f"FAILED tests/{root.name} - E\n1 failed\n")
            batch.store(root / batch.STATUS, "1" if root.name == "a" else "0")
        return ""

    found = [(v.mutant.name, v.noticed, v.how) for v in batch.verdicts(roots, guest)]
    assert "".join(ran) == order
    assert found == [("a", True, "tests/a"), ("b", True, how), ("c", False, "tests/c")]


def test_guest_that_runs_nothing_is_an_error(tmp_path: Path) -> None:
    roots = _roots(tmp_path, "a")
    with pytest.raises(RuntimeError, match="no kernel"):
        list(batch.verdicts(roots, lambda directory, number: "no kernel"))


def test_command_that_ran_no_test_is_an_error(tmp_path: Path) -> None:
    roots = _roots(tmp_path, "a")

    def guest(directory: Path, number: int) -> str:
        batch.store(directory / "a" / batch.OUTPUT, "no tests ran")
        batch.store(directory / "a" / batch.STATUS, "5")
        return ""

    with pytest.raises(RuntimeError, match=r"exit status 5.*no tests ran"):
        list(batch.verdicts(roots, guest))


@pytest.mark.parametrize(
    ("output", "noticed"),
    [
        ("1 passed\nOSError: [Errno 16] Device or resource busy: 'tmpfs'\n", False),
        ("..Timeout (0:05:00)!\nThread 1\n", True),
        ("1 passed\nthe kernel complained: BUG\n", True),
        ("1 passed\nthe kernel is tainted: WARN\n", True),
        (f"..\n{batch.OUT_OF_TIME}\n", True),
        ("seed 7 (calls): read 5 bytes\n", True),
    ],
)
def test_command_that_fails_notices_only_what_a_test_or_the_kernel_reports(
    tmp_path: Path, output: str, noticed: bool
) -> None:
    roots = _roots(tmp_path, "a")

    def guest(directory: Path, number: int) -> str:
        batch.store(directory / "a" / batch.OUTPUT, output)
        batch.store(directory / "a" / batch.STATUS, "1")
        return ""

    assert [v.noticed for v in batch.verdicts(roots, guest)] == [noticed]
