# SPDX-License-Identifier: LGPL-2.1-or-later
"""A pyfuse3 file system with handlers that never return, and programs that wait for them.

``python -m tests.stuck_file_system MOUNTPOINT`` mounts it on eFuse, and with the further argument
``plain`` on plain FUSE. It prints how it is mounted, and ``held`` whenever such a handler begins.
"""

from __future__ import annotations

import functools
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyfuse3
import trio

import efuse

CALLERS = {
    "waits": "import os, sys; os.stat(sys.argv[1] + '/waits')",
    "blocks": "import os, sys; os.stat(sys.argv[1] + '/blocks')",
    "write": "import os, sys; fd = os.open(sys.argv[1] + '/f', os.O_WRONLY);"
    " os.write(fd, b'x'); os.fsync(fd)",
}
"""Programs whose argument is the mount point, by the handler that they wait for."""


class Stuck(efuse.Operations):
    """A file system of any names."""

    enable_writeback_cache = True

    async def getattr(
        self, inode: int, ctx: pyfuse3.RequestContext | None = None
    ) -> pyfuse3.EntryAttributes:
        found = pyfuse3.EntryAttributes()
        found.st_ino = inode
        found.st_nlink = 1
        found.st_mode = stat.S_IFDIR | 0o755 if inode == 1 else stat.S_IFREG | 0o644
        return found

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        if name == b"waits":
            print("held", flush=True)
            await trio.sleep_forever()
        if name == b"blocks":
            print("held", flush=True)
            while True:
                time.sleep(1000)
        return await self.getattr(2)

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        return pyfuse3.FileInfo(fh=inode)

    async def write(self, fh: int, off: int, buf: bytes) -> int:
        print("held", flush=True)
        await trio.sleep_forever()
        raise AssertionError

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        return pyfuse3.StatvfsData()


def end_while_stuck(mountpoint: Path, handler: str, signals: int, *words: str) -> str:
    """Mount the file system, and end it by SIGTERM while a handler does not return.

    The caller gets an error, some time after one signal or immediately after a second one.

    :param words: further arguments of this module.
    :returns: how the file system was mounted.
    """
    command = [sys.executable, "-m", __name__, str(mountpoint), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        kind = daemon.stdout.readline().rstrip("\n")
        caller = subprocess.Popen(
            [sys.executable, "-c", CALLERS[handler], str(mountpoint)],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert daemon.stdout.readline() == "held\n"
        for _ in range(signals):
            daemon.send_signal(signal.SIGTERM)
        daemon.wait(timeout=120)
    _, printed = caller.communicate(timeout=120)
    assert "OSError" in printed or "ConnectionAbortedError" in printed
    assert f" {mountpoint} " not in Path("/proc/self/mountinfo").read_text()
    return kind


class _Told(trio.TaskStatus[Any]):
    def started(self, value: Any = None) -> None:
        print(value.mounted_type, value.connection, value.channels, flush=True)


def main() -> None:
    """Serve the file system."""
    mountpoint, *words = sys.argv[1:]
    plain = "plain" in words
    trio.run(
        functools.partial(
            efuse.serve,
            Stuck(),
            mountpoint,
            plain=plain,
            required=not plain,
            task_status=_Told(),
        )
    )


if __name__ == "__main__":
    main()
