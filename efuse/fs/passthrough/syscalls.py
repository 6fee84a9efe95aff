# SPDX-License-Identifier: LGPL-2.1-or-later
"""System calls that Python's os module lacks. They take descriptors, and names as bytes."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from typing import Any, NamedTuple

from pyfuse3 import EntryAttributes

__all__ = [
    "DirectoryEntry",
    "Status",
    "check_access",
    "check_write_access",
    "effective_capabilities",
    "file_handle",
    "file_system_type",
    "getdents",
    "next_position",
    "open_by_handle",
    "rename",
    "set_attributes",
    "set_effective_capabilities",
    "set_fs_groups",
    "set_fs_ids",
    "set_times",
    "status",
]

_libc = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD = -100
_AT_EACCESS = 0x200
_AT_EMPTY_PATH, _AT_STATX_FORCE_SYNC, _AT_STATX_DONT_SYNC = 0x1000, 0x2000, 0x4000
_AT_SYMLINK_NOFOLLOW, _AT_NO_AUTOMOUNT = 0x100, 0x800
_THERE = _AT_EMPTY_PATH | _AT_SYMLINK_NOFOLLOW | _AT_NO_AUTOMOUNT
_FRESH, _CACHED = _THERE | _AT_STATX_FORCE_SYNC, _THERE | _AT_STATX_DONT_SYNC
_STATX_BASIC_STATS, _STATX_MNT_ID = 0x7FF, 0x1000
_STATX_WANTED = _STATX_BASIC_STATS | _STATX_MNT_ID
_MAX_HANDLE = 128
_UTIME_OMIT = (1 << 30) - 2
_UTIME_NOW = (1 << 30) - 1
_CAPABILITY_VERSION = 0x20080522

_SYS_GETDENTS64 = {"x86_64": 217, "aarch64": 61, "riscv64": 61}[os.uname().machine]
_SYS_FACCESSAT2 = 439
_SYS_SETGROUPS = {"x86_64": 116, "aarch64": 159, "riscv64": 159}[os.uname().machine]

DirectoryEntry = tuple[int, int, bytes, int]
"""Position behind the entry, type (DT_*), name, and inode number.

