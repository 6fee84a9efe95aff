# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whether and when `efuse run --restart` starts a daemon again, without any process."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from efuse.control import DaemonExit
from efuse.errors import MountError
from efuse.supervisor import restarting
from efuse.supervisor.asking import Asked
from efuse.supervisor.daemon_mount import DaemonMount
from efuse.supervisor.policy import End, Restarts
from efuse.supervisor.restarting import (
    Event,
    Finished,
    Left,
    NotRestarted,
    Restarter,
    Restarting,
    Succeeded,
)

_FAILED = End(waiting=True, was_asked=False, failed=True, served_s=0.9)


def _end(**changes: Any) -> End:
    return End(**{"waiting": True, "was_asked": False, "failed": True, "served_s": 0.9} | changes)


def test_delays_grow_to_a_bound() -> None:
    restarts = Restarts("always")
    delays = [restarts.delay_after(_FAILED) for _ in range(9)]
    assert delays == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 8.0]


def test_delays_begin_again_after_the_daemon_has_served_for_a_while() -> None:
    restarts = Restarts("always")
    assert [restarts.delay_after(_FAILED) for _ in range(4)] == [0.0, 0.5, 1.0, 2.0]
    # It has to serve for longer than it was waited for.
    assert restarts.delay_after(_end(served_s=1.9)) == 4.0
    assert restarts.delay_after(_end(served_s=4.0)) == 0.0
    assert restarts.delay_after(_end(served_s=0.9)) == 0.5
    assert restarts.delay_after(_end(served_s=1.0)) == 0.0


@pytest.mark.parametrize(
    ("policy", "end", "restarts"),
    [
        ("always", _end(failed=False), True),
        ("always", _end(), True),
        ("on-failure", _end(failed=False), False),
        ("on-failure", _end(), True),
        ("always", _end(was_asked=True), False),
        ("always", _end(waiting=False), False),
        (None, _end(), False),
    ],
)
def test_end_decides_with_the_policy(policy: str | None, end: End, restarts: bool) -> None:
    assert (Restarts(policy).delay_after(end) is not None) == restarts


class _Mount(DaemonMount):
    """A mount whose daemon is what a test says."""

    def __init__(self, mountpoint: str = "/mnt", connection: int = 1, because: str = "") -> None:
        super().__init__(mountpoint, connection=connection, ends_because=because)
        self.state = "serving"

    @property
    def daemon(self) -> str:
        return self.state

    @property
    def is_mounted(self) -> bool:
        return True


class _Daemon:
    """A stand-in of `Running`: each call of `wait` takes the next step of a script.

    :param script: what happens in each incarnation.
    """

    def __init__(self, *script: Callable[[_Daemon], None]) -> None:
        self.command = ["daemon"]
        self.mounts: list[DaemonMount] = []
        self.has_mounted = self.has_ended = self.is_gone = False
        self.ended: dict[int, int] = {}
        self.has_zombies = False
        self.status = 0
        self.now = 0.0
        self.log: list[str] = []
        self._steps = iter(script)
        self.new: list[DaemonMount] = []

    def wait(self, left_s: float | None) -> list[DaemonMount]:
        self.new = []
        if self.is_gone and left_s is not None:  # a pause
            self.log.append(f"wait {left_s:g}")
            self.now += left_s
            return []
        step = next(self._steps, None)
        if step is not None:
            step(self)
            return self.new
        assert left_s is not None, "nothing happens any more"
        self.now += left_s
        return []

    def mount(self, *mounts: DaemonMount) -> None:
        self.mounts += [m for m in mounts if m not in self.mounts]
        self.new = [*mounts]
        self.has_mounted = True

    def end(self, status: int) -> None:
        self.status, self.has_ended, self.is_gone = status, True, True
        for mount in self.mounts:
            assert isinstance(mount, _Mount)
            if mount.state == "serving":
                mount.state = "dead"

    def holders(self) -> set[int]:
        return {7}

    def lingers(self, processes: set[int]) -> bool:
        return self.has_zombies and not processes <= self.ended.keys()

    def hand_on(self, number: int) -> None:
        self.log.append(f"signal {number}")

    def give_up(self) -> None:
        self.log.append("give up")

    def end_processes(self) -> None:
        self.log.append("end processes")
        self.end(143)

    def restart(self) -> None:
        self.log.append("restart")
        self.has_ended = self.is_gone = False
        self.ended = {}


