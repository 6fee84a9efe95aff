# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test mounts that begin and end with requests in flight, under load, and with open files."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
from pathlib import Path

import pytest

from efuse import bpf
from efuse.control import connections
from efuse.fs.mountpoint import unmount
from efuse.module import live
from tests.guest.support.daemons import Call, Mount, eventually, fails, force_stat, mounted
from tests.guest.support.scripted_daemon import Options

LONG = 3600.0
GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)


def _options() -> Options:
    return Options(entry_timeout=LONG, attr_timeout=LONG)


def _ended_by_loss(call: Call[object]) -> None:
    try:
        result = call.result()
    except OSError as error:
        assert error.errno in GONE, error
    else:
        raise AssertionError(f"it got {result!r} of a dead daemon")


def _programs() -> set[int]:
    return {a.connection for a in bpf.list_attached()}


def _work(m: Mount, rounds: int | None = None) -> str:
    """Use the mount until it ends, or for *rounds*, and return the reason for the end.

    During a rename, a lazy unmount between the lookups of the two names leaves one name in the
    mount, and the other below it (EXDEV).
    """
    number = 0
    while rounds is None or number < rounds:
        number += 1
        try:
            name = m / f"w{os.getpid()}"
            with open(name, "w") as file:
                file.write("x" * number)
            assert os.stat(name).st_size == number
            os.listdir(m.path)
            os.rename(name, name + "r")
            os.unlink(name + "r")
        except OSError as error:
            if error.errno in (*GONE, errno.ENOENT, errno.EBUSY, errno.EXDEV):
                return errno.errorcode[error.errno]
            raise
    return "done"


@pytest.mark.parametrize("point", ["before", "after"])
def test_requests_in_flight_fail_when_the_daemon_is_killed(mountpoint: Path, point: str) -> None:
    m = Mount(mountpoint, _options(), ("default_permissions",))
    try:
        m.attach()
        number = m.connection.id
        for name in ("a", "b", "c"):
            m.model.create(name, b"data")
            os.stat(m / name)
        for opcode in ("getattr", "unlink", "getxattr"):
            m.hold(opcode, point)
        calls: list[Call[object]] = [
            Call(force_stat, m / "a"),
            Call(os.unlink, m / "b"),
            Call(os.getxattr, m / "c", "user.x"),
        ]
        m.wait_held(3)
        assert m.connection.waiting == 3
        m.kill()
        for call in calls:
            _ended_by_loss(call)
        fails(errno.ENOTCONN, force_stat, m / "a")
        fails(errno.ENOTCONN, os.getxattr, m / "a", "user.x")
        unmount(str(mountpoint))
        assert number not in connections()
        assert m.attachment is not None
        m.attachment.close()
        eventually(lambda: number not in _programs(), "its programs stay")
    finally:
        m.close()


def test_kernel_answers_nothing_after_the_daemon_died(mountpoint: Path) -> None:
    m = Mount(mountpoint, _options(), ("default_permissions",))
    try:
        m.attach()
        m.model.create("f")
        m.model.set_xattr("f", b"user.x", b"1")
        os.getxattr(m / "f", "user.x")
        with m.answered("getxattr"):
            os.getxattr(m / "f", "user.x")
        m.kill()
        fails(errno.ENOTCONN, os.getxattr, m / "f", "user.x")
    finally:
        m.close()


def test_unmount_detaches_the_set_and_removes_the_connection(mountpoint: Path) -> None:
    with mounted(mountpoint) as m:
        number = m.connection.id
        assert m.connection.state == "attached"
        assert number in _programs()
    assert number not in connections()


@pytest.mark.parametrize("lazy", [False, True], ids=["unmount", "lazily"])
def test_unmount_under_load_ends_the_calls_and_the_connection(mountpoint: Path, lazy: bool) -> None:
    m = Mount(mountpoint, _options(), ("default_permissions",))
    try:
        m.attach()
        number = m.connection.id
        calls = [Call(_work, m, 40) for _ in range(3)]
        eventually(lambda: m.count("create", "daemon") > 6)
        if lazy:
            unmount(str(mountpoint), lazy=True)
        else:

            def over() -> bool:
                try:
                    unmount(str(mountpoint))
                except OSError as error:
                    assert error.errno == errno.EBUSY
                    return False
                return True

            eventually(over)
        for call in calls:
            # After the mount has gone, the calls use the directory below it.
            allowed = {"done", "ENOENT", "EBUSY", "ENOTCONN"} | ({"EXDEV"} if lazy else set())
            assert call.result() in allowed
        eventually(lambda: number not in connections(), "the connection stays")
    finally:
        m.close()


def test_abort_under_load_ends_the_calls(mountpoint: Path) -> None:
    m = Mount(mountpoint, _options(), ("default_permissions",))
    try:
        m.attach()
        calls = [Call(_work, m) for _ in range(2)]
        eventually(lambda: m.count("create", "daemon") > 3)
        m.connection.abort()
        for call in calls:
            assert call.result() in ("ENOTCONN", "ECONNABORTED", "EIO")
        unmount(str(mountpoint))
    finally:
        m.close()


