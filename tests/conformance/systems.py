# SPDX-License-Identifier: LGPL-2.1-or-later
"""The systems that are compared: ext4, and daemons over it on plain FUSE and on eFuse."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import efuse
from efuse.bench.foreground import wait_for_mount
from efuse.bench.programs import built
from efuse.control import CONSISTENCY, Connection
from efuse.fs.mountpoint import unmount
from efuse.fs.options import Options
from efuse.stats import read
from efuse.supervisor.running import started

BASE = "ext4"
"""The system with which the others are compared."""

_PASSTHROUGH, _LIBFUSE = "Passthrough", "passthrough_ll"
_MODES = ("exclusive", "cto", "ttl", "strict")
assert sorted(_MODES) == sorted(CONSISTENCY)

SYSTEMS = (
    BASE,
    f"{_PASSTHROUGH} plain",
    *(f"{_PASSTHROUGH} {mode}" for mode in _MODES),
    f"{_LIBFUSE} plain",
    f"{_LIBFUSE} ttl",
)
"""``plain`` is the kernel's own FUSE; the other words are eFuse's consistency modes, with handlers.
``Passthrough`` is ``efuse.Passthrough``, and ``passthrough_ll`` is libfuse's example, unmodified,
as ``efuse run`` runs it."""

_OPTIONS = ("allow_other", "default_permissions")
_SIZE = 2 << 30
_END_S = 60


@dataclass(frozen=True)
class Mounted:
    """A mounted system.

    :ivar root: its root directory.
    :ivar lower: the directory on ext4 that ``root`` shows.
    :ivar connection: number of the connection on eFuse; None on plain FUSE and for ext4.
    """

    root: Path
    lower: Path
    connection: int | None = None

    def answers(self) -> int:
        """Return how many requests the kernel has answered instead of the daemon so far."""
        if self.connection is None:
            return 0
        sample = read(Connection(self.connection), timing=False)
        direct = sum(path.requests for name, path in sample.paths.items() if name != "daemon")
        return sample.total.hits + direct


def is_answered(system: str) -> bool:
    """Return whether the kernel has to answer requests of a system: not in strict mode."""
    mode = system.split()[-1]
    return mode in _MODES and mode != "strict"


@contextlib.contextmanager
def lower_file_system() -> Iterator[Path]:
    """Mount a new ext4 on a loop device in tmpfs, and yield its mount point.

    The path is short: fs_mark takes at most 40 characters, and a socket's name at most 107.
    """
    with tempfile.TemporaryDirectory(prefix="c-", dir="/tmp") as name:
        image, root = Path(name) / "image", Path(name) / "l"
        Path(name).chmod(0o755)
        root.mkdir()
        with image.open("wb") as file:
            file.truncate(_SIZE)
        subprocess.run(["mkfs.ext4", "-q", "-F", "-E", "nodiscard", image], check=True)
        if not Path("/sys/module/loop").exists():
            subprocess.run(["modprobe", "loop"], check=True)
        subprocess.run(["mount", "-o", "loop", image, root], check=True)
        try:
            yield root
        finally:
            # The kernel may still hold the last backing file.
            subprocess.run(["umount", "--lazy", root], check=True)


@contextlib.contextmanager
def mounted(system: str, lower: Path, point: Path) -> Iterator[Mounted]:
    """Mount the system over *lower* on the directory *point*, and yield it."""
    daemon, _, mode = system.partition(" ")
    if system == BASE:
        yield Mounted(lower, lower)
    elif daemon == _PASSTHROUGH:
        plain = mode == "plain"
        consistency = "ttl" if plain else mode
        operations = efuse.Passthrough(lower, consistency=consistency)
        try:
            with efuse.mount(operations, point, _OPTIONS, plain=plain, required=not plain) as one:
                yield Mounted(point, lower, one.connection)
        finally:
            operations.close()
    elif mode == "plain":
        with _plain_program(_command(lower, point), point):
            yield Mounted(point, lower)
    else:
        with _program_on_efuse(_command(lower, point), point, mode) as connection:
            yield Mounted(point, lower, connection)


def _command(lower: Path, point: Path) -> list[str]:
    options = ",".join((f"source={lower}", "xattr", *_OPTIONS))
    return [str(built(_LIBFUSE)), "-f", "-o", options, str(point)]


@contextlib.contextmanager
def _plain_program(words: list[str], point: Path) -> Iterator[None]:
    with subprocess.Popen(words, stdin=subprocess.DEVNULL) as process:
        wait_for_mount(process, point)
        try:
            yield
        finally:
            unmount(str(point))


@contextlib.contextmanager
def _program_on_efuse(words: list[str], point: Path, mode: str) -> Iterator[int]:
    with started(words, Options(consistency=mode)) as (daemon, mount):
        try:
            yield mount.connection
        finally:
            unmount(str(point))
            daemon.process.wait(_END_S)
