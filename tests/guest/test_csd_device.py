# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test csd devices as disks: their bytes, settings, faults, power and time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import mmap
import os
import random
import re
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from efuse.csd import devices
from efuse.csd.attributes import ATTRIBUTES, Kind
from efuse.errors import ModuleBuildError, NotSupportedError
from tests.guest.support import csd_device
from tests.guest.support.csd_device import Device, csd, noise
from tests.guest.support.fsx import Exerciser, View
from tests.guest.support.manual_daemon import until
from tests.guest.support.shell import run

pytestmark = pytest.mark.usefixtures("csd_is_loaded")

BLKRRPART, BLKSSZGET, BLKDISCARD = 0x125F, 0x1268, 0x1277
BLKPBSZGET, BLKZEROOUT, BLKGETSIZE64 = 0x127B, 0x127F, 0x80081272

MIB = 1 << 20
NS = 10**9
GONE = {errno.EIO, errno.ENODEV, errno.ENXIO}

DEFAULTS = {name: each.default for name, each in ATTRIBUTES.items()}
RANGES = {
    name: (each.least, each.most) for name, each in ATTRIBUTES.items() if each.most is not None
}
COUNTERS = [name for name, each in ATTRIBUTES.items() if each.kind is Kind.COUNTER]
GEOMETRY = ("size_mib", "queues", "depth", "logical_block_size", "cores")


@contextlib.contextmanager
def opened(path: Path, flags: int = os.O_RDWR | os.O_DIRECT) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def pread(descriptor: int, length: int, offset: int) -> bytes:
    """Read up to *length* bytes with one call, into a buffer that is aligned for O_DIRECT."""
    with mmap.mmap(-1, length) as buffer:
        return buffer[: os.preadv(descriptor, [buffer], offset)]


def pwrite(descriptor: int, data: bytes, offset: int) -> None:
    with mmap.mmap(-1, len(data)) as buffer:
        buffer[:] = data
        assert os.pwritev(descriptor, [buffer], offset) == len(data)


def available() -> int:
    """Return the available memory in bytes, with the free pages that CPUs keep for themselves.

    The kernel does not count these as free. Since Linux 6.7 they may be an eighth of the memory.
    """
    (line,) = (x for x in Path("/proc/meminfo").read_text().splitlines() if "MemAvailable:" in x)
    kept = re.findall(r"^ +count: +(\d+)$", Path("/proc/zoneinfo").read_text(), re.MULTILINE)
    return (int(line.split()[1]) << 10) + sum(map(int, kept)) * mmap.PAGESIZE


def read_error(descriptor: int, offset: int = 0) -> int:
    """Read a page, and return the errno or 0."""
    try:
        pread(descriptor, 4096, offset)
    except OSError as error:
        assert error.errno is not None
        return error.errno
    return 0


def number(descriptor: int, request: int, kind: str) -> int:
    buffer = bytearray(struct.calcsize(kind))
    fcntl.ioctl(descriptor, request, buffer)
    return int(struct.unpack(kind, buffer)[0])


def zero(descriptor: int, request: int, offset: int, length: int) -> None:
    """Do the ioctl BLKDISCARD or BLKZEROOUT."""
    fcntl.ioctl(descriptor, request, struct.pack("QQ", offset, length))


def counters(device: Device) -> dict[str, int]:
    return {name: device.read(name) for name in COUNTERS}


def change(device: Device, act: Callable[[], object]) -> dict[str, int]:
    """Return how much *act* added to each counter that changed."""
    before = counters(device)
    act()
    return {name: n - before[name] for name, n in counters(device).items() if n != before[name]}


@contextlib.contextmanager
def held(
    device: Device, acts: list[Callable[[], Any]]
) -> Iterator[tuple[ThreadPoolExecutor, list[Future[Any]]]]:
    """Begin each of *acts* in a thread, and let the device hold the one request of each."""
    device.write("hold", 1)
    with ThreadPoolExecutor(len(acts)) as pool:
        done = [pool.submit(act) for act in acts]
        try:
            device.wait("held", len(acts))
            yield pool, done
        finally:
            if device.directory.exists():
                device.write("hold", 0)


# Settings


def test_attributes_of_a_new_device_have_their_defaults() -> None:
    with csd() as device:
        names = {path.name for path in device.directory.iterdir()}
        assert names == set(DEFAULTS)
        assert {name: device.read(name) for name in DEFAULTS} == DEFAULTS


