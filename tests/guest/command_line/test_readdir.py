# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test large directory reads: the kernel learns the same names from fewer requests."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import efuse
from efuse.control import Connection, find
from tests.guest.support import forked
from tests.guest.support.daemons import Mount, fails, mounted
from tests.guest.support.running_kernel import LINUX
from tests.guest.support.unmodified_daemons import bindfs_command
from tests.guest.support.wire import FOPEN_CACHE_DIR, FOPEN_KEEP_CACHE

# Enough for several requests of each size without attributes, which hold 128 of them and more.
MANY = [b"name%04d" % n for n in range(3000)]
# Enough for several requests of each size with attributes. The largest holds 819 of them.
NAMES = MANY[:1500]
# The size of an entry of READDIRPLUS with one of these names, in bytes.
ENTRY_BYTES = 160
_libc = ctypes.CDLL(None, use_errno=True)


def fill(m: Mount) -> None:
    m.call("many", [("create", f"/{name.decode()}") for name in NAMES])


def names(path: Path) -> list[bytes]:
    return sorted(os.fsencode(name) for name in os.listdir(path))


def asked(m: Mount) -> int:
    """Return the number of directory reads that reached the daemon since the last call of log()."""
    return sum(opcode in ("readdir", "readdirplus") for opcode in m.asked())