def _mounts(*mounts: _Mount) -> Callable[[_Daemon], None]:
    return lambda daemon: daemon.mount(*mounts)


def _ends(status: int) -> Callable[[_Daemon], None]:
    return lambda daemon: daemon.end(status)


def _takes_over(mount: _Mount) -> Callable[[_Daemon], None]:
    def step(daemon: _Daemon) -> None:
        mount.state = "starting"
        daemon.mount(mount)

    return step


def _serves(mount: _Mount) -> Callable[[_Daemon], None]:
    def step(_daemon: _Daemon) -> None:
        mount.state = "serving"

    return step


def _unmounts(daemon: _Daemon) -> None:
    daemon.mounts.clear()


@pytest.fixture(autouse=True)
def _no_sysfs(monkeypatch: pytest.MonkeyPatch) -> None:
    record = DaemonExit(1, 2, 3, 4, 5, 6)
    monkeypatch.setattr(restarting, "_succeeded", lambda mount: iter([Succeeded(mount, 1, record)]))
    monkeypatch.setattr(restarting, "_why_it_ends", lambda mount: "")


def _events(daemon: _Daemon, policy: str | None = "always") -> Iterator[Event]:
    restarter = Restarter(daemon, Restarts(policy), clock=lambda: daemon.now)
    # Endless repetition is a failure, and no hang.
    yield from itertools.islice(restarter.events(), 100)


def _kinds(events: Iterator[Event]) -> list[str]:
    return [type(event).__name__.removeprefix("_") for event in events]


def test_daemon_that_is_killed_is_started_again() -> None:
    mount = _Mount()
    daemon = _Daemon(
        _mounts(mount), _ends(137), _takes_over(mount), _serves(mount), _unmounts, _ends(0)
    )
    events = [*_events(daemon)]
    assert [type(e).__name__ for e in events] == ["_Mount", "Restarting", "Succeeded", "Finished"]
    assert events[1] == Restarting("SIGKILL ended the daemon", 0.0)
    assert events[-1] == Finished(0)
    assert daemon.log == ["wait 0", "restart", "give up"]


def test_exit_status_0_is_no_failure() -> None:
    daemon = _Daemon(_mounts(_Mount()), _ends(0))
    assert _kinds(_events(daemon, "on-failure")) == ["Mount", "Finished"]
    assert daemon.log == ["give up"]


def test_unmount_ends_it() -> None:
    daemon = _Daemon(_mounts(_Mount()), _unmounts, _ends(1))
    assert _kinds(_events(daemon)) == ["Mount", "Finished"]


def test_unmount_before_the_next_start_ends_it() -> None:
    mount = _Mount()

    def unmounted(daemon: _Daemon) -> None:
        daemon.mounts.clear()

    daemon = _Daemon(_mounts(mount), _ends(137))
    wait = daemon.wait

    def waits(left_s: float | None) -> list[DaemonMount]:
        if daemon.is_gone:
            unmounted(daemon)
        return wait(left_s)

    daemon.wait = waits  # type: ignore[method-assign]
    assert _kinds(_events(daemon)) == ["Mount", "Restarting", "Finished"]
    assert "restart" not in daemon.log


def test_daemon_that_was_asked_to_end_is_not_started_again() -> None:
    daemon = _Daemon(_mounts(_Mount()), _ends(1))
    restarter = Restarter(daemon, Restarts("always"), clock=lambda: daemon.now)
    events = restarter.events()
    next(events)
    restarter.hand_on(signal.SIGTERM)
    assert [*events] == [Finished(1)]
    assert daemon.log == ["give up", f"signal {signal.SIGTERM:d}", "give up"]


def test_hangup_is_no_request_to_end() -> None:
    mount = _Mount()
    daemon = _Daemon(_mounts(mount), _ends(137), _takes_over(mount), _unmounts, _ends(0))
    restarter = Restarter(daemon, Restarts("always"), clock=lambda: daemon.now)
    events = restarter.events()
    next(events)
    restarter.hand_on(signal.SIGHUP)
    assert isinstance(next(events), Restarting)


