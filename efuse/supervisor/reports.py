# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a process of its own tells the supervisor: mostly, the answer to a system call.

The socket between them carries these objects pickled, and descriptors. Each but `Made` is the last
one of its process.
"""

from __future__ import annotations

import errno
import os
import pickle
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from efuse.supervisor.asking import Asked

__all__ = [
    "Attached",
    "Done",
    "Facts",
    "Failed",
    "Leave",
    "Made",
    "Opened",
    "Plain",
    "Refused",
    "Replaced",
    "Report",
    "TakenOver",
    "Trouble",
    "Unfit",
    "receive",
    "send",
]

_LARGEST, _MOST_FDS = 1 << 16, 3


@dataclass(frozen=True, slots=True)
class Leave:
    """The kernel is to carry the call out.

    :ivar uses_efuse: whether a program that knows eFuse mounts by itself.
    """

    uses_efuse: bool = False


@dataclass(frozen=True, slots=True)
class Plain:
    """The call is about a mount of FUSE that will not be one of eFuse.

    :ivar path: where it is to be attached, as the caller said.
    :ivar reason: why, in one sentence.
    """

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The call fails with EPERM: its mount has become one of eFuse already, and cannot go on.

    :ivar path: where it is to be attached, as the caller said.
    :ivar reason: why, in one sentence.
    """

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The call fails.

    :ivar number: its errno.
    """

    number: int


@dataclass(frozen=True, slots=True)
class Done:
    """The call returns 0: it has been carried out, or is not to be."""


@dataclass(frozen=True, slots=True)
class Unfit:
    """The call fails with EINVAL: a successor cannot take over the mount of its predecessor.

    :ivar path: where it is to be attached, as the caller said.
    :ivar reason: why, in one sentence.
    """

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Opened:
    """The call returns the descriptor that comes with this object.

    :ivar cloexec: whether it is closed on execve(2).
    """

    cloexec: bool


@dataclass(frozen=True, slots=True)
class Replaced:
    """Descriptors of the caller become another one. Then the call returns 0.

    With it come the new descriptor, and the one of before, for the case that not all of them can be
    replaced.

    :ivar places: each descriptor, and whether it is closed on execve(2).
    :ivar context: the supervisor's descriptor of the context of fsopen(2) that the new descriptor
        was passed to; -1 if there is none.
    """

    places: Mapping[int, bool]
    context: int = -1


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The new descriptor has taken over a mount. The rest is as in `Replaced`.

    :ivar connection: number of the connection.
    :ivar places: see `Replaced`.
    """

    connection: int
    places: Mapping[int, bool]


@dataclass(frozen=True, slots=True)
class Facts:
    """How a mount is to be attached.

    :ivar shared: whether the caller has the mount namespace of the supervisor.
    :ivar auto_unmount: whether it is to be unmounted when its daemon has ended.
    :ivar user: real user id of the caller.
    :ivar asked: the options that it has; None if they are not known.
    """

    shared: bool
    auto_unmount: bool
    user: int
    asked: Asked | None = None


@dataclass(frozen=True, slots=True)
class Made:
    """There is a new eFuse mount, which no process can reach. The answer: an errno, or 0 to go on.

    With it come descriptors: of the directory or file that it is to be attached to; and, if
    descriptors of the caller are to be replaced, the new one and the one of before.

    :ivar connection: number of its connection.
    :ivar number: unique number of the mount; 0 if it is not known.
    :ivar facts: how it is to be attached.
    :ivar places: see `Replaced`.
    """

    connection: int
    number: int
    facts: Facts
    places: Mapping[int, bool]


@dataclass(frozen=True, slots=True)
class Attached:
    """The mount has been attached."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """The process could not do its job.

    :ivar text: why, in one line.
    """

    text: str


Report = (
    Leave
    | Plain
    | Refused
    | Failed
    | Done
    | Unfit
    | Opened
    | Replaced
    | TakenOver
    | Made
    | Attached
    | Trouble
)


def send(to: socket.socket, what: Report | int, fds: Sequence[int] = ()) -> None:
    """Send a report or an answer.

    :raises OSError: the other process is gone.
    """
    socket.send_fds(to, [pickle.dumps(what)], fds)


def receive(to: socket.socket) -> tuple[Report | int | None, list[int]]:
    """Return the next report or answer with its descriptors, or None if the other has ended.

    :raises OSError: EMSGSIZE: it is too long; EMFILE: this process has no room for the descriptors.
    """
    try:
        data, fds, flags, _ = socket.recv_fds(to, _LARGEST, _MOST_FDS, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        return None, []
    if data and not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        return pickle.loads(data), fds
    for fd in fds:
        os.close(fd)
    if not data:
        return None, []
    number = errno.EMSGSIZE if flags & socket.MSG_TRUNC else errno.EMFILE
    raise OSError(number, os.strerror(number))
