# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test READs from a device of csd.ko, past the page cache of the backing files."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from efuse.control import PATHS
from efuse.stats import PathCounters, read
from tests.guest.support.backing_files import backing, make
from tests.guest.support.cpus import one_cpu
from tests.guest.support.csd_device import Device, csd, noise
from tests.guest.support.daemons import Call, Mount, fails, mounted
from tests.guest.support.file_data import read_direct, write
from tests.guest.support.forced import Forced, forced
from tests.guest.support.functions import BLOCK
from tests.guest.support.manual_daemon import DEADLINE_S, until
from tests.guest.support.shell import run

BLOCKS = 300
DATA = noise(BLOCKS * BLOCK + 77)


@pytest.fixture
def m(files: Path, point: Path) -> Iterator[Forced]:
    """Yield a pass-through of the device with the file ``f``, which is not in the page cache."""
    (files / "f").write_bytes(DATA)
    chill(files / "f")
    with forced(files, point, "device", consistency="exclusive") as one:
        yield one


@pytest.fixture
def hole(files: Path, point: Path) -> Iterator[Mount]:
    """Yield a mount without handlers, whose daemon maps what a test tells it to."""
    with mounted(point, attach=False) as one:
        one.connection.forced_path = "device"
        yield one


def chill(path: Path) -> None:
    """Drop all pages of a file from the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)
    assert resident(path) == 0


def resident(path: Path) -> int:
    """Return the number of a file's pages that are in the page cache."""
    printed = run("fincore", "--noheadings", "--output", "PAGES", path)
    return int(printed.stdout.strip() or 0)


def counters(m: Forced | Mount) -> dict[str, PathCounters]:
    return dict(read(m.connection, timing=False).paths)


def answered(m: Forced | Mount) -> dict[str, int]:
    return {path: gain.requests for path, gain in counters(m).items()}


def by_device(m: Forced | Mount, device: Device, act: Callable[[], object]) -> None:
    """Check that *act* consists of READs that the device answers, all of them."""
    before, link = counters(m), device.read("link_read_bytes")
    act()
    gained = {path: after - before[path] for path, after in counters(m).items()}
    assert {path for path, gain in gained.items() if gain.requests} == {"device"}
    assert device.read("link_read_bytes") - link >= gained["device"].bytes > 0


def by_direct_path(m: Forced | Mount, act: Callable[[], object]) -> None:
    """Check that the direct path answers all READs of *act*, because the device cannot."""
    before = answered(m)
    act()
    gained = {path: n - before[path] for path, n in answered(m).items()}
    assert gained["device"] == gained["cache"] == gained["daemon"] == 0
    assert gained["direct"] > 0


def check(path: Path | str, wanted: bytes, size: int = 16 * BLOCK) -> None:
    """Compare a whole file, which is read past FUSE's page cache."""
    got = b"".join(
        read_direct(str(path), size, offset) for offset in range(0, len(wanted) + size, size)
    )
    assert got == wanted


def check_part(path: Path | str, wanted: bytes, offset: int = 0) -> None:
    """Compare some bytes, which are read in one call."""
    assert read_direct(str(path), len(wanted), offset) == wanted


def test_read_is_answered_by_the_device(device: Device, m: Forced, files: Path) -> None:
    by_device(m, device, lambda: check(m / "f", DATA))
    assert resident(files / "f") == 0


@pytest.mark.parametrize("size", [BLOCK, 7 * BLOCK, 1 << 20, 8 << 20])
def test_read_of_any_size_is_answered_by_the_device(device: Device, m: Forced, size: int) -> None:
    by_device(m, device, lambda: check(m / "f", DATA, size))


def test_mapped_pages_are_filled_by_the_device(device: Device, m: Forced, files: Path) -> None:
    def look() -> None:
        with (
            (m / "f").open("rb") as file,
            mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view,
        ):
            assert view[:] == DATA

    by_device(m, device, look)
    assert resident(files / "f") == 0