@pytest.mark.parametrize("name", RANGES)
def test_attribute_out_of_range_fails(name: str) -> None:
    least, most = RANGES[name]
    with csd() as device:
        for bad in [most + 1, *([least - 1] if least else []), 2**64]:
            with pytest.raises(OSError, match=os.strerror(errno.ERANGE)):
                device.write(name, bad)
        for word in ("", "word", "-1", "1 1"):
            with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
                device.write(name, word)
        assert device.read(name) == DEFAULTS[name]
        if name == "power":
            return
        for good in (most, least):
            device.write(name, good)
            assert device.read(name) == good


def test_other_logical_block_size_fails() -> None:
    with csd() as device, pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        device.write("logical_block_size", 1024)


@pytest.mark.parametrize("name", sorted(set(DEFAULTS) - set(RANGES)))
def test_write_to_a_read_only_attribute_fails(name: str) -> None:
    with csd() as device, pytest.raises(PermissionError):
        device.write(name, 0)


@pytest.mark.parametrize("name", GEOMETRY)
def test_geometry_while_powered_fails(name: str) -> None:
    with csd(power=1) as device:
        with pytest.raises(OSError, match=os.strerror(errno.EBUSY)):
            device.write(name, DEFAULTS[name])
        device.write("power", 0)
        device.write(name, DEFAULTS[name])


def test_times_and_faults_can_be_set_while_powered() -> None:
    with csd(power=1) as device:
        for name in set(RANGES) - set(GEOMETRY) - {"power", "hold"}:
            device.write(name, RANGES[name][1])
            assert device.read(name) == RANGES[name][1]


@pytest.mark.parametrize("size", [512, 4096])
def test_disk_has_the_geometry_that_was_set(size: int) -> None:
    with csd(size_mib=10, queues=2, depth=7, logical_block_size=size, power=1) as device:
        with opened(device.path) as fd:
            assert number(fd, BLKGETSIZE64, "Q") == 10 * MIB
            assert number(fd, BLKSSZGET, "i") == size
            assert number(fd, BLKPBSZGET, "I") == 4096
        sysfs = Path("/sys/block") / device.path.name
        assert len(list((sysfs / "mq").iterdir())) == min(2, os.cpu_count() or 1)
        assert (sysfs / "queue/nr_requests").read_text() == "7\n"
        assert (sysfs / "queue/write_cache").read_text() == "write through\n"
        assert (sysfs / "queue/rotational").read_text() == "0\n"
        assert (sysfs / "queue/discard_granularity").read_text() == f"{mmap.PAGESIZE}\n"


def test_largest_size_takes_no_memory() -> None:
    with csd(size_mib=1 << 20, power=1) as device, opened(device.path) as fd:
        end = (1 << 40) - 4096
        pwrite(fd, noise(4096), end)
        assert pread(fd, 4096, end) == noise(4096)
        assert pread(fd, 4096, end - 4096) == bytes(4096)


def test_devices_have_separate_contents() -> None:
    with csd(size_mib=1, power=1) as one, csd(size_mib=1, power=1) as other:
        assert one.path != other.path
        with opened(one.path) as fd:
            pwrite(fd, noise(4096), 0)
        with opened(other.path) as fd:
            assert pread(fd, 4096, 0) == bytes(4096)


# Bytes of the device


