# SPDX-License-Identifier: LGPL-2.1-or-later
"""Start a daemon again when it has ended and its mounts are left.

The command as a whole is started again, when all of its processes have ended. So what is left of it
a while after a mount has lost its daemon is ended as well.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from efuse.control import Connection, DaemonExit
from efuse.control.takeover import why_it_ends
from efuse.errors import ControlError, MountError
from efuse.supervisor.children import GRACE_S
from efuse.supervisor.daemon_mount import DaemonMount
from efuse.supervisor.policy import End, Restarts

__all__ = ["Event", "Finished", "Left", "NotRestarted", "Restarter", "Restarting", "Succeeded"]

# How long what is left of a daemon may take to end by itself, in seconds.
_LEFT_S = 5.0
# A daemon asks for io_uring soon after it has mounted, or never.
_LOOK_S = 1.0


@dataclass(frozen=True, slots=True)
class NotRestarted:
    """The daemon will not be started again.

    :ivar reason: why, in a few words.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Left:
    """The process that was started has ended, and others serve in the background.

    :ivar status: its exit status, as a shell reports it.
    """

    status: int


@dataclass(frozen=True, slots=True)
class Restarting:
    """The daemon has ended, and will be started again.

    :ivar how: how it has ended, in a few words.
    :ivar delay_s: when, in seconds from now.
    """

    how: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class Succeeded:
    """A successor serves a mount.

    :ivar mount: the mount.
    :ivar incarnation: how many successors it has had.
    :ivar record: what the time without a daemon meant for requests.
    """

    mount: DaemonMount
    incarnation: int
    record: DaemonExit


@dataclass(frozen=True, slots=True)
class Finished:
    """The daemon has ended, and will not be started again.

    :ivar status: exit status of the process that was started last, as a shell reports it.
    :ivar error: why its mounts have no daemon any more; None if that is right.
    """

    status: int
    error: MountError | None = None


Event = DaemonMount | NotRestarted | Left | Restarting | Succeeded | Finished


class _Runs(Protocol):
    """A daemon and its mounts: `efuse.supervisor.running.Running`."""

    command: Sequence[str]
    has_ended: bool
    ended: dict[int, int]

    @property
    def mounts(self) -> list[DaemonMount]: ...
    @property
    def has_mounted(self) -> bool: ...
    @property
    def is_gone(self) -> bool: ...
    @property
    def status(self) -> int: ...
    def wait(self, left_s: float | None) -> list[DaemonMount]: ...
    def holders(self) -> set[int]: ...
    def lingers(self, processes: set[int]) -> bool: ...
    def hand_on(self, number: int) -> None: ...
    def give_up(self) -> None: ...
    def end_processes(self) -> None: ...
    def restart(self) -> None: ...


