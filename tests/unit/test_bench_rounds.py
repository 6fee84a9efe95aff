# SPDX-License-Identifier: LGPL-2.1-or-later
"""The round of a workload that counts copied bytes; tests/guest tests the counting itself."""

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
from efuse.bench.workload import Measure, Outcome
from efuse.errors import NotSupportedError

_MIB = 1 << 20


class _Counter:
    """A counter that advances by a MiB at each read."""

    looks = 0

    def __init__(self, pids: Iterable[int], modules: Iterable[str]) -> None:
        assert list(pids) == [os.getpid()] * 2
        assert list(modules) == ["fuse", "efuse"]

    def __enter__(self) -> _Counter:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def read(self, pid: int | None) -> int:
        assert pid in (None, os.getpid())
        self.looks += pid is not None
        return self.looks * _MIB


def _measure(name: str, lower: Path) -> tuple[dict[str, Measured], list[str]]:
    """Run a workload; return the results, and the lines about its last round."""
    workload, settings = METADATA[name], Settings((name,), rounds=2, scale=0.001)
    for place in ("ext4", "fuse", "efuse", "reference"):
        (lower / place / name).mkdir(parents=True)
        workload.prepare(lower / place / name, workload.scaled(settings.scale))
    systems = [System(name, lower / name) for name in ("ext4", "fuse", "efuse")]
    for system in systems[1:]:
        system.pid = os.getpid()
    output: list[str] = []
    found = run_workload(workload, systems, lower, settings, output.append)
    return found, [line for line in output if "bytes copied" in line]


def test_copied_bytes_are_counted_in_an_additional_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every system runs that round, so that all have the files of the same number of rounds."""
    monkeypatch.setattr(rounds, "CopiedBytes", _Counter)
    found, output = _measure("small-write", tmp_path)
    assert {name: one.copied for name, one in found.items()} == {
        "ext4": Measure(0.0, "MiB", compared=False),
        "fuse": Measure(1.0, "MiB", compared=False),
        "efuse": Measure(1.0, "MiB", compared=False),
    }
    assert [[r.verified for r in one.rounds] for one in found.values()] == [[True, True]] * 3
    assert output == [
        f"small-write: bytes copied: {name} MiB" for name in ("ext4 0", "fuse 1", "efuse 1")
    ]
    assert {done(line) for line in output} == {"small-write"}


def test_copied_bytes_of_a_timed_round_are_per_request() -> None:
    assert rounds._copied(3000, Outcome(1.0, requests=20)) == Measure(150.0, "B/req")


def test_round_of_copied_bytes_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Spoils(_Counter):
        def read(self, pid: int | None) -> int:
            for file in (tmp_path / "fuse" / "stat").iterdir():
                file.write_bytes(b"something else")
            return super().read(pid)

    monkeypatch.setattr(rounds, "CopiedBytes", Spoils)
    found, output = _measure("stat", tmp_path)
    verified = {name: {r.verified for r in one.rounds} for name, one in found.items()}
    assert verified == {"ext4": {True}, "fuse": {False}, "efuse": {True}}
    assert output[1] == "stat: bytes copied: fuse 1 MiB, WRONG"


def test_copied_bytes_are_missing_without_permission_to_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_given: object) -> CopiedBytes:
        raise NotSupportedError("no BTF")

    monkeypatch.setattr(rounds, "CopiedBytes", refused)
    found, output = _measure("small-write", tmp_path)
    assert [one.copied for one in found.values()] == [None] * 3
    assert all(r.verified for one in found.values() for r in one.rounds)
    assert output[0] == "small-write: bytes copied are not counted: no BTF"
    assert [done(line) for line in output] == [None, *["small-write"] * 3]


def test_copied_bytes_in_a_pid_namespace_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copied, "_INITIAL_PIDS", 0)
    with pytest.raises(NotSupportedError, match="numbers processes itself"):
        CopiedBytes([os.getpid()], ["fuse"])
