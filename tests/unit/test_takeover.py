# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which process attends to a daemon, and how `efuse takeover` ends it."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from efuse.cli import takeover as command
from efuse.cli._daemon import Daemon
from efuse.cli.run import cli as run
from efuse.control import Connection, daemons
from efuse.control.daemon_locks import DaemonLock, is_locked, locked
from efuse.control.daemons import holders
from efuse.control.takeover import take_over, why_it_ends
from efuse.errors import ControlError, MountError, UsageError
from efuse.fs.acceleration import Acceleration
from efuse.supervisor import replacing
from efuse.supervisor.daemon_mount import DaemonMount
from efuse.supervisor.replacing import without_daemon
from tests.unit.fake_sysfs import FakeSysfs


@pytest.fixture
def sysfs(memory_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSysfs:
    tree = FakeSysfs(memory_path)
    tree.everywhere(monkeypatch)
    return tree


def _recovery(path: Path) -> int:
    return int((path / "recovery").read_text())


def test_lock_excludes_another_until_it_is_closed(sysfs: FakeSysfs) -> None:
    sysfs.add(41)
    connection = Connection(41)
    assert not is_locked(connection, DaemonLock.REPLACING)
    fd = locked(connection, DaemonLock.REPLACING)
    assert is_locked(connection, DaemonLock.REPLACING)
    assert not is_locked(connection, DaemonLock.RESTARTING)
    with pytest.raises(ControlError, match="another process does that"):
        locked(connection, DaemonLock.REPLACING)
    os.close(fd)
    os.close(locked(connection, DaemonLock.REPLACING))


def test_lock_of_a_connection_that_has_ended_fails(sysfs: FakeSysfs) -> None:
    path = sysfs.add(41)
    connection = Connection(41)
    (path / "abort").unlink()
    assert not is_locked(connection, DaemonLock.REPLACING)
    with pytest.raises(ControlError, match="ENOENT"):
        locked(connection, DaemonLock.REPLACING)


def test_locks_are_on_files_for_root_alone() -> None:
    modes = {name: each.mode for name, each in Connection.attributes().items()}
    assert all(modes[lock.value] & 0o077 == 0 for lock in DaemonLock)


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({}, ""),
        ({"io_uring": "1"}, "its daemon receives requests by io_uring"),
    ],
)
def test_mount_ends_with_its_daemon_for_a_reason(
    values: dict[str, str], why: str, sysfs: FakeSysfs
) -> None:
    sysfs.add(41, **values)
    assert why_it_ends(Connection(41)) == why


def test_takeover_of_what_is_no_device_fails() -> None:
    fd = os.open(os.devnull, os.O_RDWR)
    try:
        with pytest.raises(OSError) as raised:
            take_over(fd, fd)
        assert raised.value.errno == errno.ENOTTY
    finally:
        os.close(fd)


def _attach(_: int) -> Acceleration:
    raise MountError("no handlers are wanted")


def test_mount_outlives_its_daemon_until_it_is_given_up(sysfs: FakeSysfs) -> None:
    path = sysfs.add(41)
    mount = DaemonMount("/mnt")
    mount.begin(41, _attach)
    assert not mount.outlives_daemon
    mount.outlive(60)
    assert mount.outlives_daemon
    assert _recovery(path) == 60
    assert is_locked(Connection(41), DaemonLock.RESTARTING)
    mount.give_up()
    assert not mount.outlives_daemon
    assert _recovery(path) == 0
    assert (path / "abort").read_text() == ""
    assert not is_locked(Connection(41), DaemonLock.RESTARTING)
    mount.close_watched()


def test_mount_that_waits_ends_when_it_is_given_up(sysfs: FakeSysfs) -> None:
    path = sysfs.add(41, daemon="dead")
    mount = DaemonMount("/mnt")
    mount.begin(41, _attach)
    mount.give_up()
    assert (path / "abort").read_text() == "1"
    mount.close_watched()


def test_mount_of_a_daemon_with_io_uring_is_left_as_it_is(sysfs: FakeSysfs) -> None:
    path = sysfs.add(41, io_uring="1")
    mount = DaemonMount("/mnt")
    mount.begin(41, _attach)
    mount.outlive(60)
    assert mount.ends_because == "its daemon receives requests by io_uring"
    assert _recovery(path) == 0
    assert not is_locked(Connection(41), DaemonLock.RESTARTING)
    mount.close_watched()


