# SPDX-License-Identifier: LGPL-2.1-or-later
"""The health of the mounts of `efuse service`: daemons that do not answer, and the exporter."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse.exporter import Collector, exposition
from efuse.service.health import NO_SERVICE, health
from efuse.service.processes import Process
from efuse.service.serving import Service
from tests.unit.fake_configfs import FakeConfigfs
from tests.unit.fake_mounts import Clock, FakeMounts


@pytest.fixture
def world(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMounts]:
    """A mount that connection 33 serves."""
    made = FakeMounts(memory_path, monkeypatch)
    FakeConfigfs(memory_path, monkeypatch)
    monkeypatch.setattr("efuse.exporter.reading.health", lambda: health(made.records))
    made.describe("a")
    yield made
    made.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def service(world: FakeMounts, clock: Clock) -> Service:
    made = Service(world.directory, world.records, clock=clock)
    made.reload()
    made.step()
    world.mount("a", 33)
    made.step()
    return made


def silent(world: FakeMounts, service: Service, *, sent: int, waiting: int) -> bool:
    """Tell whether the service finds that the daemon does not answer."""
    world.sysfs.count(33, "getattr", daemon=sent)
    world.set(33, "waiting", str(waiting))
    service.step()
    return world.records.is_silent("a")


def test_daemon_with_requests_that_answers_none_is_silent(
    world: FakeMounts, clock: Clock, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    assert not silent(world, service, sent=7, waiting=2)
    clock.now_s += 11
    assert not silent(world, service, sent=8, waiting=2), "one was answered"
    clock.now_s += 9
    assert not silent(world, service, sent=9, waiting=3)
    clock.now_s += 2
    assert silent(world, service, sent=9, waiting=3)
    assert caplog.messages == ["a does not answer"]
    assert silent(world, service, sent=12, waiting=6), "further callers are no answers"
    assert not silent(world, service, sent=12, waiting=5)
    assert caplog.messages == ["a does not answer", "a answers again"]


def test_daemon_without_requests_is_not_silent(
    world: FakeMounts, clock: Clock, service: Service
) -> None:
    for _ in range(3):
        clock.now_s += 100
        assert not silent(world, service, sent=7, waiting=0)
    assert not silent(world, service, sent=8, waiting=1)
    clock.now_s += 100
    assert not silent(world, service, sent=8, waiting=0)
    assert not silent(world, service, sent=9, waiting=1), "it was idle meanwhile"


def test_silence_is_forgotten_when_the_service_does_not_attend_to_the_mount(
    world: FakeMounts, clock: Clock, service: Service
) -> None:
    for end in ("gone", "dead"):
        assert not silent(world, service, sent=7, waiting=2)
        clock.now_s += 11
        assert silent(world, service, sent=7, waiting=2)
        if end == "dead":
            world.set(33, "daemon", "dead")
            service.step()
        else:
            (world.directory / "a.toml").unlink()
            service.reload()
            world.describe("a")
        assert not world.records.is_silent("a")
        service.reload()


def metrics() -> dict[str, float]:
    """Return the metrics of the service, and of its only mount: of labels, only the state."""
    found = {}
    for line in exposition(Collector()).decode().splitlines():
        if told := re.match(r'(efuse_service_\w+)(?:{.*?(?:state="(\w+)")?})? (\S+)$', line):
            found[told[1] + (f" {told[2]}" if told[2] else "")] = float(told[3])
    return found


def test_exporter_has_the_health_of_each_mount(
    world: FakeMounts, clock: Clock, service: Service
) -> None:
    world.set(33, "incarnation", "3")
    with world.records.serving(world.directory):
        world.records.note_service(world.directory, invalid=1)
        assert not silent(world, service, sent=9, waiting=4)
        found = metrics()
        assert found["efuse_service_up"] == 1
        assert found["efuse_service_invalid_descriptions"] == 1
        assert found["efuse_service_mount_up"] == 1
        assert found["efuse_service_mount_successors_total"] == 3
        assert found["efuse_service_mount_waiting_requests"] == 4
        clock.now_s += 11
        assert silent(world, service, sent=9, waiting=4)
        assert metrics()["efuse_service_mount_up"] == 0
        world.set(33, "daemon", "dead")
        found = metrics()
        assert found["efuse_service_mount_up"] == 0
        assert "efuse_service_mount_info waiting" in found


def test_mounts_whose_descriptions_cannot_be_read_are_exported(
    world: FakeMounts, service: Service
) -> None:
    with world.records.serving(world.directory / "gone"):
        found = metrics()
        assert found["efuse_service_up"] == 1
        assert found["efuse_service_invalid_descriptions"] == 0
        assert found["efuse_service_mount_up"] == 1


def test_health_of_a_service_that_was_killed(world: FakeMounts, service: Service) -> None:
    found = health(world.records)
    assert (found.up, found.invalid) == (0, None)
    assert [(each.name, each.is_up) for each in found.mounts] == [("a", True)]
    with world.records.serving(world.directory):
        path = world.records.directory / "service.json"
        me = Process.of(os.getpid())
        assert me is not None
        other = dataclasses.replace(me, began=me.began + 1)
        path.write_text(path.read_text().replace(str(me.began), str(other.began)))
        assert health(world.records).up == 0


def test_no_metrics_without_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("efuse.exporter.reading.health", lambda: NO_SERVICE)
    assert metrics() == {}
