# SPDX-License-Identifier: LGPL-2.1-or-later
"""What `efuse service` starts, and what it does not: also after it was killed."""

from __future__ import annotations

import dataclasses
import logging
import os
import select
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from efuse.control import Connection, all_mounts
from efuse.control.daemon_locks import DaemonLock, locked
from efuse.errors import ControlError
from efuse.service.parsing import described
from efuse.service.processes import Process, spawn
from efuse.service.seeing import State
from efuse.service.serving import Service, serve
from efuse.service.status import Status, statuses
from efuse.service.stopping import stop
from tests.conftest import Eventually
from tests.unit.fake_mounts import Clock, FakeMounts

TYPE = 'type = "passthrough"\nsource = "/srv"'


@pytest.fixture
def world(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMounts]:
    made = FakeMounts(memory_path, monkeypatch)
    yield made
    made.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def begun(world: FakeMounts, clock: Clock) -> Service:
    """Return a service that has read the descriptions."""
    service = Service(world.directory, world.records, clock=clock)
    service.reload()
    return service


def state(world: FakeMounts, name: str) -> State:
    return world.see(name).state


def status(world: FakeMounts, name: str) -> Status:
    (found,) = (s for s in statuses(world.records, described(world.directory)) if s.name == name)
    return found


def serves(world: FakeMounts, service: Service, name: str, connection: int) -> None:
    """Start a mount by the service, and let it be served."""
    service.step()
    world.mount(name, connection)
    service.step()
    assert state(world, name) is State.SERVING


def test_each_mount_is_started_once(
    world: FakeMounts, clock: Clock, eventually: Eventually
) -> None:
    world.describe("b")
    world.describe("a", what=TYPE)
    service = begun(world, clock)
    for _ in range(3):
        service.step()
    eventually(lambda: len(world.starts()) == 2, what="both starts")
    assert sorted(world.starts()) == ["a mount", "b mount"]
    assert state(world, "a") is state(world, "b") is State.STARTING
    world.mount("a", 33)
    service.step()
    assert state(world, "a") is State.SERVING
    record = world.records.load("a")
    assert record is not None
    assert record.number == 1033


def test_service_that_follows_a_killed_one_starts_nothing_twice(
    world: FakeMounts, clock: Clock, eventually: Eventually
) -> None:
    for name in ("starting", "serving", "vanished"):
        world.describe(name)
    first = begun(world, clock)
    first.step()
    eventually(lambda: len(world.starts()) == 3, what="the starts")
    world.mount("serving", 33)
    world.end("vanished")
    second = begun(world, clock)
    second.step()
    eventually(lambda: len(world.starts()) == 4, what="the start of what is not there")
    second.step()
    assert sorted(world.starts()) == [
        *("serving mount", "starting mount", "vanished mount", "vanished mount")
    ]
    assert world.process("starting").is_alive


