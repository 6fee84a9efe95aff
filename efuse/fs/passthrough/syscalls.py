# SPDX-License-Identifier: LGPL-2.1-or-later
"""System calls that Python's os module lacks, by descriptor and with bytes for names."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

__all__ = [
    "DirectoryEntry",
    "Status",
    "check_access",
    "file_handle",
    "file_system_type",
    "getdents",
    "next_position",
    "open_by_handle",
    "rename",
    "set_fs_groups",
    "set_times",
    "status",
]

_libc = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD = -100
_AT_EACCESS = 0x200
_AT_EMPTY_PATH, _AT_STATX_FORCE_SYNC, _AT_STATX_DONT_SYNC = 0x1000, 0x2000, 0x4000
_STATX_BASIC_STATS, _STATX_MNT_ID = 0x7FF, 0x1000
_MAX_HANDLE = 128
_UTIME_OMIT = (1 << 30) - 2
_UTIME_NOW = (1 << 30) - 1

_SYS_GETDENTS64 = {"x86_64": 217, "aarch64": 61, "riscv64": 61}[os.uname().machine]
_SYS_FACCESSAT2 = 439
_SYS_SETGROUPS = {"x86_64": 116, "aarch64": 159, "riscv64": 159}[os.uname().machine]

DirectoryEntry = tuple[int, int, bytes]
"""Position behind the entry, type (DT_*), name."""

_DIRENT = struct.Struct("=QqHB")
# Of struct statx: the mask, nlink, mode, ino; the device's two numbers, and the mount's.
_STATX = struct.Struct("=I12xI8xH2xQ96xIIQ")
_StatxBuffer = ctypes.c_char * 256


class Status(NamedTuple):
    """What tells an inode from others, and which mount it was found on.

    :ivar device: as the kernel numbers devices, and connections.
    :ivar mount: its number in mountinfo, which another mount gets later. A kernel before 5.8 does
        not tell it: then it stands for the device.
    """

    device: int
    inode: int
    mode: int
    links: int
    mount: int


def status(fd: int, *, fresh: bool = False) -> Status:
    """statx(2) of a descriptor; no server or daemon is asked unless it shall be *fresh*.

    fstat(2) of a remote file may bring attributes of what had its name some time ago.

    :raises OSError: it failed.
    """
    buffer = _StatxBuffer()
    flags = _AT_EMPTY_PATH | (_AT_STATX_FORCE_SYNC if fresh else _AT_STATX_DONT_SYNC)
    _check(_libc.statx(fd, b"", flags, _STATX_BASIC_STATS | _STATX_MNT_ID, buffer))
    mask, links, mode, inode, major, minor, mount = _STATX.unpack_from(buffer)
    device = major << 20 | minor
    return Status(device, inode, mode, links, mount if mask & _STATX_MNT_ID else -1 - device)


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


class _Timespec(ctypes.Structure):
    _fields_ = (("tv_sec", ctypes.c_long), ("tv_nsec", ctypes.c_long))


def _timespec(time_ns: int | None, now: bool) -> _Timespec:
    if time_ns is None:
        return _Timespec(0, _UTIME_OMIT)
    if now:
        return _Timespec(0, _UTIME_NOW)
    return _Timespec(time_ns // 10**9, time_ns % 10**9)


def set_times(
    path: bytes, atime_ns: int | None, mtime_ns: int | None, *, now: bool = False
) -> None:
    """utimensat(2): set the times that are not None; *now*: to the present time instead.

    :raises OSError: it failed.
    """
    times = (_Timespec * 2)(_timespec(atime_ns, now), _timespec(mtime_ns, now))
    _check(_libc.utimensat(_AT_FDCWD, path, times, 0))


def rename(old_dir: int, old: bytes, new_dir: int, new: bytes, flags: int) -> None:
    """renameat2(2), with RENAME_NOREPLACE (1), RENAME_EXCHANGE (2), RENAME_WHITEOUT (4).

    :raises OSError: it failed.
    """
    _check(_libc.renameat2(old_dir, old, new_dir, new, ctypes.c_uint(flags)))


def file_handle(fd: int) -> bytes | None:
    """name_to_handle_at(2): what opens the same inode again, or None if its file system cannot.

    :raises OSError: it failed for another reason.
    """
    buffer = ctypes.create_string_buffer(8 + _MAX_HANDLE)
    struct.pack_into("=I", buffer, 0, _MAX_HANDLE)
    mount_id = ctypes.c_int()
    if _libc.name_to_handle_at(fd, b"", buffer, ctypes.byref(mount_id), _AT_EMPTY_PATH) != 0:
        return None
    (size,) = struct.unpack_from("=I", buffer)
    return buffer.raw[: 8 + size]


def open_by_handle(mount_fd: int, handle: bytes, flags: int) -> int:
    """open_by_handle_at(2); *mount_fd* is any descriptor (not O_PATH) of the same mount.

    :raises OSError: ESTALE when the inode has gone.
    """
    buffer = ctypes.create_string_buffer(handle, len(handle))
    return _check(_libc.open_by_handle_at(mount_fd, buffer, flags | os.O_CLOEXEC))


def check_access(fd: int, mode: int) -> None:
    """faccessat2(2) of a descriptor, which may be O_PATH, with the thread's effective identity.

    :param mode: R_OK, W_OK, X_OK.
    :raises OSError: EACCES, EROFS, ETXTBSY: it may not be done; or it is not to be told.
    """
    flags = ctypes.c_long(_AT_EMPTY_PATH | _AT_EACCESS)
    empty = ctypes.c_char_p(b"")
    _check(
        _libc.syscall(
            ctypes.c_long(_SYS_FACCESSAT2), ctypes.c_long(fd), empty, ctypes.c_long(mode), flags
        )
    )


def file_system_type(fd: int) -> int:
    """fstatfs(2): which file system that is, as its f_type says.

    :raises OSError: it failed.
    """
    figures = (ctypes.c_long * 32)()  # struct statfs has 15 and begins with f_type
    _check(_libc.fstatfs(fd, figures))
    return int(figures[0])


def getdents(fd: int, size_bytes: int = 32768) -> list[DirectoryEntry]:
    """getdents64(2): the next entries of a directory, an empty list at its end.

    :raises OSError: it failed.
    """
    buffer = ctypes.create_string_buffer(size_bytes)
    count = _check(_libc.syscall(ctypes.c_long(_SYS_GETDENTS64), fd, buffer, size_bytes))
    return list(_entries(buffer.raw[:count]))


def next_position(fd: int) -> int:
    """Return the position of a directory's next entry itself, where its file system tells.

    A getdents64(2) that has no room for the entry leaves the descriptor there.

    :raises OSError: it failed.
    """
    buffer = ctypes.create_string_buffer(1)
    try:
        _check(_libc.syscall(ctypes.c_long(_SYS_GETDENTS64), fd, buffer, 1))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.lseek(fd, 0, os.SEEK_CUR)


def _entries(raw: bytes) -> Iterator[DirectoryEntry]:
    start = 0
    while start < len(raw):
        _ino, position, length, kind = _DIRENT.unpack_from(raw, start)
        name = raw[start + _DIRENT.size : start + length]
        yield position, kind, name[: name.index(b"\0")]
        start += length


def set_fs_groups(groups: list[int]) -> None:
    """Set the supplementary groups of this thread alone, unlike ``os.setgroups``.

    :raises OSError: it failed.
    """
    array = (ctypes.c_uint32 * max(1, len(groups)))(*groups)
    _check(_libc.syscall(ctypes.c_long(_SYS_SETGROUPS), len(groups), array))


def set_fs_ids(uid: int, gid: int) -> None:
    """setfsgid(2) and setfsuid(2), which say nothing about failure, and check that they took."""
    _libc.setfsgid(ctypes.c_uint(gid))
    _libc.setfsuid(ctypes.c_uint(uid))
    none = ctypes.c_uint(0xFFFFFFFF)
    got = (_libc.setfsuid(none) & 0xFFFFFFFF, _libc.setfsgid(none) & 0xFFFFFFFF)
    if got != (uid, gid):
        raise PermissionError(1, f"cannot act as uid {uid}, gid {gid}")
