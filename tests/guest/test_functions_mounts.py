# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test storage functions over files of eFuse mounts, at the device that has the backing file."""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse import functions
from efuse.functions import Count, Crc32c, Place, Why
from tests.guest.support.backing_files import make
from tests.guest.support.csd_device import Device, noise
from tests.guest.support.daemons import Call, Mount, fails, force_stat, mounted
from tests.guest.support.forced import Forced, forced
from tests.guest.support.functions import BLOCK, background, blocks, result
from tests.guest.support.manual_daemon import DEADLINE_S, until
from tests.guest.support.shell import run

CALL = Count(b"\x01")
DATA = noise(300 * BLOCK + 77)


@pytest.fixture
def m(files: Path, point: Path) -> Iterator[Forced]:
    """Yield a pass-through of the device with the file ``f``."""
    (files / "f").write_bytes(DATA)
    with forced(files, point, "auto", consistency="exclusive") as one:
        yield one


@pytest.fixture
def hole(files: Path, point: Path) -> Iterator[Mount]:
    """Yield a mount without handlers, whose daemon maps what a test tells it to."""
    with mounted(point, attach=False) as one, functions.load("count"):
        yield one


def at_device(path: Path | str, wanted: bytes) -> None:
    """Check that a function sees *wanted*, and that the device examines all of it."""
    found, status = result(CALL, Path(path), Place.DEVICE)
    assert found == CALL.reference(wanted)
    assert (status.device_steps, status.kernel_steps) == (blocks(len(wanted)), 0)


def split(path: str, wanted: bytes, device: int, why: Why) -> None:
    """Check that a function sees *wanted*, and that the device examines *device* blocks of it."""
    found, status = result(CALL, Path(path), Place.DEVICE)
    assert found == CALL.reference(wanted)
    assert (status.device_steps, status.kernel_steps) == (device, blocks(len(wanted)) - device)
    assert status.why == why


def test_only_the_result_crosses_the_link(device: Device, m: Forced) -> None:
    os.sync()
    with functions.load("count"), functions.load("crc32c"):
        for call in (CALL, Crc32c()):
            before, link = m.answered(), device.read("link_read_bytes")
            found, status = result(call, m / "f", Place.DEVICE)
            assert found == call.reference(DATA)
            assert (status.device_steps, status.kernel_steps) == (blocks(len(DATA)), 0)
            assert device.read("link_read_bytes") - link == len(found)
            assert m.answered() == before


def test_run_sees_what_was_written_through_the_mount(m: Forced) -> None:
    data = bytearray(DATA)
    fd = os.open(m / "f", os.O_RDWR)
    with functions.load("count"):
        data[5:9] = b"\x01\x01\x01\x01"
        assert os.pwrite(fd, b"\x01\x01\x01\x01", 5) == 4
        at_device(m / "f", data)
        with mmap.mmap(fd, 0) as view:
            data[200 * BLOCK - 1 : 200 * BLOCK + 1] = b"\x01\x01"
            view[200 * BLOCK - 1 : 200 * BLOCK + 1] = b"\x01\x01"
            at_device(m / "f", data)
        assert os.pwrite(fd, b"\x01" * BLOCK, len(data)) == BLOCK
        data += b"\x01" * BLOCK
        at_device(m / "f", data)
        os.ftruncate(fd, 10)
        at_device(m / "f", data[:10])
    os.close(fd)


@pytest.mark.parametrize("path", ["daemon", "cache"])
def test_file_with_another_forced_path_is_read_by_the_kernel(m: Forced, path: str) -> None:
    with functions.load("count"):
        m.connection.forced_path = path
        split(str(m / "f"), DATA, 0, Why.DAEMON)
        m.connection.forced_path = "direct"
        at_device(m / "f", DATA)


def test_file_of_plain_fuse_is_read_by_the_kernel(files: Path, point: Path) -> None:
    (files / "f").write_bytes(DATA)
    run("bindfs", files, point)
    try:
        with functions.load("count"):
            split(str(point / "f"), DATA, 0, Why.DAEMON)
    finally:
        run("umount", point)


