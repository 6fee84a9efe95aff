# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test libefuse's loop under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.guest.support.channel_daemon import (
    CPUS,
    LOOP_DAEMON_DATA,
    ChannelDaemon,
    change_names,
    loop_daemon,
    passthrough_ll,
    started,
    write_and_compare,
)
from tests.guest.support.manual_daemon import DEADLINE_S, until
from tests.libefuse.callers import ask_until_it_fails
from tests.libefuse.sanitizers import ADDRESS, SANITIZER_OPTIONS, THREAD

_REPORTS = ("Sanitizer", "runtime error")
_ROUNDS = 20


@dataclass(frozen=True)
class Build:
    """The preload shim, built with sanitizers."""

    shim: str
    """The libraries to preload, separated by colons: those of the sanitizers have to come first."""

    libraries: tuple[str, ...]

    @contextlib.contextmanager
    def started(self, words: list[str], mountpoint: Path) -> Iterator[ChannelDaemon]:
        """Start a daemon with the shim. Check that the shim is loaded, and that nothing is
        reported."""
        # ThreadSanitizer needs the fixed addresses of a process without address space
        # randomization.
        before = ("setarch", "-R")
        with started(
            words, mountpoint, before=before, shim=self.shim, **SANITIZER_OPTIONS
        ) as daemon:
            daemon.wait_for_channels()
            maps = Path(f"/proc/{daemon.pid}/maps").read_text()
            assert all(f"/{library}" in maps for library in self.libraries)
            yield daemon
            assert not any(report in daemon.output() for report in _REPORTS), daemon.output()


@pytest.fixture(params=[ADDRESS, THREAD], ids=["address", "thread"])
def build(request: pytest.FixtureRequest) -> Build:
    libraries = request.param.libraries
    return Build(":".join([*libraries, str(request.param.preload_library())]), libraries)


def _load(mountpoint: Path, lower: Path, number: int) -> None:
    """Do a program's usual operations in a directory of its own."""
    here, there = mountpoint / str(number), lower / str(number)
    here.mkdir()
    write_and_compare(here, there)
    # The other operations are of each kind that is sent; more of them find nothing else.
    change_names(here, many=40)


def test_load_gives_no_sanitizer_reports(build: Build, lower: Path, mountpoint: Path) -> None:
    with build.started([*passthrough_ll(lower), str(mountpoint)], mountpoint) as daemon:
        before = daemon.brought()
        with ThreadPoolExecutor(3) as pool:
            for each in [pool.submit(_load, mountpoint, lower, n) for n in range(3)]:
                each.result()
        assert daemon.brought() > before
        assert daemon.end() == 0


def _sent(daemon: ChannelDaemon) -> int:
    connection = daemon.connection
    return sum(connection.counts(f"channels/{cpu}")["sent"] for cpu in connection.cpus())


@pytest.mark.parametrize("how", ["signal", "abort"])
def test_end_under_load_gives_no_sanitizer_reports(
    build: Build, lower: Path, mountpoint: Path, how: str
) -> None:
    with (
        ThreadPoolExecutor(4) as pool,  # The callers end with the daemon at the latest.
        build.started([*passthrough_ll(lower), str(mountpoint)], mountpoint) as daemon,
    ):
        roots = [os.open(mountpoint, os.O_RDONLY) for _ in range(4)]
        callers = [pool.submit(ask_until_it_fails, root) for root in roots]
        before = _sent(daemon)
        until(lambda: _sent(daemon) > before + 500)
        if how == "signal":
            daemon.process.send_signal(signal.SIGTERM)
        else:
            daemon.connection.abort()
        status = daemon.process.wait(DEADLINE_S)
        assert all(each.result(DEADLINE_S) for each in callers)
        for root in roots:
            os.close(root)
        assert status == (1 if how == "signal" else 0), daemon.output()


def test_handlers_of_every_kind_give_no_sanitizer_reports(build: Build, mountpoint: Path) -> None:
    with build.started([str(loop_daemon()), "0", str(mountpoint)], mountpoint) as daemon:
        with ThreadPoolExecutor(8) as pool:
            for _ in range(_ROUNDS):
                names = ("plain", "thread", "notify")
                reads = [pool.submit((mountpoint / name).read_bytes) for name in names]
                assert [r.result(DEADLINE_S) for r in reads] == [LOOP_DAEMON_DATA] * 3
            # There are more blocked handlers than CPUs.
            blocked = [pool.submit(_first, mountpoint / "block") for _ in range(CPUS + 2)]
            early = pool.submit(_first, mountpoint / "early")
            assert early.result(DEADLINE_S) == LOOP_DAEMON_DATA[:1]
            daemon.say(b"." * (CPUS + 3))
            for each in blocked:
                assert each.result(DEADLINE_S) == LOOP_DAEMON_DATA[:1]
        for _ in range(_ROUNDS // 4):
            with subprocess.Popen(["cat", mountpoint / "interrupt"]) as caller:
                assert daemon.hear() == b"waiting\n"
                caller.send_signal(signal.SIGTERM)
                assert caller.wait(DEADLINE_S) == -signal.SIGTERM
        assert daemon.end() == 0


def _first(path: Path) -> bytes:
    with path.open("rb", buffering=0) as file:
        return file.read(1)
