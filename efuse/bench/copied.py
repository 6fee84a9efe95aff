# SPDX-License-Identifier: LGPL-2.1-or-later
"""Count the bytes that the kernel copies to and from daemons.

These are all bytes that a daemon reads and writes: requests, replies, files and sockets. A spliced
page counts as not copied if the kernel only passes it on. The copies to and from the programs that
use a mount do not count: they are the same for every system.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import ExitStack
from ctypes import c_int64
from pathlib import Path

from efuse.bpf.tracing import Hook, Tracer, shipped
from efuse.closing import Closing
from efuse.errors import NotSupportedError

__all__ = ["CopiedBytes"]

_FUSE = {
    "copy": Hook("fexit", "fuse_copy_do"),
    "device_read": Hook("fexit", "fuse_dev_do_read"),
    "device_write": Hook("fexit", "fuse_dev_do_write"),
}
_HOOKS = {
    "fuse": _FUSE,
    "efuse": {
        **_FUSE,
        "channel_take": Hook("fexit", "fuse_dev_take"),
        "channel_reply": Hook("fexit", "fuse_dev_reply"),
    },
}
_SPLICE = {"splice": Hook("fexit", "iter_file_splice_write")}
_INITIAL_PIDS = 0xEFFFFFFC
"""Inode number of the initial PID namespace: PROC_PID_INIT_INO in linux/proc_ns.h."""


class CopiedBytes(Closing):
    """Counts the bytes that are copied for some processes from now on. A context manager.

    :param pids: numbers of the processes.
    :param modules: the kernel modules whose file systems the processes serve: ``fuse``, ``efuse``,
        or both.
    :raises NotSupportedError: this kernel has no BTF or lacks a traced function, or this process
        is not in the initial PID namespace.
    :raises AttachError: this process lacks the right to trace.
    :raises VerifierError: the kernel's verifier rejects the programs.
    """

    def __init__(self, pids: Iterable[int], modules: Iterable[str]) -> None:
        if Path("/proc/self/ns/pid").stat().st_ino != _INITIAL_PIDS:
            raise NotSupportedError(
                "copied bytes cannot be counted in a container that numbers processes itself",
                hint="run it outside, or in a container with the host's process numbers",
            )
        spec = shipped("copied")
        self._open = ExitStack()
        with ExitStack() as undo:
            undo.callback(self.close)
            maps = self._open.enter_context(Tracer(spec, _SPLICE)).maps
            for module in modules:
                self._open.enter_context(Tracer(spec, _HOOKS[module], module=module, maps=maps))
            self._copied = maps["copied"]
            for pid in pids:
                self._copied[pid] = 0
            undo.pop_all()

    def read(self, pid: int | None) -> int:
        """Return a byte count for a process. Only the difference of two counts is meaningful.

        :param pid: one of the processes, or None for a system without a daemon: 0 bytes.
        """
        if pid is None:
            return 0
        text = Path(f"/proc/{pid}/io").read_text()
        files = sum(int(n) for n in re.findall(r"^[rw]char: (\d+)", text, re.M))
        return files + c_int64(self._copied[pid]).value

    def close(self) -> None:
        """Stop counting. Can be called more than once."""
        self._open.close()
