# SPDX-License-Identifier: LGPL-2.1-or-later
"""Counts the bytes that the kernel copies to and from daemons.

These are what a daemon reads and writes, of whatever: requests, replies, files and sockets. A page
that is spliced is not copied where the kernel only hands it on. What the kernel copies to and from
the programs that use a mount is not counted: they get the same bytes from every system.
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
"""The inode of the initial namespace of process numbers: PROC_PID_INIT_INO, linux/proc_ns.h."""


class CopiedBytes(Closing):
    """Counts from now on what is copied for some processes. A context manager.

    :param pids: of the processes.
    :param modules: whose file systems they serve: ``fuse``, ``efuse``, or both.
    :raises NotSupportedError: this kernel has no BTF, or not the functions; or process numbers are
        not the kernel's own here.
    :raises AttachError: this task may not trace.
    :raises VerifierError: this kernel refuses the programs.
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
        """Return how many bytes were copied for a process; only what is added is meant.

        :param pid: one of the processes. For None, where there is no daemon, nothing is copied.
        """
        if pid is None:
            return 0
        text = Path(f"/proc/{pid}/io").read_text()
        files = sum(int(n) for n in re.findall(r"^[rw]char: (\d+)", text, re.M))
        return files + c_int64(self._copied[pid]).value

    def close(self) -> None:
        """Count no more. May be called again."""
        self._open.close()
