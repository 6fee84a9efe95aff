# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test the sizes that a user can set: of requests, and of the data cache."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse.bpf import Attachment
from efuse.control import Connection, find
from tests.commands import EFUSE
from tests.guest.support.file_data import drop_pages, read, read_direct, write
from tests.guest.support.forked import efuse, run_efuse
from tests.guest.support.unmodified_daemons import bindfs_command, passthrough_ll_command

_HELPER = (*EFUSE[:2], "from efuse.cli._mount_helper import main; main()")
MIB = 1 << 20
DATA = random.Random(20261122).randbytes(8 * MIB + 5)


@contextlib.contextmanager
def _mounted(mountpoint: Path, *words: str | Path) -> Iterator[Connection]:
    """Run ``efuse`` with *words*, which mount a file system, and yield its connection. Unmount at
    the end.

    Without *words*, the file system must be mounted already.
    """
    if words:
        efuse(*words)
    try:
        yield Connection(find(mountpoint).connection)
    finally:
        subprocess.run(["umount", mountpoint], check=True)


def _count(connection: Connection, opcode: str, name: str) -> int:
    return connection.counts(f"stats/{opcode}")[name]


def _blocks(connection: Connection) -> int:
    """Return the capacity of the data cache in blocks, without a walk through all of them."""
    with Attachment.open(connection.id) as attachment:
        return attachment.maps["blocks"].definition.max_entries


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "source"
    directory.mkdir()
    (directory / "f").write_bytes(DATA)
    return directory


@pytest.mark.parametrize("size", [0, 8])
def test_large_read_or_write_is_one_request(source: Path, mountpoint: Path, size: int) -> None:
    """A request is as large as the mount option allows; without the option, as the daemon accepts.

    Each call goes past FUSE's page cache and is one request, so the test counts at the daemon.
    """
    options = ["-o", f"max_request={size}M"] if size else []
    subprocess.run([*_HELPER, source, mountpoint, *options], check=True)
    with _mounted(mountpoint) as connection:
        assert connection.max_request == size * MIB
        connection.forced_path = "daemon"
        path = str(mountpoint / "f")
        before = _count(connection, "read", "requests")
        assert read_direct(path, 8 * MIB) == DATA[: 8 * MIB]
        reads = _count(connection, "read", "requests") - before
        new = DATA[:0:-1][: 8 * MIB]
        before = _count(connection, "write", "requests")
        assert write(path, new, 0, os.O_DIRECT) == 8 * MIB
        writes = _count(connection, "write", "requests") - before
        assert read_direct(path, 8 * MIB) == new
    assert (source / "f").read_bytes() == new + DATA[8 * MIB :]
    # If the caller's buffer does not begin at a page boundary, there is one more request.
    if size:
        assert 8 // size <= reads <= 8 // size + 1
        assert 8 // size <= writes <= 8 // size + 1
    else:
        assert reads >= 8
        assert writes >= 8


def test_mount_options_set_the_sizes(source: Path, mountpoint: Path) -> None:
    options = ["--data-cache", "1M", "--max-request", "2M", "--max-readdir", "64K"]
    words = ("mount", "passthrough", source, mountpoint, "--require", *options)
    with _mounted(mountpoint, *words) as connection:
        assert (connection.max_request, connection.max_readdir) == (2 * MIB, 64 << 10)
        assert _blocks(connection) == 256


@pytest.mark.parametrize(
    ("daemon", "cache"), [(passthrough_ll_command, None), (bindfs_command, "64M")]
)
def test_run_with_data_cache_serves_reads_from_it(
    source: Path, mountpoint: Path, tmp_path: Path, daemon: object, cache: str | None
) -> None:
    options = ["--data-cache", cache] if cache else []
    command = [*daemon(tmp_path, source), str(mountpoint)]  # type: ignore[operator]
    words = ("run", "--require", *options, "--", *command)
    with _mounted(mountpoint, *words) as connection:
        path = str(mountpoint / "f")
        assert read(path, 16 * MIB) == DATA
        drop_pages(path)
        before = _count(connection, "read", "daemon")
        hits = _count(connection, "read", "hits")
        assert read(path, 16 * MIB) == DATA
        if cache:
            assert _count(connection, "read", "daemon") == before
            assert _count(connection, "read", "hits") > hits
        else:
            assert _count(connection, "read", "daemon") > before
            assert _count(connection, "read", "hits") == hits
        with open(path, "r+b") as file:
            file.write(b"changed")
        drop_pages(path)
        assert read(path, 16 * MIB) == b"changed" + DATA[7:]


def _memory(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(name)


def test_data_cache_of_half_the_memory_works(source: Path, mountpoint: Path) -> None:
    """The data cache takes half of the available memory, and all of it can be used."""
    size = min(2 << 30, _memory("MemAvailable") // 2) >> 20
    words = ("mount", "passthrough", source, mountpoint, "--require", "--json")
    with _mounted(mountpoint, *words, "--data-cache", f"{size}M") as connection:
        assert _blocks(connection) == size * 256
        path = str(mountpoint / "f")
        for _ in range(2):
            before = _count(connection, "read", "daemon")
            assert read(path, 16 * MIB) == DATA
            drop_pages(path)
        assert _count(connection, "read", "daemon") == before


def test_data_cache_larger_than_the_memory_fails(source: Path, mountpoint: Path) -> None:
    size = 2 * _memory("MemTotal") >> 20
    words = ["mount", "passthrough", source, mountpoint, "--require", "--data-cache", f"{size}M"]
    output, hint = run_efuse(*words, status=1).stderr.splitlines()
    assert f"cannot create map 'blocks' of {size * 256} entries, {size} MiB: " in output
    assert output.endswith("(ENOMEM)")
    assert hint.startswith("try: the machine")
    assert "--data-cache" in hint
    assert not os.path.ismount(mountpoint)


def test_run_without_memory_for_the_data_cache_is_not_accelerated(
    source: Path, mountpoint: Path, tmp_path: Path
) -> None:
    size = 2 * _memory("MemTotal") >> 20
    command = [*bindfs_command(tmp_path, source), str(mountpoint)]
    complaint = run_efuse("run", "--data-cache", f"{size}M", "--", *command).stderr
    try:
        assert "not accelerated: cannot create map 'blocks'" in complaint
        assert "try: " in complaint
        assert read(str(mountpoint / "f"), 16 * MIB) == DATA
    finally:
        subprocess.run(["umount", mountpoint], check=True)
