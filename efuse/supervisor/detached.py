# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mount eFuse where no process can reach it yet: fsopen(2), fsmount(2), move_mount(2)."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Iterable

__all__ = [
    "FLAGS",
    "LONGEST",
    "DetachedMount",
    "mounted_detached",
    "opened",
    "pass_device",
    "without_mark",
]

_libc = ctypes.CDLL(None, use_errno=True)
_MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT = 429, 430, 431, 432
_CLOEXEC = 1
_SET_FLAG, _SET_STRING, _SET_FD, _CREATE = 0, 1, 5, 6
_FROM_EMPTY, _TO_EMPTY = 0x04, 0x40
_EMPTY_PATH, _DONT_SYNC = 0x1000, 0x4000
_ATTR_MOUNT_ROOT = 0x2000

# Flags of mount(2): those of the file system, by name, and those of the mount, as in fsmount(2).
_OF_FILE_SYSTEM = {1: "ro", 16: "sync", 64: "mand", 128: "dirsync", 1 << 25: "lazytime"}
_OF_MOUNT = {1: 0x1, 2: 0x2, 4: 0x4, 8: 0x8, 1024: 0x10, 2048: 0x80, 1 << 8: 0x00200000}
_STRICTATIME, _MOUNT_STRICTATIME = 1 << 24, 0x20
# They mean nothing here: silence, and relatime, which is the default.
_IGNORED = 1 << 15 | 1 << 21
FLAGS = sum(_OF_FILE_SYSTEM) | sum(set(_OF_MOUNT) - {1}) | _STRICTATIME | _IGNORED
"""The flags of mount(2) that `mounted_detached` understands."""

LONGEST = 255
"""The most bytes of a source or of the value of an option, in fsconfig(2)."""

_OLD_MARK, _OLD_MARK_MASK = 0xC0ED0000, 0xFFFF0000


def without_mark(flags: int) -> int:
    """Return flags of mount(2) without the mark that the first kernels wanted."""
    return flags & ~_OLD_MARK_MASK if flags & _OLD_MARK_MASK == _OLD_MARK else flags


def _call(number: int, *arguments: object) -> int:
    return _call_libc(_libc.syscall(ctypes.c_long(number), *arguments))


def _call_libc(done: int) -> int:
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done


def _configure(fs: int, command: int, key: str | None = None, value: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (key, value)]
    _call(_FSCONFIG, fs, ctypes.c_uint(command), *words, ctypes.c_int(0))


def pass_device(fs: int, device: int, text: str = "") -> None:
    """Pass a descriptor of /dev/efuse to a context of fsopen(2), as the option ``fd``.

    :param text: the descriptor's number in another process that will make the file system, if the
        context may be told a number. Before Linux 7, it looks at no descriptor before that.
    :raises OSError: the kernel refused it.
    """
    try:
        _call(_FSCONFIG, fs, ctypes.c_uint(_SET_FD), b"fd", None, ctypes.c_int(device))
    except OSError as error:
        if error.errno != errno.EINVAL or not text:
            raise
        _configure(fs, _SET_STRING, "fd", text)


class DetachedMount:
    """A mount that is not attached to any directory. If it never is, it goes with its descriptor.

    :param fd: its descriptor.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @property
    def connection(self) -> int:
        """The number of its connection. The daemon is not asked."""
        major, minor = struct.unpack_from("=II", self._seen(), 136)
        return int(major) << 20 | int(minor)

    @property
    def is_directory(self) -> bool:
        """Whether its root is a directory. The daemon is not asked."""
        (mode,) = struct.unpack_from("=H", self._seen(), 28)
        return stat.S_ISDIR(mode)

    @property
    def is_root(self) -> bool:
        """Whether the descriptor is of the root of a mount. The daemon is not asked."""
        (attributes,) = struct.unpack_from("=Q", self._seen(), 8)
        return bool(attributes & _ATTR_MOUNT_ROOT)

    def _seen(self) -> ctypes.Array[ctypes.c_char]:
        found = ctypes.create_string_buffer(256)
        _call_libc(_libc.statx(self.fd, b"", _EMPTY_PATH | _DONT_SYNC, ctypes.c_uint(0), found))
        return found

    def attach(self, target: int) -> None:
        """Attach it to a directory or file, which is open with O_PATH.

        :raises OSError: the kernel refused it.
        """
        flags = ctypes.c_uint(_FROM_EMPTY | _TO_EMPTY)
        _call(_MOVE_MOUNT, self.fd, b"", target, b"", flags)


def opened(fstype: str) -> int:
    """Open a context of fsopen(2) for a type without its subtype.

    :raises OSError: there is no such type, or this process may not mount.
    """
    return _call(_FSOPEN, fstype.encode(), ctypes.c_uint(_CLOEXEC))


def mounted_detached(fstype: str, source: str, flags: int, options: Iterable[str]) -> DetachedMount:
    """Mount a file system as mount(2) does, but attach it to no directory.

    :param fstype: its type, with or without a subtype.
    :param source: its source; empty for none.
    :param flags: of mount(2), only those in `FLAGS`.
    :param options: options of the file system, ``name`` or ``name=value``.
    :raises OSError: the kernel refused it, with the errno that mount(2) has.
    """
    kind, _, subtype = fstype.partition(".")
    fs = opened(kind)
    try:
        if source:
            _configure(fs, _SET_STRING, "source", source)
        if subtype:
            _configure(fs, _SET_STRING, "subtype", subtype)
        for flag, name in _OF_FILE_SYSTEM.items():
            if flags & flag:
                _configure(fs, _SET_FLAG, name)
        for option in options:
            name, equals, value = option.partition("=")
            if equals:
                _configure(fs, _SET_STRING, name, value)
            elif name:
                _configure(fs, _SET_FLAG, name)
        _configure(fs, _CREATE)
        attributes = sum(bit for flag, bit in _OF_MOUNT.items() if flags & flag)
        if flags & _STRICTATIME and not flags & 1024:
            attributes |= _MOUNT_STRICTATIME
        return DetachedMount(
            _call(_FSMOUNT, fs, ctypes.c_uint(_CLOEXEC), ctypes.c_uint(attributes))
        )
    finally:
        os.close(fs)