@pytest.mark.parametrize("queues", [1, 2])
@pytest.mark.parametrize("block", [512, 4096])
def test_written_bytes_are_read(block: int, queues: int) -> None:
    """The device takes any length and place, through the page cache and past it."""
    rng = random.Random(block + queues)
    size = 8 * MIB
    expected = bytearray(size)
    with csd(size_mib=8, queues=queues, logical_block_size=block, power=1) as device:
        with opened(device.path) as fd:
            for _ in range(300):
                length = rng.randint(1, rng.choice((8, 64, 3 * MIB // block))) * block
                at = rng.randrange((size - length) // block + 1) * block
                if rng.random() < 0.5:
                    data = rng.randbytes(length)
                    pwrite(fd, data, at)
                    expected[at : at + length] = data
                else:
                    assert pread(fd, length, at) == expected[at : at + length]
        with opened(device.path, os.O_RDWR) as fd:
            assert os.pread(fd, size, 0) == expected
            for _ in range(100):
                length = rng.randint(1, 20_000)
                at = rng.randrange(size - length)
                data = rng.randbytes(length)
                os.pwrite(fd, data, at)
                expected[at : at + length] = data
            os.fsync(fd)
        with opened(device.path) as fd:
            assert pread(fd, size, 0) == expected


@pytest.mark.parametrize("request_", [BLKDISCARD, BLKZEROOUT], ids=["discard", "zero_out"])
def test_discarded_bytes_are_zero(request_: int) -> None:
    rng = random.Random(request_)
    size = 4 * MIB
    expected = bytearray(noise(size))
    with csd(size_mib=4, power=1) as device, opened(device.path) as fd:
        pwrite(fd, bytes(expected), 0)
        for _ in range(200):
            length = rng.randint(1, rng.choice((20, 200))) * 512
            at = rng.randrange((size - length) // 512 + 1) * 512
            zero(fd, request_, at, length)
            expected[at : at + length] = bytes(length)
            pwrite(fd, data := rng.randbytes(512), at)
            expected[at : at + 512] = data
        assert pread(fd, size, 0) == expected
        zero(fd, request_, 0, size)
        assert pread(fd, size, 0) == bytes(size)


def test_partition_is_found_again_after_a_power_cycle() -> None:
    entry = struct.pack("<B3sB3sII", 0, b"", 0x83, b"", 8, 1000)
    table = bytes(446) + entry + bytes(48) + b"\x55\xaa"
    with csd(size_mib=4, power=1) as device, opened(device.path) as fd:
        pwrite(fd, table, 0)
        fcntl.ioctl(fd, BLKRRPART)
        with opened(Path(f"{device.path}p1")) as part:
            pwrite(part, noise(4096), 512)
        assert pread(fd, 4096, 9 * 512) == noise(4096)
        device.write("power", 0)
        device.write("power", 1)
        with opened(Path(f"{device.path}p1")) as part:
            assert pread(part, 4096, 512) == noise(4096)


def test_discard_and_removal_free_memory() -> None:
    """Neither a discard nor a removal leaks memory: a leak would be four times the size."""
    size = 32 * MIB
    data = noise(MIB)
    before = available()
    for _ in range(4):
        with csd(size_mib=32, power=1) as device, opened(device.path) as fd:
            for _ in range(2):
                zero(fd, BLKDISCARD, 0, size)
                for at in range(0, size, MIB):
                    pwrite(fd, data, at)
            assert pread(fd, MIB, size - MIB) == data
    until(lambda: before - available() < size)


def test_discard_during_reads_and_writes_leaves_whole_sectors() -> None:
    """Each sector has written bytes or zeros, and is never torn."""
    size = MIB
    blocks = [bytes([n]) * 4096 for n in range(1, 5)]
    strange: list[bytes] = []

    def write(fd: int) -> None:
        for n in range(600):
            pwrite(fd, blocks[n % 4], n * 7 % 256 * 4096)

    def discard(fd: int) -> None:
        for n in range(600):
            zero(fd, BLKDISCARD, n % 4 * size // 4, size // 4)

    def read(fd: int) -> None:
        for n in range(120):
            strange.append(pread(fd, size // 2, n % 2 * size // 2).translate(None, bytes(range(5))))

    with (
        csd(size_mib=1, queues=2, power=1) as device,
        opened(device.path) as fd,
        ThreadPoolExecutor(4) as pool,
    ):
        for done in [pool.submit(act, fd) for act in (write, discard, read, read)]:
            done.result()
        zero(fd, BLKDISCARD, 0, size)
        assert pread(fd, size, 0) == bytes(size)
    assert not any(strange)


def test_fio_verifies_many_jobs_on_the_model(tmp_path: Path) -> None:
    """Several jobs use several queues, with many requests at a time, under the model's time."""
    with csd(
        size_mib=64,
        queues=2,
        depth=16,
        model=1,
        media_units=4,
        media_latency_ns=20_000,
        media_mib_per_s=2000,
        link_mib_per_s=3000,
        link_latency_ns=5000,
        power=1,
    ) as device:
        jobs = tmp_path / "jobs.fio"
        jobs.write_text(
            f"[global]\nfilename={device.path}\nverify=crc32c\nverify_fatal=1\n"
            "verify_state_save=0\nrandseed=1\ndirect=1\nioengine=libaio\niodepth=16\n"
            "size=4m\noffset_increment=16m\nrw=randrw\n"
            "[small]\nbs=4k\nnumjobs=2\n[uneven]\nbsrange=512-256k\noffset=32m\nnumjobs=2\n"
        )
        before = counters(device)
        output = run("fio", "--output-format=json", jobs).stdout
        found: dict[str, Any] = json.JSONDecoder().raw_decode(output, output.index("{"))[0]
        assert all(job["error"] == 0 for job in found["jobs"])
        assert device.read("writes") - before["writes"] > 100
        assert device.read("reads") - before["reads"] > 100


# File systems on the device


@contextlib.contextmanager
def ext4(device: Device, point: Path, *, make: bool = True) -> Iterator[None]:
    if make:
        run("mkfs.ext4", "-q", device.path)
    run("mount", device.path, point)
    try:
        yield
    finally:
        run("umount", point)


@pytest.mark.parametrize("block", [512, 4096])
def test_files_survive_unmount_and_a_power_cycle(mountpoint: Path, block: int) -> None:
    """Files survive an unmount, and also a power cycle after it."""
    files = {f"f{n}": noise(n * 50_000, n) for n in range(10)}
    with csd(size_mib=64, logical_block_size=block, power=1) as device:
        with ext4(device, mountpoint):
            for name, data in files.items():
                (mountpoint / name).write_bytes(data)
            run("fstrim", mountpoint)
        for power in (1, 0):
            device.write("power", power)
            device.write("power", 1)
            with ext4(device, mountpoint, make=False):
                assert {
                    p.name: p.read_bytes() for p in mountpoint.iterdir() if p.is_file()
                } == files
        run("fsck.ext4", "-f", "-n", device.path)


def test_fsx_finds_no_difference_on_ext4(mountpoint: Path) -> None:
    with csd(size_mib=64, queues=2, power=1) as device:
        run("mkfs.ext4", "-q", device.path)
        run("mount", "-o", "discard", device.path, mountpoint)
        (mountpoint / "f").touch()
        Exerciser([View(mountpoint / "f")], mountpoint / "f", 1).run(2000)
        run("umount", mountpoint)


# Faults


def test_fail_every_3_fails_every_third_request() -> None:
    with csd(size_mib=1, power=1) as device, opened(device.path) as fd:
        device.write("fail_every", 3)
        before = device.read("reads")
        assert [read_error(fd) for _ in range(9)] == [0, 0, errno.EIO] * 3
        # A failed request is not carried out.
        assert device.read("reads") == before + 6
        assert read_error(fd) == 0
        device.write("fail_every", 2)  # This restarts the count.
        assert [read_error(fd) for _ in range(4)] == [0, errno.EIO] * 2
        device.write("fail_every", 0)
        assert [read_error(fd) for _ in range(4)] == [0] * 4


def test_fail_next_fails_the_next_requests() -> None:
    with csd(size_mib=1, power=1) as device, opened(device.path) as fd:
        device.write("fail_next", 2)
        assert [read_error(fd) for _ in range(3)] == [errno.EIO, errno.EIO, 0]
        assert device.read("fail_next") == 0
        device.write("fail_next", 1)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            pwrite(fd, noise(4096), 0)
        assert pread(fd, 4096, 0) == bytes(4096)
        device.write("fail_next", 1)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            zero(fd, BLKDISCARD, 0, 4096)
        assert read_error(fd) == 0


def test_held_requests_end_when_released() -> None:
    """A held request neither completes nor fails until it is released."""
    data = noise(4096)
    with csd(size_mib=1, queues=2, power=1) as device, opened(device.path) as fd:
        acts: list[Callable[[], Any]] = [lambda: pread(fd, 4096, 0)] * 3
        before = counters(device)
        with held(device, [*acts, lambda: pwrite(fd, data, 4096)]) as (_, done):
            assert device.read("held") == 4
            assert not any(each.done() for each in done)
            assert counters(device) == before
            device.write("fail_next", 1)
            device.write("hold", 0)
            errors = [each.exception(60) for each in done]
        # The first request after the setting failed.
        assert [type(error) for error in errors].count(OSError) == 1
        assert device.read("held") == 0
        assert device.read("reads") + device.read("writes") == (
            before["reads"] + before["writes"] + 3
        )
        if errors[3] is None:
            assert pread(fd, 4096, 4096) == data


def test_depth_limits_the_held_requests() -> None:
    with csd(size_mib=1, depth=2, power=1) as device, opened(device.path) as fd:
        device.write("hold", 1)
        with ThreadPoolExecutor(4) as pool:
            done = [pool.submit(read_error, fd) for _ in range(4)]
            device.wait("held", 2)
            assert device.read("held") == 2
            device.write("hold", 0)
            assert [each.result(60) for each in done] == [0] * 4


# Power


def test_power_off_fails_held_requests() -> None:
    with csd(size_mib=1, queues=2, power=1) as device, opened(device.path) as fd:
        path = device.path
        acts: list[Callable[[], Any]] = [lambda: read_error(fd)] * 4
        with held(device, acts) as (_, done):
            device.write("power", 0)
            assert {each.result(60) for each in done} <= GONE
        assert device.read("held") == 0
        assert device.read("index") == -1
        assert not path.exists()
        # The descriptor belongs to the removed disk, which has size 0.
        assert pread(fd, 4096, 0) == b""
        device.write("power", 1)
        assert pread(fd, 4096, 0) == b""
        with opened(device.path) as again:
            assert read_error(again) == 0


def test_removal_fails_held_requests() -> None:
    with csd(size_mib=1, power=1) as device, opened(device.path) as fd:
        with held(device, [lambda: read_error(fd)] * 2) as (_, done):
            device.directory.rmdir()
            assert {each.result(60) for each in done} <= GONE
        assert pread(fd, 4096, 0) == b""


def test_power_off_fails_delayed_requests() -> None:
    with csd(size_mib=1, delay_ns=0, power=1) as device, opened(device.path) as fd:
        device.write("delay_ns", 60 * NS)
        before = device.read("reads")
        with ThreadPoolExecutor(2) as pool:
            done = [pool.submit(read_error, fd) for _ in range(2)]
            device.wait("reads", before + 2)
            start = time.monotonic()
            device.write("power", 0)
            assert {each.result(60) for each in done} <= GONE
            # Otherwise the delay would have ended them much later.
            assert time.monotonic() - start < 60


def test_setting_the_same_power_changes_nothing() -> None:
    with csd(size_mib=1) as device:
        device.write("power", 0)
        device.write("power", 1)
        index = device.read("index")
        device.write("power", 1)
        assert device.read("index") == index


def test_bytes_survive_a_power_cycle_and_growth_but_not_shrinking() -> None:
    data = noise(2 * MIB)
    with csd(size_mib=2, power=1) as device:
        with opened(device.path) as fd:
            pwrite(fd, data, 0)
        for size, left in ((3, 2 * MIB), (1, MIB), (2, MIB)):
            device.write("power", 0)
            device.write("size_mib", size)
            device.write("power", 1)
            with opened(device.path) as fd:
                expected = (data[:left] + bytes(3 * MIB))[: size * MIB]
                assert pread(fd, size * MIB, 0) == expected


@pytest.mark.parametrize("how", ["power", "rmdir"])
@pytest.mark.parametrize("hold", [False, True], ids=["idle", "held"])
def test_power_off_below_a_mounted_file_system_keeps_synced_files(
    mountpoint: Path, how: str, hold: bool
) -> None:
    with csd(size_mib=64, power=1) as device, ThreadPoolExecutor(1) as pool:
        with ext4(device, mountpoint):
            (mountpoint / "kept").write_bytes(noise(MIB))
            os.sync()
            (mountpoint / "lost").write_bytes(noise(MIB, 1))
            if hold:
                device.write("hold", 1)
                syncing = pool.submit(os.sync)
                device.wait("held", 1)
            if how == "power":
                device.write("power", 0)
            else:
                device.directory.rmdir()
            if hold:
                syncing.result(60)
            with pytest.raises(OSError):
                (mountpoint / "more").write_bytes(b"x")
        if how == "power":
            device.write("hold", 0)
            device.write("power", 1)
            with ext4(device, mountpoint, make=False):
                assert (mountpoint / "kept").read_bytes() == noise(MIB)


def test_requests_during_changes_of_power_end() -> None:
    stop = threading.Event()

    def use(device: Device) -> int:
        done = 0
        while not stop.is_set():
            with contextlib.suppress(OSError), opened(device.path) as fd:
                while True:
                    pwrite(fd, bytes(8192), done % 64 * 4096)
                    zero(fd, BLKDISCARD, 0, MIB)
                    pread(fd, 4096, 0)
                    done += 1
        return done

    with csd(size_mib=1, queues=2, model=1, media_latency_ns=100_000) as device:
        with ThreadPoolExecutor(3) as pool:
            done = [pool.submit(use, device) for _ in range(3)]
            try:
                for n in range(30):
                    device.write("power", 1)
                    device.wait("reads", device.read("reads") + 3)
                    if n % 2:
                        device.write("hold", 1)
                        device.wait("held", 1)
                    device.write("power", 0)
                    device.write("hold", 0)
            finally:
                stop.set()
        assert sum(each.result() for each in done) >= 30


def test_unload_while_a_device_exists_fails() -> None:
    with csd(), pytest.raises(ModuleBuildError, match="in use"):
        csd_device.unload()
    with csd(size_mib=1, power=1) as device:
        fd = os.open(device.path, os.O_RDONLY)
    with pytest.raises(ModuleBuildError, match="in use"):
        csd_device.unload()
    os.close(fd)
    csd_device.unload()
    with pytest.raises(NotSupportedError):
        devices()
    csd_device.load()


# Time: it is never less than the model's. On a busy host, a test cannot check an upper limit.


def elapsed_ns(act: Callable[[], object]) -> int:
    start = time.monotonic_ns()
    act()
    return time.monotonic_ns() - start


def pipe_ns(length: int, mib_per_s: int) -> int:
    return length * NS // (mib_per_s * MIB)


MODEL = {
    "model": 1,
    "media_latency_ns": 3_000_000,
    "media_mib_per_s": 50,
    "link_latency_ns": 2_000_000,
    "link_mib_per_s": 100,
}


@pytest.mark.parametrize("length", [512, 4096, 256 * 1024])
def test_request_takes_at_least_the_time_of_the_model(length: int) -> None:
    least = 5_000_000 + pipe_ns(length, 50) + pipe_ns(length, 100)
    with csd(size_mib=1, **MODEL, power=1) as device, opened(device.path) as fd:
        assert elapsed_ns(lambda: pread(fd, length, 0)) >= least
        assert elapsed_ns(lambda: pwrite(fd, bytes(length), 0)) >= least
        assert elapsed_ns(lambda: zero(fd, BLKDISCARD, 0, MIB)) >= 5_000_000


def test_requests_are_counted() -> None:
    data = noise(12 * 1024)
    with csd(size_mib=1, power=1) as device, opened(device.path) as fd:
        for model in (0, 1):
            device.write("model", model)
            assert change(device, lambda: pread(fd, 8192, 0)) == {
                "reads": 1,
                "link_read_bytes": 8192,
                "media_read_bytes": 8192,
            }
            assert change(device, lambda: pwrite(fd, data, 0)) == {
                "writes": 1,
                "link_write_bytes": len(data),
                "media_write_bytes": len(data),
            }
            assert change(device, lambda: zero(fd, BLKDISCARD, 0, MIB)) == {}


@pytest.mark.parametrize("pipe", ["media_mib_per_s", "link_mib_per_s"])
@pytest.mark.parametrize("way", ["read", "write"])
def test_requests_share_the_bandwidth_of_a_pipe(pipe: str, way: str) -> None:
    """Two requests at the same time take as long as one after the other."""
    length = 256 * 1024
    with csd(size_mib=1, queues=2, model=1, power=1) as device, opened(device.path) as fd:
        device.write(pipe, 20)

        def act() -> object:
            return pread(fd, length, 0) if way == "read" else pwrite(fd, bytes(length), 0)

        with held(device, [act, act]) as (_, done):
            start = time.monotonic_ns()
            device.write("hold", 0)
            for each in done:
                each.result(60)
            assert time.monotonic_ns() - start >= 2 * pipe_ns(length, 20)


@pytest.mark.parametrize("units", [1, 2, 4])
def test_requests_share_the_media_units(units: int) -> None:
    latency = 20_000_000
    with csd(size_mib=1, model=1, media_units=units, power=1) as device, opened(device.path) as fd:
        device.write("media_latency_ns", latency)
        acts: list[Callable[[], Any]] = [lambda: pread(fd, 4096, 0)] * 4
        with held(device, acts) as (_, done):
            start = time.monotonic_ns()
            device.write("hold", 0)
            for each in done:
                each.result(60)
            assert time.monotonic_ns() - start >= 4 // units * latency


def test_delay_ns_delays_requests_without_the_model() -> None:
    with csd(size_mib=1, power=1) as device, opened(device.path) as fd:
        device.write("delay_ns", 10_000_000)
        assert elapsed_ns(lambda: pread(fd, 4096, 0)) >= 10_000_000
        device.write("fail_next", 1)
        assert elapsed_ns(lambda: read_error(fd)) >= 10_000_000
