# SPDX-License-Identifier: LGPL-2.1-or-later
"""``make conformance``: outputs of the suites, comparison with ext4, and the document."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance import __main__ as conformance
from tests.conformance import dbench, document, fsx, outcome, pjdfstest, sqlite, stress_ng
from tests.conformance.compare import (
    MISSING,
    Difference,
    Reason,
    differences,
    outdated,
    reasons,
    unexplained,
)
from tests.conformance.least import LEAST, too_few
from tests.conformance.outcome import FAILED, LONG, PASSED, SHORT, SKIPPED, Done, Outcome, Place
from tests.conformance.results import Result, file_of, load, save
from tests.conformance.suites import SUITES
from tests.conformance.systems import BASE, SYSTEMS, is_answered
from tests.conformance.versions import packages
from tests.documents import ROOT

PJDFSTEST = """\
unlink::erofs_named                                                     skipped
\tRemounts (allow_remount) are not allowed in the configuration file
open::uid_gid_eq_euid_egid                                                FAILED
\tassertion `left == right` failed
  left: 0
 right: 65534
Backtrace:
   0: pjdfstest::main
open::etxtbsy                                                                 ok

Summary: 1 failed, 1 skipped, 1 passed, 0 expected failures, 3 total
"""


def test_pjdfstest_output_is_read_test_by_test() -> None:
    skipped, failed, passed = pjdfstest.parsed(PJDFSTEST)
    assert skipped[:2] == ("unlink::erofs_named", SKIPPED)
    assert failed[:2] == ("open::uid_gid_eq_euid_egid", FAILED)
    assert "right: 65534" in failed.detail and "etxtbsy" not in failed.detail
    assert passed == Outcome("open::etxtbsy", PASSED)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Summary: 1 failed", "Summary: 2 failed", "were found, but"),
        ("3 total", "4 total", "were found, but"),
        ("Summary", "Killed", "did not end"),
    ],
)
def test_pjdfstest_output_without_the_right_summary_fails(old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pjdfstest.parsed(PJDFSTEST.replace(old, new))


METRICS = """\
stress-ng: info:  [20] dispatching hogs: 1 sync-file
stress-ng: metrc: [20] stressor       bogo ops real time  usr time  sys time   bogo ops/s
stress-ng: metrc: [20]                           (secs)    (secs)    (secs)   (real time)
stress-ng: metrc: [20] sync-file          1153      1.17      0.04      0.43       985.00
"""
NO_VERITY = """\
stress-ng: info:  [21] verity: verity is not supported by the kernel, skipping stress test
stress-ng: metrc: [20] stressor       bogo ops real time  usr time  sys time   bogo ops/s
"""


@pytest.mark.parametrize(
    ("name", "status", "output", "expected"),
    [
        ("sync-file", 0, METRICS, PASSED),
        ("sync-file", 2, METRICS, FAILED),
        ("sync-file", 0, METRICS.replace("1153", "   0"), FAILED),
        ("sync-file", 0, f"stress-ng: fail:  [21] sync-file: wrong\n{METRICS}", FAILED),
        ("file", 0, METRICS, FAILED),
        ("verity", 0, NO_VERITY, SKIPPED),
        ("verity", 0, NO_VERITY + METRICS.replace("sync-file      1153", "verity 0 "), SKIPPED),
        ("verity", 3, NO_VERITY, FAILED),
    ],
)
def test_stressor_passes_only_if_it_did_something(
    name: str, status: int, output: str, expected: str
) -> None:
    assert stress_ng.outcome(name, Done(status, output)).status == expected


@pytest.mark.parametrize(
    ("output", "fault"),
    [
        ("failed to create barrier semaphore \n NTCreateX       8809     0.044    20.204\n", ""),
        (" NTCreateX          0     0.000     0.000\n", "no file was opened"),
        ("[12] open x failed for handle 3 (I/O error)\n NTCreateX 7 0 0\n", "[12] open x failed"),
        ("ERROR: child 1 failed at line 12\n NTCreateX 7 0 0\n", "ERROR: child 1 failed"),
    ],
)
def test_fault_of_dbench_is_found_in_its_output(output: str, fault: str) -> None:
    found = dbench.fault(output)
    assert found.startswith(fault) and bool(found) == bool(fault)


def test_fsx_that_does_too_little_fails() -> None:
    lines = [f"[INFO  fsx] {n:2} read     0x7213 .. 0x768e (  0x47c bytes)" for n in range(1, 7)]
    lines += [f"[DEBUG fsx] {n:2} skipping zero size read" for n in range(7, 11)]
    assert fsx.missing("\n".join(lines), 10) == ""
    assert fsx.missing("\n".join(lines[1:]), 12) == "only 5 of 12 operations are in the log"


def test_program_that_hangs_is_killed_with_its_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outcome, "_SANDBOX", ())
    done = outcome.run(["sh", "-c", "echo begun; sleep 1000 & sleep 1000"], limit_s=0.2)
    assert done.status < 0
    assert done.output == "begun\n\nkilled: it did not end within 0.2 s"


@pytest.mark.parametrize("journal", sqlite.JOURNALS)
def test_killed_writer_leaves_what_it_acknowledged(tmp_path: Path, journal: str) -> None:
    last, _ = sqlite.crashes(tmp_path / "db", journal, 3)
    assert last >= 6


@pytest.mark.parametrize(
    ("kills", "undone", "status"), [(15, 1, PASSED), (15, 0, FAILED), (3, 0, PASSED)]
)
def test_many_kills_without_one_within_a_transaction_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int, undone: int, status: str
) -> None:
    monkeypatch.setattr(sqlite, "crashes", lambda *_: (40, undone))
    for journal in sqlite.JOURNALS:
        (tmp_path / f"{journal}.db").write_bytes(b"")
    amount = dataclasses.replace(LONG, kills=kills)
    found = {o.name: o.status for o in sqlite.tests(Place(tmp_path, tmp_path, tmp_path), amount)}
    assert found == {"delete journal": status, "wal journal": PASSED}


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE last SET number = number - 1", "the last transaction is"),
        ("UPDATE last SET number = number + 2", "the last transaction is"),
        ("DELETE FROM data WHERE number = 2 AND position = 0", "the rows of the transactions"),
        ("UPDATE data SET data = x'00' WHERE number = 1", "the rows of the transactions"),
        ("INSERT INTO data VALUES (99, 0, x'00')", "the rows of the transactions"),
    ],
)
def test_lost_or_wrong_rows_are_noticed(tmp_path: Path, statement: str, message: str) -> None:
    with contextlib.closing(sqlite.connected(tmp_path / "db", "delete")) as db:
        db.execute("CREATE TABLE data (number INTEGER, position INTEGER, data BLOB)")
        db.execute("CREATE TABLE last (number INTEGER)")
        db.execute("INSERT INTO last VALUES (0)")
        for number in (1, 2, 3):
            sqlite.commit(db, number)
        assert sqlite.wrong(db, 3) == "" == sqlite.wrong(db, 2)
        db.execute(statement)
        assert message in sqlite.wrong(db, 3)


def test_writer_that_ends_by_itself_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"no database" * 100)
    with pytest.raises(ValueError, match="the writer has failed"):
        sqlite.killed_writer(tmp_path / "db", "delete", 0, random.Random(1))


def _result(system: str, **statuses: str) -> Result:
    outcomes = tuple(Outcome(name, status) for name, status in statuses.items())
    return Result("fsx", system, outcomes, 7, 1, "6.12.1")


def test_differences_are_those_from_ext4() -> None:
    base = _result(BASE, a=PASSED, b=FAILED, c=SKIPPED, d=PASSED)
    other = _result(SYSTEMS[1], a=FAILED, b=FAILED, c=SKIPPED, e=PASSED)
    assert differences([base, other]) == [
        Difference("fsx", "b", BASE, FAILED),
        Difference("fsx", "a", SYSTEMS[1], FAILED),
        Difference("fsx", "e", SYSTEMS[1], PASSED),
        Difference("fsx", "d", SYSTEMS[1], MISSING),
    ]


def test_difference_without_a_reason_and_reason_without_a_difference_are_found() -> None:
    there = [Difference("fsx", "a", SYSTEMS[1], FAILED)]
    known = [Reason("fsx", "a", SYSTEMS[1:3], FAILED, "because")]
    gone = Difference("fsx", "a", SYSTEMS[2], FAILED)
    assert unexplained(there, known) == []
    assert unexplained(there, []) == there
    assert unexplained([gone._replace(status=SKIPPED)], known) != []
    assert outdated(there, known, {("fsx", SYSTEMS[2])}) == [gone]
    assert outdated(there, known, {("fsx", SYSTEMS[1])}) == []
    assert outdated(there, [known[0]._replace(sometimes=True)], {("fsx", SYSTEMS[2])}) == []


HOLES = """\
[INFO  fsx]  15 mapread  0x1d461 .. 0x246fe ( 0x729e bytes)
[INFO  fsx]  16 punch_hole 0x20277 .. 0x2291e ( 0x26a8 bytes)

