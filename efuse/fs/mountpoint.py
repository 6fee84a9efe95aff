# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mount and unmount eFuse and FUSE, and interpret mount options."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from efuse.control.mounts import number_at, numbered, place_of
from efuse.errors import MountError, reason

__all__ = [
    "DEVICE",
    "VFS_OPTIONS",
    "MountOptions",
    "detach",
    "for_plain_fuse",
    "kernel_lacks_efuse",
    "mount_efuse",
    "needs_libfuse",
    "unmount",
    "with_stack_depth",
]

DEVICE = Path("/dev/efuse")

_libc = ctypes.CDLL(None, use_errno=True)
_MNT_DETACH = 2
_MOUNT_ID = re.compile(r"^mnt_id:\s*([0-9]+)$", re.MULTILINE)
# A flag of mount(2). On FUSE it means that the daemon applies umasks, like FUSE_DONT_MASK.
_MS_POSIXACL = 1 << 16
_FUSE_DEVICE = Path("/dev/fuse")

# Options of the VFS. Each one sets or clears a flag of mount(2) (<linux/mount.h>).
_FLAGS = {
    "ro": (1, True),
    "rw": (1, False),
    "nosuid": (2, True),
    "suid": (2, False),
    "nodev": (4, True),
    "dev": (4, False),
    "noexec": (8, True),
    "exec": (8, False),
    "sync": (16, True),
    "async": (16, False),
    "dirsync": (128, True),
    "noatime": (1024, True),
    "atime": (1024, False),
    "nodiratime": (2048, True),
    "diratime": (2048, False),
    "relatime": (1 << 21, True),
    "norelatime": (1 << 21, False),
    "strictatime": (1 << 24, True),
    "nostrictatime": (1 << 24, False),
    "lazytime": (1 << 25, True),
    "nolazytime": (1 << 25, False),
}
# Like libfuse: set-user-ID programs and device nodes of the file system have no effect by default.
_DEFAULT = _FLAGS["nosuid"][0] | _FLAGS["nodev"][0]
VFS_OPTIONS = frozenset(_FLAGS)
"""The accepted options of the VFS."""

# libfuse refuses these. They have no effect on FUSE, whose daemon keeps the access times.
_UNKNOWN_TO_LIBFUSE = VFS_OPTIONS & {
    *("nodiratime", "diratime", "relatime", "norelatime"),
    *("strictatime", "nostrictatime", "lazytime", "nolazytime"),
}
_KERNEL = ("allow_other", "default_permissions")
_KERNEL_WITH_VALUE = ("max_read", "blksize")
# The stacking depth of the mount. Backing files must be on a file system of a lower depth.
_EFUSE_ALONE = "stack_depth"
_LIBFUSE_ALONE = ("auto_unmount", "blkdev", "context", "defcontext", "fscontext", "rootcontext")


@dataclass(frozen=True)
class MountOptions:
    """Mount options, sorted by their recipient.

    :ivar flags: flags for mount(2).
    :ivar kernel: options for the kernel's FUSE, in the data argument of mount(2).
    :ivar library: options for libfuse.
    :ivar source: source of the mount.
    :ivar subtype: subtype of the mount; empty if it has none.
    """

    flags: int
    kernel: tuple[str, ...]
    library: tuple[str, ...]
    source: str
    subtype: str

    @classmethod
    def parse(cls, options: Iterable[str], *, source: str = "efuse") -> MountOptions:
        """Sort *options* (each ``name`` or ``name=value``) for an eFuse mount.

        The mount gets ``nosuid`` and ``nodev``, unless *options* has ``suid`` or ``dev``. An option
        of neither the VFS nor the kernel's FUSE goes to libfuse, which refuses unknown options.

        :param source: source of the mount, if no ``fsname`` option sets it.
        """
        flags, kernel, library, subtype = _DEFAULT, [], [], ""
        for option in options:
            name, _, value = option.partition("=")
            if option in _FLAGS:
                bit, on = _FLAGS[option]
                flags = flags | bit if on else flags & ~bit
            elif name == "fsname" and value:
                source = value
            elif name == "subtype" and value:
                subtype = value
            elif option in _KERNEL or (name in _KERNEL_WITH_VALUE and value):
                kernel.append(option)
                if name != "allow_other":
                    library.append(option)
            elif name == _EFUSE_ALONE and value:
                kernel.append(option)
            else:
                library.append(option)
        return cls(flags, tuple(kernel), tuple(library), source, subtype)


def for_plain_fuse(options: Iterable[str]) -> set[str]:
    """Return the mount *options* without those that libfuse refuses."""
    return {o for o in options if not o.startswith(f"{_EFUSE_ALONE}=")} - _UNKNOWN_TO_LIBFUSE


def needs_libfuse(options: Iterable[str]) -> bool:
    """Tell whether one of the *options* needs libfuse, because mount(2) does not handle it."""
    return any(option.partition("=")[0] in _LIBFUSE_ALONE for option in options)


def with_stack_depth(options: Iterable[str], depth: int) -> list[str]:
    """Return *options* with the stacking depth *depth*, unless an option already sets a depth."""
    given = list(options)
    if depth > 1 and not any(o.startswith(f"{_EFUSE_ALONE}=") for o in given):
        given.append(f"{_EFUSE_ALONE}={depth}")
    return given