def test_file_of_several_extents_is_read_by_the_device(hole: Mount, files: Path) -> None:
    """Each range of consecutive blocks of the device is one part of the run."""
    (files / "a").write_bytes(noise(8 * BLOCK, 1) + DATA[: 10 * BLOCK])
    (files / "b").write_bytes(DATA[10 * BLOCK :])
    make(hole, "f", DATA)
    whole = {"offset": 0, "length": 10 * BLOCK, "backing_offset": 8 * BLOCK}
    hole.call("map_extent", "f", str(files / "a"), os.O_RDONLY, **whole)
    hole.call("map_extent", "f", str(files / "b"), os.O_RDONLY, offset=10 * BLOCK)
    at_device(hole / "f", DATA)


def test_unmapped_range_is_read_by_the_kernel(hole: Mount, files: Path) -> None:
    data = DATA[: 30 * BLOCK + 5]
    (files / "a").write_bytes(data)
    make(hole, "f", data)
    hole.call("map_extent", "f", str(files / "a"), os.O_RDONLY, offset=0, length=10 * BLOCK)
    split(hole / "f", data, 10, Why.DAEMON)


def test_last_block_of_an_extent_that_ends_within_it_is_read_by_the_kernel(
    hole: Mount, files: Path
) -> None:
    """The rest of the block on the device does not belong to the file."""
    data = DATA[: 30 * BLOCK + 5]
    (files / "a").write_bytes(data[: 10 * BLOCK + 100] + b"\x01" * BLOCK)
    make(hole, "f", data)
    piece = {"offset": 0, "length": 10 * BLOCK + 100}
    hole.call("map_extent", "f", str(files / "a"), os.O_RDONLY, **piece)
    split(hole / "f", data, 10, Why.UNMAPPED)
    # Now the file ends there, too.
    hole.model.put("f", data[: 10 * BLOCK + 100])
    at_device(hole / "f", data[: 10 * BLOCK + 100])


def test_extent_that_begins_within_a_block_is_read_by_the_kernel(hole: Mount, files: Path) -> None:
    data = DATA[: 30 * BLOCK]
    (files / "a").write_bytes(b"\x01" * 8 + data)
    make(hole, "f", data)
    hole.call("map_extent", "f", str(files / "a"), os.O_RDONLY, backing_offset=8)
    split(hole / "f", data, 0, Why.UNMAPPED)


def test_range_beyond_the_end_of_the_backing_file_is_read_by_the_kernel(
    hole: Mount, files: Path
) -> None:
    data = DATA[: 10 * BLOCK] + bytes(20 * BLOCK)
    (files / "a").write_bytes(data[: 10 * BLOCK])
    make(hole, "f", data)
    hole.call("map_extent", "f", str(files / "a"), os.O_RDONLY, offset=0, length=30 * BLOCK)
    split(hole / "f", data, 10, Why.DAEMON)


def test_sealed_file_is_read_by_the_kernel(hole: Mount, files: Path) -> None:
    run("mount", "-o", "remount,iversion", files)
    (files / "a").write_bytes(DATA)
    make(hole, "f", DATA)
    hole.call("map_extent", "f", str(files / "a"), os.O_RDONLY, sealed=True)
    split(hole / "f", DATA, 0, Why.DAEMON)


def test_direct_io_file_is_read_by_the_kernel(files: Path, point: Path) -> None:
    (files / "a").write_bytes(DATA)
    with mounted(point, attach=False, open_flags=1) as m, functions.load("count"):
        make(m, "f", DATA)
        m.call("map_extent", "f", str(files / "a"), os.O_RDONLY)
        split(m / "f", DATA, 0, Why.DAEMON)


def test_run_asks_the_daemon_for_the_size(hole: Mount, files: Path) -> None:
    """The file has grown, but the kernel still has the old size."""
    (files / "a").write_bytes(DATA)
    make(hole, "f", DATA[: 5 * BLOCK])
    with open(hole / "f", "rb") as file:
        hole.call("map_extent", "f", str(files / "a"), os.O_RDONLY)
        hole.model.put("f", DATA)
        with functions.run("count", file.fileno(), CALL.encode(), place=Place.DEVICE) as one:
            assert one.result() == CALL.reference(DATA)
            assert one.status().device_steps == blocks(len(DATA))


def test_unmap_waits_for_the_device(device: Device, hole: Mount, files: Path) -> None:
    (files / "a").write_bytes(DATA)
    make(hole, "f", DATA)
    hole.call("map_extent", "f", str(files / "a"), os.O_RDONLY)
    os.sync()
    device.write("hold", 1)
    try:
        one = background(Path(hole / "f"), CALL)
        device.wait("held", 1)
        unmap = threading.Thread(target=hole.call, args=("unmap_extents", "f"))
        unmap.start()
        until(lambda: "efuse_uses_wait" in Path(f"/proc/{hole.pid}/stack").read_text())
    finally:
        device.write("hold", 0)
    unmap.join(DEADLINE_S)
    status = one.end()
    assert one.found == CALL.reference(DATA)
    # The device read the window of the current batch, and no other one.
    assert (status.device_steps, status.kernel_steps) == (256, 45)
    assert status.why == Why.DAEMON


