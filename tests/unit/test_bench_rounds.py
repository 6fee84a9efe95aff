# SPDX-License-Identifier: LGPL-2.1-or-later
"""The round of a workload in which copied bytes are counted; tests/guest has the counting."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from efuse.bench import METADATA, Settings, copied, rounds
from efuse.bench.copied import CopiedBytes
from efuse.bench.lines import done
from efuse.bench.rounds import Measured, run_workload
from efuse.bench.systems import System
from efuse.errors import NotSupportedError

_WORKLOAD = METADATA["stat"]
_SETTINGS = Settings((_WORKLOAD.name,), rounds=2, scale=0.001)
_MIB = 1 << 20


class _Counter:
    """One that counts a MiB between any two looks."""

    looks = 0

    def __init__(self, pids: Iterable[int], modules: Iterable[str]) -> None:
        assert list(pids) == [os.getpid()] * 2
        assert list(modules) == ["fuse", "efuse"]

    def __enter__(self) -> _Counter:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def read(self, pid: int) -> int:
        assert pid == os.getpid()
        self.looks += 1
        return self.looks * _MIB


def _measure(lower: Path) -> tuple[dict[str, Measured], list[str]]:
    """Run a workload, and return what was said of its last round, too."""
    for place in ("ext4", "fuse", "efuse", "reference"):
        (lower / place / _WORKLOAD.name).mkdir(parents=True)
        _WORKLOAD.prepare(lower / place / _WORKLOAD.name, _WORKLOAD.scaled(_SETTINGS.scale))
    systems = [System(name, lower / name) for name in ("ext4", "fuse", "efuse")]
    for system in systems[1:]:
        system.pid = os.getpid()
    said: list[str] = []
    found = run_workload(_WORKLOAD, systems, lower, _SETTINGS, said.append)
    return found, [line for line in said if "bytes copied" in line]


def test_copied_bytes_are_those_of_one_more_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds, "CopiedBytes", _Counter)
    found, said = _measure(tmp_path)
    assert {name: one.copied_mib for name, one in found.items()} == {
        "ext4": 0.0,
        "fuse": 1.0,
        "efuse": 1.0,
    }
    assert [[r.verified for r in one.rounds] for one in found.values()] == [[True, True]] * 3
    assert said == [f"stat: bytes copied: {name} 1 MiB" for name in ("fuse", "efuse")]
    assert {done(line) for line in said} == {"stat"}


def test_that_round_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Spoils(_Counter):
        def read(self, pid: int) -> int:
            if not self.looks:
                for file in (tmp_path / "fuse" / "stat").rglob("*"):
                    if file.is_file():
                        file.write_bytes(b"something else")
            return super().read(pid)

    monkeypatch.setattr(rounds, "CopiedBytes", Spoils)
    found, said = _measure(tmp_path)
    verified = {name: {r.verified for r in one.rounds} for name, one in found.items()}
    assert verified == {"ext4": {True}, "fuse": {False}, "efuse": {True}}
    assert said[0] == "stat: bytes copied: fuse 1 MiB, WRONG"


def test_without_leave_nothing_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_given: object) -> CopiedBytes:
        raise NotSupportedError("no BTF")

    monkeypatch.setattr(rounds, "CopiedBytes", refused)
    found, said = _measure(tmp_path)
    assert [one.copied_mib for one in found.values()] == [0.0, None, None]
    assert said[0] == "stat: bytes copied are not counted: no BTF"
    assert [done(line) for line in said] == [None, "stat", "stat"]


def test_process_numbers_have_to_be_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copied, "_INITIAL_PIDS", 0)
    with pytest.raises(NotSupportedError, match="numbers processes itself"):
        CopiedBytes([os.getpid()], ["fuse"])
