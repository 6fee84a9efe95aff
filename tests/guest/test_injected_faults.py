# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test calls in which an allocation fails, or a request of the disk below.

For each kind of call, the first allocation fails, then the second, and so on until none is left.
The call may fail with ENOMEM, or succeed by a slower way; bytes are never wrong. The runner finds
what leaked (tests/debug/__main__.py), and the end of a mount finds lookups that were not returned.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from efuse import bpf, functions
from efuse.control import find
from efuse.errors import ControlError, MountError
from efuse.fs.extents import Extent, map_extent, unmap_extents
from efuse.fs.mountpoint import MountOptions, mount_efuse, unmount
from efuse.functions import Count, Place
from tests.guest.support import csd_device, wire
from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.channel import Channel
from tests.guest.support.csd_device import Device, noise
from tests.guest.support.daemons import Mount, force_stat, mounted
from tests.guest.support.data_cache import path_count
from tests.guest.support.file_data import BLOCK, drop_pages, fill, read, read_direct, write
from tests.guest.support.forced import forced
from tests.guest.support.injection import failing_disk_requests, failing_once, failures_left, walk
from tests.guest.support.manual_daemon import DEADLINE_S, ManualDaemon, root_attributes
from tests.guest.support.scripted_daemon import Options
from tests.guest.support.shell import run
from tests.guest.support.wire import FUSE_WRITEBACK_CACHE

_SIZE = 16 * BLOCK
_LARGE = 64 * BLOCK


# The life of a mount


def _is_mounted(point: Path) -> bool:
    try:
        find(point)
    except ControlError:
        return False
    return True


def _mount(point: Path) -> int:
    try:
        return mount_efuse(str(point), MountOptions.parse([]))
    except MountError as error:
        # mount(2) is called through ctypes: no OSError is the cause.
        raise OSError(errno.ENOMEM if "(ENOMEM)" in str(error) else errno.EIO, error) from error


def test_mount_with_a_failing_allocation_leaves_nothing(mountpoint: Path) -> None:
    def ended(fd: int | None, error: int) -> None:
        assert _is_mounted(mountpoint) == (not error)
        if fd is not None:
            os.close(fd)
            unmount(str(mountpoint))

    attempts = walk(lambda: _mount(mountpoint), ended)
    assert any(attempt.error for attempt in attempts), attempts


def test_mount_works_after_an_allocation_for_its_init_failed(mountpoint: Path) -> None:
    devices: list[int] = []

    def begin() -> bytes:
        fd = mount_efuse(str(mountpoint), MountOptions.parse([]))
        devices.append(fd)
        init = wire.parse(os.read(fd, 1 << 16))
        return wire.reply(init.unique, 0, wire.init_out(0))

    reply = begin()

    def ended(_: object, error: int) -> None:
        nonlocal reply
        os.close(devices.pop())
        unmount(str(mountpoint))
        reply = begin()

    attempts = walk(lambda: os.write(devices[-1], reply), ended)
    assert attempts
    os.close(devices.pop())
    unmount(str(mountpoint))


def test_attach_succeeds_or_leaves_no_handlers_whichever_allocation_fails(mountpoint: Path) -> None:
    with mounted(mountpoint, attach=False) as m:

        def ended(attachment: bpf.Attachment | None, error: int) -> None:
            assert (m.connection.ops == "none") == bool(error)
            if attachment is not None:
                attachment.close()
                assert m.connection.ops == "none"

        attempts = walk(lambda: bpf.attach(m.connection.id), ended)
        assert attempts


def test_unmount_succeeds_whatever_allocation_fails(mountpoint: Path, lower: Path) -> None:
    path = backing(lower, fill("b", _SIZE))

    def begin() -> Mount:
        m = Mount(mountpoint, Options())
        make(m, "f", fill("d", _SIZE))
        whole(m, path, write=True)
        assert read(m / "f") == fill("b", _SIZE)
        return m

    mount = begin()

    def ended(_: object, error: int) -> None:
        nonlocal mount
        assert not error and not _is_mounted(mountpoint)
        mount.close()
        mount = begin()

    attempts = walk(lambda: unmount(str(mountpoint)), ended)
    assert attempts
    mount.close()
    assert Path(path).read_bytes() == fill("b", _SIZE)


# Names and attributes

