# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the mounted FUSE and eFuse file systems without touching any of them.

A ``stat`` of a mount whose daemon hangs would hang too. So everything comes from mountinfo, and
symbolic links are followed only up to the first FUSE mount on the way.
"""

import ctypes
import os
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from efuse.errors import ControlError, reason
from efuse.locations import SYMLINKS_MAX

__all__ = [
    "MOUNTINFO",
    "Mount",
    "Numbered",
    "all_mounts",
    "find",
    "is_mounted",
    "is_on_fuse",
    "mounts",
    "number_at",
    "number_of",
    "numbered",
    "numbers",
    "of_device",
    "parse",
    "place_of",
    "read_table",
    "resolve",
]

MOUNTINFO = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of mountinfo.

    :ivar mount_id: id of the mount.
    :ivar parent_id: id of the mount that it is mounted on.
    :ivar connection: number of the FUSE connection, from the device number of the file system.
    :ivar mountpoint: absolute path of the mount point.
    :ivar fstype: type of the file system, with the subtype.
    :ivar source: source of the mount.
    :ivar options: options of the mount, then those of its file system.
    :ivar own_options: options of the mount alone.
    :ivar propagation: its optional fields, such as ``shared:2``.
    """

    mount_id: int
    parent_id: int
    connection: int
    mountpoint: str
    fstype: str
    source: str
    options: str
    own_options: str = ""
    propagation: tuple[str, ...] = ()

    @property
    def sends_to(self) -> int:
        """The peer group that gets what is mounted on this mount; 0 if there is none."""
        return next((int(f[7:]) for f in self.propagation if f.startswith("shared:")), 0)

    @property
    def receives_from(self) -> set[int]:
        """The peer groups that this mount gets mounts from."""
        kinds = ("shared:", "master:")
        return {int(f.partition(":")[2]) for f in self.propagation if f.startswith(kinds)}

    @property
    def is_efuse(self) -> bool:
        """Whether the type is ``efuse`` or ``efuseblk``, with any subtype."""
        return self.fstype.split(".")[0] in ("efuse", "efuseblk")

    @property
    def is_fuse(self) -> bool:
        """Whether the mount belongs to the kernel's own FUSE, with any subtype."""
        return self.fstype.split(".")[0] in ("fuse", "fuseblk")

    @property
    def is_read_only(self) -> bool:
        """Whether the mount is read-only, even if its file system is writable."""
        return "ro" in self.own_options.split(",")

    @property
    def is_idmapped(self) -> bool:
        """Whether the mount maps the owners of files to other ids."""
        return "idmapped" in self.own_options.split(",")


def parse(text: str) -> tuple[Mount, ...]:
    """Return all mounts in the mountinfo *text*, of every type, in the same order."""
    # Not splitlines(): a name can contain characters that end a line for Python, such as U+2028.
    return tuple(_parse_line(line) for line in text.split("\n") if " - " in line)


def _parse_line(line: str) -> Mount:
    head, _, tail = line.partition(" - ")
    own = head.split(" ")
    fstype, source, options = [*tail.split(" "), "", ""][:3]
    return Mount(
        mount_id=int(own[0]),
        parent_id=int(own[1]),
        connection=_device(own[2]),
        mountpoint=_unescape(own[4]),
        fstype=_unescape(fstype),
        source=_unescape(source),
        options=",".join(part for part in (own[5], options) if part),
        own_options=own[5],
        propagation=tuple(own[6:]),
    )


def _device(words: str) -> int:
    """Return the connection number of MAJOR:MINOR. MAJOR is 0 except for fuseblk."""
    major, _, minor = words.partition(":")
    return int(major) << 20 | int(minor)


def _unescape(word: str) -> str:
    if "\\" not in word:
        return word
    raw = re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]), os.fsencode(word))
    return os.fsdecode(raw)


def _read(mountinfo: Path) -> tuple[Mount, ...]:
    try:
        return parse(os.fsdecode(mountinfo.read_bytes()))
    except OSError as e:
        raise ControlError(
            f"cannot list the mounts: {reason(e)}", hint="mount proc on /proc"
        ) from e


def read_table(mountinfo: int) -> tuple[Mount, ...]:
    """Return the mounts of every type from an open mountinfo, which the caller can poll.

    :param mountinfo: descriptor of the file.
    :raises OSError: the file cannot be read.
    """
    parts = []
    offset = 0
    while part := os.pread(mountinfo, 1 << 16, offset):
        parts.append(part)
        offset += len(part)
    return parse(os.fsdecode(b"".join(parts)))


def all_mounts(*, mountinfo: Path = MOUNTINFO) -> tuple[Mount, ...]:
    """Return the mounts of every type, in the order of mountinfo.

    :raises ControlError: mountinfo cannot be read.
    """
    return _read(mountinfo)


