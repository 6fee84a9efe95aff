# SPDX-License-Identifier: LGPL-2.1-or-later
"""Interrupted runs are resumed: ``efuse bench --resume``."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from efuse.bench import Report, Settings, finished, run, steps, storage_steps
from efuse.bench.lines import done
from efuse.bench.state import keep, resumed
from efuse.cli.main import main
from efuse.errors import EfuseError, UsageError
from efuse.guest import run as guest
from efuse.guest.run import Options, Result, is_shared
from tests.unit.bench_reports import counted, result, scaled

SETTINGS = Settings(("stat", "negative"), systems=("ext4",), rounds=2, scale=0.001)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the workloads in a directory of this machine, even if the module is loaded."""
    module = importlib.import_module("efuse.bench.run")

    @contextmanager
    def lower(*_given: object) -> Iterator[Path]:
        yield tmp_path

    monkeypatch.setattr(module, "lower", lower)
    monkeypatch.setattr(module, "versions", lambda: {"efuse": "1", "module": "2"})


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


def interrupt_at(text: str) -> Callable[[str], None]:
    def say(line: str) -> None:
        if text in line:
            raise KeyboardInterrupt

    return say


@pytest.fixture
def interrupted(state: Path) -> dict[str, Any]:
    """Return what is kept of a run that is interrupted in its second workload."""
    with pytest.raises(KeyboardInterrupt):
        run(SETTINGS, interrupt_at("negative: round 1"), state)
    value: dict[str, Any] = json.loads(state.read_text())
    return value


def test_resumed_run_measures_only_the_missing_workloads(
    state: Path, interrupted: dict[str, Any]
) -> None:
    assert [r["workload"] for r in interrupted["results"]] == ["stat"]
    output: list[str] = []
    report = json.loads(json.dumps(run(SETTINGS, output.append, state).json()))
    assert report["results"][0] == interrupted["results"][0]
    assert [r["workload"] for r in report["results"]] == ["stat", "negative"]
    assert {done(line) for line in output} == {None, "negative"}
    assert json.loads(state.read_text()) == report


def test_a_run_that_is_finished_runs_nothing(state: Path) -> None:
    report = run(SETTINGS, lambda _line: None, state)
    assert run(SETTINGS, interrupt_at(""), state) == report


def test_run_without_a_state_file_writes_none(tmp_path: Path) -> None:
    run(SETTINGS, lambda _line: None)
    assert not list(tmp_path.glob("*.json*"))


@pytest.mark.parametrize(
    ("settings", "output"),
    [
        (replace(SETTINGS, rounds=3), r"settings rounds \(2 there, 3 here\)"),
        (replace(SETTINGS, workloads=("stat",)), "settings workloads"),
    ],
)
def test_a_run_with_other_settings_fails(
    settings: Settings, output: str, state: Path, interrupted: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=output):
        run(settings, interrupt_at(""), state)
    with pytest.raises(UsageError, match=output):
        finished(state, asdict(settings))


@pytest.mark.parametrize(
    ("part", "name", "output"),
    [
        ("versions", "module", r"versions module \(other there, 2 here\)"),
        ("machine", "cpu", "machine cpu"),
        (None, "kernel", r"kernel \(other there"),
    ],
)
def test_resume_on_another_machine_or_version_fails(
    part: str | None, name: str, output: str, state: Path, interrupted: dict[str, Any]
) -> None:
    (interrupted[part] if part else interrupted)[name] = "other"
    state.write_text(json.dumps(interrupted))
    with pytest.raises(UsageError, match=output):
        run(SETTINGS, interrupt_at(""), state)


def test_resume_in_a_guest_with_other_memory_size_succeeds(
    state: Path, interrupted: dict[str, Any]
) -> None:
    interrupted["machine"]["memory_bytes"] -= 4096
    state.write_text(json.dumps(interrupted))
    assert len(run(SETTINGS, lambda _line: None, state).results) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.clear(),
        lambda value: value.update(results=[3]),
        lambda value: value["results"][0].pop("rounds"),
        lambda value: value["results"][0].update(more=1),
        lambda value: value["settings"].pop("kernel_counters"),
    ],
)
def test_resume_from_a_malformed_state_fails(
    change: Callable[[Any], None], state: Path, interrupted: dict[str, Any]
) -> None:
    change(interrupted)
    state.write_text(json.dumps(interrupted))
    with pytest.raises(UsageError, match="does not contain the state of a run"):
        run(SETTINGS, interrupt_at(""), state)