_Call = Callable[[str], object]
"""A call on a name that does not exist, or whose file was made before."""


def _touch(path: str) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644))


def _open(path: str) -> None:
    os.close(os.open(path, os.O_RDWR))


def _fsync(path: str) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


_MAKING: dict[str, _Call] = {
    "open to make": _touch,
    "mkdir": os.mkdir,
    "mknod": os.mknod,
    "symlink": lambda path: os.symlink("target", path),
    "link": lambda path: os.link(f"{os.path.dirname(path)}/other", path),
    "rename": lambda path: os.rename(f"{os.path.dirname(path)}/other", path),
}
_USING: dict[str, _Call] = {
    "stat": os.stat,
    "statx with force": force_stat,
    "open": _open,
    "access": lambda path: os.access(path, os.R_OK),
    "fsync": _fsync,
    "truncate": lambda path: os.truncate(path, 5),
    "chmod": lambda path: os.chmod(path, 0o600),
    "utime": lambda path: os.utime(path, ns=(1, 1)),
    "setxattr": lambda path: os.setxattr(path, "user.a", b"value"),
    "getxattr": lambda path: os.getxattr(path, "user.there"),
    "listxattr": os.listxattr,
    "removexattr": lambda path: os.removexattr(path, "user.there"),
    "statfs": os.statvfs,
    "listing": lambda path: os.listdir(os.path.dirname(path)),
    "unlink": os.unlink,
}


def _shows_the_daemons_files(m: Mount) -> None:
    """Check that names and sizes on the mount are those of the daemon."""
    true = {os.fsdecode(name): ino for name, ino in m.model.get(1).entries.items()}
    assert sorted(os.listdir(m.path)) == sorted(true)
    for name, ino in true.items():
        assert os.lstat(m / name).st_size == m.model.get(ino).size
        assert os.lstat(m / name).st_mode == m.model.get(ino).mode


@pytest.mark.parametrize("name", [*_MAKING, *_USING])
def test_kernel_shows_what_the_daemon_has_whichever_allocation_of_a_call_fails(
    mountpoint: Path, name: str
) -> None:
    """The kernel shows what the daemon has, whether the call failed or not."""
    with mounted(mountpoint, consistency="exclusive") as m:

        def prepare() -> None:
            for path in ("new", "other"):
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(m / path) if os.path.isdir(m / path) else os.unlink(m / path)
            _touch(m / "other")
            if name in _USING:
                _touch(m / "new")
                os.truncate(m / "new", 100)
                os.setxattr(m / "new", "user.there", b"value")
                m.drop()

        def ended(_: object, error: int) -> None:
            _shows_the_daemons_files(m)
            prepare()

        prepare()
        call = (_MAKING | _USING)[name]
        attempts = walk(lambda: call(m / "new"), ended)
        print(f"{name}: {len(attempts)} allocations failed")
        # What the kernel answers by itself may need no memory.
        assert attempts or name in _USING


# Extents and data


def test_map_of_an_extent_is_complete_or_changes_nothing_whichever_allocation_fails(
    mountpoint: Path, lower: Path
) -> None:
    """An extent in the middle of another one, which it splits."""
    path, other = backing(lower, fill("b", _SIZE)), backing(lower, fill("o", _SIZE), "other")
    with mounted(mountpoint, path="direct") as m:
        make(m, "f", fill("d", _SIZE))
        nodeid, device = m.call("nodeid", "f"), m.device()
        whole_fd, middle_fd = os.open(path, os.O_RDWR), os.open(other, os.O_RDWR)
        begin, length = 8 * BLOCK, 4 * BLOCK

        def before() -> None:
            map_extent(device, Extent(nodeid, whole_fd))
            assert read_direct(m / "f", _SIZE) == fill("b", _SIZE)

        def ended(_: object, error: int) -> None:
            content = bytearray(fill("b", _SIZE))
            if not error:
                content[begin : begin + length] = fill("o", _SIZE)[begin : begin + length]
            assert read_direct(m / "f", _SIZE) == content
            unmap_extents(device, nodeid)
            assert read_direct(m / "f", _SIZE) == fill("d", _SIZE)
            before()

        before()
        attempts = walk(
            lambda: map_extent(
                device, Extent(nodeid, middle_fd, begin, length, backing_offset=begin)
            ),
            ended,
        )
        assert any(attempt.error for attempt in attempts), attempts
        assert path_count(m, "requests", "direct") > 0
        for fd in (whole_fd, middle_fd, device):
            os.close(fd)


