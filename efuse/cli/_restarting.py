# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run a daemon that is started again, or that takes the place of another one.

The supervisor is a process of its own from the beginning. When the daemon goes into the background,
the command returns, and the supervisor stays the parent of all processes of the daemon, so that it
learns how they end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from efuse.cli._daemon import Daemon, tell
from efuse.cli._errors import report
from efuse.cli._filesystem import describe
from efuse.display import shown
from efuse.errors import EfuseError, NotSupportedError
from efuse.fs.background import leave
from efuse.fs.forking import forked
from efuse.supervisor import restarting
from efuse.supervisor.daemon_mount import DaemonMount
from efuse.supervisor.forwarding import Forwarding
from efuse.supervisor.policy import Restarts
from efuse.supervisor.restarting import Restarter
from efuse.supervisor.running import Running, mounted_nothing

__all__ = ["start", "supervise"]

_log = logging.getLogger("efuse.fs")


def start(daemon: Daemon, *, within_s: int, predecessor: DaemonMount | None = None) -> Running:
    """Start a daemon whose mounts outlive it.

    :param within_s: how long they wait for a successor, in seconds.
    :param predecessor: see `Running`.
    :raises EfuseError: it cannot be started.
    """
    return Running(
        daemon.command,
        daemon.options,
        channels=daemon.channels,
        require=daemon.require,
        adopt=True,
        recovery_s=within_s,
        predecessor=predecessor,
        cwd=_directory(),  # the supervisor of a daemon in the background leaves it
    )


def supervise(daemon: Daemon, policy: str | None, begin: Callable[[], Running]) -> NoReturn:
    """Attend to a daemon in a process of its own, and exit when this command is to return.

    :param policy: when the daemon is started again; None: never.
    :param begin: starts the daemon, in that process.
    """
    receive, send = os.pipe()
    with Forwarding() as forwarding:

        def child() -> int:
            os.close(receive)
            try:
                return _Supervision(daemon, policy, send).status(begin, forwarding)
            except EfuseError as error:
                report(error, "efuse")
                return error.exit_code

        process = forked(child)
        os.close(send)
        forwarding.to(lambda number: os.kill(process, number))
        with os.fdopen(receive, "rb") as pipe:
            told = pipe.read()
        status = int(told) if told else os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    sys.stdout.flush()
    os._exit(status if status >= 0 else 128 - status)


class _Supervision:
    """What happens to a daemon, and what the user is told.

    :param send: descriptor of a pipe to the command, which exits with the status that it is told,
        or with that of this process.
    """

    def __init__(self, daemon: Daemon, policy: str | None, send: int) -> None:
        self._daemon, self._policy, self._send = daemon, policy, send

    def status(self, begin: Callable[[], Running], forwarding: Forwarding) -> int:
        """Attend to the daemon until it has ended for good, and return its exit status.

        :raises EfuseError: it cannot be started, has mounted nothing, or has left its mounts.
        """
        running = begin()
        restarter = Restarter(running, Restarts(self._policy))
        forwarding.to(restarter.hand_on)
        try:
            finished = self._finished(restarter)
        except BaseException:
            running.give_up()
            running.end_processes()
            raise
        finally:
            running.unmount_dead()
            running.detach()
        if finished.error is not None:
            raise finished.error
        if not running.has_mounted:
            raise mounted_nothing(running.command, finished.status)
        return finished.status

    def _finished(self, restarter: Restarter) -> restarting.Finished:
        for event in restarter.events():
            if isinstance(event, restarting.Finished):
                return event
            self._tell(event)
        raise AssertionError("the last event is Finished")

    def _tell(self, event: restarting.Event) -> None:
        name = self._daemon.name
        match event:
            case DaemonMount():
                if self._daemon.require and not event.accelerated:
                    where = shown(event.mountpoint)
                    raise NotSupportedError(f"{where} cannot be accelerated: {event.reason}")
                tell(describe(event))
            case restarting.NotRestarted() if self._policy is not None:
                _log.warning("%s will not be started again: %s", name, shown(event.reason))
            case restarting.Restarting():
                how = shown(event.how)
                delay_s = f"{event.delay_s:g}"
                _log.warning("%s: %s; it is started again in %s s", name, how, delay_s)
            case restarting.Succeeded():
                _log.warning(
                    "%s has a daemon again, after %d ms; %d requests have failed",
                    shown(event.mount.mountpoint),
                    event.record.gap_ms,
                    event.record.failed,
                )
            case restarting.Left():
                self._leave(event.status)

    def _leave(self, status: int) -> None:
        """Let the command return, and go on in the background."""
        if self._send >= 0:
            os.write(self._send, str(status).encode())
            os.close(self._send)
            self._send = -1
            leave()


def _directory() -> Path | None:
    with contextlib.suppress(FileNotFoundError):  # it was removed
        return Path.cwd()
    return None
