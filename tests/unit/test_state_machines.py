# SPDX-License-Identifier: LGPL-2.1-or-later
"""The state machines of the guest's tests pass on directories, and notice faults."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.guest.support.exclusive_model import ExclusiveMount
from tests.guest.support.shared_model import SharedSource


def run(machine: type[RuleBasedStateMachine], examples: int = 10) -> None:
    chosen = settings(
        max_examples=examples,
        stateful_step_count=40,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(hypothesis.seed(1)(machine), settings=chosen)


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    places = tmp_path / "one", tmp_path / "other"
    for place in places:
        place.mkdir()
    return places


def test_model_finds_no_difference_between_a_directory_and_its_reference(
    places: tuple[Path, Path],
) -> None:
    class Machine(ExclusiveMount):
        mount, reference = places

    run(Machine)
    assert Machine.steps > 300


def test_lost_byte_is_noticed(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    class Machine(ExclusiveMount):
        mount, reference = places

    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:-1] + b"\0", at)
                        if str(places[0]) in os.readlink(f"/proc/self/fd/{fd}")
                        else real(fd, data, at))  # fmt: skip
    with pytest.raises(AssertionError):
        run(Machine)


@pytest.mark.parametrize("mode", ["cto", "ttl"])
def test_model_accepts_one_directory_as_both_mounts(places: tuple[Path, Path], mode: str) -> None:
    class Machine(SharedSource):
        mounts, source = (places[0], places[0]), places[0]

    Machine.mode = mode
    run(Machine)
    assert Machine.steps > 200


@pytest.mark.parametrize("mode", ["cto", "ttl"])
def test_mount_that_never_shows_the_other_mounts_changes_is_noticed(
    places: tuple[Path, Path], mode: str
) -> None:
    """One of the mounts shows the source as it was when it was last changed through that mount."""

    class Machine(SharedSource):
        mounts, source = (places[0], places[1]), places[0]

        def outlast(self, side: int, name: str) -> None:
            """The copy would never show the present state."""

        def begin(self) -> None:
            super().begin()
            shutil.copytree(places[0] / self._name, places[1] / self._name)

    Machine.mode = mode
    with pytest.raises(AssertionError):
        run(Machine)