def test_abort_ends_the_requests_of_a_daemon_that_has_stopped(mountpoint: Path) -> None:
    """The requests that the daemon has read, and those that are still in the queue, fail."""
    m = Mount(mountpoint, _options(), ("default_permissions",))
    try:
        m.attach()
        for name in ("a", "b"):
            m.model.create(name, b"data")
            os.stat(m / name)
        m.hold("getattr", "before")
        calls: list[Call[object]] = [Call(force_stat, m / "a")]
        m.wait_held()
        os.kill(m.pid, signal.SIGSTOP)
        eventually(lambda: _state(m.pid) == "T", "the daemon goes on")
        calls.append(Call(os.getxattr, m / "b", "user.x"))
        eventually(lambda: m.connection.waiting == 2, "the second request is not sent")
        assert not any(call.done() for call in calls)
        m.connection.abort()
        for call in calls:
            _ended_by_loss(call)
        assert _state(m.pid) == "T"
        fails(errno.ENOTCONN, force_stat, m / "a")
    finally:
        m.close()


def _state(pid: int) -> str:
    """Return the state of a process, as ps(1) shows it."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_successive_mounts_leave_no_connections_or_programs(mountpoint: Path) -> None:
    before = connections()
    for number in range(15):
        with mounted(mountpoint, consistency="exclusive") as m:
            m.model.create("f", b"x" * number)
            for _ in range(2):
                assert os.stat(m / "f").st_size == number
                assert force_stat(m / "f").st_size == number
            assert m.count("getattr", "hits") >= 1
    assert connections() == before
    assert not _programs()


def test_module_unloads_after_a_killed_daemon(mountpoint: Path, module_file: Path) -> None:
    m = Mount(mountpoint, _options(), ("default_permissions",))
    try:
        m.attach()
        m.model.create("f")
        fd = os.open(m / "f", os.O_RDONLY)
        m.kill()
        rmmod = subprocess.run(["rmmod", "efuse"], capture_output=True, check=False)
        assert rmmod.returncode, "unloaded with a file system mounted"
        fails(errno.ENOTCONN, os.close, fd)
    finally:
        m.close()

    def unloaded() -> bool:
        return not subprocess.run(["rmmod", "efuse"], capture_output=True, check=False).returncode

    eventually(unloaded, "the module stays in use")
    live.load(module_file)
    with mounted(mountpoint) as again:
        again.model.create("f")
        os.stat(again / "f")


def test_release_of_a_file_opened_in_the_kernel_is_not_sent(mountpoint: Path) -> None:
    with mounted(mountpoint, consistency="exclusive", declare=("no_open",)) as m:
        m.model.mkdir("d")
        m.model.create("d/f", b"data")
        Path(m / "d/f").read_bytes()
        os.listdir(m / "d")
        eventually(lambda: not m.call("handles"))
        m.log()
        hits = m.count("open", "hits"), m.count("opendir", "hits")
        for _ in range(3):
            assert Path(m / "d/f").read_bytes() == b"data"
            assert os.listdir(m / "d") == ["f"]
        assert (m.count("open", "hits"), m.count("opendir", "hits")) == (hits[0] + 3, hits[1] + 3)
        asked = m.asked()
        assert not {"open", "opendir", "release", "releasedir"} & set(asked), asked


def test_release_of_a_file_opened_in_the_kernel_is_not_sent_after_detach(mountpoint: Path) -> None:
    with mounted(mountpoint, consistency="exclusive", declare=("no_open",)) as m:
        m.model.create("f", b"data")
        sent = os.open(m / "f", os.O_RDONLY)
        with m.answered("open"):
            local = os.open(m / "f", os.O_RDONLY)
        assert m.attachment is not None
        m.attachment.detach()
        m.attachment = None
        assert m.connection.state == "plain"
        assert m.connection.exit_info.kind == "unregister"
        m.log()
        os.close(local)
        late = os.open(m / "f", os.O_RDONLY)
        os.close(late)
        os.close(sent)
        eventually(lambda: not m.call("handles"), "a RELEASE is missing")
        assert m.asked().count("release") == 2


def test_release_of_a_file_opened_by_the_daemon_is_sent(mountpoint: Path) -> None:
    with mounted(mountpoint, consistency="exclusive") as m:
        m.model.create("f", b"data")
        for _ in range(5):
            with m.passed("open"):
                Path(m / "f").read_bytes()
        assert not m.count("open", "hits")
        eventually(lambda: not m.call("handles"))


def test_flush_is_answered_only_if_declared(mountpoint: Path) -> None:
    with mounted(mountpoint) as m:
        m.model.create("f", b"data")
        with m.passed("flush", "declined"):
            Path(m / "f").read_bytes()
        m.connection.no_flush = True
        with m.answered("flush"):
            Path(m / "f").read_bytes()
        with m.passed("flush", "declined"):
            Path(m / "f").write_bytes(b"new")
        reader = os.open(m / "f", os.O_RDONLY)
        with open(m / "f", "ab") as file:
            file.write(b"more")
        with m.passed("flush", "declined"):
            os.close(reader)


def test_flush_is_sent_to_a_daemon_that_keeps_locks(mountpoint: Path) -> None:
    with mounted(mountpoint, declare=("no_flush",), locks=True) as m:
        m.model.create("f", b"data")
        file = open(m / "f", "rb+")  # noqa: SIM115
        fcntl.lockf(file, fcntl.LOCK_EX)
        with m.passed("flush"):
            file.close()


def test_flush_is_sent_while_the_kernel_keeps_a_lock(mountpoint: Path) -> None:
    with mounted(mountpoint, declare=("no_flush",)) as m:
        m.model.create("f", b"data")
        file = open(m / "f", "rb+")  # noqa: SIM115
        fcntl.lockf(file, fcntl.LOCK_EX)
        with m.passed("flush"):
            file.close()
        with m.answered("flush"):
            Path(m / "f").read_bytes()