def of_device(device: int, *, mountinfo: Path = MOUNTINFO) -> tuple[Mount, ...]:
    """Return the mounts of the file system on a block device.

    :param device: number of the device, as in ``st_rdev``.
    :raises ControlError: mountinfo cannot be read.
    """
    number = _device(f"{os.major(device)}:{os.minor(device)}")
    return tuple(m for m in _read(mountinfo) if m.connection == number)


def mounts(*, fuse: bool = False, mountinfo: Path = MOUNTINFO) -> tuple[Mount, ...]:
    """Return the eFuse mounts, and with *fuse* also the plain FUSE mounts.

    :raises ControlError: mountinfo cannot be read.
    """
    return tuple(m for m in _read(mountinfo) if m.is_efuse or (fuse and m.is_fuse))


def find(path: str | os.PathLike[str], *, fuse: bool = False, mountinfo: Path = MOUNTINFO) -> Mount:
    """Return the eFuse mount that *path* is on, or with *fuse* also a plain FUSE mount.

    The path need not exist inside the mount: the mount itself is never accessed.

    :raises ControlError: *path* is not on such a mount.
    """
    name = os.fspath(path)
    table = _read(mountinfo)
    where = resolve(name, table)
    mount = _innermost(where, table)
    if mount is None or not (mount.is_efuse or (fuse and mount.is_fuse)):
        what = f"a {mount.fstype} mount" if mount else "no mount that is visible here"
        wanted = "FUSE" if fuse else "eFuse"
        raise ControlError(
            f"{name} is not on {wanted}: it lies on {what}",
            hint=f"efuse stat, without a path, lists the {wanted} mounts",
        )
    return mount


def is_on_fuse(path: str, *, mountinfo: Path = MOUNTINFO) -> bool:
    """Return whether *path* is on or below a mount of eFuse or FUSE, without accessing the mount.

    A FUSE mount that is hidden by another mount counts, too.

    :raises ControlError: mountinfo cannot be read, or there are too many links.
    """
    table = mounts(fuse=True, mountinfo=mountinfo)
    where = resolve(path, table)
    return any(_covers(m.mountpoint, where) for m in table)


def resolve(path: str, table: Iterable[Mount]) -> str:
    """Return the absolute path without symbolic links, without accessing any FUSE mount.

    Links on or below a FUSE mount are not resolved.

    :raises ControlError: there are too many links, or *path* is relative and the working directory
        was removed.
    """
    stops = {m.mountpoint for m in table if m.is_efuse or m.is_fuse}
    return _resolve(path if path.startswith("/") else f"{_working_directory(path)}/{path}", stops)


def _working_directory(path: str) -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise ControlError(
            f"{path} has no location: the working directory was removed (ENOENT)", hint="cd /"
        ) from None


def _resolve(path: str, stops: Iterable[str], links: int = SYMLINKS_MAX) -> str:
    """Follow the symbolic links of an absolute path, without accessing a stop or what is below."""
    done = "/"
    parts = [part for part in path.split("/") if part]
    while parts:
        done = os.path.normpath(f"{done.rstrip('/')}/{parts.pop(0)}")
        if done in stops:
            return os.path.normpath("/".join([done.rstrip("/"), *parts]))
        try:
            target = str(Path(done).readlink())
        except OSError:
            continue
        if not links:
            raise ControlError(f"{path}: too many levels of symbolic links (ELOOP)")
        links -= 1
        parts = [part for part in target.split("/") if part] + parts
        done = "/" if target.startswith("/") else str(Path(done).parent)
    return done


def _covers(mountpoint: str, path: str) -> bool:
    return mountpoint == "/" or path == mountpoint or path.startswith(mountpoint + "/")


def _innermost(path: str, table: Iterable[Mount]) -> Mount | None:
    """Return the mount that *path* is on, walking inwards from the root as the kernel does.

    A mount hides the mounts that were made below its mount point earlier, so among several children
    the one with the shortest path counts. In a chroot the mount of the root is not in the table, so
    the walk begins at the mounts whose parent is missing.
    """
    way = [m for m in table if _covers(m.mountpoint, path)]
    ids = {m.mount_id for m in way}
    here: Mount | None = None
    while True:
        if here is None:
            inner = [m for m in way if m.parent_id not in ids or m.parent_id == m.mount_id]
        else:
            inner = [m for m in way if m.parent_id == here.mount_id and m is not here]
        if not inner:
            return here
        here = min(inner, key=lambda m: len(m.mountpoint))


