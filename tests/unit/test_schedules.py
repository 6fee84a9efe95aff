# SPDX-License-Identifier: LGPL-2.1-or-later
"""Random schedules: how they fail, and what a run has to show. The guest's tests run them."""

from __future__ import annotations

import os
import select
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, cast

import pytest

from tests.guest.support import schedule_runs
from tests.guest.support.history import ViolationError
from tests.guest.support.schedule import Schedule
from tests.guest.support.schedule_operations import Operation
from tests.guest.support.schedule_record import Call
from tests.schedules import __main__ as schedules


class _Mount:
    """A mount that is not there."""

    closed = 0

    def __init__(self, point: Path) -> None:
        pass

    def close(self) -> None:
        type(self).closed += 1


class _Failing:
    """A schedule that fails with an error of the test itself."""

    lines = ("   1 w0: read",)

    def __init__(self, *_: object) -> None:
        pass

    def run(self) -> None:
        raise KeyError("no such call")

    def close(self) -> None:
        pass


def test_schedule_that_fails_for_any_reason_names_its_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule_runs, "ScheduleMount", _Mount)
    monkeypatch.setattr(schedule_runs, "Schedule", _Failing)
    monkeypatch.setattr(schedule_runs, "Delays", lambda: SimpleNamespace(close=lambda: None))
    with schedule_runs.Runner(tmp_path) as runner, pytest.raises(ViolationError) as raised:
        runner.run(4711)
    for text in ("w0: read", "scripts/schedules --seed 4711 --times 10", "KeyError"):
        assert text in str(raised.value)
    assert _Mount.closed == 1


def _schedule() -> Schedule:
    """Return a schedule with nothing but what notifications need."""
    one = Schedule.__new__(Schedule)
    one._notified, one._tell = os.pipe()
    one._poll = select.poll()
    one._poll.register(one._notified, select.POLLIN)
    record = SimpleNamespace(note=lambda _: None, end=lambda *_: None)
    one.__dict__ |= {"_mount": SimpleNamespace(device=-1), "_record": record, "_workers": []}
    one._notifying, one._threads, one._errors, one._backing = {}, [], {}, {}
    one.__dict__["_daemon"] = SimpleNamespace(set_backing=lambda _: None)
    return one


def test_error_of_a_notification_ends_the_schedule(monkeypatch: pytest.MonkeyPatch) -> None:
    one = _schedule()
    call = Call(Operation("map"), "daemon", 1)
    one._changed = [call]
    messages = [partial(cast(object, {}).__getitem__, "missing")]  # type: ignore[attr-defined]
    monkeypatch.setattr(one, "_messages", lambda _: messages)
    one._notify(call)
    with pytest.raises(ViolationError, match="KeyError"):
        one._pump(10_000)
    one.close()
    assert not any(thread.is_alive() for thread in one._threads)
    for fd in (one._notified, one._tell):
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


@pytest.mark.parametrize(
    "words", [["--seeds", "0"], ["--seconds", "-1"], ["--seconds", "inf"], ["--times", "0"]]
)
def test_options_that_run_no_schedule_are_refused(
    monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["schedules", *words])
    with pytest.raises(SystemExit) as end:
        schedules.main()
    assert end.value.code == 2


class _Runner:
    """A runner whose schedules are all right.

    :cvar hits: answers of the kernel.
    :cvar paths: READs and WRITEs by path.
    :cvar delays: delays of workers.
    """

    hits: ClassVar = Counter({"read": 1})
    paths: ClassVar = Counter({"direct": 1, "cache": 1})
    delays = 1

    def __init__(self, _: Path) -> None:
        pass

    def __enter__(self) -> _Runner:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(self, seed: int) -> None:
        pass


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({}, 0),
        ({"hits": Counter({"read": 0})}, 1),
        ({"paths": Counter({"direct": 1})}, 1),
        ({"paths": Counter({"cache": 1})}, 1),
        ({"delays": 0}, 1),
    ],
)
def test_run_of_all_profiles_fails_if_a_part_was_not_used(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, object], status: int
) -> None:
    log = SimpleNamespace(new_text=lambda: "")
    monkeypatch.setattr(schedules, "KernelLog", lambda: log)
    monkeypatch.setattr(schedules, "Runner", _Runner)
    for name, value in changed.items():
        monkeypatch.setattr(_Runner, name, value)
    monkeypatch.setattr(sys, "argv", ["schedules", "--seeds", "5"])
    assert schedules.main() == status
    # One profile does not use all of them.
    monkeypatch.setattr(sys, "argv", ["schedules", "--seed", "3"])
    assert schedules.main() == 0
