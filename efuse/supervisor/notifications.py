# SPDX-License-Identifier: LGPL-2.1-or-later
"""Let another process answer the system calls that mount (seccomp_unotify(2)).

The filter passes all other system calls. The kernel knows which ones it always passes, all but
ioctl(2), and looks only into a bitmap for them. All processes that are started later inherit the
filter, also set-user-ID programs.

libseccomp is not used: it cannot place descriptors into the caller (SECCOMP_IOCTL_NOTIF_ADDFD), its
Python binding is not on PyPI, and the filter has a dozen instructions.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import struct
from dataclasses import dataclass

__all__ = [
    "FUSE_DEV_IOC_CLONE",
    "FUSE_DEV_IOC_SYNC_INIT",
    "Listener",
    "Notification",
    "install",
    "is_clone",
]

_libc = ctypes.CDLL(None, use_errno=True)

_SET_MODE_FILTER = 1
# With the last one, only the death of the caller interrupts a call that was received. Otherwise any
# signal would, and the call would begin again.
_NEW_LISTENER, _SPEC_ALLOW, _WAIT_KILLABLE = 1 << 3, 1 << 2, 1 << 5
_ALLOW, _USER_NOTIF = 0x7FFF0000, 0x7FC00000
_LD, _JEQ, _RET, _AND = 0x20, 0x15, 0x06, 0x54
_NR_AT, _ARCH_AT, _REQUEST_AT = 0, 4, 24  # in struct seccomp_data; the last is args[1]
_X32 = 0x40000000

_SECCOMP = {"x86_64": 317, "aarch64": 277}
_X86_64, _I386, _AARCH64, _ARM = 0xC000003E, 0x40000003, 0xC00000B7, 0x40000028
# By AUDIT_ARCH. All newer system calls have the same number everywhere. 514 is x32's ioctl.
_NAMES = {
    _X86_64: {165: "mount", 16: "ioctl", 514: "ioctl"},
    _I386: {21: "mount", 54: "ioctl"},
    _AARCH64: {40: "mount", 29: "ioctl"},
    _ARM: {21: "mount", 54: "ioctl"},
}
_NEWER = {
    429: "move_mount",
    430: "fsopen",
    431: "fsconfig",
    446: "landlock_restrict_self",
}
_UNMOUNTING = {
    _X86_64: {166: "umount2"},
    _I386: {22: "umount", 52: "umount2"},
    _AARCH64: {39: "umount2"},
    _ARM: {52: "umount2"},
}
_OF_MACHINE = {"x86_64": (_X86_64, _I386), "aarch64": (_AARCH64, _ARM)}
FUSE_DEV_IOC_CLONE = 0x8004E500
"""Request of ioctl(2): a new descriptor of /dev/fuse serves the connection of another."""
FUSE_DEV_IOC_SYNC_INIT = 0xE503
"""Request of ioctl(2), from Linux 7.0 on: mount(2) waits for INIT."""

_NOTIF = struct.Struct("=QIIiIQ6Q")  # id, pid, flags, nr, arch, ip, args
_RESPONSE = struct.Struct("=QqiI")  # id, val, error, flags
_ADD = struct.Struct("=QIIII")  # id, flags, srcfd, newfd, newfd_flags
_CONTINUE = 1
_ADD_SET = 1


def _ioctl(number: int, size: int, *, reads: bool) -> int:
    return (3 if reads else 1) << 30 | size << 16 | ord("!") << 8 | number


_RECEIVE = _ioctl(0, _NOTIF.size, reads=True)
_SEND = _ioctl(1, _RESPONSE.size, reads=True)
_IS_VALID = _ioctl(2, 8, reads=False)
_ADD_FD = _ioctl(3, _ADD.size, reads=False)


class _Instruction(ctypes.Structure):
    _fields_ = (
        ("code", ctypes.c_uint16),
        ("jt", ctypes.c_uint8),
        ("jf", ctypes.c_uint8),
        ("k", ctypes.c_uint32),
    )


class _Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_uint16), ("filter", ctypes.POINTER(_Instruction)))


def _filter(machine: str, *, unmounting: bool) -> list[tuple[int, int, int, int]]:
    """Return the filter's instructions: code, jump if true, jump if false, constant."""
    found = [(_LD, 0, 0, _ARCH_AT)]
    for arch in _OF_MACHINE[machine]:
        wanted = {**_NAMES[arch], **_NEWER, **(_UNMOUNTING[arch] if unmounting else {})}
        # Without the bit of x32, whose numbers are mostly those of x86-64.
        checks = [(_LD, 0, 0, _NR_AT), (_AND, 0, 0, _X32 - 1)]
        for left, (number, name) in zip(range(len(wanted), 0, -1), wanted.items(), strict=True):
            checks.append((_JEQ, left if name == "ioctl" else left + 4, 0, number))
        checks += [
            (_RET, 0, 0, _ALLOW),
            (_LD, 0, 0, _REQUEST_AT),
            (_JEQ, 2, 0, FUSE_DEV_IOC_CLONE),
            (_JEQ, 1, 0, FUSE_DEV_IOC_SYNC_INIT),
            (_RET, 0, 0, _ALLOW),
            (_RET, 0, 0, _USER_NOTIF),
        ]
        found += [(_JEQ, 0, len(checks), arch), *checks]
    return [*found, (_RET, 0, 0, _ALLOW)]