def test_unmap_is_complete_or_changes_nothing_whichever_allocation_fails(
    mountpoint: Path, lower: Path
) -> None:
    """A hole in the middle of an extent, which is split."""
    path = backing(lower, fill("b", _SIZE))
    with mounted(mountpoint, path="direct") as m:
        make(m, "f", fill("d", _SIZE))
        nodeid, device = m.call("nodeid", "f"), m.device()
        fd = os.open(path, os.O_RDWR)
        begin, end = 8 * BLOCK, 12 * BLOCK
        map_extent(device, Extent(nodeid, fd))

        def ended(_: object, error: int) -> None:
            content = bytearray(fill("b", _SIZE))
            if not error:
                content[begin:end] = fill("d", _SIZE)[begin:end]
            found = b"".join(read_direct(m / "f", BLOCK, at) for at in range(0, _SIZE, BLOCK))
            assert found == content
            map_extent(device, Extent(nodeid, fd))

        attempts = walk(
            lambda: unmap_extents(device, nodeid, offset=begin, length=end - begin), ended
        )
        assert any(attempt.error for attempt in attempts), attempts
        assert path_count(m, "requests", "direct") > 0
        os.close(fd)
        os.close(device)


def _send(path: str) -> bytes:
    """Read by splice(2) into a pipe."""
    fd = os.open(path, os.O_RDONLY)
    out, into = os.pipe()
    try:
        moved = os.splice(fd, into, 8 * BLOCK)
        return os.read(out, moved)
    finally:
        for each in (fd, out, into):
            os.close(each)


_READS: dict[str, Callable[[str], bytes]] = {
    "read": lambda path: read(path, _SIZE),
    "direct read": lambda path: read_direct(path, _SIZE),
    "splice": _send,
}


@pytest.mark.parametrize("path", ["direct", "cache", "daemon"])
@pytest.mark.parametrize("name", [*_READS])
def test_read_returns_right_bytes_or_fails_whichever_allocation_fails(
    mountpoint: Path, lower: Path, name: str, path: str
) -> None:
    """The read fails or returns the right bytes, and nothing wrong was learned or kept."""
    below = backing(lower, fill("b", _SIZE))
    with mounted(mountpoint, consistency="exclusive", path=path) as m:
        content = fill("b" if path == "direct" else "d", _SIZE)
        make(m, "f", fill("d", _SIZE))
        if path == "direct":
            whole(m, below)

        def ended(found: bytes | None, error: int) -> None:
            assert found is None or (found and content.startswith(found))
            for _ in range(2):
                assert read_direct(m / "f", _SIZE) == content
                assert read(m / "f", _SIZE) == content
            drop_pages(m / "f")
            m.connection.invalidate()

        assert read_direct(m / "f", _SIZE) == read_direct(m / "f", _SIZE) == content
        assert path == "daemon" or path_count(m, "requests", path) > 0
        attempts = walk(lambda: _READS[name](m / "f"), ended)
        print(f"{name} by {path}: {len(attempts)} allocations failed")
        assert attempts


def _write_direct(path: str, data: bytes) -> int:
    with mmap.mmap(-1, len(data)) as buffer:
        buffer[:] = data
        fd = os.open(path, os.O_WRONLY | os.O_DIRECT)
        try:
            return os.pwrite(fd, buffer, 0)
        finally:
            os.close(fd)


_WRITES: dict[str, Callable[[str, bytes], int]] = {
    "write": write,
    "durable write": lambda path, data: write(path, data, 0, os.O_DSYNC),
    "direct write": _write_direct,
}


