# SPDX-License-Identifier: LGPL-2.1-or-later
"""The reports of a debugging kernel are noticed.

`tests.debug.prove` has produced the samples, except for `race.txt`: this has the form that the
kernel's kernel/kcsan/report.c prints.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from efuse.guest import kernel_log
from efuse.module import live
from tests.debug import __main__ as test_debug
from tests.debug import kernel, prove, races
from tests.debug.kernel import Leak
from tests.documents import ROOT

_REPORTS = Path(__file__).parents[1] / "data/kernel-reports"
_LEAK = (_REPORTS / "leak.txt").read_text()


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("kasan", "BUG: KASAN: slab-out-of-bounds in fault_kasan"),
        ("lockdep", "WARNING: possible circular locking dependency detected"),
        ("list", "list_del corruption"),
        ("hung", "INFO: task efuse-hung:"),
        ("race", "BUG: KCSAN: data-race in count_unlocked"),
    ],
)
def test_a_report_in_the_log_is_a_complaint(name: str, word: str) -> None:
    text = (_REPORTS / f"{name}.txt").read_text()
    first, *_ = kernel_log.complaints(text)
    assert word in first
    assert kernel_log.emulators_fault(text) is None


def test_leaks_are_attributed_to_the_allocating_module() -> None:
    other = _LEAK.replace(" [efuse_faults]", "")
    leaks = kernel.parse_leaks(_LEAK + other)
    assert [leak.of("efuse_faults") for leak in leaks] == [True, False]
    assert not any(leak.of("efuse") for leak in leaks)
    assert [leak.of_unloaded for leak in leaks] == [False, False]
    (unloaded,) = kernel.parse_leaks(
        _LEAK.replace("fault_set+0x95/0x100 [efuse_faults]", "0xffffffffc0a51123")
    )
    assert unloaded.of_unloaded
    assert leaks[0].text == _LEAK.rstrip()
    assert kernel.parse_leaks("") == []


@pytest.mark.parametrize(
    ("stats", "works"),
    [
        (" lock-classes:      1500 [max: 8192]\n debug_locks:         1\n", True),
        (" lock-classes:      1500 [max: 8192]\n debug_locks:         0\n", False),
        (" lock-classes:      1500 [max: 8192]\n", False),
    ],
)
def test_lockdep_that_turned_itself_off_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stats: str, works: bool
) -> None:
    monkeypatch.setattr(kernel, "_LOCKDEP", tmp_path / "lockdep_stats")
    assert not kernel.lockdep_works()
    (tmp_path / "lockdep_stats").write_text(stats)
    assert kernel.lockdep_works() == works


@pytest.mark.parametrize(
    ("missing", "tests", "leaks", "lockdep", "status"),
    [
        ([], 0, [], True, 0),
        ([], 0, [_LEAK], True, 0),
        ([], 0, [_LEAK.replace("[efuse_faults]", "[efuse]")], True, 1),
        ([], 0, [], False, 1),
        ([], 3, [], True, 3),
        (["KASAN"], 0, [], True, 2),
    ],
)
def test_status_of_a_debug_run_tells_leaks_missing_checks_and_failed_tests(
    monkeypatch: pytest.MonkeyPatch,
    missing: list[str],
    tests: int,
    leaks: list[str],
    lockdep: bool,
    status: int,
) -> None:
    monkeypatch.setattr(kernel, "missing_checks", lambda: missing)
    monkeypatch.setattr(kernel, "forget_leaks", lambda: None)
    monkeypatch.setattr(kernel, "find_leaks", lambda: [Leak(text.rstrip()) for text in leaks])
    monkeypatch.setattr(kernel, "lockdep_works", lambda: lockdep)
    monkeypatch.setattr(live, "unload", lambda: None)
    done = subprocess.CompletedProcess([], tests)
    monkeypatch.setattr(subprocess, "run", lambda *_args, **_kwargs: done)
    assert test_debug.main() == status


def test_debugging_kernel_of_an_unknown_kind_fails() -> None:
    script = Path(__file__).parents[2] / "scripts/debug-kernel"
    done = subprocess.run([script, "kmsan"], capture_output=True, text=True)
    assert done.returncode == 1
    assert "there is no kernel kmsan" in done.stderr


def test_no_symbol_is_in_two_fragments_of_a_configuration() -> None:
    directory = Path(__file__).parents[1] / "debug"
    common, *kinds = (
        set(re.findall(r"^(?:# )?(CONFIG_\w+)", (directory / f"{name}.config").read_text(), re.M))
        for name in ("kernel", "kasan", "kcsan")
    )
    assert all(kind and not kind & common for kind in kinds)


def test_every_fault_is_proved_in_one_kernel() -> None:
    text = (ROOT / "tests/debug/faults/efuse_faults.c").read_text()
    faults = re.findall(r'^\t\{ "(\w+)", fault_\w+ \},$', text, re.M)
    proved = ["leak", *prove._KASAN, *prove._KCSAN]
    assert sorted(faults) == sorted(proved)
    script = (ROOT / "scripts/test-debug").read_text()
    assert f"prove kasan {1 + len(prove._KASAN)}; prove kcsan {len(prove._KCSAN)} ;;" in script


@pytest.mark.parametrize("heard", [True, False])
def test_race_that_the_kernel_does_not_report_fails_the_proof(
    monkeypatch: pytest.MonkeyPatch, heard: bool
) -> None:
    monkeypatch.setattr(sys, "argv", ["prove", "kcsan", "faults.ko"])
    monkeypatch.setattr(races, "detectable", lambda: True)
    monkeypatch.setattr(races, "detect", lambda: None)
    monkeypatch.setattr(races, "watched", lambda: 7)
    monkeypatch.setattr(prove, "run", lambda *_: None)
    monkeypatch.setattr(prove, "KernelLog", lambda: None)
    monkeypatch.setattr(prove, "_heard", lambda *_: heard)
    assert prove.main() == int(not heard)


@pytest.mark.parametrize("kind", ["kasan", "kcsan"])
def test_proof_in_a_kernel_without_the_checks_fails(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["prove", kind, "faults.ko"])
    monkeypatch.setattr(races, "detectable", lambda: False)
    monkeypatch.setattr(kernel, "missing_checks", lambda: ["KASAN"])
    monkeypatch.setattr(prove, "run", lambda *_: pytest.fail("it goes on"))
    assert prove.main() == 2
