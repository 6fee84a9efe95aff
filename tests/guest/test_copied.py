# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare the bytes that the kernel copies to and from a daemon with those in ``/proc/PID/io``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from efuse.bench.copied import CopiedBytes
from efuse.bench.systems import System, is_efuse, mounted

_SIZE = 1 << 20
_DATA = os.urandom(_SIZE)
_HEADS = 64 << 10
"""An upper limit for the size of the requests and replies without their data, in bytes."""


@pytest.fixture
def source(lower: Path) -> Path:
    directory = lower / "source"
    directory.mkdir()
    (directory / "file").write_bytes(_DATA)
    return directory


def read(system: System) -> None:
    assert (system.root / "file").read_bytes() == _DATA


def write(system: System) -> None:
    (system.root / "new").write_bytes(_DATA)


def _of_proc(pid: int) -> int:
    text = Path(f"/proc/{pid}/io").read_text()
    return sum(int(n) for n in re.findall(r"^[rw]char: (\d+)", text, re.M))


def _copied(system: System, act: Callable[[System], None]) -> tuple[int, int]:
    """Return the bytes copied during *act*, and the bytes in /proc, both of the daemon."""
    assert system.pid
    with CopiedBytes([system.pid], ["efuse" if is_efuse(system.name) else "fuse"]) as counter:
        before = counter.read(system.pid), _of_proc(system.pid)
        act(system)
        after = counter.read(system.pid), _of_proc(system.pid)
    return after[0] - before[0], after[1] - before[1]


@pytest.mark.parametrize(
    ("daemon", "name", "act", "times", "in_proc"),
    [
        ("passthrough", "fuse", read, 2, 2),
        ("passthrough_ll", "fuse", read, 2, 2),
        ("passthrough_ll", "fuse", write, 1, 0),  # It splices the request into the file.
        ("passthrough_ll", "efuse-daemon", read, 2, 2),  # A channel's large replies are written.
        ("passthrough_ll", "efuse-daemon", write, 2, 1),  # Requests go through the channel.
        ("passthrough", "efuse-direct", read, 0, 0),
        ("passthrough", "efuse-direct", write, 0, 0),
    ],
)
def test_each_copy_is_counted_once(
    daemon: str,
    name: str,
    act: Callable[[System], None],
    times: int,
    in_proc: int,
    source: Path,
    mountpoint: Path,
) -> None:
    with mounted(name, source, mountpoint, daemon) as system:
        paths = system.usage().paths
        copied, of_proc = _copied(system, act)
        if is_efuse(name):
            path = name.removeprefix("efuse-")
            assert system.usage().paths[path] > paths[path], f"the {path} path was not taken"
    if act is write:
        assert (source / "new").read_bytes() == _DATA
    assert times * _SIZE <= copied < times * _SIZE + _HEADS
    assert in_proc * _SIZE <= of_proc < in_proc * _SIZE + _HEADS


def test_copied_bytes_are_counted_by_daemon(source: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with (
        mounted("fuse", source, one, "passthrough_ll") as plain,
        mounted("efuse-daemon", source, two, "passthrough_ll") as other,
    ):
        assert plain.pid and other.pid
        with CopiedBytes([plain.pid, other.pid], ["fuse", "efuse"]) as counter:
            before = counter.read(plain.pid), counter.read(other.pid)
            read(other)
            after = counter.read(plain.pid), counter.read(other.pid)
    assert after[0] - before[0] < _HEADS
    assert 2 * _SIZE <= after[1] - before[1] < 2 * _SIZE + _HEADS
