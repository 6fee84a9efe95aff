# SPDX-License-Identifier: LGPL-2.1-or-later
"""How `efuse service` proves that a process was started for a mount, directly or by another one."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse.control import Connection, all_mounts
from efuse.control.daemon_locks import DaemonLock
from efuse.service import provenance
from efuse.service.processes import Process, spawn
from efuse.service.provenance import has_made, left_of, serves
from tests.conftest import Eventually
from tests.unit.fake_sysfs import FakeSysfs


@dataclasses.dataclass
class Started:
    """A process that was started, and two in the background that it has left.

    :ivar process: the process, which has ended.
    :ivar marked: id of a process with its mark.
    :ivar cleared: id of a process below that one, whose environment is empty.
    """

    process: Process
    marked: int
    cleared: int


@pytest.fixture
def started(tmp_path: Path, eventually: Eventually) -> Iterator[Started]:
    below = f"env -i /bin/sleep 600 & echo $$ $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/ids"
    script = f"/bin/sh -c '{below}; wait' &"
    process = spawn(["/bin/sh", "-c", script], tmp_path / "log", lambda _: None)
    os.waitpid(process.pid, 0)
    eventually(lambda: (tmp_path / "ids").exists(), what="the processes")
    marked, cleared = map(int, (tmp_path / "ids").read_text().split())
    eventually(lambda: Path(f"/proc/{cleared}/environ").read_bytes() == b"", what="the program")
    yield Started(process, marked, cleared)
    for pid in (cleared, marked):
        os.kill(pid, signal.SIGKILL)


def test_process_in_the_background_has_the_mark_of_its_start(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(provenance, "_DEVICES", ("/dev/null",))  # its standard input
    assert left_of(started.process) in (started.marked, started.cleared)
    later = dataclasses.replace(started.process, began=started.process.began + 1)
    assert left_of(later) == 0
    monkeypatch.setattr(provenance, "_DEVICES", ("/dev/none",))
    assert left_of(started.process) == 0


def test_connection_is_served_by_a_process_of_the_start_or_by_its_supervisor(
    started: Started, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sysfs = FakeSysfs(memory_path)
    sysfs.add(33, "/mnt")
    sysfs.everywhere(monkeypatch)
    connection, (mount,) = Connection(33), all_mounts()
    holders: set[int] = set()
    monkeypatch.setattr(provenance, "holders", lambda _: holders)

    def seen() -> tuple[bool, bool]:
        return serves(started.process, connection), has_made(started.process, mount)

    assert seen() == (False, False)
    holders.add(os.getpid())
    assert seen() == (False, False), "another process serves it"
    for pid in (started.marked, started.cleared):
        holders.clear()
        holders.add(pid)
        assert seen() == (True, True)
    holders.clear()
    monkeypatch.setattr(
        provenance,
        "holder_of",
        lambda _, lock: started.marked if lock is DaemonLock.RESTARTING else 0,
    )
    assert seen() == (True, True)
    (sysfs.root / "connections/33/daemon").write_text("starting\n")
    assert seen() == (False, True), "it does not serve yet"


def test_plain_mount_is_of_a_start_whose_process_has_the_device(
    started: Started, memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sysfs = FakeSysfs(memory_path)
    sysfs.add_plain(34, "/mnt")
    sysfs.everywhere(monkeypatch)
    (mount,) = all_mounts()
    for pid, is_of in ((os.getpid(), False), (started.cleared, True)):
        monkeypatch.setattr(provenance, "serving", lambda *_, p=pid: [Path(f"/proc/{p}")])
        assert has_made(started.process, mount) == is_of
