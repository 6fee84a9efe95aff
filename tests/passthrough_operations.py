# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tests of data, names and links through the pass-through, compared with the lower directory.

`tests/host/test_passthrough_files.py` runs them on plain FUSE, and
`tests/guest/test_passthrough_operations.py` on eFuse. Both provide the fixture ``mounted``: the
mount (``path``) and the lower directory (``source``).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import random
import socket
import stat
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

_libc = ctypes.CDLL(None, use_errno=True)


def _rename(old: Path, new: Path, flags: int) -> None:
    result = _libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags)
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _random_bytes(count: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(count)


def _refused(number: int) -> Any:
    return pytest.raises(OSError, match=rf"\[Errno {number}\]")


def test_write_reaches_lower_file_byte_for_byte(mounted: Any) -> None:
    data = _random_bytes(3 * 2**20 + 123)
    with open(mounted.path / "f", "wb") as f:
        for start in range(0, len(data), 70001):
            f.write(data[start : start + 70001])
    assert (mounted.source / "f").read_bytes() == data


def test_read_returns_lower_bytes_at_any_offset(mounted: Any) -> None:
    data = _random_bytes(2 * 2**20 + 77)
    (mounted.source / "f").write_bytes(data)
    fd = os.open(mounted.path / "f", os.O_RDONLY)
    rng = random.Random(2)
    for _ in range(200):
        start, size = rng.randrange(len(data) + 5000), rng.randrange(300000)
        assert os.pread(fd, size, start) == data[start : start + size]
    os.close(fd)


def test_overlapping_writes_by_two_handles_match_a_model(mounted: Any) -> None:
    rng = random.Random(3)
    model = bytearray()
    fds = [os.open(mounted.path / "f", os.O_RDWR | os.O_CREAT) for _ in range(2)]
    for step in range(300):
        data = rng.randbytes(rng.randrange(1, 9000))
        start = rng.randrange(200000)
        model.extend(bytes(max(0, start + len(data) - len(model))))
        model[start : start + len(data)] = data
        assert os.pwrite(fds[step % 2], data, start) == len(data)
        if step % 10 == 0:
            size = rng.randrange(250000)
            os.ftruncate(fds[0], size)
            model = bytearray(model[:size].ljust(size, b"\0"))
    for fd in fds:
        assert os.pread(fd, len(model) + 1, 0) == model
        os.close(fd)
    assert (mounted.source / "f").read_bytes() == model


def test_direct_io_reads_and_writes_the_same_bytes(mounted: Any) -> None:
    data = _random_bytes(1 << 18)
    buffer = mmap.mmap(-1, len(data))
    buffer[:] = data
    fd = os.open(mounted.path / "f", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    assert os.pwrite(fd, buffer, 0) == len(data)
    buffer[:] = bytes(len(data))
    assert os.preadv(fd, [buffer], 0) == len(data)
    assert buffer[:] == data
    os.close(fd)
    assert (mounted.source / "f").read_bytes() == data


def test_shared_mapping_is_written_back(mounted: Any) -> None:
    (mounted.source / "f").write_bytes(bytes(10000))
    with open(mounted.path / "f", "r+b") as f, mmap.mmap(f.fileno(), 0) as mapping:
        mapping[5000:5005] = b"hello"
        mapping.flush()
    assert (mounted.source / "f").read_bytes() == bytes(5000) + b"hello" + bytes(4995)


def test_mapping_next_to_an_appending_handle_stays_in_place(mounted: Any) -> None:
    (mounted.source / "f").write_bytes(b"0" * 4096)
    appender = os.open(mounted.path / "f", os.O_WRONLY | os.O_APPEND)
    with open(mounted.path / "f", "r+b") as f, mmap.mmap(f.fileno(), 0) as mapping:
        mapping[0:4] = b"head"
        mapping.flush()
        os.write(appender, b"tail")
    os.close(appender)
    assert (mounted.source / "f").read_bytes() == b"head" + b"0" * 4092 + b"tail"


def test_append_goes_to_the_end(mounted: Any) -> None:
    for text in (b"one", b"two", b"three"):
        with open(mounted.path / "f", "ab") as f:
            f.write(text)
    assert (mounted.source / "f").read_bytes() == b"onetwothree"


def test_open_with_truncation_empties_the_file(mounted: Any) -> None:
    (mounted.source / "f").write_bytes(b"old")
    os.close(os.open(mounted.path / "f", os.O_WRONLY | os.O_TRUNC))
    assert (mounted.source / "f").read_bytes() == b""
    assert (mounted.path / "f").stat().st_size == 0


def test_truncate_by_name_shrinks_and_extends_with_zeros(mounted: Any) -> None:
    (mounted.source / "f").write_bytes(b"abcdef")
    os.truncate(mounted.path / "f", 2)
    os.truncate(mounted.path / "f", 5)
    assert (mounted.path / "f").read_bytes() == b"ab\0\0\0"
    assert (mounted.source / "f").read_bytes() == b"ab\0\0\0"


def test_exclusive_create_of_an_existing_name_fails(mounted: Any) -> None:
    (mounted.source / "f").write_bytes(b"kept")
    with _refused(errno.EEXIST):
        os.open(mounted.path / "f", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    assert (mounted.source / "f").read_bytes() == b"kept"


def test_write_only_file_of_mode_0_can_be_created_and_written(mounted: Any) -> None:
    fd = os.open(mounted.path / "f", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0)
    os.write(fd, b"x")
    os.close(fd)
    assert stat.S_IMODE((mounted.source / "f").stat().st_mode) == 0


def test_change_below_the_mount_is_seen_with_zero_timeouts(mounted: Any) -> None:
    (mounted.source / "f").write_bytes(b"one")
    assert (mounted.path / "f").read_bytes() == b"one"
    (mounted.source / "f").write_bytes(b"another")
    assert (mounted.path / "f").read_bytes() == b"another"
    (mounted.source / "f").unlink()
    assert not (mounted.path / "f").exists()


@pytest.mark.parametrize("length", [1, 100, 255])
def test_name_of_many_bytes_is_created_and_listed(mounted: Any, length: int) -> None:
    name = "n" * length
    (mounted.path / name).write_bytes(b"x")
    assert os.listdir(mounted.source) == [name]
    assert os.listdir(mounted.path) == [name]


def test_name_of_256_bytes_fails(mounted: Any) -> None:
    with _refused(errno.ENAMETOOLONG):
        (mounted.path / ("n" * 256)).write_bytes(b"x")


def test_name_with_any_byte_is_created_and_listed(mounted: Any) -> None:
    mount, source = os.fsencode(mounted.path), os.fsencode(mounted.source)
    every = bytes(n for n in range(1, 256) if n not in b"/")
    names = [every[at : at + 8] for at in range(0, len(every), 8)] + [b"\xff\xfe\n\\x"]
    for name in names:
        with open(os.path.join(mount, name), "wb") as f:
            f.write(name)
    assert sorted(os.listdir(mount)) == sorted(os.listdir(source)) == sorted(names)
    for name in names:
        with open(os.path.join(source, name), "rb") as f:
            assert f.read() == name
        os.unlink(os.path.join(mount, name))
    assert os.listdir(source) == []


def test_directory_listing_holds_every_name_once(mounted: Any) -> None:
    # Their entries fill the 32 KiB of a getdents64(2) more than twice.
    names = {f"{n:05}-{'x' * (n % 240)}" for n in range(600)}
    for name in names:
        (mounted.source / name).touch()
    found = os.listdir(mounted.path)
    assert len(found) == len(names)
    assert set(found) == names


def test_directory_listing_has_dots_and_the_lower_inode_numbers(mounted: Any) -> None:
    (mounted.source / "d").mkdir()
    (mounted.source / "d/f").touch()
    listed = subprocess.run(
        ["ls", "-a1i", mounted.path / "d"], capture_output=True, text=True, check=True
    ).stdout.split()
    numbers = dict(zip(listed[1::2], listed[::2], strict=True))
    assert set(numbers) == {".", "..", "f"}
    assert numbers["f"] == str((mounted.source / "d/f").stat().st_ino)
    assert numbers["."] == str((mounted.source / "d").stat().st_ino)


def test_removing_while_listing_removes_all(mounted: Any) -> None:
    # Their entries are more than the 32 KiB of a getdents64(2), and many READDIRs.
    for n in range(200):
        (mounted.source / f"{n:0200}").touch()
    with os.scandir(mounted.path) as entries:
        for entry in entries:
            os.unlink(entry.path)
    assert os.listdir(mounted.source) == []


def test_rewound_directory_shows_what_was_added(mounted: Any) -> None:
    (mounted.source / "a").touch()
    fd = os.open(mounted.path, os.O_RDONLY | os.O_DIRECTORY)
    assert os.listdir(fd) == ["a"]
    (mounted.path / "b").touch()
    assert sorted(os.listdir(fd)) == ["a", "b"]
    os.close(fd)


def test_directories_are_made_and_removed(mounted: Any) -> None:
    (mounted.path / "a/b/c").mkdir(parents=True)
    assert (mounted.source / "a/b/c").is_dir()
    assert (mounted.path / "a").stat().st_nlink == (mounted.source / "a").stat().st_nlink
    (mounted.path / "a/b/c").rmdir()
    assert not (mounted.source / "a/b/c").exists()


@pytest.mark.parametrize(
    ("action", "number"),
    [
        (lambda p: os.rmdir(p / "full"), errno.ENOTEMPTY),
        (lambda p: os.unlink(p / "full"), errno.EISDIR),
        (lambda p: os.rmdir(p / "file"), errno.ENOTDIR),
        (lambda p: os.unlink(p / "none"), errno.ENOENT),
        (lambda p: os.mkdir(p / "file"), errno.EEXIST),
        (lambda p: os.stat(p / "file/below"), errno.ENOTDIR),
        (lambda p: os.link(p / "full", p / "l"), errno.EPERM),
        (lambda p: os.link(p / "file", p / "full"), errno.EEXIST),
        (lambda p: os.rename(p / "none", p / "x"), errno.ENOENT),
        (lambda p: os.rename(p / "file", p / "full"), errno.EISDIR),
        (lambda p: os.rename(p / "full", p / "full/in"), errno.EINVAL),
        (lambda p: os.symlink("x", p / "file"), errno.EEXIST),
        (lambda p: os.readlink(p / "file"), errno.EINVAL),
        (lambda p: os.open(p / "full", os.O_WRONLY), errno.EISDIR),
        (lambda p: os.truncate(p / "full", 0), errno.EISDIR),
    ],
)
def test_invalid_operation_has_the_errno_of_the_lower_file_system(
    mounted: Any, action: Any, number: int
) -> None:
    for directory in (mounted.source, mounted.source.parent / "twin"):
        (directory / "full/in").mkdir(parents=True)
        (directory / "file").write_bytes(b"x")
    with pytest.raises(OSError) as lower:
        action(mounted.source.parent / "twin")
    with pytest.raises(OSError) as upper:
        action(mounted.path)
    assert upper.value.errno == lower.value.errno == number


def test_special_files_are_made(mounted: Any) -> None:
    os.mkfifo(mounted.path / "fifo", 0o640)
    os.mknod(mounted.path / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as s:
        os.chdir(mounted.path)
        s.bind("socket")
        os.chdir("/")
    for name in ("fifo", "null", "socket"):
        upper, lower = (mounted.path / name).lstat(), (mounted.source / name).lstat()
        assert (upper.st_mode, upper.st_rdev) == (lower.st_mode, lower.st_rdev)
    assert stat.S_ISFIFO((mounted.source / "fifo").lstat().st_mode)
    assert (mounted.source / "null").lstat().st_rdev == os.makedev(1, 3)


def test_fifo_carries_data_between_processes(mounted: Any) -> None:
    os.mkfifo(mounted.path / "fifo")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append((mounted.path / "fifo").read_bytes()))
    reader.start()
    (mounted.path / "fifo").write_bytes(b"through")
    reader.join(60)
    assert got == [b"through"]


@pytest.mark.parametrize("target", ["f", "/no/where", "x" * 4000, "é\n"])
def test_symbolic_link_reads_back(mounted: Any, target: str) -> None:
    os.symlink(target, mounted.path / "l")
    assert os.readlink(mounted.source / "l") == target
    assert os.readlink(mounted.path / "l") == target
    assert (mounted.path / "l").lstat().st_size == len(os.fsencode(target))


def test_hard_links_are_one_inode(mounted: Any) -> None:
    (mounted.path / "a").write_bytes(b"first")
    (mounted.path / "d").mkdir()
    os.link(mounted.path / "a", mounted.path / "d/b")
    a, b = (mounted.path / "a").stat(), (mounted.path / "d/b").stat()
    assert (a.st_ino, a.st_nlink) == (b.st_ino, 2)
    (mounted.path / "d/b").write_bytes(b"second")
    assert (mounted.path / "a").read_bytes() == b"second"
    (mounted.path / "a").unlink()
    assert (mounted.path / "d/b").read_bytes() == b"second"
    assert (mounted.path / "d/b").stat().st_nlink == 1


def test_hard_link_of_a_symbolic_link_links_the_link(mounted: Any) -> None:
    os.symlink("target", mounted.path / "l")
    os.link(mounted.path / "l", mounted.path / "m", follow_symlinks=False)
    assert os.readlink(mounted.source / "m") == "target"
    assert (mounted.source / "l").lstat().st_nlink == 2


def test_rename_replaces_the_target(mounted: Any) -> None:
    (mounted.path / "a").write_bytes(b"new")
    (mounted.path / "b").write_bytes(b"old")
    with open(mounted.path / "b", "rb") as old:
        os.rename(mounted.path / "a", mounted.path / "b")
        assert old.read() == b"old"
    assert os.listdir(mounted.source) == ["b"]
    assert (mounted.path / "b").read_bytes() == b"new"


def test_rename_noreplace_keeps_an_existing_target(mounted: Any) -> None:
    (mounted.path / "a").write_bytes(b"a")
    (mounted.path / "b").write_bytes(b"b")
    with _refused(errno.EEXIST):
        _rename(mounted.path / "a", mounted.path / "b", 1)
    _rename(mounted.path / "a", mounted.path / "c", 1)
    assert {n: (mounted.source / n).read_bytes() for n in "bc"} == {"b": b"b", "c": b"a"}


def test_rename_exchange_swaps_a_file_and_a_directory(mounted: Any) -> None:
    (mounted.path / "d").mkdir()
    (mounted.path / "d/in").write_bytes(b"in")
    (mounted.path / "x").mkdir()
    (mounted.path / "x/f").write_bytes(b"file")
    _rename(mounted.path / "d", mounted.path / "x/f", 2)
    assert (mounted.path / "d").read_bytes() == b"file"
    assert (mounted.path / "x/f/in").read_bytes() == b"in"
    assert (mounted.source / "x/f/in").read_bytes() == b"in"


def test_rename_exchange_without_a_target_fails(mounted: Any) -> None:
    (mounted.path / "a").write_bytes(b"a")
    with _refused(errno.ENOENT):
        _rename(mounted.path / "a", mounted.path / "b", 2)


def test_moved_directory_keeps_its_open_files_and_children(mounted: Any) -> None:
    (mounted.path / "a/b").mkdir(parents=True)
    (mounted.path / "to").mkdir()
    with open(mounted.path / "a/b/f", "w+b") as f:
        os.rename(mounted.path / "a", mounted.path / "to/c")
        f.write(b"late")
    (mounted.path / "to/c/b/g").write_bytes(b"g")
    assert (mounted.source / "to/c/b/f").read_bytes() == b"late"
    assert (mounted.source / "to/c/b/g").read_bytes() == b"g"


def test_unlinked_open_file_stays_usable(mounted: Any) -> None:
    with open(mounted.path / "f", "w+b") as f:
        f.write(b"foo")
        f.flush()
        with open(mounted.path / "f", "ab") as g:
            os.unlink(mounted.path / "f")
            assert os.listdir(mounted.path) == []
            g.write(b"bar")
        assert os.fstat(f.fileno()).st_nlink == 0
        os.fchmod(f.fileno(), 0o600)
        os.ftruncate(f.fileno(), 5)
        f.seek(0)
        assert f.read() == b"fooba"


def test_removed_working_directory_is_empty(mounted: Any) -> None:
    (mounted.path / "d").mkdir()
    fd = os.open(mounted.path / "d", os.O_RDONLY | os.O_DIRECTORY)
    (mounted.path / "d").rmdir()
    assert os.listdir(fd) == []
    with _refused(errno.ENOENT):
        os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd)
    os.close(fd)


def test_new_file_under_an_old_name_is_another_inode(mounted: Any) -> None:
    with open(mounted.path / "f", "w+b") as old:
        old.write(b"old")
        old.flush()
        for n in range(6):
            os.unlink(mounted.path / "f")
            (mounted.path / "f").write_bytes(b"%d" % n)
            assert (mounted.path / "f").read_bytes() == b"%d" % n
            assert os.fstat(old.fileno()).st_ino != (mounted.path / "f").stat().st_ino
        old.seek(0)
        assert old.read() == b"old"


def test_files_and_directories_can_be_synced(mounted: Any) -> None:
    with open(mounted.path / "f", "wb") as f:
        f.write(b"x")
        f.flush()
        os.fsync(f.fileno())
        os.fdatasync(f.fileno())
    fd = os.open(mounted.path, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(fd)
    os.close(fd)
    requests = mounted.report()["requests"]
    assert requests["fsync"] == 2
    assert requests["fsyncdir"] == 1


def test_locks_work_between_processes(mounted: Any) -> None:
    with open(mounted.path / "f", "w") as f, open(mounted.path / "f") as g:
        fcntl.flock(f, fcntl.LOCK_EX)
        with _refused(errno.EAGAIN):
            fcntl.flock(g, fcntl.LOCK_SH | fcntl.LOCK_NB)


def test_programs_run_from_the_mount(mounted: Any) -> None:
    (mounted.path / "script").write_text("#!/bin/sh\necho works\n")
    (mounted.path / "script").chmod(0o755)
    assert subprocess.check_output([mounted.path / "script"]) == b"works\n"


def test_statfs_returns_the_lower_figures(mounted: Any) -> None:
    upper, lower = os.statvfs(mounted.path), os.statvfs(mounted.source)
    for name in ("f_bsize", "f_frsize", "f_blocks", "f_files", "f_namemax"):
        assert getattr(upper, name) == getattr(lower, name)


def test_writeback_cache_loses_nothing(served: Any) -> None:
    mounted = served(arguments={"writeback": True})
    data = _random_bytes(1 << 20)
    fd = os.open(mounted.path / "f", os.O_WRONLY | os.O_CREAT)
    for start in range(0, len(data), 1001):
        os.pwrite(fd, data[start : start + 1001], start)
    os.close(fd)
    mounted.unmount()
    assert (mounted.source / "f").read_bytes() == data