@pytest.mark.parametrize("flags", [0, FUSE_WRITEBACK_CACHE], ids=["write-through", "write-back"])
@pytest.mark.parametrize("path", ["direct", "daemon"])
@pytest.mark.parametrize("name", [*_WRITES])
def test_write_stores_the_bytes_that_it_counts_whichever_allocation_fails(
    mountpoint: Path, lower: Path, name: str, path: str, flags: int
) -> None:
    """All bytes that write(2) has counted are in the file; the other ones are old or new."""
    below = backing(lower, fill("o", _SIZE))
    options = {"consistency": "exclusive", "path": path, "generic_flags": flags}
    with mounted(mountpoint, **options) as m:
        make(m, "f", fill("o", _SIZE))
        if path == "direct":
            whole(m, below, write=True)
            assert read_direct(m / "f", _SIZE) == fill("o", _SIZE)
            assert path_count(m, "requests", "direct") > 0

        def stored() -> bytes:
            return Path(below).read_bytes() if path == "direct" else bytes(m.model.walk("f").data)

        def ended(count: int | None, error: int) -> None:
            drop_pages(m / "f")
            found = read_direct(m / "f", _SIZE)
            assert found == stored()
            done = count or 0
            assert found[:done] == fill("n", _SIZE)[:done]
            for at in range(done, _SIZE, 8):
                assert found[at : at + 8] in (
                    fill("o", _SIZE)[at : at + 8],
                    fill("n", _SIZE)[at : at + 8],
                )
            assert os.stat(m / "f").st_size == _SIZE
            assert write(m / "f", fill("o", _SIZE), 0, os.O_DSYNC) == _SIZE
            assert stored() == fill("o", _SIZE)

        attempts = walk(lambda: _WRITES[name](m / "f", fill("n", _SIZE)), ended)
        print(f"{name} by {path}: {len(attempts)} allocations failed")
        assert attempts or name == "write"


def test_dirty_pages_are_written_or_fsync_fails(mountpoint: Path, lower: Path) -> None:
    """An allocation of whichever thread writes the pages back fails."""
    below = backing(lower, fill("o", _SIZE))
    options = {"consistency": "exclusive", "generic_flags": FUSE_WRITEBACK_CACHE}
    failed = 0
    with mounted(mountpoint, **options) as m:
        make(m, "f", fill("o", _SIZE))
        whole(m, below, write=True)
        for number in range(1, 24):
            content = fill(chr(ord("a") + number), _SIZE)
            fd = os.open(m / "f", os.O_RDWR)
            with mmap.mmap(fd, _SIZE) as view:
                view[:] = content
                with failing_once(number):
                    try:
                        os.fsync(fd)
                        acknowledged = True
                    except OSError as error:
                        assert error.errno in (errno.ENOMEM, errno.EIO)
                        acknowledged = False
                    failed += 2 - failures_left()
                assert not acknowledged or Path(below).read_bytes() == content
                view[:] = content
                os.fsync(fd)
            os.close(fd)
            assert Path(below).read_bytes() == content
            assert read(m / "f") == content
        assert path_count(m, "requests", "direct") > 0
    assert failed, "no allocation failed"


# Channels, and the daemon's own calls


def test_channel_works_or_is_not_made_whichever_allocation_fails(
    manual_daemon: ManualDaemon,
) -> None:
    def ended(channel: Channel | None, error: int) -> None:
        if channel is not None:
            size = manual_daemon.ask(0)
            message = channel.next()
            answer = wire.reply(message.request.unique, 0, root_attributes(7))
            channel.reply(message.slot, channel.put(message.slot, answer))
            assert size.result(DEADLINE_S) == 7
            channel.close()

    attempts = walk(lambda: Channel(manual_daemon.fd, 0, slots=4), ended)
    assert any(attempt.error for attempt in attempts), attempts


def test_daemon_can_repeat_a_read_or_write_in_which_an_allocation_failed(
    manual_daemon: ManualDaemon,
) -> None:
    """What the daemon could not read or answer, it reads or answers when it tries again."""
    requests: list[wire.Request] = []

    def serve() -> None:
        if not requests:
            requests.append(manual_daemon.read())
        manual_daemon.answer(requests[0], 9)
        requests.clear()

    def ended(_: object, error: int) -> None:
        nonlocal size
        if error:
            serve()
        assert size.result(DEADLINE_S) == 9
        size = manual_daemon.ask(0)

    size = manual_daemon.ask(0)
    attempts = walk(serve, ended)
    assert attempts
    serve()
    assert size.result(DEADLINE_S) == 9


# Storage functions