def test_truncate_waits_for_the_device(device: Device, m: Forced) -> None:
    """A truncation through the mount waits, so that the blocks stay until they are read."""
    data = DATA[: 200 * BLOCK]
    os.truncate(m / "f", len(data))
    os.sync()
    with functions.load("count"):
        device.write("hold", 1)
        try:
            one = background(m / "f", CALL)
            device.wait("held", 1)
            cut = Call(os.truncate, m / "f", 0)
            until(lambda: "inode_dio_wait" in _stacks(m.pid))
        finally:
            device.write("hold", 0)
        cut.result()
        status = one.end()
    assert one.found == CALL.reference(data)
    assert status.device_steps == 200


def _stacks(pid: int) -> str:
    return "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stack"))


def test_run_at_the_device_keeps_the_credentials_of_the_caller(m: Forced) -> None:
    """The device reads with the daemon's credentials. Afterwards the caller has its own again."""
    fd = os.open(m / "f", os.O_RDONLY)

    def look() -> bytes:
        with functions.run("count", fd, CALL.encode(), place=Place.DEVICE) as one:
            found = one.result()
            assert one.status().kernel_steps == 0
        fails(errno.EACCES, os.open, "/etc/shadow", os.O_RDONLY)
        return found

    with functions.load("count"):
        assert Call(look, uid=65534, gid=65534).result() == CALL.reference(DATA)
    os.close(fd)


def test_run_at_the_device_updates_the_access_time(m: Forced, files: Path) -> None:
    os.utime(m / "f", (1000, 2000))
    assert force_stat(m / "f").st_size == len(DATA)
    assert os.stat(m / "f").st_atime == 1000
    with functions.load("count"):
        at_device(m / "f", DATA)
    accessed = os.stat(files / "f").st_atime_ns
    assert accessed > 2000 * 10**9
    assert os.stat(m / "f").st_atime_ns == accessed


def test_blocks_overwritten_during_a_run_are_seen_old_or_new(m: Forced) -> None:
    """Each run sees each block as it was or as it is, and never a mixture."""
    old, new = b"\x01" * BLOCK, b"\x02" * BLOCK
    count = 64
    fd = os.open(m / "f", os.O_RDWR)
    os.ftruncate(fd, 0)
    assert os.pwrite(fd, old * count, 0) == count * BLOCK
    stop = threading.Event()

    def write() -> None:
        for data in itertools.cycle((new, old)):
            for n in range(count):
                os.pwrite(fd, data, n * BLOCK)
            if stop.is_set():
                return

    writing = threading.Thread(target=write)
    writing.start()
    try:
        with functions.load("count"):
            for _ in range(20):
                found, status = result(CALL, m / "f", Place.DEVICE)
                counted = CALL.decode(found)
                assert status.device_steps == count
                assert counted.matches % BLOCK == 0
                assert counted.size == count * BLOCK
    finally:
        stop.set()
        writing.join()
    os.close(fd)


@pytest.mark.parametrize("consistency", ["ttl", "cto"])
def test_read_after_a_run_returns_nothing_older(files: Path, point: Path, consistency: str) -> None:
    """A READ that the data cache answers shows nothing older than the run."""
    (files / "f").write_bytes(DATA)
    with forced(files, point, "cache", consistency=consistency) as m, functions.load("count"):
        fd = os.open(m / "f", os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        try:
            for _ in range(3):
                assert os.pread(fd, BLOCK, 7 * BLOCK) == DATA[7 * BLOCK :][:BLOCK]
            m.show_that_it_ran(3)
            changed = DATA[: 7 * BLOCK] + b"\x01" * BLOCK + DATA[8 * BLOCK :]
            with (files / "f").open("r+b") as below:
                below.seek(7 * BLOCK)
                below.write(b"\x01" * BLOCK)
            m.connection.forced_path = "auto"
            at_device(m / "f", changed)
            m.connection.forced_path = "cache"
            assert os.pread(fd, BLOCK, 7 * BLOCK) == b"\x01" * BLOCK
        finally:
            os.close(fd)
