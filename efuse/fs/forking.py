# SPDX-License-Identifier: LGPL-2.1-or-later
"""A process that is forked for one function, and never goes on in its parent's code."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable

from efuse.display import shown_lines

__all__ = ["forked"]

_log = logging.getLogger("efuse.fs")


def forked(child: Callable[[], int]) -> int:
    """Call *child* in a process of its own, which ends with what that returns.

    If *child* raises, the process logs that and ends with 1: it never returns from here.

    :returns: the number of the process.
    :raises OSError: there can be no further process.
    """
    parent = os.getpid()
    status = 1
    try:
        # Within the block: a signal's handler may raise in the new process before all else.
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