@pytest.mark.parametrize(("daemon", "is_replaced"), [("dead", True), ("serving", False)])
def test_mount_is_left_to_the_process_that_replaces_its_daemon(
    daemon: str, is_replaced: bool, sysfs: FakeSysfs
) -> None:
    sysfs.add(41, daemon=daemon)
    mount = DaemonMount("/mnt")
    mount.begin(41, _attach)
    assert not mount.is_being_replaced
    fd = locked(Connection(41), DaemonLock.REPLACING)
    assert mount.is_being_replaced == is_replaced
    os.close(fd)
    mount.close_watched()


def _descriptor(proc: Path, pid: int, device: str, serves: int | None) -> None:
    for name in ("fd", "fdinfo"):
        (proc / str(pid) / name).mkdir(parents=True)
    (proc / str(pid) / "fd/5").symlink_to(device)
    told = "" if serves is None else f"fuse_connection:\t{serves}\n"
    (proc / str(pid) / "fdinfo/5").write_text(f"pos:\t0\n{told}")


def test_holders_are_only_processes_that_certainly_serve(tmp_path: Path) -> None:
    _descriptor(tmp_path, 10, "/dev/efuse", 3)
    _descriptor(tmp_path, 11, "/dev/efuse", 4)
    _descriptor(tmp_path, 12, "/dev/efuse", None)
    _descriptor(tmp_path, 13, "/dev/fuse", 3)
    (tmp_path / "self").mkdir()
    assert holders(3, proc=tmp_path) == {10}
    assert daemons.has_open(tmp_path / "12", "/dev/efuse")
    assert not daemons.has_open(tmp_path / "13", "/dev/efuse")


_DAEMON = """
import signal, sys, time
if sys.argv[1] != "default":
    signal.signal(signal.SIGTERM, lambda *_: sys.argv[1] == "ends" and sys.exit(0))
print(flush=True)
time.sleep(600)
"""


class _Daemon:
    """A process that stands for the daemon of connection 41.

    :param how: ``default``: it has no handler for SIGTERM; ``ends``: it ends by it; ``goes on``.
    """

    def __init__(self, how: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        words = [sys.executable, "-c", _DAEMON, how]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        self.process.stdout.readline()
        monkeypatch.setattr(replacing, "holders", lambda _: {self.process.pid} & self._alive)
        monkeypatch.setattr(Connection, "daemon", property(lambda _: self._state))
        monkeypatch.setattr(replacing, "_END_S", 0.5)
        self.path = path

    @property
    def _alive(self) -> set[int]:
        return set() if self.process.poll() is not None else {self.process.pid}

    @property
    def _state(self) -> str:
        return "serving" if self._alive else "dead"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def daemon(sysfs: FakeSysfs, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], _Daemon]]:
    path = sysfs.add(41, "/mnt", state="plain")
    with contextlib.ExitStack() as stack:

        def start(how: str) -> _Daemon:
            return stack.enter_context(contextlib.closing(_Daemon(how, path, monkeypatch)))

        yield start


@pytest.mark.parametrize(
    ("how", "is_restarted", "force", "number"),
    [
        ("default", False, False, signal.SIGTERM),
        ("default", True, False, signal.SIGTERM),
        ("ends", False, True, signal.SIGKILL),
        ("ends", True, False, 0),
        ("goes on", True, True, signal.SIGKILL),
    ],
)
def test_daemon_is_ended_so_that_it_leaves_its_mount(
    how: str,
    is_restarted: bool,
    force: bool,
    number: int,
    daemon: Callable[[str], _Daemon],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replacing, "_LEAVE_S", 0.0)
    started, connection = daemon(how), Connection(41)
    lock = locked(connection, DaemonLock.RESTARTING) if is_restarted else -1
    with without_daemon(connection, "/mnt", within_s=30, force=force):
        assert started.process.poll() == -number
        assert _recovery(started.path) == 30
        assert is_locked(connection, DaemonLock.REPLACING)
    assert not is_locked(connection, DaemonLock.REPLACING)
    if is_restarted:
        os.close(lock)


@pytest.mark.parametrize(
    ("how", "is_restarted", "output"),
    [
        ("ends", False, "its daemon would unmount it when asked to end"),
        ("goes on", False, "its daemon would unmount it when asked to end"),
        ("goes on", True, "its daemon does not end"),
    ],
)
def test_daemon_that_is_not_ended_goes_on(
    how: str, is_restarted: bool, output: str, daemon: Callable[[str], _Daemon]
) -> None:
    started, connection = daemon(how), Connection(41)
    lock = locked(connection, DaemonLock.RESTARTING) if is_restarted else -1
    with (
        pytest.raises(MountError, match=output),
        without_daemon(connection, "/mnt", within_s=30, force=False),
    ):
        pytest.fail("the daemon was not ended")
    assert started.process.poll() is None
    assert _recovery(started.path) == 0
    assert not is_locked(connection, DaemonLock.REPLACING)
    if is_restarted:
        os.close(lock)