_libc = ctypes.CDLL(None, use_errno=True)
_STATMOUNT, _LISTMOUNT = 457, 458
_STATMOUNT_SB_BASIC, _STATMOUNT_MNT_BASIC, _STATMOUNT_FS_TYPE = 1, 2, 0x20
_LSMT_ROOT = (1 << 64) - 1
_AT_NO_AUTOMOUNT, _AT_EMPTY_PATH, _AT_STATX_DONT_SYNC = 0x800, 0x1000, 0x4000
_STATX_MNT_ID_UNIQUE = 0x4000


def number_at(path: str = "", *, directory: int = -100) -> int | None:
    """Return the unique number of the mount that *path* is on.

    No other mount ever gets this number. By contrast, mount ids in mountinfo and connection numbers
    are reused. The daemon is not asked.

    :param path: the path; empty to use *directory* itself.
    :param directory: descriptor that *path* is relative to; by default the working directory.
    :returns: None if *path* does not exist, or the kernel is older than 6.8.
    """
    found = ctypes.create_string_buffer(256)
    flags = _AT_NO_AUTOMOUNT | _AT_STATX_DONT_SYNC | (0 if path else _AT_EMPTY_PATH)
    wanted = ctypes.c_uint(_STATX_MNT_ID_UNIQUE)
    if _libc.statx(directory, os.fsencode(path), flags, wanted, found) != 0:
        return None
    (mask,) = struct.unpack_from("=I", found)
    (number,) = struct.unpack_from("=Q", found, 144)
    return number if mask & _STATX_MNT_ID_UNIQUE else None


@dataclass(frozen=True, slots=True)
class Numbered:
    """A mount as statmount(2) describes it.

    :ivar number: unique number of the mount (see `number_at`).
    :ivar mount_id: id of the mount in mountinfo.
    :ivar connection: number of the FUSE connection.
    :ivar fstype: type of the file system, without the subtype.
    """

    number: int
    mount_id: int
    connection: int
    fstype: str

    @property
    def is_of_fuse(self) -> bool:
        """Whether it is of eFuse, or of the kernel's own FUSE."""
        return self.fstype in ("efuse", "efuseblk", "fuse", "fuseblk")


def numbered(number: int) -> Numbered | None:
    """Return the description of the mount with the unique number *number*.

    None if the mount no longer exists, or is in a mount namespace that this process does not see.
    """
    wanted = _STATMOUNT_SB_BASIC | _STATMOUNT_MNT_BASIC | _STATMOUNT_FS_TYPE
    request = struct.pack("=IIQQ", 24, 0, number, wanted)
    found = ctypes.create_string_buffer(4096)
    size, none = ctypes.c_size_t(len(found)), ctypes.c_uint(0)
    if _libc.syscall(ctypes.c_long(_STATMOUNT), request, found, size, none) != 0:
        return None
    major, minor = struct.unpack_from("=II", found, 16)
    (fstype,) = struct.unpack_from("=I", found, 36)
    (mount_id,) = struct.unpack_from("=I", found, 56)
    name = os.fsdecode(found.raw[512 + fstype :].partition(b"\0")[0])
    return Numbered(number, mount_id, int(major) << 20 | int(minor), name)


def place_of(number: int) -> str | None:
    """Return the present mount point of the mount with the unique number *number*.

    The path changes if a directory above the mount point is renamed. None if the mount no longer
    exists, or this process does not see it.

    :raises ControlError: mountinfo cannot be read.
    """
    seen = numbered(number)
    if seen is None:
        return None
    return next((m.mountpoint for m in all_mounts() if m.mount_id == seen.mount_id), None)


def is_mounted(number: int) -> int | None:
    """Return the connection of the mount *number*, or None if `numbered` does not find it."""
    found = numbered(number)
    return None if found is None else found.connection


def number_of(connection: int) -> int:
    """Return the unique number of the first mount of a FUSE connection; 0 if none is seen.

    A process that may not look at the file system gets it, too: `number_at` asks the file system,
    and FUSE refuses that to all but the user who mounted it, even to root.
    """
    for number in numbers():
        found = numbered(number)
        if found is not None and found.is_of_fuse and found.connection == connection:
            return number
    return 0


def numbers() -> list[int]:
    """Return the sorted unique numbers of the mounts that this process sees (see `number_at`).

    A later mount has a higher number. But a mount may be attached long after it was made (see
    fsmount(2)): it then appears in this list in front of others.
    """
    listed: list[int] = []
    found = (ctypes.c_uint64 * 256)()
    size, none = ctypes.c_size_t(len(found)), ctypes.c_uint(0)
    while True:
        request = struct.pack("=IIQQ", 24, 0, _LSMT_ROOT, listed[-1] if listed else 0)
        count = _libc.syscall(ctypes.c_long(_LISTMOUNT), request, found, size, none)
        if count <= 0:
            return sorted(listed)
        listed += found[:count]