thread 'main' (19318) panicked at fsx-0.3.2/src/main.rs:1691:19:
called `Result::unwrap()` on an `Err` value: EOPNOTSUPP
"""


@pytest.mark.parametrize(
    ("detail", "known"),
    [
        (HOLES, True),
        (HOLES.replace("EOPNOTSUPP", "EIO"), False),
        (HOLES.replace("punch_hole", "write"), False),
        ("[ERROR fsx] miscompare: offset= 0x10, size = 0x20", False),
    ],
)
def test_reason_explains_only_the_failure_that_it_describes(detail: str, known: bool) -> None:
    """A test that fails for another reason has found something."""
    there = Difference("fsx", "holes", SYSTEMS[2], FAILED)
    assert (unexplained([there], reasons(), {there: detail}) == []) == known


def test_reason_for_a_failure_describes_its_detail() -> None:
    assert all(reason.detail for reason in reasons() if reason.status == FAILED)


def _results(suite: str, system: str, passed: int, skipped: int = 0) -> Result:
    outcomes = [Outcome(f"test {n}", PASSED) for n in range(passed)]
    outcomes += [Outcome(f"other {n}", SKIPPED) for n in range(skipped)]
    return Result(suite, system, tuple(outcomes), 7, 1, "6.12.1")


@pytest.mark.parametrize("amount", [SHORT, LONG])
@pytest.mark.parametrize("suite", SUITES)
def test_suite_with_too_few_tests_fails(amount: outcome.Amount, suite: str) -> None:
    tests, passed = LEAST[amount][suite]
    assert too_few(_results(suite, BASE, passed, tests - passed), amount) == ""
    for few in (
        _results(suite, BASE, 0),
        _results(suite, BASE, passed - 1, 1 + tests - passed),
        _results(suite, BASE, tests - 1),
    ):
        assert too_few(few, amount) != ""


def test_run_whose_suite_has_no_test_on_any_system_fails(capsys: pytest.CaptureFixture) -> None:
    empty = [_results("dbench", system, 0) for system in SYSTEMS[:2]]
    assert conformance._judged(empty, "1 s") == 1
    assert "FAILED: dbench on ext4: 0 tests" in capsys.readouterr().out
    least = LEAST[LONG]["dbench"].tests
    full = [_results("dbench", system, least) for system in SYSTEMS[:2]]
    assert conformance._judged(full, "1 s") == 0


@pytest.mark.parametrize(
    ("status", "output"),
    [
        (1, "Unknown class: 'filesystem'\n"),
        (0, ""),
        (0, "class 'filesystem' stressors:\n"),
        (1, "class 'filesystem' stressors: access fanotify dentry"),
    ],
)
def test_list_of_stressors_that_cannot_be_read_fails(
    monkeypatch: pytest.MonkeyPatch, status: int, output: str
) -> None:
    monkeypatch.setattr(stress_ng, "program", lambda name: name)
    monkeypatch.setattr(stress_ng, "run", lambda *_args, **_kwargs: Done(status, output))
    with pytest.raises(ValueError, match="lists no stressors"):
        stress_ng.stressors()


def test_kept_result_is_read_again(tmp_path: Path) -> None:
    result = _result(SYSTEMS[-1], a=PASSED)
    assert load(tmp_path, "fsx", SYSTEMS[-1]) is None
    save(tmp_path, result)
    assert load(tmp_path, "fsx", SYSTEMS[-1]) == result
    assert load(tmp_path, "fsx", SYSTEMS[0]) is None


def test_every_suite_has_results_of_its_own(tmp_path: Path) -> None:
    files = {file_of(tmp_path, suite, system) for suite in SUITES for system in SYSTEMS}
    assert len(files) == len(SUITES) * len(SYSTEMS)


def test_reasons_name_suites_and_systems_that_there_are() -> None:
    for reason in reasons():
        assert reason.suite in SUITES and reason.reason.endswith(".")
        assert reason.systems and set(reason.systems) <= set(SYSTEMS)
    explained = [difference for reason in reasons() for difference in reason.explains()]
    assert len({one[:3] for one in explained}) == len(explained)


def test_tables_of_the_document_are_those_of_the_report() -> None:
    text = document.DOCUMENT.read_text()
    assert document.filled(text, document.load()) == text, "python -m tests.conformance.document"
    assert text.count("<!-- conformance: ") == text.count("<!-- /conformance -->") == 3


def test_report_is_explained_and_compares_with_ext4() -> None:
    made = document.load()
    ran = {(one["suite"], one["system"]) for one in made["results"]}
    assert ran <= {(suite, system) for suite in SUITES for system in SYSTEMS}
    assert {(suite, BASE) for suite, _ in ran} <= ran
    assert all(one["answers"] > 0 for one in made["results"] if is_answered(one["system"]))
    assert all(one[PASSED] for one in made["results"])
    assert made["versions"] == [list(package) for package in packages()]
    there = [Difference(*difference) for difference in made["differences"]]
    assert unexplained(there, reasons()) == []
    assert outdated(there, reasons(), ran) == []


def test_a_changed_report_changes_the_tables() -> None:
    made = document.load()
    made["results"][0][PASSED] += 1
    text = document.DOCUMENT.read_text()
    assert document.filled(text, made) != text


def test_help_of_the_script_has_an_example() -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [ROOT / "scripts/conformance", "--help"],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
    )
    assert "example: scripts/conformance --suite fsx" in done.stdout