def test_device_is_powered_or_refused_whichever_allocation_fails() -> None:
    csd_device.load()

    def begin() -> Device:
        device = Device("faulty")
        device.directory.mkdir()
        try:
            device.write("size_mib", 64)
            device.write("power", 1)
        except OSError:
            device.directory.rmdir()
            raise
        return device

    def ended(device: Device | None, error: int) -> None:
        if device is not None:
            assert device.powered
            device.directory.rmdir()

    # device_add() returns EINVAL if there was no memory for the name of the disk.
    attempts = walk(begin, ended, module="csd", errors=(errno.ENOMEM, errno.EINVAL))
    assert any(attempt.error for attempt in attempts), attempts
    csd_device.unload()


@pytest.mark.parametrize("place", [Place.DEVICE, Place.KERNEL])
def test_storage_function_returns_the_right_result_or_fails_whichever_allocation_fails(
    files: Path, place: Place
) -> None:
    call, path = Count(b"\x01\n"), files / "data"
    path.write_bytes(noise(_LARGE))
    expected = call.reference(path.read_bytes())

    def begin() -> bytes:
        with (
            functions.load(call.name),
            functions.run(call.name, path, call.encode(), place=place) as one,
        ):
            return one.result()

    def ended(found: bytes | None, error: int) -> None:
        assert found is None or found == expected

    assert begin() == expected
    attempts = walk(begin, ended, module="csd")
    print(f"at {place}: {len(attempts)} allocations failed")
    assert any(attempt.error for attempt in attempts), attempts


# Requests of the disk that fail


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """The root of an ext4 file system, and the name of its disk."""
    image, root = tmp_path / "image", tmp_path / "root"
    with image.open("wb") as file:
        file.truncate(32 << 20)
    root.mkdir()
    run("mkfs.ext4", "-q", "-F", "-b", str(BLOCK), image)
    device = run("losetup", "--find", "--show", image).stdout.strip()
    run("mount", device, root)
    try:
        yield root, Path(device).name
    finally:
        run("umount", "--lazy", root)
        run("losetup", "-d", device)


def _drop_cached(path: Path) -> None:
    """Drop the pages of a lower file, whose next read then needs the disk."""
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


@pytest.mark.parametrize("path", ["direct", "cache", "daemon"])
def test_failed_reads_of_the_disk_reach_the_caller(
    disk: tuple[Path, str], tmp_path: Path, path: str
) -> None:
    """Nothing is learned from them, and the file does not become shorter."""
    root, name = disk
    source = root / "source"
    source.mkdir()
    (source / "f").write_bytes(fill("b", _SIZE))
    with forced(source, tmp_path / "mnt", path, consistency="exclusive") as m:
        file = str(m / "f")
        for each in (read_direct, read):
            assert each(file, _SIZE) == fill("b", _SIZE)
            drop_pages(file)
            m.connection.invalidate()
            _drop_cached(source / "f")
            with failing_disk_requests(name):
                for _ in range(2):
                    with pytest.raises(OSError) as caught:
                        each(file, _SIZE)
                    assert caught.value.errno == errno.EIO
                    assert os.stat(file).st_size == _SIZE
            for _ in range(2):
                assert each(file, _SIZE) == fill("b", _SIZE)
        m.show_that_it_ran(4)


@pytest.mark.parametrize("writeback", [False, True])
@pytest.mark.parametrize("path", ["direct", "daemon"])
def test_failed_writes_to_the_disk_reach_the_caller(
    disk: tuple[Path, str], tmp_path: Path, path: str, writeback: bool
) -> None:
    """A durable write, and fsync(2) after another one, fail; the file does not become shorter."""
    root, name = disk
    source = root / "source"
    source.mkdir()
    (source / "f").write_bytes(fill("o", _SIZE))
    os.sync()
    options = {"consistency": "exclusive", "writeback": writeback}
    with forced(source, tmp_path / "mnt", path, **options) as m:
        file = str(m / "f")
        assert read_direct(file, _SIZE) == fill("o", _SIZE)
        fd = os.open(file, os.O_RDWR)
        with failing_disk_requests(name):
            with pytest.raises(OSError) as caught:
                os.pwrite(fd, fill("n", 4 * BLOCK), 0)
                os.fsync(fd)
            assert caught.value.errno == errno.EIO
            assert os.fstat(fd).st_size == _SIZE
        os.close(fd)
        found = read_direct(file, _SIZE)
        assert len(found) == _SIZE and found[4 * BLOCK :] == fill("o", _SIZE)[4 * BLOCK :]
        m.show_that_it_ran(2)
