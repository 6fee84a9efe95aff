# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test that CPUs can go offline and come back while a daemon serves over channels."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.guest.support.channel_daemon import CPUS, ChannelDaemon, mapped, passthrough_ll, started
from tests.guest.support.manual_daemon import DEADLINE_S, until

ONLINE = Path("/sys/devices/system/cpu/cpu1/online")
SIZE = 1 << 16


@pytest.fixture
def switched() -> Iterator[Path]:
    """Yield the switch of a CPU. At the end, restore the CPU and the affinity of the test."""
    before = os.sched_getaffinity(0)
    yield ONLINE
    ONLINE.write_text("1")
    os.sched_setaffinity(0, before)


class User(threading.Thread):
    """A thread that reads a file again and again, and compares it."""

    def __init__(self, path: Path, data: bytes, stop: threading.Event) -> None:
        super().__init__()
        self._path = path
        self._data = data
        self._stop_ = stop
        self.done = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while not self._stop_.is_set():
                assert self._path.read_bytes() == self._data
                assert self._path.stat().st_size == len(self._data)
                self.done += 1
        except (AssertionError, OSError) as error:
            self.error = error


def wait_for_reads(users: list[User], daemon: ChannelDaemon) -> None:
    """Wait until each user has read the file three more times, through channels."""
    before, brought = [user.done for user in users], daemon.brought()
    until(
        lambda: all(
            user.error or user.done >= then + 3 for user, then in zip(users, before, strict=True)
        )
    )
    assert [user.error for user in users] == [None] * len(users)
    assert daemon.brought() > brought


def test_requests_are_served_while_a_cpu_goes_offline_and_online(
    lower: Path, mountpoint: Path, switched: Path
) -> None:
    data = os.urandom(SIZE)
    (lower / "file").write_bytes(data)
    stop = threading.Event()
    with started([*passthrough_ll(lower, "cache=never"), mountpoint], mountpoint) as daemon:
        daemon.wait_for_channels()
        users = [User(mountpoint / "file", data, stop) for _ in range(4)]
        for user in users:
            user.start()
        try:
            wait_for_reads(users, daemon)
            for _ in range(3):
                switched.write_text("0")
                wait_for_reads(users, daemon)
                switched.write_text("1")
                wait_for_reads(users, daemon)
        finally:
            stop.set()
            for user in users:
                user.join(DEADLINE_S)
        assert not any(user.is_alive() for user in users)
        assert daemon.end() == 0


def test_requests_queued_for_a_cpu_that_goes_offline_are_served(
    lower: Path, mountpoint: Path, switched: Path
) -> None:
    """The CPU's worker may be doing anything at that time."""
    (lower / "file").write_bytes(b"data")
    with started([*passthrough_ll(lower, "cache=never"), mountpoint], mountpoint) as daemon:
        daemon.wait_for_channels()
        daemon.connection.policy = "own"
        with ThreadPoolExecutor(4) as pool:
            for _ in range(10):
                asked = [pool.submit(_stat_on, 1, mountpoint / "file") for _ in range(4)]
                switched.write_text("0")
                assert [each.result(DEADLINE_S) for each in asked] == [4] * 4
                switched.write_text("1")
        assert daemon.brought() >= 40
        assert daemon.end() == 0


def _stat_on(cpu: int, path: Path) -> int:
    """Call stat(2) on *cpu*, or on any CPU if that one is offline."""
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, {cpu})
    return path.stat().st_size


def test_cpu_offline_at_the_start_has_no_worker_and_is_served(
    lower: Path, mountpoint: Path, switched: Path
) -> None:
    """The CPU's requests go to the nearest channel after it has come online."""
    (lower / "file").write_bytes(b"data")
    switched.write_text("0")
    with started([*passthrough_ll(lower, "cache=never"), mountpoint], mountpoint) as daemon:
        assert (mountpoint / "file").stat().st_size == 4
        # All channels are opened before the first request is served.
        assert mapped(daemon.pid) == CPUS - 1
        switched.write_text("1")
        before = daemon.brought()
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(_stat_on, 1, mountpoint / "file").result(DEADLINE_S) == 4
        assert daemon.brought() > before
        assert daemon.end() == 0
