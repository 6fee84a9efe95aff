# SPDX-License-Identifier: LGPL-2.1-or-later
"""`efuse service` takes no mount of another program for its own, and unmounts none."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse.control.mounts import Numbered
from efuse.errors import MountError
from efuse.service import actions, stopping
from efuse.service.actions import start
from efuse.service.parsing import read
from efuse.service.records import Record
from efuse.service.seeing import Seen, State
from efuse.service.serving import Service
from efuse.service.stopping import stop
from tests.conftest import Eventually
from tests.unit.fake_mounts import Clock, FakeMounts

TYPE = 'type = "passthrough"\nsource = "/srv"'


@pytest.fixture
def world(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMounts]:
    made = FakeMounts(memory_path, monkeypatch)
    yield made
    made.close()


def begun(world: FakeMounts, clock: Clock | None = None) -> Service:
    """Return a service that has read the descriptions, and has looked at all mounts."""
    service = Service(world.directory, world.records, clock=clock or Clock())
    service.reload()
    service.step()
    return service


def record(world: FakeMounts, name: str) -> Record:
    found = world.records.load(name)
    assert found is not None
    return found


def describe_elsewhere(world: FakeMounts, name: str, what: str = 'command = ["x"]') -> None:
    """Let a description have the mount point /new."""
    (world.directory / f"{name}.toml").write_text(f'mountpoint = "/new"\n{what}\n')


@pytest.fixture
def unmounted(world: FakeMounts, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let `stop` unmount; return the connections of what it has unmounted."""
    made: list[int] = []

    def unmount(_: Record, seen: Seen, **__: bool) -> None:
        made.append(seen.connection)
        world.unmount(seen.connection)

    monkeypatch.setattr(stopping, "_unmount", unmount)
    return made


def test_mount_that_appears_after_a_failed_start_is_not_taken_for_its_own(
    world: FakeMounts, unmounted: list[int], eventually: Eventually
) -> None:
    world.describe("a")
    (world.root / "a.fails").touch()
    service = begun(world)
    eventually(lambda: not world.process("a").is_alive, what="the end of the start")
    world.mount_other("a", 50)
    service.step()
    assert world.see("a").state is State.FOREIGN
    assert record(world, "a").number == 0
    assert not stop(record(world, "a"), world.records, lazy=True, rest="stopped")
    assert unmounted == []
    with pytest.raises(MountError, match=r"another file system is mounted on /a \(EBUSY\)"):
        start(read(world.directory / "a.toml"), world.records, most_s=60)


def test_mount_that_is_older_than_its_start_is_not_taken_for_its_own(world: FakeMounts) -> None:
    """Even if the process serves it: an old daemon may have got the device of a new one."""
    world.describe("a")
    world.mount_other("elsewhere", 40)
    begun(world)
    world.mount("a", 39)
    assert record(world, "a").above == 1040
    assert world.see("a").state is State.STARTING


def test_mount_that_others_cover_is_still_its_own(
    world: FakeMounts, eventually: Eventually
) -> None:
    world.describe("a")
    service = begun(world)
    world.mount("a", 33)
    world.mount_other("a", 50)
    service.step()
    assert (world.see("a").state, world.see("a").connection) == (State.SERVING, 33)
    assert record(world, "a").number == 1033