def install(*, unmounting: bool) -> int:
    """Install the filter in this thread, and return the descriptor for a `Listener`.

    :param unmounting: whether system calls that unmount wait for an answer, too.
    :raises OSError: the kernel refused it (EBUSY: a listener answers for this process already;
        EACCES: this process is not root; EINVAL, ENOSYS: the kernel has no such filters).
    """
    machine = platform.machine()
    if machine not in _SECCOMP:
        raise OSError(errno.ENOSYS, f"not known on {machine}")
    instructions = _filter(machine, unmounting=unmounting)
    array = (_Instruction * len(instructions))(*(_Instruction(*each) for each in instructions))
    fd: int = _libc.syscall(
        ctypes.c_long(_SECCOMP[machine]),
        ctypes.c_ulong(_SET_MODE_FILTER),
        ctypes.c_ulong(_NEW_LISTENER | _SPEC_ALLOW | _WAIT_KILLABLE),
        ctypes.byref(_Program(len(array), array)),
    )
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


@dataclass(frozen=True, slots=True)
class Notification:
    """A system call that waits for an answer.

    :ivar id: identifies it.
    :ivar thread: id of the calling thread; 0 if it is in another PID namespace.
    :ivar name: its name: ``mount``, ``fsopen``, ``fsconfig``, ``move_mount``, ``umount``,
        ``umount2``, ``landlock_restrict_self``, or ``ioctl``, which is always FUSE_DEV_IOC_CLONE or
        FUSE_DEV_IOC_SYNC_INIT; empty for a number outside of the numbers of its interface.
    :ivar arguments: its six arguments.
    """

    id: int
    thread: int
    name: str
    arguments: tuple[int, ...]


def is_clone(call: Notification) -> bool:
    """Tell whether a system call is FUSE_DEV_IOC_CLONE."""
    return call.name == "ioctl" and call.arguments[1] & 0xFFFFFFFF == FUSE_DEV_IOC_CLONE


class Listener:
    """Receives and answers the system calls of the processes with the filter.

    :param fd: the result of `install`, which `close` closes.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def close(self) -> None:
        """Stop. From now on, the system calls fail with ENOSYS."""
        os.close(self.fd)

    def receive(self) -> Notification | None:
        """Return a system call, or None if its caller was killed meanwhile.

        A number that has bits outside of the numbers of its interface has no name.
        """
        record = bytearray(_NOTIF.size)
        try:
            self._ioctl(_RECEIVE, record)
        except FileNotFoundError:
            return None
        number, thread, _, nr, arch, _, *arguments = _NOTIF.unpack(record)
        name = {**_NAMES[arch], **_NEWER, **_UNMOUNTING[arch]}.get(nr & ~_X32, "")
        return Notification(number, thread, name, tuple(arguments))

    def has_callers(self) -> bool:
        """Tell whether a process has the filter."""
        poll = select.poll()
        poll.register(self.fd, 0)
        return not any(events & select.POLLHUP for _, events in poll.poll(0))

    def is_valid(self, call: Notification) -> bool:
        """Tell whether the caller still waits, so that its id meant its process until now."""
        try:
            self._ioctl(_IS_VALID, struct.pack("=Q", call.id))
        except OSError:
            return False
        return True

    def put(self, call: Notification, source: int, at: int, *, cloexec: bool = True) -> None:
        """Make the caller's descriptor *at* one of the file that *source* is open on.

        :raises OSError: ENOENT: the caller does not wait any more.
        """
        flags = os.O_CLOEXEC if cloexec else 0
        self._ioctl(_ADD_FD, _ADD.pack(call.id, _ADD_SET, source, at, flags))

    def give(self, call: Notification, source: int, *, cloexec: bool) -> None:
        """Answer with a new descriptor of the file that *source* is open on.

        :raises OSError: ENOENT: the caller does not wait any more; EMFILE: it has no room for it.
        """
        flags = os.O_CLOEXEC if cloexec else 0
        # Without SECCOMP_ADDFD_FLAG_SEND: a signal that interrupts it would let the call return 0.
        number = self._ioctl(_ADD_FD, _ADD.pack(call.id, 0, source, 0, flags))
        self._send(_RESPONSE.pack(call.id, number, 0, 0))

    def answer(self, call: Notification, error: int = 0) -> None:
        """Let the call return 0, or fail with *error* (an errno)."""
        self._send(_RESPONSE.pack(call.id, 0, -error, 0))

    def continue_call(self, call: Notification) -> None:
        """Let the kernel carry the call out, with whatever its arguments are now."""
        self._send(_RESPONSE.pack(call.id, 0, 0, _CONTINUE))

    def _send(self, response: bytes) -> None:
        try:
            self._ioctl(_SEND, response)
        except OSError as error:
            # The caller does not wait any more, or has its answer already.
            if error.errno not in (errno.ENOENT, errno.EINPROGRESS):
                raise

    def _ioctl(self, request: int, argument: bytes | bytearray) -> int:
        """Repeat an ioctl(2) until no signal interrupts it.

        The kernel has taken back what a signal interrupts. Python repeats other system calls by
        itself, but not ioctl(2).
        """
        buffer = argument if isinstance(argument, bytearray) else bytearray(argument)
        while True:
            with contextlib.suppress(InterruptedError):
                return int(fcntl.ioctl(self.fd, request, buffer))