def test_read_beyond_the_end_returns_nothing(m: Forced) -> None:
    assert read_direct(str(m / "f"), BLOCK, BLOCKS * BLOCK) == DATA[-77:]
    assert read_direct(str(m / "f"), BLOCK, (BLOCKS + 1) * BLOCK) == b""


def test_read_after_write_returns_the_new_bytes(device: Device, m: Forced, files: Path) -> None:
    data = bytearray(DATA)
    data[BLOCK : 2 * BLOCK] = b"w" * BLOCK
    assert write(str(m / "f"), b"w" * BLOCK, BLOCK) == BLOCK
    by_device(m, device, lambda: check(m / "f", bytes(data)))
    # Store to the backing file behind the mount, without writing it back.
    data[5 * BLOCK + 1 : 5 * BLOCK + 4] = b"abc"
    with (files / "f").open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[5 * BLOCK + 1 : 5 * BLOCK + 4] = b"abc"
        by_device(m, device, lambda: check(m / "f", bytes(data)))
    os.truncate(m / "f", 3 * BLOCK + 5)
    by_device(m, device, lambda: check(m / "f", bytes(data[: 3 * BLOCK + 5])))


def test_read_after_a_store_by_a_map_returns_the_new_bytes(m: Forced) -> None:
    data = bytearray(DATA)
    with (m / "f").open("r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        view[7 * BLOCK : 7 * BLOCK + 3] = data[7 * BLOCK : 7 * BLOCK + 3] = b"xyz"
        check(m / "f", bytes(data))
        view.flush()
        check(m / "f", bytes(data))


@pytest.mark.parametrize(("offset", "size"), [(1, BLOCK), (100, 100), (BLOCK, 511)])
def test_unaligned_read_takes_the_direct_path(m: Forced, offset: int, size: int) -> None:
    wanted = DATA[offset : offset + size]

    def look() -> None:
        fd = os.open(m / "f", os.O_RDONLY)
        assert os.pread(fd, size, offset) == wanted
        os.close(fd)

    by_direct_path(m, look)


def test_file_on_no_device_takes_the_direct_path(hole: Mount, lower: Path) -> None:
    make(hole, "f", DATA)
    hole.call("map_extent", "f", backing(lower, DATA), os.O_RDONLY)
    by_direct_path(hole, lambda: check(hole / "f", DATA))


def test_read_over_extents_off_the_device_takes_the_direct_path(
    device: Device, hole: Mount, files: Path, lower: Path
) -> None:
    """The device answers all of a READ or nothing, so the counted path has all of it."""
    (files / "a").write_bytes(DATA[: 32 * BLOCK])
    chill(files / "a")
    make(hole, "f", DATA)
    piece = {"offset": 0, "length": 32 * BLOCK}
    hole.call("map_extent", "f", str(files / "a"), os.O_RDONLY, **piece)
    hole.call("map_extent", "f", backing(lower, DATA[32 * BLOCK :]), os.O_RDONLY, offset=32 * BLOCK)
    path = str(hole / "f")
    by_device(hole, device, lambda: check_part(path, DATA[: 16 * BLOCK]))
    by_direct_path(hole, lambda: check(path, DATA, 64 * BLOCK))


def test_changed_sealed_file_is_read_by_the_daemon(hole: Mount, files: Path) -> None:
    run("mount", "-o", "remount,iversion", files)
    (files / "a").write_bytes(DATA)
    make(hole, "f", b"d" * len(DATA))
    hole.call("map_extent", "f", str(files / "a"), os.O_RDONLY, sealed=True)
    assert read_direct(str(hole / "f"), BLOCK) == DATA[:BLOCK]
    assert answered(hole)["device"] == 1
    (files / "a").write_bytes(b"x" * len(DATA))
    assert read_direct(str(hole / "f"), BLOCK) == b"d" * BLOCK
    assert answered(hole)["daemon"] == 1


def test_read_after_one_error_of_the_device_takes_the_direct_path(
    device: Device, m: Forced
) -> None:
    os.sync()  # otherwise the file system's own write might be the one that fails
    device.write("fail_next", 1)
    by_direct_path(m, lambda: check_part(m / "f", DATA[:BLOCK]))
    assert device.read("fail_next") == 0
    by_device(m, device, lambda: check(m / "f", DATA))


def test_read_from_a_device_that_always_fails_fails(device: Device, m: Forced) -> None:
    device.write("fail_every", 1)
    try:
        fails(errno.EIO, read_direct, str(m / "f"), BLOCK)
    finally:
        device.write("fail_every", 0)
    by_device(m, device, lambda: check(m / "f", DATA))


def test_power_off_during_a_read_fails_it(tmp_path: Path, point: Path) -> None:
    """The power ends a READ at the device, and the mount no longer uses the device."""
    directory = tmp_path / "lower"
    directory.mkdir()
    with csd(size_mib=64, power=1) as device:
        run("mkfs.ext4", "-q", "-b", "4096", device.path)
        run("mount", device.path, directory)
        (directory / "f").write_bytes(DATA)
        chill(directory / "f")
        with forced(directory, point, "device", consistency="exclusive") as m:
            os.stat(m / "f")
            device.write("hold", 1)
            reading = Call(read_direct, str(m / "f"), BLOCK)
            device.wait("held", 1)
            device.write("power", 0)
            with pytest.raises(OSError, match=os.strerror(errno.EIO)):
                reading.result()
        run("umount", directory)


def test_unmap_waits_for_the_device(device: Device, hole: Mount, files: Path) -> None:
    (files / "a").write_bytes(DATA)
    chill(files / "a")
    make(hole, "f", b"d" * len(DATA))
    hole.call("map_extent", "f", str(files / "a"), os.O_RDONLY)
    device.write("hold", 1)
    try:
        reading = Call(read_direct, str(hole / "f"), BLOCK)
        device.wait("held", 1)
        unmap = threading.Thread(target=hole.call, args=("unmap_extents", "f"))
        unmap.start()
        until(lambda: "efuse_uses_wait" in Path(f"/proc/{hole.pid}/stack").read_text())
    finally:
        device.write("hold", 0)
    unmap.join(DEADLINE_S)
    assert reading.result() == DATA[:BLOCK]
    assert read_direct(str(hole / "f"), BLOCK) == b"d" * BLOCK


def test_truncate_waits_for_a_read_by_the_device(device: Device, m: Forced, files: Path) -> None:
    """While the device reads a file, the file's blocks must stay, so truncation waits."""
    size = 64 * BLOCK
    os.truncate(m / "f", size)
    os.sync()
    device.write("hold", 1)
    try:
        reading = Call(read_direct, str(m / "f"), size)
        device.wait("held", 1)
        cut = Call(os.truncate, files / "f", 0)
        # A reader that waits for its answer holds the inode's lock.
        until(lambda: cut.within()[:1] == ["do_truncate"])
    finally:
        device.write("hold", 0)
    cut.result()
    (files / "other").write_bytes(b"o" * size)
    os.sync()
    assert reading.result() == DATA[:size]


def test_read_by_the_device_keeps_the_credentials_of_the_caller(device: Device, m: Forced) -> None:
    fd = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)

    def look() -> bytes:
        with mmap.mmap(-1, BLOCK) as buffer:
            got = buffer[: os.preadv(fd, [buffer], 0)]
        fails(errno.EACCES, os.open, "/etc/shadow", os.O_RDONLY)
        return got

    def another() -> None:
        assert Call(look, uid=65534, gid=65534).result() == DATA[:BLOCK]

    by_device(m, device, another)
    os.close(fd)


