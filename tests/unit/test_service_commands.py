# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands of `efuse service`."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from efuse.cli.service import cli
from efuse.control import Connection
from efuse.control.daemon_locks import DaemonLock, locked
from efuse.control.mounts import Numbered
from efuse.errors import EfuseError
from efuse.service import stopping
from efuse.service.description import Description
from efuse.service.processes import Process, spawn
from efuse.service.records import Record, Records
from efuse.service.seeing import Seen, State
from efuse.service.serving import Service
from tests.conftest import Eventually
from tests.unit.fake_mounts import FakeMounts


@pytest.fixture
def world(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> Iterator[FakeMounts]:
    """Three mounts that are served by connections 33, 34 and 35."""
    made = FakeMounts(memory_path, monkeypatch)
    monkeypatch.setattr("efuse.fs.mountpoint.kernel_lacks_efuse", lambda: None)
    for name in ("a", "b", "c"):
        made.describe(name)
    service = Service(made.directory, made.records)
    service.reload()
    service.step()
    eventually(lambda: len(made.starts()) == 3, what="the starts")
    for connection, name in enumerate(("a", "b", "c"), 33):
        made.mount(name, connection)
    service.step()
    yield made
    made.close()


def run(world: FakeMounts, *words: str) -> Result:
    options = ["--directory", str(world.directory), "--state", str(world.records.directory)]
    return CliRunner().invoke(cli, [*options, *words], standalone_mode=False)


def incarnations(world: FakeMounts) -> list[int]:
    return [Connection(number).incarnation for number in (33, 34, 35)]


def test_upgrade_replaces_one_daemon_after_the_other(world: FakeMounts) -> None:
    world.describe("c", "recovery = 7")
    changed = json.loads(run(world, "status", "--json").stdout)["mounts"]
    assert [each["changed"] for each in changed] == [False, False, True]
    done = run(world, "upgrade", "c", "a", "b")
    assert done.output == "c: upgraded\na: upgraded\nb: upgraded\n"
    assert world.starts()[3:] == ["c 35", "a 33", "b 34"]
    assert incarnations(world) == [1, 1, 1]
    changed = json.loads(run(world, "status", "--json").stdout)["mounts"]
    assert not any(each["changed"] for each in changed)


def test_daemon_of_a_type_is_killed_and_followed(
    world: FakeMounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = 'type = "passthrough"\nsource = "/srv"'
    world.unmount(34)
    world.end("b")
    world.describe("b", what=what)
    service = Service(world.directory, world.records)
    service.reload()
    service.step()
    world.mount("b", 36)
    service.step()
    daemon = world.begin_daemon("b")
    monkeypatch.setattr("efuse.supervisor.replacing.holders", lambda connection: {daemon})
    world.describe("b", "recovery = 7", what=what)
    assert run(world, "upgrade", "b").output == "b: upgraded\n"
    assert Process.of(daemon) is None
    connection = Connection(36)
    assert (connection.incarnation, connection.recovery) == (1, 7)


def test_upgrade_ends_at_the_first_failure(world: FakeMounts) -> None:
    (world.root / "b.fails").touch()
    world.describe("b", "recovery = 7")
    done = run(world, "upgrade", "--all", "--json")
    assert isinstance(done.exception, EfuseError)
    assert str(done.exception) == "b is not served: the last error of b"
    assert json.loads(done.stdout) == [{"name": "a", "result": "upgraded"}]
    assert incarnations(world) == [1, 0, 0]
    told = json.loads(run(world, "status", "--json").stdout)["mounts"]
    assert [each["changed"] for each in told] == [False, True, False]


def test_upgrade_ends_when_the_mount_is_unmounted_meanwhile(
    world: FakeMounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unmount(given: Description, *_: object, **__: object) -> list[str]:
        world.unmount(33)
        return ["/bin/sleep", "600"]

    monkeypatch.setattr("efuse.service.actions.taking_over", unmount)
    done = run(world, "upgrade", "a")
    assert str(done.exception) == "a is not served: its mount was unmounted meanwhile (ENOTCONN)"
    process = world.process("a")
    assert os.WTERMSIG(os.waitpid(process.pid, 0)[1]) == signal.SIGTERM


def test_upgrade_of_what_cannot_be_replaced_is_refused(world: FakeMounts) -> None:
    world.describe("a", what='type = "passthrough"\nsource = "/srv"')
    done = run(world, "upgrade", "a")
    assert "its mountpoint, type, source or options have changed" in str(done.exception)
    world.unmount(34)
    world.end("b")
    done = run(world, "upgrade", "b")
    assert str(done.exception) == "b cannot be upgraded: it is down (ENOTCONN)"
    assert run(world, "upgrade", "--all").exception is not None
    assert incarnations(world) == [0, 0, 0]


def test_start_waits_until_the_mount_is_served(world: FakeMounts) -> None:
    assert run(world, "start", "a").output == "a: is served already\n"
    world.unmount(33)
    world.end("a", 3)
    (world.root / "a.fails").touch()
    done = run(world, "start", "a")
    assert str(done.exception) == "a is not served: the last error of a"
    assert world.starts()[3:] == ["a mount"]


def test_start_ends_no_daemon_whose_unmounted_file_system_is_used(
    world: FakeMounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("efuse.service.actions._END_S", 0.0)
    process = world.process("a")
    world.unmount(33)
    done = run(world, "start", "a")
    told = f"a cannot be started: process {process.pid} still serves what was unmounted (EBUSY)"
    assert str(done.exception) == told
    assert process.is_alive
    assert world.process("a") == process


def test_stopped_mount_without_a_description_is_forgotten(world: FakeMounts) -> None:
    for name, connection in (("a", 33), ("b", 34)):
        world.unmount(connection)
        world.end(name)
    (world.directory / "a.toml").unlink()
    (world.directory / "bad.toml").write_text("x")
    assert run(world, "stop", "a", "b").output == "b: was not running\na: was not running\n"
    assert world.records.names() == ["b", "c"]
    assert "there is no mount 'bad'" in str(run(world, "stop", "bad").exception)


def test_names_are_checked_before_anything_is_done(world: FakeMounts) -> None:
    for command in ("start", "stop", "upgrade"):
        assert "there is no mount 'x'" in str(run(world, command, "a", "x").exception)
        assert "either names or --all are needed" in str(run(world, command).exception)
        assert "either names or --all" in str(run(world, command, "a", "--all").exception)
    assert "there is no mount 'x'" in str(run(world, "status", "x").exception)
    assert len(world.starts()) == 3


def test_status_is_1_if_a_mount_is_not_right(world: FakeMounts) -> None:
    done = run(world, "status", "--json")
    assert done.return_value == 0
    told = json.loads(done.stdout)
    assert told["service"] is None
    assert [each["connection"] for each in told["mounts"]] == [33, 34, 35]
    world.set(34, "daemon", "dead")
    world.set(34, "waiting", "5")
    done = run(world, "status")
    assert done.return_value == 1
    line = next(line for line in done.output.splitlines() if line.startswith("b "))
    assert line.split() == ["b", "/b", "waiting", "34", "0", "5"]
    assert run(world, "status", "a").return_value == 0


def test_list_shows_descriptions_and_errors(world: FakeMounts) -> None:
    (world.directory / "d.toml").write_text("x")
    told = json.loads(run(world, "list", "--json").stdout)
    assert [each["name"] for each in told["mounts"]] == ["a", "b", "c"]
    (error,) = told["errors"]
    assert "d.toml is not valid TOML" in error["error"]
    assert "d.toml is not valid TOML" in run(world, "list").output


@pytest.fixture
def unmounted(world: FakeMounts, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let `stop` unmount all but what is mounted at /b; return the mount points."""
    made: list[str] = []

    def unmount(record: Record, seen: Seen, **_: bool) -> None:
        if record.mountpoint == "/b":
            raise OSError(errno.EBUSY, "used")
        made.append(record.mountpoint)
        world.unmount(seen.connection)

    monkeypatch.setattr(stopping, "_unmount", unmount)
    return made


@pytest.mark.parametrize("words", [("stop", "--lazy", "--all"), ("--unmount",)])
def test_deepest_mount_is_unmounted_first_and_a_failure_does_not_keep_the_others(
    words: tuple[str, ...],
    world: FakeMounts,
    unmounted: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("efuse.service.serving.serve", lambda *_, **__: None)
    for name, place in (("a", "/x"), ("c", "/x/below")):
        record = world.records.load(name)
        assert record is not None
        world.records.save(dataclasses.replace(record, mountpoint=place))
    done = run(world, *words)
    assert unmounted == ["/x/below", "/x"]
    assert "b cannot be stopped: /b cannot be unmounted: Device or resource busy" in done.output
    assert done.return_value == 1
    assert world.see("b").state is State.SERVING


def test_upgrade_of_all_leaves_out_what_has_no_daemon_and_tells_that(
    world: FakeMounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.set(34, "daemon", "none")
    real = world._numbered

    def numbered(number: int) -> Numbered | None:
        return Numbered(number, 1, 33, "fuse") if number == 1033 else real(number)

    monkeypatch.setattr("efuse.service.seeing.numbered", numbered)
    done = run(world, "upgrade", "--all")
    assert "a is not upgraded: it is plain\n" in done.output
    assert "b is not upgraded: it is aborted\n" in done.output
    assert "c: upgraded\n" in done.output
    assert done.return_value == 1
    assert world.starts()[3:] == ["c 35"]


def test_start_that_hangs_is_given_up_and_its_process_goes_on(world: FakeMounts) -> None:
    world.unmount(33)
    world.end("a", 3)
    (world.root / "a.hangs").touch()
    done = run(world, "start", "a", "--wait", "0.2")
    process = world.process("a")
    told = f"a is not served yet: process {process.pid} goes on (ETIMEDOUT)"
    assert str(done.exception) == told
    assert process.is_alive
    assert run(world, "status", "a").return_value == 1
    assert run(world, "stop", "a").output == "a: stopped\n"
    assert not process.is_alive


def test_stop_does_not_wait_for_a_start(world: FakeMounts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock of a mount is free while its daemon starts."""
    world.unmount(33)
    world.end("a", 3)
    (world.root / "a.hangs").touch()
    stopped = []

    def look(given: Description, records: Records, process: Process, **_: object) -> None:
        with records.locked(given.name, wait=False) as is_locked:
            stopped.append(is_locked)

    monkeypatch.setattr("efuse.service.actions.await_service", look)
    assert run(world, "start", "a").output == "a: started\n"
    assert stopped == [True]


def test_upgrade_that_hangs_is_given_up_and_another_one_refused(world: FakeMounts) -> None:
    old = world.process("a")
    (world.root / "a.hangs").touch()
    world.describe("a", "recovery = 7")
    done = run(world, "upgrade", "a", "--wait", "0.2")
    new = world.process("a")
    assert str(done.exception) == f"a is not served yet: process {new.pid} goes on (ETIMEDOUT)"
    done = run(world, "upgrade", "a", "--wait", "0.2")
    told = f"a cannot be upgraded: process {new.pid} still upgrades it (EBUSY)"
    assert str(done.exception) == told
    assert old.is_alive
    (world.root / "a.hangs").unlink()


def test_failed_upgrade_leaves_the_process_in_the_record(world: FakeMounts) -> None:
    old = world.process("a")
    (world.root / "a.fails").touch()
    assert "the last error of a" in str(run(world, "upgrade", "a").exception)
    assert world.process("a") == old
    world.unmount(33)
    assert world.see("a").state is State.ENDING, "its first process has not ended"


def test_daemon_that_its_old_supervisor_starts_is_no_success_of_an_upgrade(
    world: FakeMounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    (world.root / "a.hangs").touch()
    world.describe("a", "recovery = 7")

    def restarted(command: list[str], log: Path, note: Callable[[Process], None]) -> Process:
        world.set(33, "incarnation", "1")
        return spawn(command, log, note)

    monkeypatch.setattr("efuse.service.actions.spawn", restarted)
    done = run(world, "upgrade", "a", "--wait", "0.2")
    assert "is not served yet" in str(done.exception)
    told = json.loads(run(world, "status", "--json", "a").stdout)["mounts"]
    assert [each["changed"] for each in told] == [True]


def test_upgrade_that_was_interrupted_is_complete_when_its_daemon_serves(
    world: FakeMounts, monkeypatch: pytest.MonkeyPatch, eventually: Eventually
) -> None:
    world.describe("a", "recovery = 7")
    with monkeypatch.context() as patch:
        patch.setattr("efuse.service.actions.await_service", lambda *_, **__: None)
        run(world, "upgrade", "a")
    new = world.process("a")
    eventually(lambda: incarnations(world)[0] == 1, what="the successor")
    service = Service(world.directory, world.records)
    service.reload()
    service.step()
    record = world.records.load("a")
    assert record is not None
    assert (record.process, record.successor.pid) == (new, 0)
    told = json.loads(run(world, "status", "--json", "a").stdout)["mounts"]
    assert [each["changed"] for each in told] == [False]


def test_start_attends_to_a_mount_that_was_stopped_but_is_served(world: FakeMounts) -> None:
    """`stop` was killed before it has unmounted."""
    record = world.records.load("a")
    assert record is not None
    world.records.save(dataclasses.replace(record, rest="stopped"))
    assert run(world, "start", "a").output == "a: is served already\n"
    assert world.records.load("a") == record


def test_start_waits_for_a_supervisor_in_the_background(
    world: FakeMounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.end("a")
    world.set(33, "daemon", "dead")
    fd = locked(Connection(33), DaemonLock.RESTARTING)
    done = run(world, "start", "a", "--wait", "0.2")
    os.close(fd)
    assert "is not served yet" in str(done.exception)


def test_stop_of_a_mount_whose_record_is_spoiled_tells_that(world: FakeMounts) -> None:
    (world.directory / "a.toml").unlink()
    world.records.path("a").write_text("{")
    done = run(world, "stop", "a")
    assert "a cannot be stopped: its record is spoiled (EINVAL)" in done.output
    assert done.return_value == 1


def test_second_description_of_a_place_is_not_started(world: FakeMounts) -> None:
    (world.root / "link").symlink_to("/a")
    for name, place in (("d", "//a"), ("e", world.root / "link"), ("f", "/./a/../a/")):
        (world.directory / f"{name}.toml").write_text(f'mountpoint = "{place}"\ncommand = ["x"]\n')
        done = run(world, "start", name)
        assert "a.toml has the same mountpoint (EEXIST)" in str(done.exception)


def test_reload_sends_a_signal_to_the_service(
    world: FakeMounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run(world, "reload")
    assert str(done.exception) == "the service cannot reload: it does not run (ESRCH)"
    seen = []
    monkeypatch.setattr(
        "efuse.service.processes.Process.send", lambda _, number: seen.append(number) or True
    )
    with Records(world.records.directory).serving(world.directory):
        assert run(world, "reload").exception is None
    assert seen == [signal.SIGHUP]


def test_commands_of_a_user_are_refused(world: FakeMounts) -> None:
    """Another user may see the mounts, and change nothing."""
    world.root.chmod(0o755)
    pid = os.fork()
    if not pid:
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        shown = run(world, "status").return_value
        refused = run(world, "stop", "a").output
        os._exit(0 if shown == 0 and "cannot be written: Permission denied" in refused else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