A mount point has the number of the directory that is covered.
"""

_DIRENT = struct.Struct("=QqHB")
# Fields of struct statx: mask, nlink, mode, ino, dev_major, dev_minor, mnt_id.
_STATX = struct.Struct("=I12xI8xH2xQ96xIIQ")
# Fields of struct statx: blksize, nlink, uid, gid, mode, size, blocks, atime, ctime, mtime,
# rdev_major, rdev_minor.
_STATX_ATTRIBUTES = struct.Struct("=4xI8xIIIH10xQQ8xqI20xqI4xqI4xII")
_StatxBuffer = ctypes.c_char * 256


class Status(NamedTuple):
    """The identity of an inode, and the mount on which it was found.

    :ivar device: device number: ``major << 20 | minor``, as in the number of a connection.
    :ivar inode: inode number.
    :ivar mode: type and permissions of the file.
    :ivar links: number of hard links.
    :ivar mount: id of the mount in mountinfo, which a later mount may get again. On a kernel before
        5.8, which does not show it: a negative number that stands for the device.
    :ivar raw: ``struct statx``, see :func:`set_attributes`.
    """

    device: int
    inode: int
    mode: int
    links: int
    mount: int
    raw: ctypes.Array[ctypes.c_char]


def status(fd: int, name: bytes = b"", *, fresh: bool = False) -> Status:
    """Return the result of statx(2) on a descriptor, or on a name in a directory.

    A symbolic link is not followed, and a name does not cause an automount.

    :param fd: descriptor of the inode, or of the directory that has the *name*.
    :param fresh: whether to ask the server or daemon of the file system. Otherwise the values are
        cached ones, which may be those of another file that once had the same name.
    :raises OSError: statx(2) failed.
    """
    buffer = _StatxBuffer()
    if (
        _libc.statx(fd, ctypes.c_char_p(name), _FRESH if fresh else _CACHED, _STATX_WANTED, buffer)
        < 0
    ):
        raise _error()
    mask, links, mode, inode, major, minor, mount = _STATX.unpack_from(buffer)
    device = major << 20 | minor
    if not mask & _STATX_MNT_ID:
        mount = -1 - device
    # Status() would call a function of Python, and each LOOKUP does this.
    return tuple.__new__(Status, (device, inode, mode, links, mount, buffer))


def set_attributes(attributes: EntryAttributes, st: Status) -> None:
    """Set the fields that stat(2) also returns, except the inode number, from *st*."""
    # fmt: off
    (attributes.st_blksize, attributes.st_nlink, attributes.st_uid, attributes.st_gid,
     attributes.st_mode, attributes.st_size, attributes.st_blocks, atime_s, atime_ns,
     ctime_s, ctime_ns, mtime_s, mtime_ns, major, minor) = _STATX_ATTRIBUTES.unpack_from(st.raw)
    # fmt: on
    attributes.st_rdev = os.makedev(major, minor)
    attributes.st_atime_ns = atime_s * 10**9 + atime_ns
    attributes.st_mtime_ns = mtime_s * 10**9 + mtime_ns
    attributes.st_ctime_ns = ctime_s * 10**9 + ctime_ns


def _check(result: int) -> int:
    if result < 0:
        raise _error()
    return result


def _error() -> OSError:
    """Return the error of the system call that has failed."""
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


class _CapHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _CapData(ctypes.Structure):
    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


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
    """Set the times that are not None, by utimensat(2).

    :param path: path of the file. Symbolic links are followed.
    :param atime_ns: access time, in ns since 1970.
    :param mtime_ns: modification time, in ns since 1970.
    :param now: whether to set the present time instead of the given ones.
    :raises OSError: utimensat(2) failed.
    """
    times = (_Timespec * 2)(_timespec(atime_ns, now), _timespec(mtime_ns, now))
    _check(_libc.utimensat(_AT_FDCWD, path, times, 0))


def rename(old_dir: int, old: bytes, new_dir: int, new: bytes, flags: int) -> None:
    """Rename by renameat2(2).

    :param flags: RENAME_NOREPLACE (1), RENAME_EXCHANGE (2), RENAME_WHITEOUT (4).
    :raises OSError: renameat2(2) failed.
    """
    _check(_libc.renameat2(old_dir, old, new_dir, new, ctypes.c_uint(flags)))


def file_handle(fd: int) -> bytes | None:
    """Return the file handle of *fd* by name_to_handle_at(2), or None if there is none.

    :func:`open_by_handle` opens the same inode again by its handle.
    """
    buffer = ctypes.create_string_buffer(8 + _MAX_HANDLE)
    struct.pack_into("=I", buffer, 0, _MAX_HANDLE)
    mount_id = ctypes.c_int()
    if _libc.name_to_handle_at(fd, b"", buffer, ctypes.byref(mount_id), _AT_EMPTY_PATH) != 0:
        return None
    (size,) = struct.unpack_from("=I", buffer)
    return buffer.raw[: 8 + size]


def open_by_handle(mount_fd: int, handle: bytes, flags: int) -> int:
    """Open an inode by its file handle, with open_by_handle_at(2).

    :param mount_fd: any descriptor on the same mount, but not an O_PATH descriptor.
    :param handle: result of :func:`file_handle`.
    :raises OSError: ESTALE if the inode is gone.
    """
    buffer = ctypes.create_string_buffer(handle, len(handle))
    return _check(_libc.open_by_handle_at(mount_fd, buffer, flags | os.O_CLOEXEC))


def check_access(fd: int, mode: int) -> None:
    """Check access to the inode of *fd* by faccessat2(2), with the thread's effective identity.

    :param fd: descriptor of the inode; may be an O_PATH descriptor.
    :param mode: a mask of R_OK, W_OK and X_OK.
    :raises OSError: the access is not allowed (EACCES, EROFS, ETXTBSY), or the check failed.
    """
    flags = ctypes.c_long(_AT_EMPTY_PATH | _AT_EACCESS)
    empty = ctypes.c_char_p(b"")
    _check(
        _libc.syscall(
            ctypes.c_long(_SYS_FACCESSAT2), ctypes.c_long(fd), empty, ctypes.c_long(mode), flags
        )
    )


def check_write_access(fd: int) -> None:
    """Check by access(2) whether the process's real user may write the inode of *fd*.

    Kernels before 5.8 have it, too, unlike :func:`check_access`.

    :param fd: descriptor of the inode; may be an O_PATH descriptor.
    :raises OSError: EROFS: the mount or its file system is read-only. Other errors come first and
        tell nothing about the mount.
    """
    _check(_libc.access(b"/proc/self/fd/%d" % fd, os.W_OK))


def file_system_type(fd: int) -> int:
    """Return the type of a file system: ``f_type`` of fstatfs(2).

    :raises OSError: fstatfs(2) failed.
    """
    figures = (ctypes.c_long * 32)()  # struct statfs has 15 longs, and the first one is f_type
    _check(_libc.fstatfs(fd, figures))
    return int(figures[0])


def getdents(fd: int, size_bytes: int = 32768) -> list[DirectoryEntry]:
    """Return the next entries of a directory by getdents64(2); an empty list at its end.

    :param size_bytes: size of the buffer for the entries.
    :raises OSError: getdents64(2) failed.
    """
    buffer = ctypes.create_string_buffer(size_bytes)
    count = _check(_libc.syscall(ctypes.c_long(_SYS_GETDENTS64), fd, buffer, size_bytes))
    raw = ctypes.string_at(buffer, count)  # buffer.raw would copy all of the buffer
    entries = []
    start = 0
    while start < count:
        inode, position, length, kind = _DIRENT.unpack_from(raw, start)
        name = start + _DIRENT.size
        entries.append((position, kind, raw[name : raw.index(0, name)], inode))
        start += length
    return entries


def next_position(fd: int) -> int:
    """Return the position of the next entry itself, if the file system shows it.

    A getdents64(2) that has no room for the entry leaves the descriptor at this position.

    :raises OSError: getdents64(2) failed for another reason.
    """
    buffer = ctypes.create_string_buffer(1)
    try:
        _check(_libc.syscall(ctypes.c_long(_SYS_GETDENTS64), fd, buffer, 1))
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.lseek(fd, 0, os.SEEK_CUR)


def set_fs_groups(groups: list[int]) -> None:
    """Set the supplementary groups of this thread only, unlike ``os.setgroups``.

    :raises OSError: setgroups(2) failed.
    """
    array = (ctypes.c_uint32 * max(1, len(groups)))(*groups)
    _check(_libc.syscall(ctypes.c_long(_SYS_SETGROUPS), len(groups), array))


def set_fs_ids(uid: int, gid: int) -> None:
    """Set the file-system uid and gid of this thread.

    setfsuid(2) and setfsgid(2) report no failure, so the result is checked.

    :raises PermissionError: the ids were not set.
    """
    _libc.setfsgid(ctypes.c_uint(gid))
    _libc.setfsuid(ctypes.c_uint(uid))
    none = ctypes.c_uint(0xFFFFFFFF)
    got = (_libc.setfsuid(none) & 0xFFFFFFFF, _libc.setfsgid(none) & 0xFFFFFFFF)
    if got != (uid, gid):
        raise PermissionError(1, f"cannot act as uid {uid}, gid {gid}")


def _capget(pid: int) -> tuple[_CapHeader, Any]:
    header, data = _CapHeader(_CAPABILITY_VERSION, pid), (_CapData * 2)()
    _check(_libc.capget(ctypes.byref(header), data))
    return header, data


def effective_capabilities(pid: int) -> int:
    """Return the effective capabilities of a thread, a mask in which bit N is capability N.

    :param pid: number of the thread in the PID namespace of this process; 0 for this thread.
    :raises OSError: ESRCH if there is no such thread.
    """
    _, (low, high) = _capget(pid)
    return int(high.effective << 32 | low.effective)


def set_effective_capabilities(mask: int) -> None:
    """Set the effective capabilities of this thread, and keep the permitted ones.

    :raises PermissionError: a capability in *mask* is not permitted to this thread.
    """
    header, data = _capget(0)
    data[0].effective, data[1].effective = mask & 0xFFFFFFFF, mask >> 32
    _check(_libc.capset(ctypes.byref(header), data))