# Which path is chosen


_POLICY = """
#include "efuse.bpf.h"

BPF_HASH(seen, u64, u64, 64);

int select_path(struct efuse_req *req)
{
    const struct efuse_path_info *info = efuse_path_info(req, sizeof(*info));
    u64 key = efuse_req_offset(req), value;

    if (!info || efuse_req_opcode(req) != FUSE_READ)
        return EFUSE_PATH_AUTO;
    value = (u32)efuse_path_resident(req) | (u64)(info->eligible >> EFUSE_PATH_DEVICE & 1) << 32;
    seen.update(&key, &value);
    return (key < 24 * 4096 ? EFUSE_PATH_DEVICE : EFUSE_PATH_DIRECT) | EFUSE_PATH_MEASURE;
}

int path_done(struct efuse_req *req)
{
    const struct efuse_path_info *info = efuse_path_info(req, sizeof(*info));
    u64 key = efuse_req_offset(req) + 1, value;

    if (!info)
        return 0;
    value = info->missed | (u64)info->path << 8;
    seen.update(&key, &value);
    return 1;
}
"""


_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_DUMPABLE, _PTRACE_SEIZE = 4, 0x4206
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


@pytest.fixture
def _any_tracer() -> Iterator[None]:
    """Let a process trace others of its user that are not its children."""
    before = _YAMA.read_text() if _YAMA.exists() else ""
    if before:
        _YAMA.write_text("0")
    yield
    if before:
        _YAMA.write_text(before)