def test_results_are_the_same_when_they_are_read_again(state: Path) -> None:
    results = (
        scaled(1, "fuse", 100.0, 5.0),
        replace(scaled(1, "efuse", 200.0, 4.0), channels=({"sent": 3},)),
        result("t1", "fuse", (1.0, 2.0)),
        counted("t1", {"direct": 1}, {"direct": 2}),
    )
    fresh = Report({"cpus": 2}, "6.12", {}, {"rounds": 2, "kernel_counters": {}}, ())
    counters = {"t1 efuse": {"requests": 6}}
    whole = replace(fresh, settings={"rounds": 2, "kernel_counters": counters})
    whole = whole.extended(results, ["efuse"])
    keep(state, whole)
    assert resumed(state, fresh) == whole
    assert whole.ratios


def test_a_state_that_cannot_be_written_fails(tmp_path: Path) -> None:
    with pytest.raises(EfuseError, match=r"cannot be written: No such file or directory"):
        keep(tmp_path / "none" / "state.json", Report({}, "", {}, {}, ()))


# Progress


def test_run_logs_every_step(state: Path) -> None:
    output: list[str] = []
    run(SETTINGS, output.append)
    found = [name for name in map(done, output) if name]
    assert {name: found.count(name) for name in found} == steps(SETTINGS)
    assert steps(replace(SETTINGS, systems=(), workloads=("skew",))) == {"skew": 4 * 6}


def test_storage_has_a_step_for_each_file_or_depth() -> None:
    found = storage_steps(Settings(("scan", "lookup"), scale=0.0001))
    assert len(found) == 4 * (1 + 6) * 2
    assert {"slow-link-scan-64K-cold", "low-latency-lookup-6-warm"} <= set(found)


# In a guest


def test_file_below_tmp_run_or_dev_is_not_shared_with_a_guest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_shared(Path("/var/lib/x/state.json"))
    for path in ("/tmp/x/state.json", "/tmp/state.json", "/run/x/state.json", "/dev/shm/s.json"):
        assert not is_shared(Path(path))
    (tmp_path / "state").mkdir()
    monkeypatch.chdir(tmp_path / "state")
    assert is_shared(Path("state.json"))


@pytest.fixture
def booted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """Commands of guests. Instead of being booted, each ends with status 2."""
    commands: list[Sequence[str]] = []

    def boot(command: Sequence[str], options: Options, **streams: Any) -> Result:
        commands.append(command)
        streams["stderr"].write(b"efuse: it says why\n")
        return Result(2, 1.0, 1.0, None)

    monkeypatch.setattr(guest, "run", boot)
    monkeypatch.setattr(importlib.import_module("efuse.cli.bench"), "_is_loaded", lambda: False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return commands


def ended(*words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["bench", *words])
    return int(caught.value.code or 0)


def test_guest_boots_the_requested_kernel(
    booted: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This also makes the systems of the other libfuse available."""
    asked: list[str | None] = []
    monkeypatch.setattr(importlib.import_module("efuse.cli.bench"), "chosen", asked.append)
    words = ["--kernel", "7", "--system", "fuse,fuse-io-uring", "--daemon", "passthrough_ll-sid"]
    assert ended(*words, "--workload", "scale-stat-1") == 2
    assert asked == ["7"]
    (command,) = booted
    assert "fuse,fuse-io-uring" in command and "passthrough_ll-sid" in command


def test_a_kernel_is_for_a_guest_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.import_module("efuse.cli.bench"), "_is_loaded", lambda: True)
    assert ended("--kernel", "7", "--workload", "stat") == 2
    assert "kernel 7 is not booted" in capsys.readouterr().err


def test_guest_gets_the_path_of_the_state_file(
    booted: list[Sequence[str]], state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("--workload", "stat,scale", "--resume", "state.json") == 2
    (words,) = booted
    assert words[-2:] == ["--resume", str(state)]
    # The guest has two CPUs, whatever this machine has.
    names = words[list(words).index("--workload") + 1].split(",")
    assert names[0] == "stat" and names[-1] == "scale-read-4"
    assert capsys.readouterr().err.splitlines()[0] == "efuse: it says why"


def test_no_guest_is_booted_with_other_settings(
    booted: list[Sequence[str]], interrupted: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("--workload", "stat", "--resume", "state.json") == 2
    assert "the run in state.json differs in settings" in capsys.readouterr().err
    assert not booted


def test_a_state_that_a_guest_does_not_see_fails(
    booted: list[Sequence[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended("--workload", "stat", "--resume", "/run/state.json") == 2
    assert "a guest does not see /run/state.json" in capsys.readouterr().err
    assert not booted