def test_daemon_that_dies_each_time_is_given_up_at_the_deadline() -> None:
    mount = _Mount()

    def late(daemon: _Daemon) -> None:
        if daemon.now > 10:
            mount.state = "none"
        daemon.end(3)

    daemon = _Daemon(_mounts(mount), _ends(3), *[late] * 20)
    *events, last = _events(daemon)
    delays = [event.delay_s for event in events if isinstance(event, Restarting)]
    assert delays == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0]
    assert isinstance(last, Finished)
    assert str(last.error) == (
        "/mnt has ended, because no daemon has taken it over in time: the daemon ended with"
        " status 3"
    )


def test_deadline_while_a_daemon_starts_ends_that_daemon() -> None:
    mount = _Mount()

    def deadline(_daemon: _Daemon) -> None:
        mount.state = "none"

    daemon = _Daemon(_mounts(mount), _ends(137), deadline)
    *_, last = _events(daemon)
    assert isinstance(last, Finished)
    assert "no daemon has taken it over in time: SIGKILL ended" in str(last.error)
    assert "end processes" in daemon.log


def test_program_that_cannot_be_started_is_tried_again() -> None:
    mount = _Mount()
    daemon = _Daemon(_mounts(mount), _ends(1), _takes_over(mount), _unmounts, _ends(0))
    restart, failures = daemon.restart, [MountError("daemon cannot be started: busy (ETXTBSY)")]

    def starts() -> None:
        if failures:
            raise failures.pop()
        restart()

    daemon.restart = starts  # type: ignore[method-assign]
    events = [*_events(daemon, "on-failure")]
    assert [e for e in events if isinstance(e, Restarting)] == [
        Restarting("the daemon ended with status 1", 0.0),
        Restarting("daemon cannot be started: busy (ETXTBSY)", 0.5),
    ]


def test_other_options_end_it() -> None:
    mount = _Mount()
    refused = DaemonMount("/mnt", reason="the daemon asks for other options: ro is new")
    refused.is_refused = True

    def refuses(daemon: _Daemon) -> None:
        daemon.new = [refused]

    daemon = _Daemon(_mounts(mount), _ends(137), refuses)
    *_, last = _events(daemon)
    assert isinstance(last, Finished)
    assert str(last.error) == (
        "/mnt cannot be taken over: the daemon asks for other options: ro is new"
    )
    assert daemon.log[-2:] == ["end processes", "give up"]


def test_processes_that_are_left_are_ended_before_a_start() -> None:
    mount = _Mount()

    def dies(_daemon: _Daemon) -> None:
        mount.state = "dead"

    daemon = _Daemon(_mounts(mount), dies)
    events = _events(daemon)
    assert _kinds(itertools.islice(events, 2)) == ["Mount", "Restarting"]
    assert daemon.log == ["end processes"]
    assert daemon.now == 5.0


def test_daemon_in_the_background_counts_by_the_process_that_serves() -> None:
    mount = _Mount()

    def leaves(daemon: _Daemon) -> None:
        daemon.has_ended = True

    def dies(status: int) -> Callable[[_Daemon], None]:
        def step(daemon: _Daemon) -> None:
            daemon.ended = {6: 0 if status else 1, 7: status}
            daemon.end(0)

        return step

    for status, kinds in (
        (0, ["Mount", "Left", "Finished"]),
        (-9, ["Mount", "Left", "Restarting"]),
        (2, ["Mount", "Left", "Restarting"]),
    ):
        mount.state = "serving"
        daemon = _Daemon(_mounts(mount), leaves, dies(status))
        assert _kinds(itertools.islice(_events(daemon, "on-failure"), 3)) == kinds


def test_status_of_a_process_in_the_background_is_awaited() -> None:
    """It leaves its filter, closes its files, and is reaped, in this order."""
    mount = _Mount()

    def leaves(daemon: _Daemon) -> None:
        daemon.has_ended = True

    def dies(daemon: _Daemon) -> None:
        daemon.has_zombies = True
        daemon.end(0)

    def is_reaped(daemon: _Daemon) -> None:
        daemon.ended = {7: 0}

    daemon = _Daemon(_mounts(mount), leaves, dies, is_reaped)
    wait = daemon.wait
    daemon.wait = lambda left_s: wait(None)  # type: ignore[method-assign]
    assert _kinds(_events(daemon, "on-failure")) == ["Mount", "Left", "Finished"]