def _may(uid: int, pid: int) -> tuple[bool, bool]:
    """Return whether a process of a user may send signals to a process, and trace it."""

    def act() -> tuple[bool, bool]:
        try:
            os.kill(pid, 0)
            signals = True
        except PermissionError:
            signals = False
        # A tracer that exits lets its process go.
        return signals, not _libc.ptrace(_PTRACE_SEIZE, pid, None, None)

    return Call(act, uid=uid, gid=uid).result()


@pytest.mark.usefixtures("_any_tracer")
def test_caller_keeps_its_ids_in_proc_during_a_read_by_the_device(
    device: Device, m: Forced
) -> None:
    """Others see, signal and trace the caller as before, while its task reads as the daemon."""
    fd = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)

    def look() -> bytes:
        # After a change of its user, only root could trace it.
        _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
        with mmap.mmap(-1, BLOCK) as buffer:
            return buffer[: os.preadv(fd, [buffer], 0)]

    device.write("hold", 1)
    try:
        reading = Call(look, uid=65534, gid=65534)
        device.wait("held", 1)
        status = Path(f"/proc/{reading.pid}/status").read_text().splitlines()
        (uids,) = (line.split()[1:] for line in status if line.startswith("Uid:"))
        (effective,) = (line.split()[1] for line in status if line.startswith("CapEff:"))
        same, another = _may(65534, reading.pid), _may(65533, reading.pid)
    finally:
        device.write("hold", 0)
    assert reading.result() == DATA[:BLOCK]
    assert (uids, int(effective, 16)) == (["65534"] * 4, 0)
    assert (same, another) == ((True, True), (False, False))
    os.close(fd)


