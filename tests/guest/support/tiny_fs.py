# SPDX-License-Identifier: LGPL-2.1-or-later
"""A small pyfuse3 file system on an eFuse mount, without the package efuse.

As a program it serves MOUNTPOINT until that is unmounted: ``tiny_fs.py MOUNTPOINT TIMEOUT_S``.
The root holds the files f0 to f99 with some text and an xattr. For names that begin with "no" it
answers LOOKUP with a negative entry.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILES = 100
FIRST = 10
CONNECTIONS = Path("/sys/fs/efuse/connections")
STATX_FORCE_SYNC = 0x2000

_libc = ctypes.CDLL(None, use_errno=True)


def content(nodeid: int) -> bytes:
    return b"this is %d\n" % nodeid


def xattr(nodeid: int) -> bytes:
    return b"value of %d" % nodeid


@dataclass(frozen=True)
class Tiny:
    """The mounted file system.

    :param path: its mountpoint.
    :param connection: the number of its connection.
    """

    path: Path
    connection: int

    def read(self, name: str) -> str:
        """Return the text of a file in the connection's directory of sysfs."""
        return (CONNECTIONS / str(self.connection) / name).read_text().strip()

    def count(self, opcode: str, counter: str) -> int:
        """Return a counter of an opcode."""
        counters = dict(line.split() for line in self.read(f"stats/{opcode}").splitlines())
        return int(counters[counter])

    def write(self, name: str, value: str) -> None:
        """Write a file in the connection's directory of sysfs."""
        (CONNECTIONS / str(self.connection) / name).write_text(value)

    def forget(self) -> None:
        """Invalidate all that the kernel has learned so far."""
        self.write("invalidate", "1")


def getattr_from_daemon(path: Path) -> None:
    """Make the kernel send a GETATTR, whatever it has cached."""
    buffer = ctypes.create_string_buffer(256)
    if _libc.statx(-100, os.fsencode(path), STATX_FORCE_SYNC, 0x7FF, buffer) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@contextlib.contextmanager
def serve(mountpoint: Path, timeout_s: float = 0) -> Iterator[Tiny]:
    """Serve the file system in a process of its own.

    :param timeout_s: how long names and attributes are valid, seconds.
    """
    mountpoint.mkdir(exist_ok=True)
    daemon = subprocess.Popen(
        [sys.executable, __file__, str(mountpoint), str(timeout_s)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert daemon.stdout is not None
    try:
        line = daemon.stdout.readline()
        assert line == "mounted\n", f"the file system printed {line!r}"
        device = os.stat(mountpoint).st_dev
        yield Tiny(mountpoint, os.minor(device))
    finally:
        _libc.umount2(os.fsencode(mountpoint), 2)
        try:
            daemon.wait(60)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
        daemon.stdout.close()


def main(mountpoint: str, timeout_s: float) -> None:
    """Serve *mountpoint* until it is unmounted."""
    import pyfuse3
    import trio

    class _Files(pyfuse3.Operations):
        def _attributes(self, nodeid: int) -> pyfuse3.EntryAttributes:
            found = pyfuse3.EntryAttributes()
            found.st_ino = nodeid
            found.st_nlink = 1
            found.entry_timeout = timeout_s
            found.attr_timeout = timeout_s
            if nodeid == pyfuse3.ROOT_INODE:
                found.st_mode = stat.S_IFDIR | 0o755
            else:
                found.st_mode = stat.S_IFREG | 0o666
                found.st_size = len(content(nodeid))
                found.st_mtime_ns = nodeid * 1_000_000_007
            return found

        async def getattr(
            self, inode: int, ctx: pyfuse3.RequestContext | None = None
        ) -> pyfuse3.EntryAttributes:
            return self._attributes(inode)

        async def lookup(
            self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext | None = None
        ) -> pyfuse3.EntryAttributes:
            if name.startswith(b"f") and name[1:].isdigit() and int(name[1:]) < FILES:
                return self._attributes(FIRST + int(name[1:]))
            if name.startswith(b"no"):
                absent = pyfuse3.EntryAttributes()
                absent.st_ino = 0
                absent.entry_timeout = timeout_s
                return absent
            raise pyfuse3.FUSEError(errno.ENOENT)

        async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
            found = pyfuse3.StatvfsData()
            found.f_bsize = found.f_frsize = 4096
            found.f_blocks = 1000
            found.f_namemax = 255
            return found

        async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
            if name != b"user.tiny":
                raise pyfuse3.FUSEError(pyfuse3.ENOATTR)
            return xattr(inode)

        async def open(
            self, inode: int, flags: int, ctx: pyfuse3.RequestContext
        ) -> pyfuse3.FileInfo:
            return pyfuse3.FileInfo(fh=inode)

        async def read(self, fh: int, off: int, size: int) -> bytes:
            return content(fh)[off : off + size]

        async def write(self, fh: int, off: int, buf: bytes) -> int:
            return len(buf)

    fd = os.open("/dev/efuse", os.O_RDWR)
    data = f"fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other"
    if _libc.mount(b"tiny", os.fsencode(mountpoint), b"efuse", 0, data.encode()) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    pyfuse3.init(_Files(), f"/dev/fd/{fd}", set())
    try:
        print("mounted", flush=True)
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close(unmount=False)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
