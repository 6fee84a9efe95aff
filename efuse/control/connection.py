# SPDX-License-Identifier: LGPL-2.1-or-later
"""A connection, which is one mounted eFuse file system, as sysfs shows it."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efuse.control.attributes import (
    Attribute,
    choice,
    count,
    number,
    read_file,
    switch,
    text,
    trigger,
)
from efuse.control.counters import lines, numbers
from efuse.control.mounts import MOUNTINFO, find
from efuse.errors import ControlError, reason

__all__ = [
    "CONSISTENCY",
    "MOST_RECOVERY_S",
    "PATHS",
    "PROMISES",
    "ROOT",
    "Connection",
    "DaemonExit",
    "ExitInfo",
    "connections",
    "module_version",
]

ROOT = Path("/sys/fs/efuse")
"""Root of the module's sysfs tree."""

CONSISTENCY = ("strict", "ttl", "cto", "exclusive")
"""Consistency modes: how long the kernel may use what the daemon answered (docs/sysfs.md)."""

PROMISES = (
    "caller_independent",
    "lazy_atime",
    "lazy_open",
    "no_flush",
    "no_open",
    "nodeid_per_file",
    "stable_nodeids",
)
"""What may be promised for a daemon (docs/writing-a-file-system.md)."""

MOST_RECOVERY_S = 86400
"""How long callers can wait for a successor of a daemon at most, in seconds."""

PATHS = ("daemon", "direct", "cache", "device")
"""Paths that a READ or WRITE can take. The files with their counters have these names."""


@dataclass(frozen=True, slots=True)
class ExitInfo:
    """The reason why a program set was last detached.

    ``kind`` is ``none`` (no set was ever detached), ``unregister`` (the set's link ended),
    ``replace`` or ``unmount``. ``code`` is a detail of the reason; it is 0 for all present kinds.
    """

    kind: str
    code: int = 0
    message: str = ""

    @classmethod
    def parse(cls, line: str) -> "ExitInfo":
        """Parse the text of ``exit_info``.

        :raises ValueError: the text has another form.
        """
        kind, _, rest = line.partition(" ")
        if not kind:
            raise ValueError(line)
        code, _, message = rest.partition(" ")
        return cls(kind, int(code) if code else 0, message)

    def __str__(self) -> str:
        if self.kind == "none":
            return "none"
        return f"{self.kind} {self.code} {self.message}".rstrip()


@dataclass(frozen=True, slots=True)
class DaemonExit:
    """The end of the last daemon that died while ``recovery`` was set.

    :ivar time: seconds since 1970 at which its last descriptor was closed; 0: no daemon has died.
    :ivar lost: requests that it had not answered.
    :ivar resent: requests that were sent again.
    :ivar settled: requests that were found to be carried out, without sending them again.
    :ivar failed: requests that failed: their outcome is unknown, or their caller did not wait.
    :ivar gap_ms: time until a successor served, or until now, in ms.
    """

    time: int = 0
    lost: int = 0
    resent: int = 0
    settled: int = 0
    failed: int = 0
    gap_ms: int = 0

    @classmethod
    def parse(cls, line: str) -> "DaemonExit":
        """Parse the text of ``daemon_exit``.

        :raises ValueError: the text has another form.
        """
        if line == "none":
            return cls()
        time, lost, resent, settled, failed, gap_ms = map(int, line.split())
        return cls(time, lost, resent, settled, failed, gap_ms)

    def __str__(self) -> str:
        if not self.time:
            return "none"
        fields = self.time, self.lost, self.resent, self.settled, self.failed, self.gap_ms
        return " ".join(map(str, fields))


