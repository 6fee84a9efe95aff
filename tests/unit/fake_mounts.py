# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mounts of `efuse service` that appear and vanish as a test wants; their processes are real."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from efuse.control import Connection, Mount, all_mounts
from efuse.control.mounts import Numbered
from efuse.service.description import Description
from efuse.service.processes import Process
from efuse.service.records import Records
from efuse.service.seeing import Seen, see
from tests.conftest import wait_for
from tests.unit.fake_sysfs import FakeSysfs


class Clock:
    """A clock that a test sets.

    :ivar now_s: the time in seconds.
    """

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class FakeMounts:
    """A fake sysfs, descriptions, records, and a command in place of each one of `efuse`.

    The process that is started for a mount writes its id into the file `starts`, after the name of
    the mount and what it does, and goes on until it is ended. A takeover succeeds, unless the test
    has made the file NAME.fails, or NAME.hangs.

    A connection has the file `served`, with the id of the process that was started for the daemon.

    :ivar directory: directory of the descriptions.
    :ivar records: the records of the mounts.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.directory = root, root / "mounts.d"
        self.directory.mkdir()
        self.records = Records(root / "state")
        self.sysfs = FakeSysfs(root)
        self.sysfs.everywhere(monkeypatch)
        self._mounted: dict[int, int] = {}
        self._connections: dict[str, int] = {}
        self._daemons: list[subprocess.Popen[bytes]] = []
        for name, fake in (
            ("service.seeing.numbered", self._numbered),
            ("service.serving.numbered", self._numbered),
            ("service.stopping.numbered", self._numbered),
            ("fs.mountpoint.numbered", self._numbered),
            ("service.seeing.number_of", lambda connection: self._mounted.get(connection, 0)),
            ("service.actions.numbers", lambda: sorted(self._mounted.values())),
            ("service.seeing.has_made", self._has_made),
            ("service.seeing.serves", self._serves),
            ("service.awaiting.serves", self._serves),
            ("supervisor.replacing.is_mounted", self._connection_of),
            ("service.actions.mounting", lambda given, succeeds: self._command(given, "mount")),
            (
                "service.actions.taking_over",
                lambda given, connection, _, force: self._command(given, f"{connection}"),
            ),
        ):
            monkeypatch.setattr(f"efuse.{name}", fake)

    def describe(self, name: str, more: str = "", *, what: str = 'command = ["x"]') -> None:
        """Write the description of a mount at /NAME."""
        text = f'mountpoint = "/{name}"\n{what}\n{more}\n'
        (self.directory / f"{name}.toml").write_text(text)

    def starts(self) -> list[str]:
        """Return the starts so far, as ``NAME mount``, or ``NAME CONNECTION`` for a takeover."""
        return [line.rpartition(" ")[0] for line in self._lines()]

    def process(self, name: str) -> Process:
        """Return the process that was started last for a mount."""
        record = self.records.load(name)
        assert record is not None
        return record.started[0]

    def end(self, name: str, status: int = 0) -> None:
        """End the process of a mount with a status."""
        process = self.process(name)
        begun = f" {process.pid}"
        wait_for(lambda: any(line.endswith(begun) for line in self._lines()), what="its begin")
        (self.root / "status").write_text(f"{status}\n")
        process.send(signal.SIGUSR1)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

    def mount(self, name: str, connection: int, **values: str) -> None:
        """Mount, as the process of a mount does."""
        self.mount_other(name, connection, **values)
        self.set(connection, "served", str(self.process(name).pid))
        self._connections[name] = connection

    def mount_other(self, name: str, connection: int, **values: str) -> None:
        """Mount at /NAME, as any process does."""
        self.sysfs.add(connection, f"/{name}", **{"state": "plain", **values})
        self.set(connection, "served", "0")
        self._mounted[connection] = 1000 + connection

    def see(self, name: str, place: str = "") -> Seen:
        """Return what is seen of a mount.

        :param place: where its description has it; by default /NAME.
        """
        return see(self.records.load(name), place or f"/{name}", all_mounts())

    def set(self, connection: int, name: str, value: str) -> None:
        """Set an attribute of a connection."""
        (self.sysfs.root / f"connections/{connection}/{name}").write_text(f"{value}\n")

    def unmount(self, connection: int) -> None:
        """Unmount, as any process does."""
        del self._mounted[connection]
        self._connections = {n: c for n, c in self._connections.items() if c != connection}
        lines = self.sysfs.mountinfo.read_text().splitlines(keepends=True)
        left = [line for line in lines if f" 0:{connection} " not in line]
        self.sysfs.mountinfo.write_text("".join(left))

    def begin_daemon(self, name: str) -> int:
        """Start a process in place of the daemon of a mount, and return its id.

        The mount waits for a successor when it has ended.
        """
        place = f"{self.sysfs.root}/connections/{self._connections[name]}"
        script = (
            f"sh -c 'echo $$ > {self.root}/new; mv {self.root}/new {self.root}/daemon\n"
            f"exec sleep 1000'; echo dead > {place}/new; mv {place}/new {place}/daemon"
        )
        self._daemons.append(subprocess.Popen(["/bin/sh", "-c", script], stderr=subprocess.DEVNULL))
        wait_for(lambda: (self.root / "daemon").exists(), what="the daemon")
        return int((self.root / "daemon").read_text())

    def close(self) -> None:
        """End all processes that were started."""
        pids = {int(line.split()[-1]) for line in self._lines()}
        for record in map(self.records.load, self.records.names()):
            pids |= {each.pid for each in record.started if each.is_alive} if record else set()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
        for daemon in self._daemons:
            if daemon.poll() is None:
                os.kill(int((self.root / "daemon").read_text()), signal.SIGKILL)
            daemon.wait()

    def _lines(self) -> list[str]:
        path = self.root / "starts"
        return path.read_text().splitlines() if path.exists() else []

    def _command(self, given: Description, how: str) -> list[str]:
        script = (
            f"trap 'exit $(cat {self.root}/status)' USR1\n"
            f"echo {given.name} {how} $$ >> {self.root}/starts\n"
            f"echo efuse: the last error of {given.name}\n"
            f"[ -e {self.root}/{given.name}.fails ] && exit 1\n"
            f"while [ -e {self.root}/{given.name}.hangs ]; do sleep 0.01; done\n"
            f"{self._takeover(given.name)}"
            "while :; do sleep 0.01; done"
        )
        return ["/bin/sh", "-c", script]

    def _takeover(self, name: str) -> str:
        """Return the part of a script that takes a mount over, if there is one."""
        if name not in self._connections:
            return ""
        place = f"{self.sysfs.root}/connections/{self._connections[name]}"
        return (
            f"echo $(($(cat {place}/incarnation) + 1)) > {place}/new\n"
            f"mv {place}/new {place}/incarnation\n"
            f"echo serving > {place}/new; mv {place}/new {place}/daemon\n"
            f"echo $$ > {place}/new; mv {place}/new {place}/served\n"
        )

    def _connection_of(self, number: int) -> int | None:
        return {n: c for c, n in self._mounted.items()}.get(number)

    def _numbered(self, number: int) -> Numbered | None:
        found = self._connection_of(number)
        return None if found is None else Numbered(number, 100 + found, found, "efuse")

    def _has_made(self, process: Process, mount: Mount) -> bool:
        return self._is_served_by(process, mount.connection)

    def _serves(self, process: Process, connection: Connection) -> bool:
        is_by = self._is_served_by(process, connection.id)
        return is_by and connection.daemon == "serving"

    def _is_served_by(self, process: Process, connection: int) -> bool:
        path = self.sysfs.root / f"connections/{connection}/served"
        return int(path.read_text()) == process.pid
