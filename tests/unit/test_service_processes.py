# SPDX-License-Identifier: LGPL-2.1-or-later
"""Processes of `efuse service`: how they are started, and recognized by a later service."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
from pathlib import Path

import pytest

from efuse.control import Connection
from efuse.control.daemon_locks import DaemonLock, holder_of, locked
from efuse.errors import EfuseError
from efuse.service.description import Description
from efuse.service.processes import Process, spawn
from efuse.service.records import Record, Records
from tests.conftest import Eventually
from tests.unit.fake_sysfs import FakeSysfs


def test_process_with_another_begin_is_another_process() -> None:
    me = Process.of(os.getpid())
    assert me is not None
    assert me.is_alive
    fd = me.opened()
    assert fd >= 0
    os.close(fd)
    reused = dataclasses.replace(me, began=me.began + 1)
    assert not reused.is_alive
    assert reused.opened() == -1
    assert not reused.send(signal.SIGKILL), "it would have ended the test"


def test_process_that_has_ended_is_not_alive_before_its_parent_asks() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert Process.of(pid) is None
    os.waitpid(pid, 0)


def test_command_begins_after_it_is_recorded(tmp_path: Path, eventually: Eventually) -> None:
    noted = []
    script = f"echo $$; echo to stderr >&2; cat {tmp_path}/noted; exit 3"

    def note(process: Process) -> None:
        noted.append(process)
        (tmp_path / "noted").write_text("noted\n")

    begun = spawn(["/bin/sh", "-c", script], tmp_path / "log", note)
    assert noted == [begun]
    assert os.waitstatus_to_exitcode(os.waitpid(begun.pid, 0)[1]) == 3
    assert (tmp_path / "log").read_text() == f"{begun.pid}\nto stderr\nnoted\n"
    assert not begun.is_alive


def test_command_never_begins_if_its_starter_ends_before_the_record(tmp_path: Path) -> None:
    read, write = os.pipe()
    starter = os.fork()
    if not starter:
        os.close(read)
        command = ["/bin/sh", "-c", f"touch {tmp_path}/begun"]
        spawn(command, tmp_path / "log", lambda _: os._exit(9))
    os.close(write)
    assert os.waitstatus_to_exitcode(os.waitpid(starter, 0)[1]) == 9
    assert os.read(read, 1) == b"", "all its processes have ended"
    os.close(read)
    assert [*tmp_path.iterdir()] == []


def test_signal_before_a_command_begins_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the process that starts it has a handler for the signal, as the service has."""
    seen = []
    before = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))

    def note(process: Process) -> None:
        assert process.send(signal.SIGTERM)

    try:
        begun = spawn(["/bin/sh", "-c", "exit 3"], tmp_path / "log", note)
        _, status = os.waitpid(begun.pid, 0)
        assert os.WTERMSIG(status) == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGTERM)
        assert seen == [signal.SIGTERM], "this process has its handler, and gets its signals"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    records = Records(tmp_path / "state")
    given = Description("name", "/mnt", command=("x",))
    record = dataclasses.replace(Record.of(given), process=Process(7, 8), number=9, rest="stopped")
    record = dataclasses.replace(record, successor=Process(10, 11), successor_digest="d", above=6)
    assert records.load("name") is None
    records.save(record)
    assert records.load("name") == record
    assert records.names() == ["name"]
    records.forget("name")
    assert records.names() == []


def test_spoiled_record_counts_as_none(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.save(Record.of(Description("name", "/mnt")))
    for text in ("", "{", "[]", "{}"):
        (tmp_path / "mounts/name.json").write_text(text)
        assert records.load("name") is None


def test_full_file_system_of_the_records_is_an_error_with_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = Records(tmp_path)
    records.save(Record.of(Description("name", "/mnt")))

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("touch", "unlink"):
        monkeypatch.setattr(Path, name, full)
    for note in (
        lambda: records.note_silence("name", is_silent=True),
        lambda: records.note_silence("name", is_silent=False),
        lambda: records.note_start(Record.of(Description("name", "/mnt"))),
    ):
        with pytest.raises(EfuseError, match=r"cannot be written: No space left .*\(ENOSPC\)"):
            note()


def test_record_of_another_user_is_refused(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.save(Record.of(Description("name", "/mnt")))
    (tmp_path / "mounts/name.json").chmod(0o666)
    with pytest.raises(EfuseError, match="can be written by all users"):
        records.load("name")


def test_second_service_is_refused(tmp_path: Path) -> None:
    first, second = Records(tmp_path), Records(tmp_path)
    assert first.service() is None
    with first.serving(tmp_path / "d"):
        refused = pytest.raises(EfuseError, match=r"another one serves .* \(EBUSY\)")
        with refused, second.serving(tmp_path / "d"):
            pass
        found = second.service()
        assert found is not None
        assert (found.process.pid, found.directory) == (os.getpid(), tmp_path / "d")
    assert first.service() is None


def test_lock_of_a_mount_is_held_by_one(tmp_path: Path) -> None:
    first, second = Records(tmp_path), Records(tmp_path)
    with first.locked("name") as is_locked:
        assert is_locked
        with second.locked("name", wait=False) as is_locked:
            assert not is_locked
        with second.locked("other", wait=False) as is_locked:
            assert is_locked


def test_last_error_in_the_output_tells_what_has_failed(tmp_path: Path) -> None:
    records = Records(tmp_path)
    assert records.last_error("name") == ""
    (tmp_path / "mounts").mkdir()
    records.log("name").write_text("/mnt: eFuse, connection 33\n")
    assert records.last_error("name") == "", "this is no error"
    records.log("name").write_text("begin\nefuse: it cannot be mounted\ntry: umount\n\n")
    assert records.last_error("name") == "it cannot be mounted"
    records.shorten_log("name")
    assert records.last_error("name") == "it cannot be mounted"
    records.log("name").write_bytes(b"x" * (1 << 20) + b"y")
    records.shorten_log("name")
    assert records.log("name").read_bytes() == b""


def test_holder_of_a_lock_is_found_without_a_lock(memory_path: Path) -> None:
    sysfs = FakeSysfs(memory_path)
    sysfs.add(33)
    connection = Connection(33, root=sysfs.root)
    assert holder_of(connection, DaemonLock.RESTARTING) == 0
    fd = locked(connection, DaemonLock.RESTARTING)
    assert holder_of(connection, DaemonLock.RESTARTING) == os.getpid()
    assert holder_of(connection, DaemonLock.REPLACING) == 0
    os.close(fd)
    assert holder_of(connection, DaemonLock.RESTARTING) == 0