class _Directory:
    """An open sysfs directory. It is closed when nothing refers to it any more."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        os.close(self.fd)


class Connection:
    """The files of ``/sys/fs/efuse/connections/<id>/``. Reading an attribute reads its file.

    Every attribute raises :class:`~efuse.errors.ControlError` if its file cannot be read or
    written, for example because the file system has been unmounted.
    """

    state = text("whether a program set is attached", range="plain or attached", default="plain")
    connected = switch(
        "whether the connection is up, with or without a daemon; poll(2) reports its end",
        mode=0o444,
        default="1",
    )
    ops = text("name of the attached program set", range="a name, or none", default="none")
    enable_seq = number("program sets attached since the mount; a replacement counts", unit="sets")
    exit_info = Attribute(
        ExitInfo.parse,
        str,
        doc="why a program set was last detached",
        range="<kind> <code> <message>, or none",
        default="none",
    )
    consistency = choice("how long the daemon's answers are believed", CONSISTENCY, default="ttl")
    stable_nodeids = switch("the file system never gives a nodeid to another file")
    nodeid_per_file = switch("a file has one nodeid, however many names it has")
    caller_independent = switch("the daemon's answers do not depend on the caller")
    no_open = switch("file handles mean nothing to the daemon: the kernel may answer OPEN")
    no_flush = switch("FLUSH does nothing in the daemon when nothing was written")
    lazy_atime = switch("access times may be reported late")
    lazy_open = switch("a file that was opened for reading can be opened again, without an effect")
    revalidate = switch(
        "data outlives its timeout while its file has the same mtime, ctime and size", default="1"
    )
    recovery = count(
        "how long callers wait for a successor of a daemon that has died; 0: not at all",
        unit="seconds",
        most=MOST_RECOVERY_S,
        default=0,
    )
    daemon = text(
        "whether a daemon serves; poll(2) reports each change",
        range="serving or dead or starting or none",
        default="serving",
    )
    incarnation = number("successors that have taken the mount over", unit="daemons")
    daemon_exit = Attribute(
        DaemonExit.parse,
        str,
        doc="what the end of the last daemon that died meant for its requests",
        range="<time> <lost> <resent> <settled> <failed> <gap_ms>, or none",
        default="none",
    )
    epoch = number("current epoch, which a published value has to carry", mode=0o400, default="any")
    _invalidate = trigger("void all values that were learned or published so far")
    _abort = trigger("abort the connection: every request fails from now on")
    waiting = number("requests in flight at the daemon", unit="requests")
    io_uring = switch("the daemon receives its requests by io_uring (Linux 6.14)", mode=0o444)
    watch_times = number(
        "a read of it makes the kernel take the times of requests, for so many seconds",
        unit="seconds",
        range="10",
        default="10",
    )
    learned = number("values handed to the maps since the mount", unit="values")
    map_full = number("values that the maps did not accept", unit="values")
    forced_path = choice(
        "the path that every READ and WRITE takes",
        ("auto", *PATHS),
        default="auto",
        file="paths/forced",
    )
    max_request = count(
        "the largest READ or WRITE, 0: as large as the daemon accepts; cannot be reduced",
        unit="bytes",
        most=8 << 20,
        step=4096,
        file="paths/max_request",
    )
    max_readdir = count(
        "the largest READDIR or READDIRPLUS while a program set is attached",
        unit="bytes",
        least=4096,
        most=128 << 10,
        step=4096,
        default=32 << 10,
        file="paths/max_readdir",
    )
    round = count(
        "number of READs of a kind on a CPU after which paths are probed again",
        unit="requests",
        least=1,
        most=1_000_000_000,
        default=5000,
        file="paths/round",
    )
    probes = count(
        "how often each path is probed in a round",
        unit="requests",
        most=1000,
        default=4,
        file="paths/probes",
    )
    evicted = number(
        "blocks that were evicted from the data cache to make room for others",
        unit="blocks",
        file="paths/evicted",
    )
    policy = choice(
        "where a request is sent: to the least loaded channel, or always to that of its own CPU",
        ("least", "own"),
        default="least",
        file="channels/policy",
    )
    threshold = count(
        "a channel with so many requests is loaded, and another one may get the next",
        unit="requests",
        least=1,
        most=65536,
        default=1,
        file="channels/threshold",
    )
    spread = count(
        "whether a channel with one part of a large READ or WRITE is loaded",
        unit="",
        most=1,
        default=1,
        file="channels/spread",
    )
    spin_ns = count(
        "how long workers and callers poll for work and answers before they sleep",
        unit="ns",
        most=1_000_000,
        default=50_000,
        file="channels/spin_ns",
    )
    invalid_verdicts = number("verdicts of handlers that have no meaning", unit="verdicts")

    def __init__(self, connection: int, *, root: Path = ROOT) -> None:
        """Open the connection with the number *connection*.

        :param connection: number of the connection.
        :param root: root of eFuse's sysfs tree.
        :raises ControlError: there is no such connection.
        """
        self.id = connection
        self.root = root
        self.path = root / "connections" / str(connection)
        if not self.path.is_dir():
            raise ControlError(
                f"there is no eFuse connection {connection} (ENOENT)",
                hint="`efuse stat` lists the connections",
            )

    def __repr__(self) -> str:
        return f"Connection({self.id})"

    def pin(self) -> None:
        """Bind this object to the present connection, even if a later one gets the same number.

        :raises ControlError: the connection no longer exists.
        """
        try:
            self._directory = _Directory(os.open(self.path, os.O_PATH | os.O_CLOEXEC))
        except OSError as e:
            raise ControlError(f"connection {self.id} is gone: {reason(e)}") from e
        self.path = Path(f"/proc/self/fd/{self._directory.fd}")

    @classmethod
    def at(
        cls, path: str | os.PathLike[str], *, root: Path = ROOT, mountinfo: Path = MOUNTINFO
    ) -> "Connection":
        """Return the connection of the eFuse mount that *path* is on.

        :raises ControlError: *path* is not on an eFuse mount.
        """
        return cls(find(path, mountinfo=mountinfo).connection, root=root)

    @classmethod
    def attributes(cls) -> dict[str, Attribute[Any]]:
        """Return all attributes by name, in the order of the documentation."""
        return {a.name: a for a in vars(cls).values() if isinstance(a, Attribute)}

    def invalidate(self) -> None:
        """Void everything that was learned or published so far (write ``invalidate``)."""
        self._invalidate = True

    def abort(self) -> None:
        """Abort the connection, as fusectl does: every request fails (write ``abort``)."""
        self._abort = True

    def opcodes(self) -> tuple[str, ...]:
        """Return the sorted names of the opcodes that the kernel counts.

        :raises ControlError: the connection no longer exists.
        """
        return tuple(sorted(self._names("stats")))

    def cpus(self) -> tuple[int, ...]:
        """Return the sorted numbers of the CPUs that have a queue: all possible ones.

        :raises ControlError: the connection no longer exists.
        """
        return tuple(sorted(int(name) for name in self._names("channels") if name.isdecimal()))

    def counts(self, file: str) -> dict[str, int]:
        """Return the counters of an opcode, a path or a CPU by name.

        The distribution of times of a path is not part of the result.

        :param file: path of the file, relative to the connection's directory: ``stats/lookup``,
            ``paths/direct`` or ``channels/0``.
        :raises ControlError: the file cannot be read.
        """
        path = self.path / file
        values = lines(read_file(path))
        values.pop("latency", None)
        return numbers(path, values, values)

    def _names(self, directory: str) -> list[str]:
        try:
            return [path.name for path in (self.path / directory).iterdir()]
        except OSError as e:
            raise ControlError(f"connection {self.id} is gone: {reason(e)}") from e


def connections(*, root: Path = ROOT) -> tuple[int, ...]:
    """Return the sorted numbers of all eFuse connections of this kernel.

    :raises ControlError: the module is not loaded.
    """
    try:
        names = [p.name for p in (root / "connections").iterdir()]
    except OSError as e:
        raise ControlError(
            f"the eFuse module is not loaded: {root}: {reason(e)}",
            hint="load the module: efuse module load",
        ) from e
    return tuple(sorted(int(name) for name in names if name.isdigit()))


def module_version(*, root: Path = ROOT) -> str:
    """Return the version of the loaded module.

    :raises ControlError: the module is not loaded.
    """
    return read_file(root / "version")
