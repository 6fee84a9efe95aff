# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test storage functions over files whose bytes are not simply in blocks of their own.

For every kind of file, a function sees the same bytes as read(2). The device reads the blocks that
it can.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse import functions
from efuse.errors import EfuseError, UnreadableError
from efuse.functions import Count, Place, Why
from tests.guest.support import csd_device
from tests.guest.support.csd_device import Device, noise
from tests.guest.support.functions import (
    BLOCK,
    CHAINING,
    background,
    blocks,
    jumps_args,
    jumps_seen,
    result,
    stack_of,
)
from tests.guest.support.manual_daemon import DEADLINE_S, until
from tests.guest.support.shell import run

pytestmark = pytest.mark.usefixtures("csd_is_loaded")

FS_IOC_ENABLE_VERITY = 0x40806685
FS_IOC_SET_ENCRYPTION_POLICY = 0x800C6613
FS_IOC_ADD_ENCRYPTION_KEY = 0xC0506617
EXT4_IOC_MOVE_EXT = 0xC028660F
FICLONE = 0x40049409

CALL = Count(b"\x01")
DATA = noise(40 * BLOCK + 77)


@pytest.fixture(autouse=True)
def _count_is_loaded(csd_is_loaded: None) -> Iterator[None]:
    with functions.load("count"):
        yield


@contextlib.contextmanager
def file_system(directory: Path, *make: str, options: str = "rw") -> Iterator[Device]:
    """Mount a new file system, made by the command *make*, on a new device."""
    directory.mkdir()
    # mkfs.xfs needs 300 MiB. Blocks that are never written take no memory.
    with csd_device.csd(size_mib=320, power=1) as device:
        run(*make, device.path)
        run("mount", "-o", options, device.path, directory)
        try:
            yield device
        finally:
            run("umount", directory)


def look(path: Path, wanted: bytes, device_steps: int, why: Why | None) -> None:
    """Check that a function that is sent to the device sees *wanted*.

    :param device_steps: the number of blocks that the device examines. The kernel examines the
        others.
    :param why: the reason for the kernel's blocks, or None for any.
    """
    os.sync()
    found, status = result(CALL, path, Place.DEVICE)
    assert found == CALL.reference(wanted)
    assert (status.device_steps, status.kernel_steps) == (
        device_steps,
        blocks(len(wanted)) - device_steps,
    )
    if why is not None:
        assert status.why == why


def test_inline_file_is_read_by_the_kernel(tmp_path: Path) -> None:
    root = tmp_path / "fs"
    with file_system(root, "mkfs.ext4", "-q", "-b", "4096", "-I", "1024", "-O", "inline_data"):
        small = noise(500)
        (root / "small").write_bytes(small)
        # The file has no block, which would be eight sectors.
        assert os.stat(root / "small").st_blocks < 8
        look(root / "small", small, 0, Why.UNMAPPED)
        (root / "large").write_bytes(DATA)
        look(root / "large", DATA, blocks(len(DATA)), None)


def test_file_with_journaled_data_is_read_by_the_kernel(tmp_path: Path) -> None:
    root = tmp_path / "fs"
    make = ("mkfs.ext4", "-q", "-b", "4096")
    with file_system(root, *make, options="data=journal"):
        (root / "f").write_bytes(DATA)
        look(root / "f", DATA, 0, Why.UNMAPPED)


def test_encrypted_file_is_read_by_the_kernel(tmp_path: Path) -> None:
    root = tmp_path / "fs"
    with file_system(root, "mkfs.ext4", "-q", "-b", "4096", "-O", "encrypt"):
        encrypt(root)
        (root / "dir/f").write_bytes(DATA)
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
        look(root / "dir/f", DATA, 0, Why.CONTENT)