def test_start_while_others_mount_there_is_about_to_mount(
    world: FakeMounts, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    world.describe("a")
    service = begun(world)
    eventually(world.starts, what="the start")
    world.mount_other("a", 50)
    service.step()
    assert world.see("a").state is State.STARTING
    world.mount("a", 51)
    service.step()
    assert (world.see("a").state, world.see("a").connection) == (State.SERVING, 51)
    assert "another file system" not in caplog.text


def test_mount_at_the_new_mountpoint_of_a_description_is_left_alone(
    world: FakeMounts, unmounted: list[int]
) -> None:
    world.describe("a")
    service = begun(world)
    world.mount("a", 33)
    service.step()
    assert stop_a(world)
    assert unmounted == [33]
    world.sysfs.add(60, "/new")
    describe_elsewhere(world, "a")
    with pytest.raises(MountError, match="another file system is mounted on /new"):
        start(read(world.directory / "a.toml"), world.records, most_s=60)
    assert world.starts() == ["a mount"]


def stop_a(world: FakeMounts) -> bool:
    world.end("a")
    return stop(record(world, "a"), world.records, lazy=False, rest="stopped")


def test_mount_at_the_old_mountpoint_of_a_description_is_no_obstacle(
    world: FakeMounts, unmounted: list[int], eventually: Eventually
) -> None:
    world.describe("a")
    service = begun(world)
    world.mount("a", 33)
    service.step()
    assert stop_a(world)
    world.mount_other("a", 60)
    describe_elsewhere(world, "a")
    assert world.see("a", "/new").state is State.STOPPED
    world.records.save(dataclasses.replace(record(world, "a"), rest=""))
    service.reload()
    service.step()
    eventually(lambda: len(world.starts()) == 2, what="the start at the new place")


@pytest.fixture
def stays(world: FakeMounts, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let another mount cover all paths; return the paths that are unmounted nevertheless."""
    made: list[str] = []
    monkeypatch.setattr("efuse.fs.mountpoint.place_of", lambda _: "/")
    monkeypatch.setattr("efuse.service.actions.place_of", lambda _: "/")
    monkeypatch.setattr("efuse.fs.mountpoint._umount", lambda path, **_: made.append(path) or 0)
    return made


def test_dead_mount_that_others_cover_is_neither_unmounted_nor_covered_again(
    world: FakeMounts, stays: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    world.describe("a")
    service = begun(world)
    world.mount("a", 33)
    service.step()
    world.end("a")
    world.set(33, "daemon", "none")
    world.mount_other("a", 70)
    begun(world)
    assert world.starts() == ["a mount"]
    assert stays == []
    told = "a is not started: /a has no daemon, and cannot be unmounted: another mount covers it"
    assert told in caplog.text


def test_lazy_stop_of_a_mount_that_others_cover_fails(world: FakeMounts, stays: list[str]) -> None:
    world.describe("a")
    service = begun(world)
    world.mount("a", 33)
    service.step()
    with pytest.raises(MountError, match=r"a cannot be stopped: /a cannot be unmounted: .*EINVAL"):
        stop(record(world, "a"), world.records, lazy=True, rest="stopped")
    assert stays == []
    assert record(world, "a").rest == ""


@pytest.mark.parametrize("what", [TYPE, 'command = ["x"]'])
def test_mount_that_waits_gets_no_daemon_of_another_description(
    what: str, world: FakeMounts, caplog: pytest.LogCaptureFixture
) -> None:
    world.describe("a", what=what)
    clock = Clock()
    service = begun(world, clock)
    world.mount("a", 33)
    service.step()
    describe_elsewhere(world, "a", what)
    service.reload()
    world.end("a", 1)
    world.set(33, "daemon", "dead")
    for _ in range(3):
        service.step()
        clock.now_s += 10
    assert world.starts() == ["a mount"]
    told = "the mount that waits for a daemon has another mountpoint, type, source or options"
    assert caplog.text.count(told) == 1
    with pytest.raises(MountError, match=told):
        start(read(world.directory / "a.toml"), world.records, most_s=60)


def test_mount_of_another_file_system_with_its_number_is_not_its_own(
    world: FakeMounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.describe("a")
    service = begun(world)
    world.mount("a", 33)
    service.step()
    world.unmount(33)
    monkeypatch.setattr(
        "efuse.service.seeing.numbered", lambda number: Numbered(number, 1, 8 << 20, "ext4")
    )
    assert world.see("a").state is State.ENDING


def test_record_that_was_written_before_the_last_boot_counts_as_none(
    world: FakeMounts, eventually: Eventually
) -> None:
    world.describe("a")
    begun(world)
    path = world.records.path("a")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert boot in path.read_text()
    with world.records.serving(world.directory):
        service = world.records.directory / "service.json"
        service.write_text(service.read_text().replace(boot, "another"))
        assert world.records.service() is None
    path.write_text(path.read_text().replace(boot, "another"))
    assert world.records.load("a") is None
    assert world.records.names() == []
    begun(world)
    eventually(lambda: len(world.starts()) == 2, what="the start after the boot")


def test_what_is_looked_at_before_a_start_is_not_older_than_the_start(
    world: FakeMounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of mounts is read once for all mounts; another program may mount meanwhile."""
    world.describe("a")
    real = actions.see
    service = Service(world.directory, world.records, clock=Clock())
    service.reload()
    monkeypatch.setattr(
        "efuse.service.serving.see",
        lambda *words: (real(*words), world.sysfs.mountinfo.read_text() or late())[0],
    )

    def late() -> None:
        world.mount_other("a", 50)

    service.step()
    assert world.starts() == []
    assert world.records.load("a") is None
