# SPDX-License-Identifier: LGPL-2.1-or-later
"""The daemon is asked for every handler that a subclass of the pass-through overrides."""

from __future__ import annotations

import logging
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

import efuse
from efuse.fs.guard import HANDLERS
from tests.commands import EFUSE, run_output
from tests.guest.support.manual_daemon import until
from tests.guest.support.serving import served

MODES = ("strict", "ttl", "cto", "exclusive")


async def _read_scrambled(self: efuse.Passthrough, fh: int, off: int, size: int) -> bytes:
    data = await efuse.Passthrough.read(self, fh, off, size)
    return bytes((b - 13) % 256 for b in data)


async def _write_scrambled(self: efuse.Passthrough, fh: int, off: int, buf: bytes) -> int:
    return await efuse.Passthrough.write(self, fh, off, bytes((b + 13) % 256 for b in buf))


class Rot(efuse.Passthrough):
    """A pass-through that stores files scrambled."""

    read = _read_scrambled
    write = _write_scrambled


def _own(name: str) -> Callable[..., Any]:
    """Return an overriding handler that only calls the handler *name* of the pass-through."""
    original = getattr(efuse.Passthrough, name)

    async def own(self: Any, *arguments: Any) -> Any:
        return await original(self, *arguments)

    return own


def _instance(source: Path, consistency: str) -> efuse.Passthrough:
    """Return a file system with the same handlers, which are set on the instance."""
    made = efuse.Passthrough(source, consistency=consistency)
    made.read = types.MethodType(_read_scrambled, made)  # type: ignore[method-assign]
    made.write = types.MethodType(_write_scrambled, made)  # type: ignore[method-assign]
    return made


@pytest.mark.parametrize("made_by", [Rot, _instance], ids=["class", "instance"])
@pytest.mark.parametrize("consistency", MODES)
def test_overridden_read_and_write_change_the_data(
    mountpoint: Path, tmp_path: Path, consistency: str, made_by: Callable[..., efuse.Passthrough]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    clear, scrambled = b"hello" * 2000, bytes(b + 13 for b in b"hello") * 2000

    def use() -> None:
        for _ in range(3):
            (mountpoint / "f").write_bytes(clear)
            assert (source / "f").read_bytes() == scrambled
            assert (mountpoint / "f").read_bytes() == clear
        (source / "g").write_bytes(scrambled)
        for _ in range(3):
            assert (mountpoint / "g").read_bytes() == clear

    async def main() -> None:
        operations = made_by(source, consistency=consistency)
        async with served(operations, mountpoint):
            await trio.to_thread.run_sync(use)
            assert operations.efuse.accelerated
            assert operations.efuse.overridden == ("read", "write")

    trio.run(main)


def _open(path: str) -> None:
    os.close(os.open(path, os.O_RDONLY))


def _scan(path: str) -> None:
    os.listdir(os.path.dirname(path))


def _read(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.pread(fd, 100, 0)
    os.close(fd)


ACTS: dict[str, Callable[[str], Any]] = {
    "lookup": os.stat,
    "getattr": os.stat,
    "access": lambda path: os.access(path, os.R_OK),
    "getxattr": lambda path: os.getxattr(path, "user.x"),
    "listxattr": os.listxattr,
    "readlink": lambda path: os.readlink(f"{path}.link"),
    "statfs": os.statvfs,
    "open": _open,
    "flush": _open,
    "release": _open,
    "read": _read,
    "opendir": _scan,
    "readdir": _scan,
    "releasedir": _scan,
}


@pytest.mark.parametrize("name", sorted(ACTS))
def test_overridden_handler_is_called_each_time(
    mountpoint: Path, tmp_path: Path, name: str
) -> None:
    """Replies have no timeout, so FUSE itself keeps nothing. The kernel answers other requests."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "f").write_bytes(b"data")
    (source / "f.link").symlink_to("f")
    os.setxattr(source / "f", "user.x", b"x")

    def act(operations: efuse.Passthrough) -> None:
        def calls() -> int:
            return operations.efuse.statistics().requests.get(name, 0)

        before = calls()
        ACTS[name](f"{mountpoint}/f")
        # close(2) waits for neither RELEASE nor RELEASEDIR.
        until(lambda: calls() > before)

    async def main() -> None:
        kind = type("Over", (efuse.Passthrough,), {name: _own(name)})
        operations = kind(source, consistency="exclusive", entry_timeout=0.0, attr_timeout=0.0)
        # Without default_permissions, access(2) sends a request, too.
        async with served(operations, mountpoint, options=("allow_other",)):
            for _ in range(4):
                await trio.to_thread.run_sync(act, operations)
            assert operations.efuse.accelerated

    trio.run(main)


_ALL = sorted(name for name in HANDLERS if name in vars(efuse.Passthrough))


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ([], "efuse"),
        (["read", "write"], "efuse-less.read.write"),
        (_ALL, "efuse-less.access.create.flu..."),
    ],
    ids=["none", "two", "all"],
)
def test_log_and_efuse_stat_show_the_overridden_handlers(
    mountpoint: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    names: list[str],
    shown: str,
) -> None:
    """The log has all of them, once. The kernel limits the name that efuse stat shows."""
    source = tmp_path / "source"
    source.mkdir()
    stat = ""

    def use(operations: efuse.Passthrough) -> None:
        nonlocal stat
        (mountpoint / "f").write_bytes(b"data")
        for _ in range(3):
            assert (mountpoint / "f").read_bytes() == b"data"
        stat = run_output(*EFUSE, "stat", mountpoint)

    async def main() -> None:
        kind = type("Over", (efuse.Passthrough,), {name: _own(name) for name in names})
        operations = kind(source, consistency="exclusive")
        async with served(operations, mountpoint):
            await trio.to_thread.run_sync(use, operations)
            assert operations.efuse.overridden == tuple(names)

    with caplog.at_level(logging.INFO, "efuse.fs"):
        trio.run(main)
    logged = [text for text in caplog.messages if "overrides" in text]
    assert [text.partition(": without ")[0] for text in logged] == (
        [f"{mountpoint}: overrides {', '.join(names)}"] if names else []
    )
    assert f"  {shown} attached  {'ttl' if names else 'exclusive'}  " in stat.splitlines()[0]
    assert len(shown) <= 31
