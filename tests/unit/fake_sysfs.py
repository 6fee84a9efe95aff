# SPDX-License-Identifier: LGPL-2.1-or-later
"""A directory that looks like /sys/fs/efuse, and a mountinfo that matches it."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from efuse.control import (
    PATHS,
    Connection,
    all_mounts,
    connections,
    find,
    fuse_connections,
    fuse_waiting,
    module_version,
    mounts,
)
from efuse.opcodes import COUNTED
from efuse.stats import read_all
from efuse.stats.channels import CHANNEL_COUNTERS, CHANNEL_STATE
from efuse.stats.model import COUNTERS
from efuse.stats.paths import LATENCIES, PATH_COUNTERS

VALUES = {
    "state": "attached",
    "connected": "1",
    "ops": "efuse",
    "enable_seq": "1",
    "exit_info": "none",
    "consistency": "ttl",
    "stable_nodeids": "0",
    "nodeid_per_file": "0",
    "caller_independent": "0",
    "no_open": "0",
    "no_flush": "0",
    "lazy_atime": "0",
    "lazy_open": "0",
    "revalidate": "1",
    "recovery": "0",
    "daemon": "serving",
    "incarnation": "0",
    "daemon_exit": "none",
    "epoch": "7",
    "waiting": "0",
    "io_uring": "0",
    "watch_times": "10",
    "learned": "12",
    "map_full": "0",
    "invalid_verdicts": "0",
    "paths/forced": "auto",
    "paths/max_request": "0",
    "paths/max_readdir": "32768",
    "paths/round": "5000",
    "paths/probes": "4",
    "paths/evicted": "0",
    "channels/policy": "least",
    "channels/threshold": "1",
    "channels/spread": "1",
    "channels/spin_ns": "50000",
}


class FakeSysfs:
    """Files that can be read and written like the module's."""

    def __init__(self, root: Path) -> None:
        self.root = root / "efuse"
        self.mountinfo = root / "mountinfo"
        self.fusectl = root / "fusectl"
        (self.root / "connections").mkdir(parents=True)
        (self.root / "version").write_text("0.1.0\n")
        self.mountinfo.write_text("")

    def add(
        self,
        connection: int,
        mountpoint: str = "",
        nodes: Sequence[int] = (0, 0),
        **values: str,
    ) -> Path:
        """Make a connection, mounted at *mountpoint* unless that is empty.

        :param nodes: NUMA node of each CPU.
        """
        path = self.root / "connections" / str(connection)
        for name in ("channels", "paths", "stats"):
            (path / name).mkdir(parents=True)
        for name, value in (VALUES | values).items():
            (path / name).write_text(value + "\n")
        for name in ("invalidate", "abort"):
            (path / name).write_text("")
        for name in PATHS:
            self.count_path(connection, name)
        for opcode in COUNTED:
            self.count(connection, opcode)
        for cpu, node in enumerate(nodes):
            self.count_channel(connection, cpu, node=node)
        if mountpoint:
            with self.mountinfo.open("a") as f:
                f.write(
                    f"{100 + connection} 1 0:{connection} / {mountpoint} rw,nosuid - "
                    "efuse.test source rw,user_id=0\n"
                )
        return path

    def add_plain(self, connection: int, mountpoint: str = "", waiting: int = 0) -> None:
        """Make a connection of plain FUSE, mounted at *mountpoint* unless that is empty."""
        (self.fusectl / str(connection)).mkdir(parents=True)
        (self.fusectl / str(connection) / "waiting").write_text(f"{waiting}\n")
        if mountpoint:
            with self.mountinfo.open("a") as f:
                f.write(
                    f"{100 + connection} 1 0:{connection} / {mountpoint} rw,nosuid - "
                    "fuse.test source rw,user_id=0\n"
                )

    def remove_plain(self, connection: int) -> None:
        """Unmount a connection that `add_plain` has made."""
        (self.fusectl / str(connection)).rename(self.root / f"gone-{connection}")
        lines = self.mountinfo.read_text().splitlines(keepends=True)
        self.mountinfo.write_text("".join(n for n in lines if f" 0:{connection} " not in n))

    def count(self, connection: int, opcode: str, **counters: int) -> None:
        """Set all counters of *opcode*; those that are not given become 0."""
        self._write(connection, f"stats/{opcode}", COUNTERS, counters)

    def count_path(
        self, connection: int, name: str, latency: Mapping[int, int] | None = None, **counters: int
    ) -> None:
        """Set all counters of a path; those that are not given become 0.

        :param latency: number of requests by class.
        """
        numbers = [str((latency or {}).get(index, 0)) for index in range(LATENCIES)]
        self._write(connection, f"paths/{name}", PATH_COUNTERS, counters)
        with (self.root / f"connections/{connection}/paths/{name}").open("a") as f:
            f.write(f"latency {' '.join(numbers)}\n")

    def count_channel(self, connection: int, cpu: int, **numbers: int) -> None:
        """Set all lines of a CPU's queue; those that are not given become 0."""
        self._write(connection, f"channels/{cpu}", (*CHANNEL_STATE, *CHANNEL_COUNTERS), numbers)

    def drop_line(self, connection: int, file: str, name: str) -> None:
        """Remove a line from a file of counters."""
        path = self.root / "connections" / str(connection) / file
        kept = [n for n in path.read_text().splitlines(keepends=True) if n.split()[0] != name]
        path.write_text("".join(kept))

    def _write(
        self, connection: int, file: str, names: Iterable[str], numbers: dict[str, int]
    ) -> None:
        text = "".join(f"{name} {numbers.pop(name, 0)}\n" for name in names)
        assert not numbers, f"no such counters: {numbers}"
        (self.root / "connections" / str(connection) / file).write_text(text)

    def everywhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make the package read this directory by default."""
        for function in (connections, module_version, Connection.__init__, Connection.at.__func__):
            monkeypatch.setitem(function.__kwdefaults__, "root", self.root)
        for function in (Connection.at.__func__, all_mounts, mounts, find):
            monkeypatch.setitem(function.__kwdefaults__, "mountinfo", self.mountinfo)
        for function in (fuse_connections, fuse_waiting):
            monkeypatch.setitem(function.__kwdefaults__, "root", self.fusectl)
        monkeypatch.setitem(read_all.__kwdefaults__, "root", self.root)
        monkeypatch.setitem(read_all.__kwdefaults__, "mountinfo", self.mountinfo)