def test_select_path_handler_sends_reads_to_the_device(
    device: Device, files: Path, point: Path
) -> None:
    (files / "a").write_bytes(DATA)
    chill(files / "a")
    with mounted(point, attach=False, consistency="exclusive") as m:
        m.attach(handlers={"select_path": _POLICY, "path_done": _POLICY})
        assert m.attachment
        make(m, "f", DATA)
        m.call("map_extent", "f", str(files / "a"), os.O_RDONLY)
        path = str(m / "f")
        size = 8 * BLOCK
        by_device(m, device, lambda: check_part(path, DATA[:size]))
        # Read two of the next eight blocks into the page cache.
        fd = os.open(files / "a", os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        for block in (9, 12):
            assert os.pread(fd, BLOCK, block * BLOCK) == DATA[block * BLOCK :][:BLOCK]
        os.close(fd)
        assert resident(files / "a") == 2
        by_device(m, device, lambda: check_part(path, DATA[size : 2 * size], size))
        # The READ is not aligned. The handler still chooses the device, but the direct path
        # answers.
        by_direct_path(m, lambda: check_part(path, DATA[2 * size :][:100], 2 * size))
        by_direct_path(m, lambda: check_part(path, DATA[3 * size : 4 * size], 3 * size))
        eligible, missed, by, no = 1 << 32, 1, 4 << 8, -errno.EOPNOTSUPP & 0xFFFFFFFF
        assert m.attachment.maps["seen"].read_all() == {
            0: 0 | eligible,
            1: by,
            size: 2 | eligible,
            size + 1: by,
            2 * size: no | eligible,
            2 * size + 1: missed | by,
            3 * size: 0 | eligible,
            3 * size + 1: 2 << 8,
        }


class Reader:
    """A reader of a mapped file on one CPU, with the built-in choice, that compares the bytes."""

    def __init__(self, m: Mount) -> None:
        self.m = m
        self._fd = os.open(m / "f", os.O_RDONLY | os.O_DIRECT)
        self._buffer = memoryview(mmap.mmap(-1, BLOCK))

    def read(self, block: int) -> None:
        assert os.preadv(self._fd, [self._buffer], block * BLOCK) == BLOCK
        assert self._buffer == DATA[block * BLOCK : (block + 1) * BLOCK]

    def during(self, blocks: range | list[int]) -> dict[str, PathCounters]:
        """Return the increase of each path's counters while *blocks* are read."""
        before = counters(self.m)
        for block in blocks:
            self.read(block)
        after = counters(self.m)
        return {path: after[path] - before[path] for path in PATHS}

    def close(self) -> None:
        os.close(self._fd)


@pytest.fixture
def reader(files: Path, point: Path) -> Iterator[Reader]:
    (files / "a").write_bytes(DATA)
    chill(files / "a")
    with mounted(point, consistency="exclusive") as m, one_cpu():
        make(m, "f", DATA)
        m.call("map_extent", "f", str(files / "a"), os.O_RDONLY)
        m.log()
        one = Reader(m)
        try:
            yield one
        finally:
            one.close()
            assert "read" not in m.asked(), "the daemon was asked"


BACKWARDS = list(range(BLOCKS - 1, -1, -1))


def test_uncached_reads_probe_the_direct_path_and_the_device(reader: Reader) -> None:
    reader.m.connection.round = 20
    reader.m.connection.probes = 4
    gained = reader.during(BACKWARDS[:100])
    assert {path: c.probes for path, c in gained.items()} == {
        "daemon": 0,
        "direct": 10,
        "cache": 20,
        "device": 10,
    }
    assert sum(c.requests for c in gained.values()) == 100
    # Times of both paths were predicted and measured.
    for path in ("direct", "device"):
        assert gained[path].predicted > 0
        assert gained[path].actual_ns > 0


def test_cached_blocks_are_not_read_by_the_device(reader: Reader, files: Path) -> None:
    (files / "a").read_bytes()
    gained = reader.during(BACKWARDS)
    assert gained["device"].chosen == 0
    assert gained["direct"].requests + gained["cache"].requests == BLOCKS


def test_sequential_reads_are_left_to_read_ahead(reader: Reader) -> None:
    gained = reader.during(range(BLOCKS))
    assert gained["device"].chosen == 0


@pytest.mark.parametrize(
    ("cold_ns", "device_ns", "again", "wanted"),
    [
        (10**9, 10**6, 0.0, "device"),
        (10**6, 10**9, 0.0, "direct"),
        # The direct path would leave the block in the page cache, where the next READ takes almost
        # no time.
        (2 * 10**6, 10**6, 1.0, "direct"),
        (2 * 10**6, 10**6, 0.0, "device"),
    ],
)
def test_path_with_the_shorter_predicted_time_is_chosen(
    reader: Reader, cold_ns: int, device_ns: int, again: float, wanted: str
) -> None:
    assert reader.m.attachment
    profiles = reader.m.attachment.maps["profiles"]
    times = (1000, cold_ns, device_ns, 10**12, 10**12)
    # The probes are over, and the next twelve READs are not timed.
    profile = struct.pack("<5QQ8I", *times, 0, 1000 * 16 + 1, 2, 0, int(again * 65536), 0, 0, 0, 0)
    reader.m.connection.round = 10**6
    for index in profiles:
        profiles[index] = tuple([profile] * len(profiles[index]))
    gained = reader.during(BACKWARDS[:12])
    assert {path: c.chosen for path, c in gained.items() if c.chosen} == {wanted: 12}