def serving(world: FakeMounts) -> int:
    """Run the service in a process of its own; return its id once it has looked at all mounts."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        status = 1
        try:
            serve(world.directory, world.records, ready=lambda: os.close(write))
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    # The processes that it has started close their descriptors before they do anything.
    assert os.read(read, 1) == b""
    os.close(read)
    return pid


def test_service_process_is_killed_reloads_and_ends_and_its_mounts_go_on(
    world: FakeMounts, eventually: Eventually
) -> None:
    for name in ("a", "b"):
        world.describe(name)
    pid = serving(world)
    eventually(lambda: len(world.starts()) == 2, what="the starts")
    world.mount("a", 33)
    os.kill(pid, signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL
    assert world.records.service() is None
    pid = serving(world)
    found = world.records.service()
    assert found is not None
    assert (found.process.pid, found.invalid) == (pid, 0)
    world.describe("new")
    (world.directory / "bad.toml").write_text("x")
    assert found.process.send(signal.SIGHUP)
    eventually(lambda: len(world.starts()) == 3, what="the start of the new mount")
    assert sorted(world.starts()) == ["a mount", "b mount", "new mount"]
    found = world.records.service()
    assert found is not None
    assert found.invalid == 1
    os.kill(pid, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert all(world.process(name).is_alive for name in ("a", "b", "new"))


def test_process_with_a_reused_id_is_not_taken_for_the_started_one(
    world: FakeMounts, clock: Clock, eventually: Eventually
) -> None:
    world.describe("a")
    begun(world, clock).step()
    eventually(lambda: len(world.starts()) == 1, what="the start")
    record = world.records.load("a")
    assert record is not None
    other = dataclasses.replace(record.process, began=record.process.began - 1)
    world.records.save(dataclasses.replace(record, process=other))
    begun(world, clock).step()
    eventually(lambda: len(world.starts()) == 2, what="the second start")


def test_invalid_description_does_not_keep_others_from_being_started(
    world: FakeMounts, clock: Clock, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    world.describe("bad", "recovery = 0")
    world.describe("good")
    service = begun(world, clock)
    service.step()
    eventually(world.starts, what="the start")
    assert world.starts() == ["good mount"]
    assert "bad.toml: line 3: recovery cannot be used" in caplog.text
    assert "line 3" in status(world, "bad").problem
    assert not status(world, "bad").is_right
    world.mount("good", 33)
    assert status(world, "good").is_right


def test_delays_grow_while_a_mount_does_not_work(
    world: FakeMounts, clock: Clock, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    world.describe("a")
    service = begun(world, clock)
    service.step()
    number = 1
    for delay_s in (0.0, 0.5, 1.0, 2.0):
        eventually(lambda n=number: len(world.starts()) == n, what="the start")
        world.end("a", 3)
        if delay_s:
            assert service.step() == delay_s
            assert f"a is started again in {delay_s:g} s: the last error of a" in caplog.text
            assert len(world.starts()) == number
            assert status(world, "a").problem == "the last error of a"
        clock.now_s += delay_s
        service.step()
        number += 1
    eventually(lambda: len(world.starts()) == number, what="the last start")


def test_mount_that_was_stopped_is_not_started(world: FakeMounts, clock: Clock) -> None:
    world.describe("a", what=TYPE)
    service = begun(world, clock)
    serves(world, service, "a", 33)
    record = world.records.load("a")
    assert record is not None
    world.records.save(dataclasses.replace(record, rest="stopped"))
    world.end("a")
    world.unmount(33)
    clock.now_s += 100
    for each in (service, begun(world, clock)):
        each.step()
        each.step()
    assert world.starts() == ["a mount"]
    assert status(world, "a").seen.state is State.STOPPED
    assert status(world, "a").is_right


def test_mount_that_starts_is_stopped_by_a_signal_to_its_process(
    world: FakeMounts, clock: Clock, eventually: Eventually
) -> None:
    world.describe("a")
    begun(world, clock).step()
    eventually(world.starts, what="the start")
    record = world.records.load("a")
    assert record is not None
    assert stop(record, world.records, lazy=False, rest="stopped")
    assert not record.process.is_alive
    assert state(world, "a") is State.STOPPED
    assert not stop(record, world.records, lazy=False, rest="stopped")


def test_mount_that_a_command_works_on_is_left_alone(world: FakeMounts, clock: Clock) -> None:
    world.describe("a")
    service = begun(world, clock)
    with world.records.locked("a"):
        service.step()
    assert world.records.load("a") is None


def test_service_does_not_spin_while_a_command_works_on_a_mount(
    world: FakeMounts, clock: Clock
) -> None:
    world.describe("a", what=TYPE)
    service = begun(world, clock)
    serves(world, service, "a", 33)
    for number in (1, 2):
        world.end("a")
        world.set(33, "daemon", "dead")
        assert (service.step() == 0.5) == (number == 2)
    clock.now_s += 1
    with world.records.locked("a"):
        assert service.step() > 1


def test_file_system_of_the_package_gets_a_successor_when_its_daemon_has_died(
    world: FakeMounts, clock: Clock, eventually: Eventually
) -> None:
    world.describe("a", what=TYPE)
    service = begun(world, clock)
    serves(world, service, "a", 33)
    world.end("a")
    world.set(33, "daemon", "dead")
    service.step()
    service.step()
    eventually(lambda: len(world.starts()) == 2, what="the successor")
    assert world.starts() == ["a mount", "a mount"]
    record = world.records.load("a")
    assert record is not None
    assert record.number == 1033


def test_daemon_with_a_supervisor_is_left_to_it_and_taken_over_without_one(
    world: FakeMounts, clock: Clock, eventually: Eventually
) -> None:
    world.describe("a")
    service = begun(world, clock)
    serves(world, service, "a", 33)
    world.set(33, "daemon", "dead")
    service.step()
    world.end("a")
    fd = locked(Connection(33), DaemonLock.RESTARTING)
    service.step()
    assert world.see("a").attendant == os.getpid()
    os.close(fd)
    assert world.starts() == ["a mount"]
    service.step()
    eventually(lambda: len(world.starts()) == 2, what="the takeover")
    assert world.starts() == ["a mount", "a 33"]


def test_mount_over_a_mount_of_others_is_refused(
    world: FakeMounts, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    world.describe("a")
    world.mount_other("a", 33)
    service = begun(world, clock)
    service.step()
    service.step()
    assert state(world, "a") is State.FOREIGN
    assert caplog.text.count("a is not started: another file system is mounted on /a") == 1
    assert world.records.load("a") is None


@pytest.mark.parametrize(
    ("restart", "exit_status", "is_started"),
    [
        ("always", 0, True),
        ("on-failure", 3, True),
        ("on-failure", 0, False),
        ("never", 3, False),
    ],
)
def test_restart_tells_whether_a_mount_that_has_ended_is_started(
    restart: str,
    exit_status: int,
    is_started: bool,
    world: FakeMounts,
    clock: Clock,
    eventually: Eventually,
) -> None:
    world.describe("a", f'restart = "{restart}"')
    service = begun(world, clock)
    serves(world, service, "a", 33)
    world.unmount(33)
    service.step()
    assert state(world, "a") is State.ENDING
    world.end("a", exit_status)
    service.step()
    service.step()
    if is_started:
        eventually(lambda: len(world.starts()) == 2, what="the second start")
    else:
        assert world.starts() == ["a mount"]
        assert state(world, "a") is State.ENDED


def test_mount_whose_start_was_killed_before_its_command_is_started_again(
    world: FakeMounts, clock: Clock, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    """Even if it is never restarted."""
    world.describe("a", 'restart = "never"')

    def killed(command: list[str], log: Path, note: Callable[[Process], None]) -> Process:
        pid = os.fork()
        if not pid:
            os._exit(spawn(command, log, lambda process: (note(process), os._exit(9))[1]).pid)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("efuse.service.actions.spawn", killed)
        with pytest.raises(KeyboardInterrupt):
            begun(world, clock).step()
    process = world.process("a")
    eventually(lambda: not process.is_alive, what="the end of what waited for its starter")
    begun(world, clock).step()
    eventually(lambda: len(world.starts()) == 1, what="the start")


def test_daemon_in_the_background_that_dies_has_failed(
    world: FakeMounts, clock: Clock, eventually: Eventually
) -> None:
    """Although the process that was started has ended with status 0 long before."""
    world.describe("a", 'restart = "on-failure"')
    service = begun(world, clock)
    serves(world, service, "a", 33)
    world.end("a", 0)
    service.step()
    assert state(world, "a") is State.SERVING
    world.set(33, "daemon", "dead")
    clock.now_s += 100
    service.step()
    service.step()
    eventually(lambda: len(world.starts()) == 2, what="the successor")


def test_mount_whose_daemon_goes_on_in_the_background_is_not_started_twice(
    world: FakeMounts, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was unmounted lazily, and is still used."""
    world.describe("a")
    service = begun(world, clock)
    serves(world, service, "a", 33)
    process = world.process("a")
    world.end("a", 0)
    world.unmount(33)
    monkeypatch.setattr("efuse.service.seeing.left_of", {process: 77}.get)
    service.step()
    assert (state(world, "a"), world.see("a").attendant) == (State.ENDING, 77)
    assert world.starts() == ["a mount"]


