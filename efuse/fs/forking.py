# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run one function in a forked process that never returns to the code of its parent."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable

from efuse.display import shown_lines

__all__ = ["forked"]

_log = logging.getLogger("efuse.fs")


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