def kernel_lacks_efuse() -> str | None:
    """Return in one sentence why this process cannot mount eFuse, or None if it can."""
    try:
        os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.ENOENT:
            return "the kernel has no eFuse: its module is not loaded (ENOENT)"
        return f"{DEVICE} cannot be opened: {reason(error)}"
    if os.geteuid() != 0:
        return "mounting eFuse needs root (EPERM)"
    return None


def mount_efuse(
    mountpoint: str, options: MountOptions, *, plain: bool = False, unmasked: bool = False
) -> int:
    """Mount eFuse on *mountpoint* and return the descriptor on which its requests arrive.

    :param plain: whether to mount the kernel's own FUSE instead.
    :param unmasked: whether requests that create files have the mode that the caller gave, and the
        caller's umask separately. Otherwise the kernel applies the umask to the mode.
    :raises MountError: the kernel refused the mount.
    """
    kind, device = ("fuse", _FUSE_DEVICE) if plain else ("efuse", DEVICE)
    called = "FUSE" if plain else "eFuse"
    try:
        mode = Path(mountpoint).stat().st_mode & 0o170000
        fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise MountError(
            f"{mountpoint} cannot be mounted on {called}: {reason(error)}",
            hint="efuse doctor shows what is missing",
        ) from error
    data = ",".join(
        (
            f"fd={fd}",
            f"rootmode={mode:o}",
            f"user_id={os.getuid()}",
            f"group_id={os.getgid()}",
            *options.kernel,
        )
    )
    fstype = f"{kind}.{options.subtype}" if options.subtype else kind
    result = _libc.mount(
        os.fsencode(options.source),
        os.fsencode(mountpoint),
        fstype.encode(),
        ctypes.c_ulong(options.flags | (_MS_POSIXACL if unmasked else 0)),
        data.encode(),
    )
    if result != 0:
        number = ctypes.get_errno()
        os.close(fd)
        raise MountError(
            f"{mountpoint} cannot be mounted on {called}: {reason(number)}",
            hint="see the end of the kernel's log: dmesg | tail",
        )
    return fd


def unmount(mountpoint: str, *, lazy: bool = False) -> None:
    """Unmount *mountpoint*.

    For a user without the right to unmount, fusermount3 does it. It unmounts only FUSE mounts of
    the same user.

    :param lazy: whether to detach the mount immediately, and to unmount it when it is not used any
        more.
    :raises OSError: the kernel refused it (EBUSY: in use; EINVAL: nothing is mounted there).
    """
    number = _umount(mountpoint, lazy=lazy)
    if number == errno.EPERM and os.geteuid() != 0:
        number = _unmount_as_user(mountpoint, lazy=lazy)
    if number != 0:
        raise OSError(number, os.strerror(number), mountpoint)


def _umount(path: str, *, lazy: bool) -> int:
    """Call umount2(2), and return 0 or its errno."""
    # ctypes releases the GIL: the daemon may have to answer requests of the unmount itself.
    done = _libc.umount2(os.fsencode(path), ctypes.c_int(_MNT_DETACH if lazy else 0)) == 0
    return 0 if done else ctypes.get_errno()


def _unmount_as_user(mountpoint: str, *, lazy: bool) -> int:
    """Unmount by fusermount3, and return 0 or the errno that its message stands for."""
    words = ["fusermount3", "-u", *(["-z"] if lazy else []), "--", mountpoint]
    try:
        done = subprocess.run(
            words,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            process_group=0,  # a signal of the terminal does not end it
        )
    except OSError:
        return errno.EPERM
    if done.returncode == 0:
        return 0
    if os.strerror(errno.EBUSY).encode() in done.stderr:
        return errno.EBUSY
    return errno.EINVAL if b" not found in " in done.stderr else errno.EPERM


def detach(mountpoint: str, number: int) -> None:
    """Unmount a mount of FUSE or eFuse lazily, even if it has been moved.

    A mount of another type stays.

    :param mountpoint: path on which it was mounted.
    :param number: unique number of the mount, see :func:`efuse.control.mounts.number_at`.
    :raises OSError: the kernel refused it (EINVAL: another process has just unmounted it).
    :raises ControlError: mountinfo cannot be read.
    """
    seen = numbered(number)
    if seen is None or not seen.is_of_fuse:
        return
    where = place_of(number) or mountpoint
    try:
        fd = os.open(where, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return  # unmounted, and the mount point was removed
    try:
        if (number_at(directory=fd) or _number_in_table(fd, number)) != number:
            return
        failed = _umount(f"/proc/self/fd/{fd}", lazy=True)
        if failed == errno.EPERM and os.geteuid() != 0:
            failed = _unmount_as_user(where, lazy=True)
        if failed:
            raise OSError(failed, os.strerror(failed), where)
    finally:
        os.close(fd)


def _number_in_table(fd: int, number: int) -> int | None:
    """Return *number* if *fd* is open on that mount, otherwise None.

    This works where statx(2) does not, as on a FUSE mount of another user. It compares mount ids,
    which is safe because no other mount gets the id while *fd* is open.
    """
    told = _MOUNT_ID.search(Path(f"/proc/self/fdinfo/{fd}").read_text())
    wanted = numbered(number)
    return number if told and wanted and int(told[1]) == wanted.mount_id else None
