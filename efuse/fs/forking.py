# SPDX-License-Identifier: LGPL-2.1-or-later
"""Fork a process that never returns to the code of its parent, and tell forked processes apart."""

from __future__ import annotations

import functools
import logging
import mmap
import os
import traceback
from collections.abc import Callable

from efuse.display import shown_lines

__all__ = ["Maker", "forked"]

_log = logging.getLogger("efuse.fs")

_MADV_WIPEONFORK = 18


class Maker:
    """The process that made this object. A forked process is another one, a thread is not.

    The kernel gives a forked process zeros in place of the page of this object, so no system call
    is needed to tell them apart. This holds for each fork, in Python or in C. By contrast,
    ``os.register_at_fork`` misses a fork in C, and the process would go on as a second daemon. Only
    a child of vfork(2) shares the page, but such a child executes another program or exits.

    :ivar is_this_process: tells by 1 or 0 whether the calling process made this object. Each
        request calls it, so it runs no Python code if the kernel has such pages.
    """

    __slots__ = ("is_this_process",)

    def __init__(self) -> None:
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.is_this_process: Callable[[], int] = functools.partial(page.__getitem__, 0)
        try:
            page.madvise(_MADV_WIPEONFORK)
            page[0] = 1
        except OSError:  # before Linux 4.14
            pid = os.getpid()
            self.is_this_process = lambda: os.getpid() == pid


def forked(child: Callable[[], int]) -> int:
    """Call *child* in a forked process.

    The process never returns from this function. It ends with the exit status that *child* returns.
    If *child* raises, the process logs the traceback and ends with status 1.

    :returns: the id of the process.
    :raises OSError: no process can be made.
    """
    parent = os.getpid()
    status = 1
    try:
        # Within the block, because a signal handler may raise in the new process first.
        pid = os.fork()
        if pid != 0:
            return pid
        status = child()
    except BaseException:
        if os.getpid() == parent:
            raise
        _log.error("process %d ends: %s", os.getpid(), shown_lines(traceback.format_exc()))
    finally:
        if os.getpid() != parent:
            os._exit(status)
    raise AssertionError("a forked process has ended")