def encrypt(root: Path) -> None:
    """Make an empty directory ``dir`` whose files are encrypted with a known key."""
    directory = root / "dir"
    directory.mkdir()
    raw = bytes(range(64))
    argument = bytearray(struct.pack("<II32xII32x", 2, 0, len(raw), 0) + raw)
    with opened(directory) as fd:
        fcntl.ioctl(fd, FS_IOC_ADD_ENCRYPTION_KEY, argument)
        identifier = bytes(argument[8:24])
        # The contents use AES-256-XTS, the names AES-256-CTS.
        policy = struct.pack("<BBBBB3x", 2, 1, 4, 0, 0) + identifier
        fcntl.ioctl(fd, FS_IOC_SET_ENCRYPTION_POLICY, policy)


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """Open for reading. A descriptor that stayed open would prevent the removal of the device."""
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def test_file_with_verity_is_read_by_the_kernel(tmp_path: Path) -> None:
    root = tmp_path / "fs"
    with file_system(root, "mkfs.ext4", "-q", "-b", "4096", "-O", "verity"):
        (root / "f").write_bytes(DATA)
        with opened(root / "f") as fd:
            fcntl.ioctl(fd, FS_IOC_ENABLE_VERITY, struct.pack("<IIII112x", 1, 1, BLOCK, 0))
        look(root / "f", DATA, 0, Why.CONTENT)


def test_file_with_shared_blocks_is_read_by_the_kernel(tmp_path: Path) -> None:
    """On xfs, a shared block's last owner may free it for another file while the device reads."""
    root = tmp_path / "fs"
    with file_system(root, "mkfs.xfs", "-q"):
        (root / "f").write_bytes(DATA)
        with (root / "f").open("rb") as one, (root / "g").open("wb") as other:
            fcntl.ioctl(other, FICLONE, one.fileno())
        for name in ("f", "g"):
            look(root / name, DATA, 0, Why.FILESYSTEM)


@pytest.mark.parametrize("size", [1024, 2048])
def test_file_system_with_small_blocks_is_read_by_the_kernel(tmp_path: Path, size: int) -> None:
    root = tmp_path / "fs"
    with file_system(root, "mkfs.ext4", "-q", "-b", f"{size}"):
        (root / "f").write_bytes(DATA)
        look(root / "f", DATA, 0, Why.BLOCK_SIZE)


@pytest.mark.parametrize("kind", ["ext2", "ext3", "ext4"])
def test_plain_file_of_ext2_to_ext4_is_read_by_the_device(tmp_path: Path, kind: str) -> None:
    root = tmp_path / "fs"
    with file_system(root, f"mkfs.{kind}", "-q", "-b", "4096"):
        (root / "f").write_bytes(DATA)
        look(root / "f", DATA, blocks(len(DATA)), None)


def test_file_of_an_overlay_is_read_by_the_kernel(tmp_path: Path) -> None:
    root, merged = tmp_path / "fs", tmp_path / "merged"
    with file_system(root, "mkfs.ext4", "-q", "-b", "4096"):
        for name in ("lower", "upper", "work"):
            (root / name).mkdir()
        (root / "lower/f").write_bytes(DATA)
        merged.mkdir()
        where = f"lowerdir={root}/lower,upperdir={root}/upper,workdir={root}/work"
        run("mount", "-t", "overlay", "-o", where, "overlay", merged)
        try:
            look(merged / "f", DATA, 0, Why.NO_DEVICE)
        finally:
            run("umount", merged)


UNSIZED = ("/proc/filesystems", "/proc/crypto")
"""Files that can be read although their size is 0. The second one has several blocks."""


@pytest.mark.parametrize("name", UNSIZED)
def test_file_without_a_size_is_read_until_it_ends(name: str) -> None:
    path = Path(name)
    wanted = path.read_bytes()
    assert os.stat(path).st_size == 0
    assert len(wanted) > (BLOCK if name == UNSIZED[1] else 0)
    for place, why in ((Place.AUTO, Why.NO_DEVICE), (Place.KERNEL, Why.ASKED)):
        with functions.run(CALL.name, path, CALL.encode(), place=place) as one:
            for _ in range(2):
                assert one.result() == CALL.reference(wanted)
                status = one.status()
                assert (status.device_steps, status.kernel_steps) == (0, blocks(len(wanted)))
                assert (status.end, status.why) == (len(wanted), why)
                one.restart(CALL.encode())
        # The run sees the part of the file that is in its range.
        with functions.run(
            CALL.name, path, CALL.encode(), place=place, offset=BLOCK, length=100
        ) as one:
            assert one.result() == CALL.reference(wanted[BLOCK : BLOCK + 100])


