# SPDX-License-Identifier: LGPL-2.1-or-later
"""A C daemon in the foreground: mount it, watch it, and end it by unmounting."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from efuse.bench.counter import SentRequests
from efuse.bench.usage import Usage, kernel_counts, switches
from efuse.control import Mount
from efuse.control.mounts import MOUNTINFO, all_mounts
from efuse.errors import EfuseError
from efuse.fs.mountpoint import unmount
from efuse.fs.options import Options
from efuse.supervisor.running import started

__all__ = ["Program", "wait_for_mount"]

_POLL_MS = 500


class Program:
    """A running daemon with its mounted file system."""

    def __init__(self, process: subprocess.Popen[bytes], mount: Mount) -> None:
        self._process = process
        self._mount = mount
        self._counter = None if mount.is_efuse else SentRequests(mount.connection)

    @classmethod
    @contextmanager
    def started(
        cls,
        words: Sequence[str],
        mountpoint: Path,
        *,
        accelerated: bool,
        options: Options | None = None,
    ) -> Iterator[Program]:
        """Run the command *words*, a daemon that serves *mountpoint*, and yield it.

        :param accelerated: run the daemon on eFuse, as ``efuse run`` does.
        :param options: what is declared on eFuse; None: no handlers are attached.
        :raises EfuseError: the daemon mounts nothing.
        """
        with ExitStack() as stack:
            if accelerated:
                process = stack.enter_context(started(words, options))[0].process
                mount = _mount_at(mountpoint)
                assert mount is not None
                stack.callback(_end, process, mountpoint)
            else:
                process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
                mount = wait_for_mount(process, mountpoint)
                stack.callback(_end, process, mountpoint)
            program = cls(process, mount)
            stack.callback(program.close)
            yield program

    @property
    def pid(self) -> int:
        """Process ID of the daemon."""
        return self._process.pid

    @property
    def number(self) -> int:
        """Number of the connection, of plain FUSE or eFuse."""
        return self._mount.connection

    @property
    def connection(self) -> int | None:
        """Number of the connection on eFuse; None on plain FUSE."""
        return self._mount.connection if self._mount.is_efuse else None

    def usage(self) -> Usage:
        """Return what the daemon has done so far.

        :raises EfuseError: the daemon has ended.
        """
        if self._process.poll() is not None:
            raise EfuseError(f"a daemon ended with exit status {self._process.returncode}")
        if self._counter is not None:
            return Usage({"all": self._counter.count()}, switches([self._process.pid]))
        sample, paths = kernel_counts(self._mount.connection)
        assert sample is not None
        return Usage({"all": sample.total.daemon}, switches([self._process.pid]), sample, paths)

    def close(self) -> None:
        """Stop counting requests."""
        if self._counter is not None:
            self._counter.close()


def _mount_at(mountpoint: Path) -> Mount | None:
    return next((m for m in all_mounts() if m.mountpoint == str(mountpoint)), None)


def wait_for_mount(process: subprocess.Popen[bytes], mountpoint: Path) -> Mount:
    """Wait until *process* has mounted something on *mountpoint*, and return the mount.

    :raises EfuseError: the process ended without mounting anything.
    """
    fd = os.open(MOUNTINFO, os.O_RDONLY | os.O_CLOEXEC)
    try:
        poll = select.poll()
        poll.register(fd, select.POLLPRI)  # the kernel signals a change of the table
        while (mount := _mount_at(mountpoint)) is None:
            if process.poll() is not None:
                raise EfuseError(
                    f"a daemon ended without mounting: exit status {process.returncode}",
                    hint="its output above gives the reason",
                )
            poll.poll(_POLL_MS)
        return mount
    finally:
        os.close(fd)


def _end(process: subprocess.Popen[bytes], mountpoint: Path) -> None:
    unmount(str(mountpoint))
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