def test_mount_that_has_ended_is_started_when_its_description_wants_it_always(
    world: FakeMounts, clock: Clock, eventually: Eventually
) -> None:
    world.describe("a", 'restart = "never"')
    service = begun(world, clock)
    serves(world, service, "a", 33)
    world.unmount(33)
    world.end("a")
    service.step()
    assert state(world, "a") is State.ENDED
    world.describe("a", 'restart = "always"')
    service.reload()
    service.step()
    service.step()
    eventually(lambda: len(world.starts()) == 2, what="the start")


def test_process_that_ends_before_it_is_watched_is_seen(
    world: FakeMounts, clock: Clock, eventually: Eventually
) -> None:
    """A step that has started something does not wait: the process is not watched yet."""
    world.describe("a")
    service = begun(world, clock)
    assert service.step() == 0.0
    eventually(world.starts, what="the start")
    events = [*service.watched()]
    assert [kinds for _, kinds in events] == [select.POLLIN]
    assert service.step() > 1
    world.end("a", 3)
    poll = select.poll()
    for fd, kinds in events:
        poll.register(fd, kinds)
    assert poll.poll(0), "it was watched before the step"
    for fd, _ in events:
        os.close(fd)


def test_table_of_mounts_is_read_once_for_all_mounts(
    world: FakeMounts, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c"):
        world.describe(name)
    service = begun(world, clock)
    service.step()
    for connection, name in enumerate(("a", "b", "c"), 33):
        world.mount(name, connection)
    service.step()
    read = []
    monkeypatch.setattr(
        "efuse.service.serving.all_mounts", lambda: read.append(all_mounts()) or read[-1]
    )
    service.step()
    assert len(read) == 1


def test_mounts_that_cannot_be_listed_do_not_end_the_service(
    world: FakeMounts, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.describe("a")
    service = begun(world, clock)

    def none() -> None:
        raise ControlError("cannot list the mounts")

    monkeypatch.setattr("efuse.service.serving.all_mounts", none)
    assert service.step() > 1
    assert world.records.load("a") is None


def test_reload_finds_what_is_new_changed_and_gone(
    world: FakeMounts, clock: Clock, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("same", "changed", "gone"):
        world.describe(name)
    service = begun(world, clock)
    service.step()
    eventually(lambda: len(world.starts()) == 3, what="the starts")
    for connection, name in enumerate(("same", "changed", "gone"), 33):
        world.mount(name, connection)
    service.step()
    world.describe("changed", "recovery = 7")
    (world.directory / "gone.toml").unlink()
    world.describe("new")
    service.step()
    assert len(world.starts()) == 3, "nothing was read again"
    service.reload()
    service.step()
    eventually(lambda: len(world.starts()) == 4, what="the start")
    assert world.starts()[-1] == "new mount"
    assert "gone is not attended to: its description is gone or invalid" in caplog.text
    notes = {name: status(world, name).note for name in ("same", "changed", "gone")}
    assert notes == {"same": "", "changed": "changed: needs upgrade", "gone": "no description"}
    assert state(world, "gone") is State.SERVING
