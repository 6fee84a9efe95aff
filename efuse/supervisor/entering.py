# SPDX-License-Identifier: LGPL-2.1-or-later
"""Become like a caller, and open a path as it sees it.

The process that does this is never the supervisor: it enters the mount namespace and the root of
the caller, and takes its rights to files. It does not enter the working directory: that might ask
the daemon of that directory.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct

from efuse.supervisor.caller import AT_FDCWD, Caller

__all__ = ["Place"]

_libc = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNS = 0x00020000
_OPENAT2 = 437
_CAPGET, _CAPSET = {"x86_64": 125, "aarch64": 90}, {"x86_64": 126, "aarch64": 91}
_CAPABILITIES_3 = 0x20080522
_RESOLVE_NO_MAGICLINKS = 0x02
_AT_EMPTY_PATH, _AT_STATX_DONT_SYNC, _STATX_MNT_ID = 0x1000, 0x4000, 0x1000
_SELF = {"self", "thread-self"}
_DESCRIPTOR = re.compile(r"/(?:proc/(?:self|thread-self|([0-9]+))|dev)/fd/([0-9]{1,9})")


class Place:
    """A path of a caller, and what is needed to look at it as the caller does.

    All of it is collected here, while /proc can still be reached. The descriptors are open with
    O_PATH: to close a duplicate of the caller's own would be to wait for the daemon of its file.

    :param path: the path; empty for *directory* itself, by default the working directory.
    :param directory: the caller's descriptor of the directory that a relative path begins at.
    :param follow: whether a symbolic link at the end is followed.
    :param here: whether the path is looked at in the mount namespace of this process, where the
        caller's place has the same name.
    :raises OSError: the caller is gone, or would get the same error.
    """

    def __init__(
        self,
        caller: Caller,
        path: str,
        directory: int = AT_FDCWD,
        *,
        follow: bool = True,
        here: bool = False,
    ) -> None:
        self._path, self._follow, self._begin = path, follow, AT_FDCWD
        flags = os.O_PATH | os.O_CLOEXEC
        descriptor = _descriptor_of(caller, path) if follow else None
        if descriptor is not None:
            path, directory = "", descriptor
        if here:
            self._path = _name_of(caller, path, directory)
        elif descriptor is not None:
            self._path, self._begin = "", os.open(caller.proc / "fd" / str(descriptor), flags)
        elif path.startswith("/"):
            pass
        elif directory == AT_FDCWD:
            self._begin = os.open(caller.proc / "cwd", flags)
        else:
            try:
                self._begin = os.open(caller.proc / "fd" / str(directory), flags)
            except FileNotFoundError as error:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from error
        self._user, self._group, self._groups = caller.ids_of_files
        self._capabilities = caller.capabilities
        self._namespace = -1
        if not (here or caller.shares("mnt")):
            self._namespace = os.open(caller.proc / "ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
        root = caller.proc / "root"
        self._root = os.open(root.readlink() if here else root, flags)

    def enter(self) -> None:
        """Take the caller's mount namespace, root, and rights to files.

        :raises OSError: the kernel refused it.
        """
        if self._namespace >= 0:
            _checked(_libc.setns(self._namespace, ctypes.c_int(_CLONE_NEWNS)))
        if self._namespace >= 0 or _identity(self._root) != _identity(os.open("/", os.O_PATH)):
            os.fchdir(self._root)
            os.chroot(".")
        os.setgroups(self._groups)
        # They return the id before, and no error.
        _libc.setfsgid(ctypes.c_uint(self._group))
        _libc.setfsuid(ctypes.c_uint(self._user))
        _set_effective(self._capabilities)

    def opened(self) -> int:
        """Open the path, after `enter`, and return a descriptor of it.

        :raises OSError: the caller would get the same error.
        :raises LookupError: the path leads through a link of /proc that only the kernel can follow
            for the caller, or through too many links.
        """
        if not self._path:
            return self._begin
        flags = os.O_PATH | os.O_CLOEXEC | (0 if self._follow else os.O_NOFOLLOW)
        how = struct.pack("=QQQ", flags, 0, _RESOLVE_NO_MAGICLINKS)
        path, size = os.fsencode(self._path), ctypes.c_size_t(len(how))
        try:
            return _checked(_libc.syscall(ctypes.c_long(_OPENAT2), self._begin, path, how, size))
        except OSError as error:
            # "self" is this process here, whatever the caller would have found there.
            if error.errno != errno.ELOOP and not _SELF & {*self._path.split("/")}:
                raise
            raise LookupError(self._path) from error


def _descriptor_of(caller: Caller, path: str) -> int | None:
    """Return the caller's descriptor that a path in /proc or /dev stands for."""
    named = _DESCRIPTOR.fullmatch(path)
    if named and (named[1] is None or int(named[1]) in (caller.thread, caller.process)):
        return int(named[2])
    return None


def _name_of(caller: Caller, path: str, directory: int) -> str:
    """Return an absolute path below the caller's root in place of one that may be relative.

    :param directory: see `Place`.
    :raises OSError: the caller is gone, or has no such directory.
    """
    if not path.startswith("/"):
        link = "cwd" if directory == AT_FDCWD else f"fd/{directory}"
        try:
            begin = str((caller.proc / link).readlink())
        except FileNotFoundError as error:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from error
        root = str((caller.proc / "root").readlink()).rstrip("/")
        if not f"{begin}/".startswith(f"{root}/"):
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        path = f"{begin.removeprefix(root)}/{path}"
    while path.endswith("/."):  # it would be looked up on what is mounted there
        path = path[:-2]
    return path.rstrip("/") or "/"


def _identity(directory: int) -> tuple[int, ...]:
    """Return what tells a directory of one mount from all others, without asking a daemon."""
    found = ctypes.create_string_buffer(256)
    flags = _AT_EMPTY_PATH | _AT_STATX_DONT_SYNC
    _checked(_libc.statx(directory, b"", flags, ctypes.c_uint(_STATX_MNT_ID), found))
    return (
        *struct.unpack_from("=Q", found, 32),
        *struct.unpack_from("=II", found, 136),
        *struct.unpack_from("=Q", found, 144),
    )


def _set_effective(capabilities: int) -> None:
    """Restrict the effective capabilities of this thread to these, if they are permitted."""
    machine = os.uname().machine
    header, held = struct.pack("=Ii", _CAPABILITIES_3, 0), ctypes.create_string_buffer(24)
    _checked(_libc.syscall(ctypes.c_long(_CAPGET[machine]), header, held))
    _, permitted_low, inherited_low, _, permitted_high, inherited_high = struct.unpack("=6I", held)
    low, high = capabilities & permitted_low, capabilities >> 32 & permitted_high
    data = struct.pack(
        "=6I", low, permitted_low, inherited_low, high, permitted_high, inherited_high
    )
    _checked(_libc.syscall(ctypes.c_long(_CAPSET[machine]), header, data))


def _checked(done: int) -> int:
    if done < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return done