class Restarter:
    """Keeps a daemon running.

    :param running: the daemon, which was just started. If it has mounts already, it is to take them
        over.
    :param restarts: decides whether it is started again.
    :param clock: returns the time in seconds.
    """

    def __init__(
        self, running: _Runs, restarts: Restarts, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._running, self._restarts, self._clock = running, restarts, clock
        self._was_asked = False
        self._ends_because = self._last_end = ""
        self._refusal: MountError | None = None
        # A mount that this object was given waits for the next try.
        self._may_give_up = not running.mounts
        self._begin()

    def _begin(self) -> None:
        """Forget the last incarnation: another one is to take over what is mounted."""
        self._predecessors = [*self._running.mounts]
        self._served: list[DaemonMount] = []
        self._awaited: list[DaemonMount] = []
        self._holders: set[int] = set()
        self._is_in_background = self._has_looked = self._is_ended_here = False
        self._not_started = ""
        self._since_s: float | None = None
        self._lost_s: float | None = None
        self._ended_s: float | None = None

    def hand_on(self, number: int) -> None:
        """Send a signal to the daemon. After SIGINT and SIGTERM, it is not started again."""
        if number in (signal.SIGINT, signal.SIGTERM):
            self._was_asked = True
            if self._may_give_up:
                self._running.give_up()
        self._running.hand_on(number)

    def events(self) -> Iterator[Event]:
        """Yield what happens. The last event is `Finished`."""
        yield from self._incarnation()
        while self._refusal is None:
            delay_s = self._restarts.delay_after(self._end)
            if delay_s is None:
                break
            self._last_end = self._how
            yield Restarting(self._last_end, delay_s)
            if not self._has_waited(delay_s):
                break
            self._begin()
            try:
                self._running.restart()
            except MountError as failed:
                self._not_started = str(failed)
            else:
                yield from self._incarnation()
        error = self._refusal or self._error
        if self._may_give_up:
            self._running.give_up()
        yield Finished(self._running.status, error)

    def _incarnation(self) -> Iterator[Event]:
        """Attend to the daemon until it has ended, with all its processes."""
        while not self._is_over:
            for mount in self._running.wait(self._left_s):
                yield from self._note(mount)
            yield from self._look()
            if self._refusal or self._is_late or self._has_nothing_to_serve:
                if not self._running.is_gone:
                    self._is_ended_here = True
                    self._running.end_processes()
                return

    def _has_waited(self, delay_s: float) -> bool:
        """Wait before a start. Tell whether the mounts still wait for a successor."""
        until = self._clock() + delay_s
        while True:
            left_s = max(0.0, until - self._clock())
            self._running.wait(left_s)
            if self._was_asked or not self._waits:
                return False
            if left_s == 0:
                return True

    @property
    def _waits(self) -> bool:
        """Whether there are mounts, and each waits for a successor."""
        mounts = self._running.mounts
        return bool(mounts) and all(m.outlives_daemon and m.daemon == "dead" for m in mounts)

    @property
    def _end(self) -> End:
        end_s = self._clock() if self._lost_s is None else self._lost_s
        return End(
            waiting=self._waits and self._running.is_gone and not self._ends_because,
            was_asked=self._was_asked,
            failed=bool(self._not_started) or any(self._statuses),
            served_s=0.0 if self._since_s is None else end_s - self._since_s,
        )

    @property
    def _statuses(self) -> list[int]:
        """The exit statuses that tell how the daemon has ended, as a shell reports them.

        If no process of the daemon is known that has served in the background, it has failed.
        """
        found = [self._running.status]
        if self._is_in_background:
            ended = self._running.ended
            of_holders = [ended[pid] for pid in self._holders if pid in ended]
            found += [128 - status if status < 0 else status for status in of_holders or [1]]
        return found

    @property
    def _how(self) -> str:
        """How the daemon has ended, in a few words."""
        if self._not_started:
            return self._not_started
        status = next((status for status in self._statuses if status), 0)
        if status - 128 in {*signal.Signals}:
            return f"{signal.Signals(status - 128).name} ended the daemon"
        return f"the daemon ended with status {status}"

    @property
    def _error(self) -> MountError | None:
        """Why a mount that a successor was started for has none."""
        left = [mount for mount in self._running.mounts if mount.is_mounted]
        if self._was_asked or self._served or not (self._predecessors and left):
            return None
        where, how = left[0].mountpoint, self._how
        if left[0].daemon != "none":
            return MountError(f"{where} was not taken over: {how}")
        if self._is_ended_here:  # too late
            how = self._last_end
        return MountError(
            f"{where} has ended, because no daemon has taken it over in time: {how}",
            hint="see the messages of the daemon",
        )

    @property
    def _is_over(self) -> bool:
        if not self._running.is_gone:
            left_s = self._after(self._ended_s, GRACE_S)
            return left_s == 0 and not self._running.has_mounted and not self._predecessors
        if self._running.lingers(self._holders):
            return False
        # Another process may serve a mount, such as one that got the descriptor from the daemon.
        return not any(m.daemon in ("serving", "starting") for m in self._running.mounts)

    @property
    def _is_late(self) -> bool:
        """Whether processes are left although a mount has lost its daemon a while ago."""
        return self._after(self._lost_s, _LEFT_S) == 0

    @property
    def _has_nothing_to_serve(self) -> bool:
        """Whether what a successor was started for has ended before it came."""
        waiting = any(m.daemon in ("dead", "starting") for m in self._running.mounts)
        return bool(self._predecessors) and not self._served and not waiting

    @property
    def _left_s(self) -> float | None:
        """How long nothing is to be looked at unless something happens, in seconds."""
        times = [self._after(self._lost_s, _LEFT_S)]
        if not self._running.has_mounted:
            times.append(self._after(self._ended_s, GRACE_S))
        if not self._has_looked:
            times.append(self._after(self._since_s, _LOOK_S))
        return min((left_s for left_s in times if left_s is not None), default=None)

    def _after(self, since_s: float | None, most_s: float) -> float | None:
        """Return how much is left of a time that has begun; None if it has not begun."""
        return None if since_s is None else max(0.0, since_s + most_s - self._clock())

    def _note(self, mount: DaemonMount) -> Iterator[Event]:
        """Note a mount that the daemon has made or taken over."""
        if mount.is_refused:
            self._refusal = MountError(
                f"{mount.mountpoint} cannot be taken over: {mount.reason}",
                hint="unmount it, and mount it again",
            )
            return
        if self._since_s is None:
            self._since_s = self._clock()
        self._served.append(mount)
        if any(mount is each for each in self._predecessors):
            self._awaited.append(mount)
            return
        yield mount
        if not mount.outlives_daemon:
            why = mount.ends_because if mount.connection else "it mounts plain FUSE"
            yield from self._not_restarted(why)

    def _not_restarted(self, why: str) -> Iterator[Event]:
        if not self._ends_because:
            self._ends_because = why
            self._running.give_up()
            yield NotRestarted(why)

    def _look(self) -> Iterator[Event]:
        """Look at the state of processes and mounts."""
        running, now_s = self._running, self._clock()
        if not any(mount.daemon == "dead" for mount in self._served):
            self._lost_s = None
        elif self._lost_s is None:
            self._lost_s = now_s
        if running.has_ended and self._ended_s is None:
            self._ended_s = now_s
        for mount in [each for each in self._awaited if each.daemon == "serving"]:
            self._awaited.remove(mount)
            self._may_give_up = True
            self._holders |= running.holders()
            yield from _succeeded(mount)
        if running.has_ended and not self._is_in_background and self._serves_in_background:
            self._is_in_background = True
            self._holders |= running.holders()
            if not running.mounts:
                yield from self._not_restarted("its program mounts eFuse by itself")
            yield Left(running.status)
        if not self._has_looked and self._after(self._since_s, _LOOK_S) == 0:
            self._has_looked = True
            for mount in running.mounts:
                if mount.outlives_daemon and (why := _why_it_ends(mount)):
                    yield from self._not_restarted(why)

    @property
    def _serves_in_background(self) -> bool:
        running = self._running
        if running.is_gone or not running.has_mounted:
            return False
        return not running.mounts or any(m.daemon == "serving" for m in running.mounts)


def _succeeded(mount: DaemonMount) -> Iterator[Succeeded]:
    try:
        connection = Connection(mount.connection)
        yield Succeeded(mount, connection.incarnation, connection.daemon_exit)
    except ControlError:  # it has just ended
        pass


def _why_it_ends(mount: DaemonMount) -> str:
    try:
        return why_it_ends(Connection(mount.connection))
    except ControlError:  # it has just ended
        return ""
