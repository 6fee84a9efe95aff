# SPDX-License-Identifier: LGPL-2.1-or-later
"""mount(2) and umount(2) for eFuse, and what the mount options mean."""

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
# Of mount(2): to FUSE it means that the daemon applies umasks, as FUSE_DONT_MASK does.
_MS_POSIXACL = 1 << 16
_FUSE_DEVICE = Path("/dev/fuse")

# From <linux/mount.h>: options of the VFS, which mount(2) takes as flags.
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
# As libfuse mounts: programs of others' rights and devices are not a file system's to bring.
_DEFAULT = _FLAGS["nosuid"][0] | _FLAGS["nodev"][0]
VFS_OPTIONS = frozenset(_FLAGS)
"""The options of the VFS that may be given."""

# libfuse refuses them; a FUSE file system's access times are its daemon's in any case.
_UNKNOWN_TO_LIBFUSE = VFS_OPTIONS & {
    *("nodiratime", "diratime", "relatime", "norelatime"),
    *("strictatime", "nostrictatime", "lazytime", "nolazytime"),
}
_KERNEL = ("allow_other", "default_permissions")
_KERNEL_WITH_VALUE = ("max_read", "blksize")
# How deep the mount counts as stacked: backing files may lie on a file system of a lower depth.
_EFUSE_ALONE = "stack_depth"
_LIBFUSE_ALONE = ("auto_unmount", "blkdev", "context", "defcontext", "fscontext", "rootcontext")


@dataclass(frozen=True)
class MountOptions:
    """Mount options, sorted by who has to be told."""

    flags: int
    kernel: tuple[str, ...]
    library: tuple[str, ...]
    source: str
    subtype: str

    @classmethod
    def parse(cls, options: Iterable[str], *, source: str = "efuse") -> MountOptions:
        """Sort *options* (each ``name`` or ``name=value``) for an eFuse mount.

        Without ``suid`` and ``dev`` it has ``nosuid`` and ``nodev``. What is neither the VFS's nor
        the kernel's goes to libfuse, which refuses what it does not know either.
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
    """Return the mount *options* that libfuse can be given."""
    return {o for o in options if not o.startswith(f"{_EFUSE_ALONE}=")} - _UNKNOWN_TO_LIBFUSE


def needs_libfuse(options: Iterable[str]) -> bool:
    """Tell whether libfuse does more for one of the *options* than mount(2)."""
    return any(option.partition("=")[0] in _LIBFUSE_ALONE for option in options)


def with_stack_depth(options: Iterable[str], depth: int) -> list[str]:
    """Return *options* for a mount that counts as stacked *depth* deep, unless one of them says."""
    given = list(options)
    if depth > 1 and not any(o.startswith(f"{_EFUSE_ALONE}=") for o in given):
        given.append(f"{_EFUSE_ALONE}={depth}")
    return given


def kernel_lacks_efuse() -> str | None:
    """Return in one sentence why nothing can be mounted on eFuse here, or None if it can."""
    try:
        os.close(os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        if error.errno == errno.ENOENT:
            return "the kernel has no eFuse: its module is not loaded (ENOENT)"
        return f"{DEVICE} cannot be opened: {reason(error)}"
    if os.geteuid() != 0:
        return "mounting eFuse takes root (EPERM)"
    return None


def mount_efuse(
    mountpoint: str, options: MountOptions, *, plain: bool = False, unmasked: bool = False
) -> int:
    """Mount eFuse on *mountpoint* and return the descriptor on which its requests arrive.

    :param plain: mount the kernel's own FUSE instead.
    :param unmasked: the modes of what is created come as the callers gave them, with their umasks
        beside them.
    :raises MountError: the kernel refused it.
    """
    kind, device = ("fuse", _FUSE_DEVICE) if plain else ("efuse", DEVICE)
    called = "FUSE" if plain else "eFuse"
    try:
        mode = Path(mountpoint).stat().st_mode & 0o170000
        fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise MountError(
            f"{mountpoint} cannot be mounted on {called}: {reason(error)}",
            hint="efuse doctor says what is missing",
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
            hint="look at the end of the kernel's log: dmesg | tail",
        )
    return fd


def unmount(mountpoint: str, *, lazy: bool = False) -> None:
    """Unmount *mountpoint*; with *lazy* out of sight now, and wholly when nothing uses it.

    A user who may not unmount has fusermount3 do it, which unmounts the user's own mounts of FUSE.

    :raises OSError: the kernel refused it (EBUSY: in use; EINVAL: nothing is mounted there).
    """
    number = _umount(mountpoint, lazy=lazy)
    if number == errno.EPERM and os.geteuid() != 0:
        number = _unmount_as_user(mountpoint, lazy=lazy)
    if number != 0:
        raise OSError(number, os.strerror(number), mountpoint)


def _umount(path: str, *, lazy: bool) -> int:
    """Call umount2(2); return 0, or the errno."""
    # ctypes releases the GIL: the daemon may have to answer requests of the unmount itself.
    done = _libc.umount2(os.fsencode(path), ctypes.c_int(_MNT_DETACH if lazy else 0)) == 0
    return 0 if done else ctypes.get_errno()


def _unmount_as_user(mountpoint: str, *, lazy: bool) -> int:
    """Have fusermount3 unmount; return 0, or the errno that it stands for."""
    words = ["fusermount3", "-u", *(["-z"] if lazy else []), "--", mountpoint]
    try:
        done = subprocess.run(
            words,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            process_group=0,  # not ended by a signal of the terminal
        )
    except OSError:
        return errno.EPERM
    if done.returncode == 0:
        return 0
    if os.strerror(errno.EBUSY).encode() in done.stderr:
        return errno.EBUSY
    return errno.EINVAL if b" not found in " in done.stderr else errno.EPERM


def detach(mountpoint: str, number: int) -> None:
    """Unmount the mount *number* of FUSE lazily, wherever it is by now.

    A mount of another type is left.

    :param mountpoint: where it was mounted.
    :param number: see :func:`efuse.control.mounts.number_at`.
    :raises OSError: the kernel refused it (EINVAL: it is unmounted at this moment).
    :raises ControlError: mountinfo cannot be read.
    """
    seen = numbered(number)
    if seen is None or not seen.is_of_fuse:
        return
    where = place_of(number) or mountpoint
    try:
        fd = os.open(where, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return  # unmounted, and removed
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
    """Return *number* if that is the mount that *fd* is open on: FUSE of another user does not say.

    While *fd* is open, no other mount gets the number that it has in mountinfo.
    """
    told = _MOUNT_ID.search(Path(f"/proc/self/fdinfo/{fd}").read_text())
    wanted = numbered(number)
    return number if told and wanted and int(told[1]) == wanted.mount_id else None