def least(bytes_: int) -> int:
    """Return the number of requests of *bytes_* that a listing takes, with the last, empty one."""
    return -(-(len(NAMES) + 2) // (bytes_ // ENTRY_BYTES)) + 1


@pytest.mark.parametrize("consistency", ["ttl", "exclusive"])
@pytest.mark.parametrize("size", [4096, 32768, 131072])
def test_large_readdir_requests_list_the_same_names(
    mountpoint: Path, size: int, consistency: str
) -> None:
    with mounted(mountpoint, consistency=consistency) as m:
        fill(m)
        assert m.connection.max_readdir == 32768
        m.connection.max_readdir = size
        m.log()
        assert names(m.path) == NAMES
        # A buffer of getdents(2) may have too little room for the whole of the last reply.
        assert least(size) <= asked(m) <= least(size) + 3


OF_FUSE = 4096 if LINUX < 7 else 32768
"""The size of FUSE's own requests, in bytes, if the caller's buffer is that large."""


def test_readdir_without_programs_requests_one_page_as_in_plain_fuse(mountpoint: Path) -> None:
    with mounted(mountpoint, attach=False) as m:
        fill(m)
        m.log()
        assert names(m.path) == NAMES
        assert least(OF_FUSE) <= asked(m) <= least(OF_FUSE) + 3
        m.attach()
        assert names(m.path) == NAMES
        assert asked(m) <= least(32768) + 3
        assert m.attachment is not None
        m.attachment.detach()
        assert names(m.path) == NAMES
        assert least(OF_FUSE) <= asked(m) <= least(OF_FUSE) + 3


def test_readdir_without_attributes_is_sent_in_large_requests(mountpoint: Path) -> None:
    with mounted(mountpoint, readdirplus=False) as m:
        fill(m)
        m.log()
        assert names(m.path) == NAMES
        assert asked(m) <= len(NAMES) * 32 // 32768 + 4


def test_every_name_of_a_large_reply_is_known_to_fuse(mountpoint: Path) -> None:
    with mounted(mountpoint, entry_timeout=3600.0, attr_timeout=3600.0) as m:
        fill(m)
        m.log()
        assert names(m.path) == NAMES
        assert asked(m) <= least(32768) + 3
        for name in NAMES:
            os.stat(m / name)
        assert not {"lookup", "getattr"} & set(m.asked())


def test_timeouts_in_a_large_reply_are_extended(mountpoint: Path) -> None:
    """In exclusive mode FUSE's own caches keep the whole reply, whatever the daemon's timeouts."""
    with mounted(mountpoint, consistency="exclusive") as m:
        fill(m)
        assert names(m.path) == NAMES
        lookups = m.count("lookup", "requests")
        for name in NAMES:
            os.stat(m / name)
        assert m.count("lookup", "requests") == lookups


def test_timeouts_in_a_large_reply_expire_in_strict_mode(mountpoint: Path) -> None:
    with mounted(mountpoint, consistency="strict", entry_timeout=3600.0, attr_timeout=3600.0) as m:
        fill(m)
        assert names(m.path) == NAMES
        m.log()
        some = NAMES[::10]
        for name in some:
            os.stat(m / name)
        assert m.asked().count("lookup") == len(some)


def test_every_name_of_a_large_reply_comes_from_the_maps(mountpoint: Path) -> None:
    declare = ("stable_nodeids",)
    with mounted(mountpoint, declare=declare, entry_timeout=3600.0, attr_timeout=3600.0) as m:
        fill(m)
        assert names(m.path) == NAMES
        m.drop()
        m.log()
        hits = m.count("lookup", "hits")
        for name in NAMES:
            assert os.stat(m / name).st_size == 0
        assert m.count("lookup", "hits") - hits == len(NAMES)
        assert not {"lookup", "getattr"} & set(m.asked())


@pytest.mark.parametrize("size", [4096, 32768])
def test_cache_of_directories_is_filled_by_large_replies(mountpoint: Path, size: int) -> None:
    with mounted(
        mountpoint,
        entry_timeout=3600.0,
        attr_timeout=3600.0,
        opendir_flags=FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR,
    ) as m:
        fill(m)
        m.connection.max_readdir = size
        assert names(m.path) == NAMES
        m.log()
        assert names(m.path) == NAMES
        assert asked(m) == 0
        m.model.create("later")
        m.call("inval_inode", "/")
        assert names(m.path) == sorted([*NAMES, b"later"])
        assert asked(m) > 0


def getdents(fd: int, room: int) -> list[bytes]:
    """Read a directory with a buffer of *room* bytes."""
    buffer = ctypes.create_string_buffer(room)
    found = []
    while (got := _libc.syscall(217, fd, buffer, room)) > 0:
        at = 0
        while at < got:
            length = struct.unpack_from("=H", buffer, at + 16)[0]
            found.append(buffer.raw[at + 19 : at + length].partition(b"\0")[0])
            at += length
    assert got == 0, os.strerror(ctypes.get_errno())
    return found


@pytest.mark.parametrize("flags", [0, FOPEN_KEEP_CACHE | FOPEN_CACHE_DIR])
def test_caller_with_a_small_buffer_gets_every_entry(mountpoint: Path, flags: int) -> None:
    with mounted(mountpoint, opendir_flags=flags) as m:
        fill(m)
        for _ in range(2):
            fd = os.open(m.path, os.O_RDONLY | os.O_DIRECTORY)
            assert sorted(getdents(fd, 2000)) == sorted([b".", b"..", *NAMES])
            os.close(fd)


def _namelen(number: int) -> Callable[[bytes], bytes]:
    raw = struct.pack("=I", number)
    return _Overwritten(raw)


class _Overwritten:
    """An entry of READDIRPLUS with a wrong length of its name."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def __call__(self, entry: bytes) -> bytes:
        return entry[: 128 + 16] + self.raw + entry[128 + 20 :]


class _Slashed:
    def __call__(self, entry: bytes) -> bytes:
        return entry.replace(b"name", b"na/e")


BAD = 150  # After the first page, but in the first reply.


@pytest.mark.parametrize("size", [4096, 32768])
@pytest.mark.parametrize(
    "spoil",
    [_namelen(0), _namelen(4096), _namelen(0xFFFFFFF0), _Slashed()],
    ids=["no name", "long name", "longest name", "slash"],
)
def test_invalid_entry_fails_as_in_plain_fuse(
    mountpoint: Path, size: int, spoil: Callable[[bytes], bytes]
) -> None:
    with mounted(mountpoint, entry_timeout=3600.0, attr_timeout=3600.0) as m:
        fill(m)
        m.connection.max_readdir = size
        m.call("spoil", NAMES[BAD], spoil)
        fails(errno.EIO, os.listdir, m.path)
        m.log()
        for name in NAMES[:BAD]:
            os.stat(m / name)
        assert "lookup" not in m.asked()
        os.stat(m / NAMES[BAD])
        assert "lookup" in m.asked()
        m.call("spoil", NAMES[BAD], None)
        assert names(m.path) == NAMES


class _Cut:
    def __call__(self, entry: bytes) -> bytes:
        return entry[:155]


@pytest.mark.parametrize("size", [4096, 32768])
def test_truncated_entry_is_not_used(mountpoint: Path, size: int) -> None:
    """As in FUSE, the listing ends before the entry, and the kernel learns nothing from it."""
    with mounted(mountpoint, entry_timeout=3600.0, attr_timeout=3600.0) as m:
        fill(m)
        m.connection.max_readdir = size
        m.call("spoil", NAMES[BAD], _Cut())
        assert names(m.path) == NAMES[:BAD]
        m.log()
        os.stat(m / NAMES[BAD])
        assert "lookup" in m.asked()
        m.call("spoil", NAMES[BAD], None)
        assert names(m.path) == NAMES


def test_passthrough_directory_is_listed_in_large_requests(tmp_path: Path) -> None:
    source, path = tmp_path / "source", tmp_path / "mnt"
    source.mkdir()
    path.mkdir()
    for name in NAMES:
        (source / os.fsdecode(name)).touch()
    operations = efuse.Passthrough(source, consistency="ttl", entry_timeout=3600, attr_timeout=3600)
    counted = []
    for size in (4096, 32768):
        operations.efuse_options = efuse.Options(no_open=True, max_readdir=size)
        with efuse.mount(operations, path, required=True) as one:
            assert one.connection is not None
            connection = Connection(one.connection)
            assert connection.max_readdir == size
            assert names(path) == NAMES
            counted.append(_listings(connection))
    operations.close()
    assert counted[1] * 5 < counted[0], counted


def _listings(connection: Connection) -> int:
    """Return the number of READDIRs and READDIRPLUSes that reached the daemon."""
    opcodes = ("readdir", "readdirplus")
    return sum(connection.counts(f"stats/{opcode}")["daemon"] for opcode in opcodes)


def test_libfuse_daemon_fills_large_requests(tmp_path: Path) -> None:
    source, path = tmp_path / "source", tmp_path / "mnt"
    source.mkdir()
    path.mkdir()
    for name in MANY:
        (source / os.fsdecode(name)).touch()
    command = bindfs_command(tmp_path, source)
    counted = []
    for size in ("4K", "32K"):
        forked.efuse("run", "--require", "--max-readdir", size, "--", *command, path)
        try:
            connection = Connection(find(path).connection)
            assert names(path) == MANY
            counted.append(_listings(connection))
        finally:
            subprocess.run(["umount", path], check=True)
    assert counted[1] * 5 < counted[0], counted
