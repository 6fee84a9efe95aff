# SPDX-License-Identifier: LGPL-2.1-or-later
"""A disk whose block writes are recorded, and crashes of it that are replayed."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.crash.log import Entry, Image

FILE_SYSTEMS = {
    "ext4": (
        *("mkfs.ext4", "-q", "-F", "-b", "4096", "-N", "1024", "-J", "size=4"),
        *("-E", "lazy_itable_init=1,lazy_journal_init=1"),
    ),
    "xfs": ("mkfs.xfs", "-q", "-f", "-K"),
}
"""How each lower file system is made."""

_SIZES = {"ext4": 48 << 20, "xfs": 320 << 20}
"""Size of the disk, in bytes: xfs needs 300 MiB."""

_LOG_SIZE = 2 << 30
_NAME = "efuse_crash"
_SECTOR = 512
_DM_TARGET_MSG = 0xC138FD0E
_DM_IOCTL = struct.Struct("=IIIIIIiIIIQ128s136s")
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


def _run(*words: str | Path) -> str:
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def _mount(device: str, root: Path, kind: str) -> None:
    words = (os.fsencode(device), os.fsencode(root), kind.encode())
    if _libc.mount(*words, ctypes.c_ulong(0), None):
        number = ctypes.get_errno()
        raise OSError(number, f"{kind} cannot be mounted: {os.strerror(number)}")


def _unmount(root: Path, flags: int = 0) -> None:
    if _libc.umount2(os.fsencode(root), flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), root)


@contextlib.contextmanager
def _loop(path: Path, size: int) -> Iterator[str]:
    """Yield the name of a loop device over a new file."""
    with path.open("wb") as file:
        file.truncate(size)
    device = _run("losetup", "--find", "--show", path)
    try:
        yield device
    finally:
        _run("losetup", "-d", device)


@dataclass(frozen=True)
class Disk:
    """A disk with a file system, whose block writes are recorded.

    :ivar root: mount point of the file system.
    :ivar log: file with the log, which is complete when the disk is gone.
    """

    root: Path
    log: Path

    def mark(self, number: int) -> None:
        """Put a mark into the log: a message to the device mapper's target."""
        text = struct.pack("=Q", 0) + f"mark {number}".encode() + b"\0"
        size = _DM_IOCTL.size + len(text)
        head = _DM_IOCTL.pack(4, 0, 0, size, _DM_IOCTL.size, 0, 0, 0, 0, 0, 0, _NAME.encode(), b"")
        fd = os.open("/dev/mapper/control", os.O_RDWR)
        try:
            fcntl.ioctl(fd, _DM_TARGET_MSG, bytearray(head + text))
        finally:
            os.close(fd)


@contextlib.contextmanager
def recorded(base: Path, kind: str) -> Iterator[Disk]:
    """Make a disk with its files below *base*. Its log stays there.

    :param kind: one of `FILE_SYSTEMS`.
    """
    root, log, size = base / "lower", base / "log", _SIZES[kind]
    root.mkdir()
    # Each module may be built in.
    for module in ("loop", "dm_mod"):
        if not Path("/sys/module", module).exists():
            _run("modprobe", module)
    if "log-writes" not in _run("dmsetup", "targets"):
        _run("modprobe", "dm-log-writes")
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(_loop(base / "data", size))
        kept = stack.enter_context(_loop(log, _LOG_SIZE))
        table = f"0 {size // _SECTOR} log-writes {data} {kept}"
        _run("dmsetup", "create", _NAME, "--table", table)
        stack.callback(_run, "dmsetup", "remove", "--retry", _NAME)
        _run("dmsetup", "mknodes")
        device = f"/dev/mapper/{_NAME}"
        _run(*FILE_SYSTEMS[kind], device)
        _mount(device, root, kind)
        # Lazily: a backing file may be closed a moment later.
        stack.callback(_unmount, root, _MNT_DETACH)
        yield Disk(root, log)


class Crashes:
    """Crashes of a recorded disk, one after the other."""

    def __init__(self, image: Image, kind: str, device: str, copy: int, root: Path) -> None:
        self._image = image
        self._kind = kind
        self._device = device
        self._copy = copy
        self._root = root

    @property
    def entries(self) -> list[Entry]:
        return list(self._image.entries)

    def files(self, length: int, below: str) -> dict[str, bytes]:
        """Return the files that a crash leaves, after the file system has been mounted again.

        :param length: number of log entries before the crash, not less than in the last call.
        :param below: directory of the files.
        """
        self._image.advance(length)
        self._image.copy_to(self._copy)
        _mount(self._device, self._root, self._kind)
        try:
            top = self._root / below
            return {
                str(path.relative_to(top)): path.read_bytes()
                for path in top.rglob("*")
                if path.is_file()
            }
        finally:
            _unmount(self._root)


@contextlib.contextmanager
def crashes(base: Path, kind: str) -> Iterator[Crashes]:
    """Replay the log that `recorded` has left below *base*."""
    root, size = base / "crashed", _SIZES[kind]
    root.mkdir()
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(_loop(base / "copy", size))
        copy = os.open(base / "copy", os.O_RDWR)
        stack.callback(os.close, copy)
        image = Image(base / "log", base / "image", size)
        stack.callback(image.close)
        yield Crashes(image, kind, device, copy, root)
