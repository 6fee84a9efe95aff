# SPDX-License-Identifier: LGPL-2.1-or-later
"""A process that has no file descriptor left."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_descriptor_left() -> Iterator[None]:
    """Open files until the kernel refuses with EMFILE, and close them at the end of the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open("/dev/null", os.O_RDONLY)]
    highest = max(int(number) for number in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    try:
        while True:
            try:
                taken.append(os.dup(taken[0]))
            except OSError:
                break
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)
