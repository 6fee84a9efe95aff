# SPDX-License-Identifier: LGPL-2.1-or-later
"""The thread that waits for the answer of a system call: its memory, rights, and descriptors.

All this means the caller only as long as it waits. Look at `Listener.is_valid` afterwards.

Reading its memory may last as long as the daemon of a file that is mapped there wants it to.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from efuse.control.mounts import all_mounts

__all__ = ["AT_FDCWD", "FUSE_DEVICE", "Caller", "is_device"]

_libc = ctypes.CDLL(None, use_errno=True)
_PIDFD_GETFD = 438
_PIDFD_THREAD = os.O_EXCL
_AT_EMPTY_PATH, _AT_STATX_DONT_SYNC = 0x1000, 0x4000
AT_FDCWD = -100
"""Stands for the working directory in place of a descriptor."""
# The kernel reads no more of a path, or of the options of mount(2).
_PAGE = 4096

_CAP_SYS_ADMIN = 21
FUSE_DEVICE = os.makedev(10, 229)
"""Number of /dev/fuse."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A thread that waits for an answer.

    :ivar thread: its id.
    """

    thread: int

    @property
    def proc(self) -> Path:
        """Its directory in /proc."""
        return Path(f"/proc/{self.thread}")

    def optional_text(self, address: int, *, cut: bool = False) -> str:
        """Return the text at an address as `text` does; empty for a null pointer."""
        return self.text(address, cut=cut) if address else ""

    def text(self, address: int, most: int = _PAGE, *, cut: bool = False) -> str:
        """Return the text at an address.

        :param most: number of bytes that the kernel would read at most.
        :param cut: whether the text is cut where memory or *most* ends, as the options of mount(2)
            are.
        :raises OSError: EFAULT: there is no memory; ENAMETOOLONG: the text does not end in time;
            EACCES, EPERM: this process may not read it.
        """
        found = b""
        while len(found) < most and b"\0" not in found:
            # A page at a time: the next one need not be there.
            size = min(most - len(found), _PAGE - (address + len(found)) % _PAGE)
            try:
                found += self._memory(address + len(found), size)
            except OSError:
                if not (found and cut):
                    raise
                break
        if b"\0" not in found and not cut:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        return os.fsdecode(found[: most - cut].partition(b"\0")[0])

    def number(self, address: int) -> int:
        """Return the 32-bit number at an address.

        :raises OSError: EFAULT: there is no memory.
        """
        return int(struct.unpack("=i", self._memory(address, 4))[0])

    def _memory(self, address: int, size: int) -> bytes:
        try:
            fd = os.open(self.proc / "mem", os.O_RDONLY | os.O_CLOEXEC)
            try:
                found = os.pread(fd, size, address)
            finally:
                os.close(fd)
        except PermissionError:
            raise
        except (OSError, OverflowError) as error:
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT)) from error
        if len(found) != size:
            raise OSError(errno.EFAULT, os.strerror(errno.EFAULT))
        return found

    @property
    def process(self) -> int:
        """The id of its process."""
        return int(self._status("Tgid"))

    @property
    def words(self) -> list[str]:
        """Its program and arguments."""
        return os.fsdecode((self.proc / "cmdline").read_bytes()).split("\0")[:-1]

    @property
    def user(self) -> int:
        """The real user id."""
        return int(self._status("Uid").split()[0])

    @property
    def ids_of_files(self) -> tuple[int, int, list[int]]:
        """The user, the group and the other groups as which it opens files."""
        user, group = (int(self._status(name).split()[3]) for name in ("Uid", "Gid"))
        return user, group, [int(word) for word in self._status("Groups").split()]

    @property
    def capabilities(self) -> int:
        """The effective capabilities, a bit each."""
        return int(self._status("CapEff"), 16)

    @property
    def has_no_new_privileges(self) -> bool:
        """Whether no_new_privs is set, see prctl(2). It was or will be in all processes below."""
        return self._status("NoNewPrivs") == "1"

    def may_mount(self) -> bool:
        """Tell whether it has CAP_SYS_ADMIN, in its own user namespace."""
        return bool(self.capabilities >> _CAP_SYS_ADMIN & 1)

    def serves_automounts(self) -> bool:
        """Tell whether its process group is that of the daemon of an autofs mount.

        The kernel lets only this group pass a directory on which that daemon is about to mount.

        :raises ControlError: the caller is gone.
        """
        words = (self.proc / "stat").read_bytes().rpartition(b")")[2].split()
        group = f"pgrp={int(words[2])}"
        table = all_mounts(mountinfo=self.proc / "mountinfo")
        return any(m.fstype == "autofs" and group in m.options.split(",") for m in table)

    def shares(self, namespace: str) -> bool:
        """Tell whether it is in the same namespace (``user``, ``mnt``, ``pid``) as this process."""
        ours = Path(f"/proc/self/ns/{namespace}").readlink()
        return (self.proc / "ns" / namespace).readlink() == ours

    def has_our_label(self) -> bool:
        """Tell whether a security module such as AppArmor or SELinux confines both alike."""
        return _label(self.proc) == _label(Path("/proc/self"))

    def _status(self, name: str) -> str:
        # As bytes, because the name of a thread is any bytes.
        told = re.search(
            rb"^%b:[ \t]*(.*)$" % name.encode(), (self.proc / "status").read_bytes(), re.MULTILINE
        )
        assert told, name
        return told[1].decode()

    def has_device(self, fd: int, number: int = FUSE_DEVICE) -> bool:
        """Tell whether its descriptor *fd* is one of a character device, by default /dev/fuse.

        No file system is asked.

        :param number: number of the device, as in ``st_rdev``.
        """
        return is_device(str(self.proc / "fd" / str(fd)), number)

    def devices(self, number: int = FUSE_DEVICE) -> list[int]:
        """Return its descriptors of a character device, by default /dev/fuse.

        :param number: number of the device, as in ``st_rdev``.
        :raises OSError: EACCES: this process may not see its descriptors.
        """
        fds = [int(entry.name) for entry in (self.proc / "fd").iterdir()]
        return [fd for fd in fds if self.has_device(fd, number)]

    def has_context(self, fd: int) -> bool:
        """Tell whether its descriptor *fd* is one of fsopen(2)."""
        try:
            return str((self.proc / "fd" / str(fd)).readlink()) == "anon_inode:[fscontext]"
        except OSError:
            return False

    def flags_of(self, fd: int) -> int:
        """Return the flags of its descriptor *fd*: those of open(2), with O_CLOEXEC.

        :raises OSError: it has no such descriptor, or is gone.
        """
        told = re.search(
            r"^flags:\s*([0-7]+)$", (self.proc / "fdinfo" / str(fd)).read_text(), re.MULTILINE
        )
        assert told
        return int(told[1], 8)

    def descriptor(self, fd: int) -> int:
        """Return a duplicate of its descriptor *fd*.

        :raises OSError: it has no such descriptor, or is gone.
        """
        process = self._pidfd()
        try:
            copy: int = _libc.syscall(
                ctypes.c_long(_PIDFD_GETFD), process, ctypes.c_int(fd), ctypes.c_uint(0)
            )
        finally:
            os.close(process)
        if copy < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return copy

    def _pidfd(self) -> int:
        try:
            return os.pidfd_open(self.thread, _PIDFD_THREAD)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            return os.pidfd_open(self.process)  # before Linux 6.9


def is_device(path: str, number: int, directory: int = AT_FDCWD) -> bool:
    """Tell whether a path is one of a character device. No file system is asked.

    :param path: the path; empty for *directory* itself.
    :param number: number of the device, as in ``st_rdev``.
    """
    found = ctypes.create_string_buffer(256)
    flags, none = _AT_STATX_DONT_SYNC | (0 if path else _AT_EMPTY_PATH), ctypes.c_uint(0)
    if _libc.statx(directory, os.fsencode(path), flags, none, found) != 0:
        return False
    (mode,), device = struct.unpack_from("=H", found, 28), struct.unpack_from("=II", found, 128)
    return mode >> 12 == 0o02 and os.makedev(*device) == number


def _label(proc: Path) -> bytes:
    try:
        return (proc / "attr/current").read_bytes()
    except OSError:  # no security module has labels
        return b""
