# SPDX-License-Identifier: LGPL-2.1-or-later
"""Count the requests that plain FUSE sends to one daemon, regardless of the daemon.

The kernel has a tracepoint at which it queues a request; a perf event counts it on each CPU.
`efuse.bpf.requests` counts by opcode and takes times. It is not used here, because its programs
would slow down the mounts that are measured.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct
from pathlib import Path

from efuse.errors import NotSupportedError, reason

__all__ = ["SentRequests"]

_ID = Path("/sys/kernel/tracing/events/fuse/fuse_request_send/id")
_PERF_EVENT_OPEN = 298  # x86-64's number
_TYPE_TRACEPOINT = 2
_ATTR = struct.Struct("=IIQ112x")  # struct perf_event_attr: type, size, config
_CLOEXEC = 8  # PERF_FLAG_FD_CLOEXEC
_SET_FILTER = 0x40082406  # PERF_EVENT_IOC_SET_FILTER

_libc = ctypes.CDLL(None, use_errno=True)


def _open(event: int, cpu: int) -> int:
    attr = ctypes.create_string_buffer(_ATTR.pack(_TYPE_TRACEPOINT, _ATTR.size, event))
    fd: int = _libc.syscall(_PERF_EVENT_OPEN, attr, -1, cpu, -1, _CLOEXEC)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return fd


class SentRequests:
    """The number of requests of one FUSE connection from now on.

    :param connection: number of the connection, the minor number of the mount's device.
    :raises NotSupportedError: the kernel does not allow counting them.
    """

    def __init__(self, connection: int) -> None:
        self._fds: list[int] = []
        try:
            event = int(_ID.read_text())
            text = b"connection == %d\0" % connection
            for cpu in sorted(os.sched_getaffinity(0)):
                self._fds.append(_open(event, cpu))
                fcntl.ioctl(self._fds[-1], _SET_FILTER, text)
        except OSError as error:
            self.close()
            raise NotSupportedError(
                f"FUSE's requests cannot be counted: {reason(error)}",
                hint="run as root on Linux 6.12 or later, with tracefs on /sys/kernel/tracing",
            ) from error

    def count(self) -> int:
        """Return the number of requests sent so far, without FORGETs."""
        return sum(struct.unpack("=Q", os.read(fd, 8))[0] for fd in self._fds)

    def close(self) -> None:
        """Stop counting."""
        while self._fds:
            os.close(self._fds.pop())