@pytest.mark.parametrize(
    ("values", "output"),
    [
        ({"daemon": "starting"}, "another daemon is starting to serve it"),
        ({"daemon": "none"}, "its connection has ended"),
        ({"daemon": "serving"}, "its daemon is not visible here"),
        ({"io_uring": "1"}, "its daemon receives requests by io_uring"),
    ],
)
def test_mount_that_cannot_be_taken_over_is_refused(
    values: dict[str, str], output: str, sysfs: FakeSysfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    sysfs.add(41, "/mnt", **values)
    monkeypatch.setattr(replacing, "holders", lambda _: set())
    with (
        pytest.raises(MountError, match=output),
        without_daemon(Connection(41), "/mnt", within_s=30, force=True),
    ):
        pytest.fail("it was not refused")


@pytest.mark.parametrize("there", [None, 42])
def test_mount_whose_connection_may_be_of_another_one_is_not_taken_over(
    there: int | None, sysfs: FakeSysfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    sysfs.add(41, "/mnt", state="plain", daemon="dead", recovery="10")
    monkeypatch.setattr(replacing, "is_mounted", {1041: there}.get)
    with (
        pytest.raises(MountError, match=r"it was unmounted meanwhile \(ENOTCONN\)"),
        without_daemon(Connection(41), "/mnt", within_s=30, force=True, number=1041),
    ):
        pytest.fail("it was taken over")
    assert Connection(41).recovery == 10


def test_daemon_of_a_connection_that_has_just_ended_is_not_ended(
    daemon: Callable[[str], _Daemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another connection may have got its number when the processes that serve it are found."""
    started = daemon("goes on")

    def after_the_end(_: int) -> set[int]:
        (started.path / "connected").unlink(missing_ok=True)
        return {started.process.pid}

    monkeypatch.setattr(replacing, "holders", after_the_end)
    with (
        pytest.raises(ControlError),
        without_daemon(Connection(41), "/mnt", within_s=30, force=True),
    ):
        pytest.fail("it was taken over")
    assert started.process.poll() is None


def test_mount_that_waits_is_taken_over_immediately(sysfs: FakeSysfs) -> None:
    sysfs.add(41, "/mnt", state="plain", daemon="dead", recovery="10")
    with without_daemon(Connection(41), "/mnt", within_s=30, force=False):
        assert Connection(41).recovery == 30


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("efuse.fs.mountpoint.kernel_lacks_efuse", lambda: None)


def _takeover(*words: str) -> BaseException | None:
    return CliRunner().invoke(command.cli, words).exception


@pytest.mark.usefixtures("loaded")
def test_command_is_checked_before_the_daemon_is_ended(sysfs: FakeSysfs) -> None:
    sysfs.add(41, "/mnt")
    for words, kind, output in (
        (("/srv", "--", "true"), ControlError, "is not on eFuse"),
        (("/mnt", "--", "no-such-program"), UsageError, "it is no program"),
    ):
        failed = _takeover(*words)
        assert isinstance(failed, kind), failed
        assert output in str(failed)


@pytest.mark.usefixtures("loaded")
def test_connection_that_is_not_mounted_here_is_not_taken_over(sysfs: FakeSysfs) -> None:
    sysfs.add(41)
    assert "it is not mounted here" in str(_takeover("41", "--", "true"))


@pytest.mark.parametrize(
    ("words", "policy"),
    [
        ((), None),
        (("--restart",), "always"),
        (("--restart", "--no-channels"), "always"),
        (("--restart=always",), "always"),
        (("--restart=on-failure",), "on-failure"),
    ],
)
@pytest.mark.usefixtures("loaded")
def test_restart_may_come_without_a_value(
    words: tuple[str, ...], policy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []
    monkeypatch.setattr(
        "efuse.cli._restarting.supervise", lambda _, policy, __: found.append(policy)
    )
    monkeypatch.setattr("efuse.cli.run._run", lambda _: found.append(None))
    done = CliRunner().invoke(run, [*words, "--", "true", "--restart"])
    assert found[:1] == [policy], done


def test_options_that_are_given_win_over_the_profile() -> None:
    none = dict.fromkeys(("consistency", "revalidate", "max_request", "max_readdir"))
    daemon = Daemon.given(
        command=("squashfuse", "image", "/mnt"),
        profile=None,
        promises=("stable_nodeids",),
        data_cache=None,
        channels=True,
        require=False,
        **none | {"consistency": "cto"},
    )
    assert daemon.options.consistency == "cto"
    assert daemon.options.stable_nodeids
    assert daemon.name == "squashfuse"