def test_jump_beyond_the_end_of_a_file_without_a_size_fails() -> None:
    path = Path(UNSIZED[1])
    wanted = path.read_bytes()

    def jump(*numbers: int, **more: int) -> list[tuple[int, int]]:
        args = jumps_args([number * BLOCK for number in numbers])
        with functions.run("chaining", path, args, **more) as one:
            one.result()
            one.restart(args)
            return jumps_seen(one.result())

    with functions.load("chaining", CHAINING):
        last = blocks(len(wanted)) - 1
        assert [at for at, _ in jump(last, 0)] == [0, last * BLOCK, 0]
        with pytest.raises(EfuseError, match="ERANGE"):
            jump(last + 1)
        # The limit is the number of blocks that were found.
        with pytest.raises(EfuseError, match="ELOOP"):
            jump(1, *[0] * 15)
        with pytest.raises(EfuseError, match="ELOOP"):
            jump(last, 0, max_steps=2)


def test_file_that_only_user_space_can_read_goes_to_the_daemon() -> None:
    for place in Place:
        with pytest.raises(UnreadableError, match="EOPNOTSUPP"):
            functions.run(CALL.name, "/proc/self/maps", CALL.encode(), place=place)
    with functions.begin(CALL, "/proc/1/maps") as work:
        assert CALL.decode(b"".join(work)).lines == Path("/proc/1/maps").read_bytes().count(b"\n")
        outcome = work.outcome()
    assert (outcome.kernel, outcome.device) == (0, 0)
    assert outcome.daemon > 0
    assert "read(2)" in str(outcome.why)


def test_run_over_an_empty_file_reads_no_blocks(files: Path) -> None:
    (files / "f").write_bytes(b"")
    for place in Place:
        found, status = result(CALL, files / "f", place)
        assert found == CALL.reference(b"")
        assert (status.device_steps, status.kernel_steps, status.end) == (0, 0, 0)
        assert status.done


def test_defragmentation_waits_for_the_device(device: Device, files: Path) -> None:
    """Blocks that a command is going to read stay with the file, so moving them waits."""
    (files / "f").write_bytes(DATA)
    (files / "donor").write_bytes(bytes(len(DATA)))
    os.sync()
    orig, donor = os.open(files / "f", os.O_RDWR), os.open(files / "donor", os.O_RDWR)
    argument = bytearray(struct.pack("<IIQQQQ", 0, donor, 0, 0, blocks(len(DATA)), 0))
    device.write("hold", 1)
    try:
        one = background(files / "f", CALL)
        device.wait("held", 1)
        move = threading.Thread(target=fcntl.ioctl, args=(orig, EXT4_IOC_MOVE_EXT, argument))
        move.start()
        until(lambda: "inode_dio_wait" in stack_of(move))
    finally:
        device.write("hold", 0)
    move.join(DEADLINE_S)
    assert not move.is_alive()
    moved = struct.unpack("<IIQQQQ", argument)[-1]
    assert moved == blocks(len(DATA))
    status = one.end()
    assert one.found == CALL.reference(DATA)
    assert status.device_steps == blocks(len(DATA))
    # At its new place, the file has the same bytes.
    look(files / "f", DATA, blocks(len(DATA)), None)
    os.close(orig)
    os.close(donor)


def test_run_keeps_its_file_when_another_takes_the_name(device: Device, files: Path) -> None:
    """A run belongs to a file, not to a name."""
    (files / "f").write_bytes(DATA)
    (files / "other").write_bytes(b"\x01" * len(DATA))
    os.sync()
    device.write("hold", 1)
    try:
        one = background(files / "f", CALL)
        device.wait("held", 1)
        os.rename(files / "other", files / "f")
    finally:
        device.write("hold", 0)
    status = one.end()
    assert one.found == CALL.reference(DATA)
    assert status.device_steps == blocks(len(DATA))
