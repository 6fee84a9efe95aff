# SPDX-License-Identifier: LGPL-2.1-or-later
"""Start a daemon whose mounts this process carries out."""

from __future__ import annotations

import errno
import os
import resource
import socket
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from efuse.errors import MountError, reason
from efuse.supervisor.notifications import Listener, install
from efuse.supervisor.uncovering import namespace_of, uncover

__all__ = ["launch"]

_HINTS = {
    errno.EBUSY: "run it outside the other program, such as another `efuse run`, that answers its"
    " system calls already",
    errno.EACCES: "run it as root",
}
# What the child sends is short.
_LONGEST = 128
_HINT = "it takes a 64-bit kernel for x86 or ARM with CONFIG_SECCOMP_FILTER, Linux 5.19 or later"


@dataclass(frozen=True, slots=True)
class Launched:
    """A daemon that was started.

    :ivar process: its process.
    :ivar listener: receives its system calls.
    :ivar namespace: name of the mount namespace that was made for it; empty if there is none.
    """

    process: subprocess.Popen[bytes]
    listener: Listener
    namespace: str


def launch(
    command: Sequence[str],
    environment: Mapping[str, str],
    streams: Mapping[str, Any],
    *,
    uncovered: Collection[int],
    unmounting: bool,
    most_descriptors: tuple[int, int],
) -> Launched:
    """Start *command* with the filter of `efuse.supervisor.notifications`.

    :param streams: its ``stdin``, ``stdout`` and ``stderr``, as for `subprocess.Popen`.
    :param uncovered: connections whose mounts it is to take over, see `uncover`.
    :param unmounting: whether its system calls that unmount wait for an answer, too.
    :param most_descriptors: its limits of descriptors, soft and hard.
    :raises MountError: the command cannot be started; or no filter can be installed, because the
        kernel has no such filters, or because another program has installed one already (EBUSY).
    """

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, most_descriptors)
        _prepare(its, uncovered, unmounting=unmounting)

    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        try:
            with its:
                process = subprocess.Popen(
                    list(command),
                    env=dict(environment),
                    **streams,
                    close_fds=False,  # those that are inheritable are meant for the daemon
                    preexec_fn=prepare,
                )
        except (OSError, subprocess.SubprocessError) as error:
            raise _not_started(command[0], error, ours) from error
        told, fds, _, _ = socket.recv_fds(ours, _LONGEST, 1, socket.MSG_CMSG_CLOEXEC)
        return Launched(process, Listener(fds[0]), os.fsdecode(told[1:]))


def _prepare(parent: socket.socket, uncovered: Collection[int], *, unmounting: bool) -> None:
    """Install the filter in the child, and send the listener or an errno to the parent."""
    namespace = ""
    try:
        if uncovered:
            uncover(uncovered)
            namespace = namespace_of("self")
        fd = install(unmounting=unmounting)
    except OSError as error:
        parent.send(str(error.errno).encode())
        raise
    socket.send_fds(parent, [b"\0" + os.fsencode(namespace)], [fd])
    os.close(fd)


def _not_started(name: str, error: Exception, ours: socket.socket) -> MountError:
    told, fds, _, _ = socket.recv_fds(ours, _LONGEST, 1)
    for fd in fds:
        os.close(fd)
    if fds or not told:
        why = reason(error) if isinstance(error, OSError) else str(error)
        return MountError(f"{name} cannot be started: {why}", hint="check the command")
    number = int(told)
    return MountError(
        f"{name} cannot be started: its mounts cannot be carried out: {reason(number)}",
        hint=_HINTS.get(number, _HINT),
    )