def test_each_of_several_mounts_is_awaited() -> None:
    one, two = _Mount("/one", 1), _Mount("/two", 2)
    steps = [_mounts(one), _mounts(two), _ends(137), _takes_over(one), _serves(one)]
    steps += [_takes_over(two), _serves(two), _unmounts, _ends(0)]
    events = [*_events(_Daemon(*steps))]
    served = [event.mount for event in events if isinstance(event, Succeeded)]
    assert [m.mountpoint for m in served] == ["/one", "/two"]


@pytest.mark.parametrize(
    ("mount", "reason"),
    [
        (
            _Mount(because="its daemon receives requests by io_uring"),
            "its daemon receives requests by io_uring",
        ),
        (_Mount(connection=0, because="it is not wanted otherwise"), "it mounts plain FUSE"),
    ],
)
def test_mount_that_ends_with_its_daemon_prevents_restarts(mount: _Mount, reason: str) -> None:
    daemon = _Daemon(_mounts(_Mount("/other", 2)), _mounts(mount), _ends(137))
    events = [*_events(daemon)]
    assert _kinds(iter(events)) == ["Mount", "Mount", "NotRestarted", "Finished"]
    assert events[2] == NotRestarted(reason)
    assert daemon.log[0] == "give up"


def test_io_uring_is_noticed_a_while_after_the_mount(monkeypatch: pytest.MonkeyPatch) -> None:
    why = "its daemon receives requests by io_uring"
    monkeypatch.setattr(restarting, "_why_it_ends", lambda mount: why)
    daemon = _Daemon(_mounts(_Mount()), lambda daemon: setattr(daemon, "now", 1.0), _ends(137))
    assert [*_events(daemon)][1:] == [NotRestarted(why), Finished(137)]


def test_program_that_mounts_eFuse_by_itself_is_not_restarted() -> None:
    def mounts(daemon: _Daemon) -> None:
        daemon.has_mounted = daemon.has_ended = True

    events = [*_events(_Daemon(mounts, _ends(0)))]
    assert events == [NotRestarted("its program mounts eFuse by itself"), Left(0), Finished(0)]


def test_command_that_mounts_nothing_is_awaited_for_a_while() -> None:
    def leaves(daemon: _Daemon) -> None:
        daemon.has_ended = True

    daemon = _Daemon(leaves)
    assert [*_events(daemon)] == [Finished(0)]
    assert daemon.now == 10.0


def test_mount_that_was_not_taken_over_waits_for_the_next_try() -> None:
    mount = _Mount()
    mount.state = "dead"
    daemon = _Daemon(_ends(1))
    daemon.mounts = [mount]
    (last,) = _events(daemon, None)
    assert isinstance(last, Finished)
    assert str(last.error) == "/mnt was not taken over: the daemon ended with status 1"
    assert daemon.log == []


@pytest.mark.parametrize(
    ("flags", "options", "change"),
    [
        (6, "fd=5,rootmode=40000,user_id=0,group_id=0,allow_other", ""),
        (7, "fd=5,user_id=0,group_id=0,allow_other", "ro is new"),
        (2, "user_id=0,group_id=0,allow_other", "nodev is missing"),
        (
            6,
            "user_id=0,group_id=0,max_read=4096",
            "max_read=4096 is new, allow_other is missing",
        ),
    ],
)
def test_change_of_options_is_named(flags: int, options: str, change: str) -> None:
    before = Asked.by_call("fuse.x", 6, "fd=3,rootmode=40000,user_id=0,group_id=0,allow_other")
    assert before.change(Asked.by_call("fuse.y", flags, options)) == change


def test_change_of_the_type_is_named() -> None:
    assert Asked("fuse", frozenset()).change(Asked("fuseblk", frozenset())) == (
        "the type is fuseblk instead of fuse"
    )
