# SPDX-License-Identifier: LGPL-2.1-or-later
"""A pyfuse3 file system that keeps nothing in its process: another process can go on for it.

As a program, ``stateless_files.py DIRECTORY MOUNTPOINT`` serves MOUNTPOINT until that is unmounted,
without the package efuse. The root holds the files f0 to f9, whose bytes are in the files 0 to 9 of
DIRECTORY. The number of a file is 10 more, and so is the handle of its open files. DIRECTORY holds
further files:

starts          a line with its process id for each start
gate            while it exists, a start waits
fails           if it exists, a start exits with the status in it
options         further mount options, separated by commas
background      if it exists, it goes into the background by two forks
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import sys
import time
from pathlib import Path

FILES = 10
FIRST = 10
XATTR = b"what the daemon has"
TIMEOUT_S = 3600.0


def command(directory: Path, mountpoint: Path) -> list[str]:
    """Return the command that serves *directory*, after making its files."""
    for number in range(FILES):
        (directory / str(number)).touch()
    return [sys.executable, __file__, str(directory), str(mountpoint)]


def starts(directory: Path) -> list[int]:
    """Return the process ids of all starts so far."""
    path = directory / "starts"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def main(directory: str, mountpoint: str) -> None:
    """Serve *mountpoint* until it is unmounted, or a signal ends this process."""
    import pyfuse3
    import trio

    class _Files(pyfuse3.Operations):
        def _path(self, nodeid: int) -> str:
            return f"{directory}/{nodeid - FIRST}"

        def _attributes(self, nodeid: int) -> pyfuse3.EntryAttributes:
            found = pyfuse3.EntryAttributes()
            found.st_ino, found.st_nlink = nodeid, 1
            found.entry_timeout = found.attr_timeout = TIMEOUT_S
            if nodeid == pyfuse3.ROOT_INODE:
                found.st_mode = stat.S_IFDIR | 0o755
                return found
            seen = os.stat(self._path(nodeid))
            found.st_mode, found.st_size = stat.S_IFREG | 0o666, seen.st_size
            found.st_mtime_ns, found.st_ctime_ns = seen.st_mtime_ns, seen.st_ctime_ns
            return found

        async def getattr(
            self, inode: int, ctx: pyfuse3.RequestContext | None = None
        ) -> pyfuse3.EntryAttributes:
            return self._attributes(inode)

        async def setattr(
            self,
            inode: int,
            attr: pyfuse3.EntryAttributes,
            fields: pyfuse3.SetattrFields,
            fh: int | None,
            ctx: pyfuse3.RequestContext,
        ) -> pyfuse3.EntryAttributes:
            if fields.update_size:
                os.truncate(self._path(inode), attr.st_size)
            return self._attributes(inode)

        async def lookup(
            self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext | None = None
        ) -> pyfuse3.EntryAttributes:
            if len(name) == 2 and name.startswith(b"f") and name[1:].isdigit():
                return self._attributes(FIRST + int(name[1:]))
            raise pyfuse3.FUSEError(errno.ENOENT)

        async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
            if name != b"user.text":
                raise pyfuse3.FUSEError(pyfuse3.ENOATTR)
            return XATTR

        async def open(
            self, inode: int, flags: int, ctx: pyfuse3.RequestContext
        ) -> pyfuse3.FileInfo:
            return pyfuse3.FileInfo(fh=inode)

        async def read(self, fh: int, off: int, size: int) -> bytes:
            with open(self._path(fh), "rb", buffering=0) as file:
                return os.pread(file.fileno(), size, off)

        async def write(self, fh: int, off: int, buf: bytes) -> int:
            with open(self._path(fh), "r+b", buffering=0) as file:
                return os.pwrite(file.fileno(), buf, off)

        async def fsync(self, fh: int, datasync: bool) -> None:
            pass

    place = Path(directory)
    if (place / "background").exists():
        for _ in range(2):
            if os.fork():
                os._exit(0)
            os.setsid()
        for stream in (0, 1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    with open(place / "starts", "a") as file:
        file.write(f"{os.getpid()}\n")
    while (place / "gate").exists():
        time.sleep(0.01)
    if (place / "fails").exists():
        sys.exit(int((place / "fails").read_text()))
    # It leaves its mount, as a program does that ends by an error of its own.
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
    options = {"default_permissions", "allow_other"}
    with contextlib.suppress(FileNotFoundError):
        options |= {*(place / "options").read_text().split(",")}
    pyfuse3.init(_Files(), mountpoint, options)
    try:
        trio.run(pyfuse3.main)
    finally:
        pyfuse3.close(unmount=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
