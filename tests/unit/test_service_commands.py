# SPDX-License-Identifier: LGPL-2.1-or-later
"""The commands of `efuse service`."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from efuse.cli.service import cli
from efuse.control import Connection
from efuse.errors import EfuseError
from efuse.service.description import Description
from efuse.service.processes import Process
from efuse.service.records import Records
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
    monkeypatch.setattr("efuse.service.actions.holders", lambda connection: {daemon})
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
    assert run(world, "stop", "a", "b").output == "a: was not running\nb: was not running\n"
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
        refused = str(run(world, "stop", "a").exception)
        os._exit(0 if shown == 0 and "cannot be written: Permission denied" in refused else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
