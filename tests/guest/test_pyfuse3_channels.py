# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test pyfuse3's file systems with a channel: they behave as they do without one."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

import efuse
from efuse.control import Connection, connections, find
from efuse.fs import Mounted, State, start
from efuse.fs.mountpoint import unmount
from tests.blocking_file_system import (
    SIZES,
    BlockingFileSystem,
    act,
    poke,
    read_all,
    read_while_handlers_sleep,
)
from tests.guest.support.channel_daemon import (
    brought,
    change_names,
    facts,
    mapped,
    write_and_compare,
)
from tests.guest.support.daemons import Call
from tests.guest.support.manual_daemon import until

GONE = (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO, errno.ENOENT)


class On:
    """A mounted file system that a child process serves."""

    def __init__(self, mounted: Mounted) -> None:
        self.path = Path(mounted.mountpoint)
        self.pid = mounted.pid
        self.channels = mounted.channels
        self.reason = mounted.channels_reason
        self.connection = Connection(find(mounted.mountpoint).connection)

    def brought(self) -> int:
        return brought(self.connection)

    def sent(self) -> int:
        """Return the number of requests that were queued, without FORGETs and INTERRUPTs."""
        cpus = self.connection.cpus()
        return sum(self.connection.counts(f"channels/{cpu}")["sent"] for cpu in cpus)


@contextlib.contextmanager
def on(operations: efuse.Operations, mountpoint: Path, *, channels: bool = True) -> Iterator[On]:
    with efuse.mount(operations, mountpoint, required=True, channels=channels) as mounted:
        yield On(mounted)


# Requests through the channel


@pytest.mark.parametrize("channels", [True, False])
def test_all_requests_come_through_the_channel(
    lower: Path, mountpoint: Path, channels: bool
) -> None:
    passthrough = efuse.Passthrough(lower, entry_timeout=0, attr_timeout=0)
    with on(passthrough, mountpoint, channels=channels) as one:
        assert (one.channels, one.reason) == (channels, "")
        assert mapped(one.pid) == channels
        write_and_compare(mountpoint, lower)
        change_names(mountpoint)
        assert facts(mountpoint) == facts(lower)
        assert one.sent() > 500
        # INIT may have been read earlier.
        assert one.brought() >= one.sent() - 1 if channels else one.brought() == 0


def test_efuse_channels_0_in_the_environment_disables_channels(
    mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EFUSE_CHANNELS", "0")
    with on(BlockingFileSystem(), mountpoint) as one:
        assert (one.channels, one.reason) == (False, "")
        read_all(mountpoint)
        assert one.brought() == 0


@pytest.mark.parametrize("policy", ["least", "own"])
@pytest.mark.parametrize("spin_ns", [0, 50_000])
def test_concurrent_callers_get_their_own_answers(
    mountpoint: Path, policy: str, spin_ns: int
) -> None:
    with on(BlockingFileSystem(), mountpoint) as one:
        one.connection.policy = policy
        one.connection.spin_ns = spin_ns
        for call in [Call(read_all, mountpoint, 3) for _ in range(4)]:
            call.result()
        assert one.brought() >= one.sent() - 1


def test_directory_is_listed_with_attributes(mountpoint: Path) -> None:
    files = 200  # many times what one READDIRPLUS lists
    with on(BlockingFileSystem(files), mountpoint) as one:
        for _ in range(2):
            found = {e.name: e.stat(follow_symlinks=False).st_size for e in os.scandir(mountpoint)}
            assert found == {f"f{i}": SIZES[i % len(SIZES)] for i in range(files)}
        assert one.brought() >= one.sent() - 1


def test_forgets_come_through_the_channel(mountpoint: Path) -> None:
    def storm(path: Path) -> None:
        for _ in range(2):
            assert sum(os.stat(path / f"f{i}").st_size for i in range(150)) > 0
            Path("/proc/sys/vm/drop_caches").write_text("2")

    with on(BlockingFileSystem(150), mountpoint) as one:
        for call in [Call(storm, mountpoint) for _ in range(2)]:
            call.result()
        read_all(mountpoint)
        assert one.brought() > one.sent()  # The difference consists of FORGETs.


# Handlers that return late


def test_requests_are_served_while_other_handlers_sleep(mountpoint: Path) -> None:
    """More handlers sleep than pyfuse3 keeps waiting, and all of their replies arrive."""
    with on(BlockingFileSystem(), mountpoint) as one:
        read_while_handlers_sleep(mountpoint)
        assert one.brought() >= one.sent() - 1
        assert one.connection.waiting == 0


def test_killed_callers_leave_no_waiting_requests(mountpoint: Path) -> None:
    with on(BlockingFileSystem(), mountpoint) as one:
        waiting = [Call(act, mountpoint, "gate") for _ in range(8)]
        act(mountpoint, "asleep", 8)
        for call in waiting:
            os.kill(call.pid, signal.SIGKILL)
        read_all(mountpoint)
        act(mountpoint, "go")
        until(lambda: one.connection.waiting == 0)
        read_all(mountpoint)
        for call in waiting:
            with pytest.raises(AssertionError, match="the caller died"):
                call.result()


def test_channel_works_after_a_handler_forked(mountpoint: Path) -> None:
    with on(BlockingFileSystem(), mountpoint) as one:
        act(mountpoint, "fork")
        read_all(mountpoint, 3)
        assert one.brought() >= one.sent() - 1
        act(mountpoint, "reap")
        read_all(mountpoint)


@pytest.mark.parametrize("policy", ["least", "own"])
def test_getattr_after_invalidate_goes_to_the_daemon(mountpoint: Path, policy: str) -> None:
    """The notifications come amid other requests, and do not overtake replies."""
    with on(BlockingFileSystem(), mountpoint) as one:
        one.connection.policy = policy
        busy = [Call(read_all, mountpoint, 4) for _ in range(2)]
        poke(mountpoint, 100)
        for call in busy:
            call.result()


# File systems in the process of the test


async def _serve(
    operations: efuse.Operations, mountpoint: Path, task_status: trio.TaskStatus[State]
) -> None:
    await efuse.serve(operations, mountpoint, required=True, task_status=task_status)


def test_other_trio_tasks_run_under_load(mountpoint: Path) -> None:
    """Other tasks run while one request follows the other."""
    turns = 0

    async def main() -> None:
        nonlocal turns
        async with trio.open_nursery() as nursery:
            state = await nursery.start(_serve, BlockingFileSystem(), mountpoint)
            assert state.channels

            async def take_turns() -> None:
                nonlocal turns
                while True:
                    await trio.sleep(0.001)
                    turns += 1

            nursery.start_soon(take_turns)
            callers = [threading.Thread(target=read_all, args=(mountpoint, 4)) for _ in range(3)]
            for caller in callers:
                caller.start()
            for caller in callers:
                await trio.to_thread.run_sync(caller.join)
            assert turns > 50
            nursery.cancel_scope.cancel()

    trio.run(main)


def _open_things() -> tuple[int, int]:
    return len(os.listdir("/proc/self/fd")), mapped(os.getpid())


def _mappings() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


class _Mallinfo(ctypes.Structure):
    """The struct mallinfo2 of malloc.h."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def _in_use() -> tuple[int, int]:
    """Return the bytes that malloc(3) has handed out, and the number of Python's memory blocks."""
    gc.collect()
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = _Mallinfo
    found = mallinfo2()
    return found.uordblks + found.hblkhd, sys.getallocatedblocks()


def test_repeated_mounts_in_one_process_leak_nothing(mountpoint: Path) -> None:
    async def once() -> None:
        async with trio.open_nursery() as nursery:
            state = await nursery.start(_serve, BlockingFileSystem(), mountpoint)
            assert state.channels
            await trio.to_thread.run_sync(read_all, mountpoint)
            assert mapped(os.getpid()) == 1
            nursery.cancel_scope.cancel()

    before: list[tuple[int, int]] = []
    in_use: list[tuple[int, int, int]] = []
    for number in range(26):
        trio.run(once)
        if number >= 5:
            before.append(_open_things())
            in_use.append((*_in_use(), _mappings()))
    assert set(before) == {before[0]}
    assert before[0][1] == 0
    # malloc(3) and Python keep some memory now and then. A leak of each mount shows in both halves:
    # it is noticed from 1.6 KiB, 13 of Python's blocks, or one mapping in two mounts.
    halves = zip(*(in_use[i] for i in (0, 10, 20)), strict=True)
    found = [min(middle - first, last - middle) for first, middle, last in halves]
    assert all(left < most for left, most in zip(found, (16 << 10, 125, 5), strict=True)), found
    assert not connections()


# The end of daemons


def _read_until_gone(path: Path) -> str:
    while True:
        try:
            read_all(path)
        except OSError as error:
            return errno.errorcode[error.errno or 0]


def test_signal_under_load_ends_the_daemon(mountpoint: Path) -> None:
    with on(BlockingFileSystem(), mountpoint) as one:
        calls = [Call(_read_until_gone, mountpoint) for _ in range(3)]
        until(lambda: one.brought() > 200)
    # The exit status was 0, because the context would have failed otherwise.
    assert {call.result() for call in calls} <= {errno.errorcode[number] for number in GONE}
    assert not os.path.ismount(mountpoint)
    assert not connections()


def test_unmount_under_load_ends_the_daemon(mountpoint: Path) -> None:
    one = On(start(BlockingFileSystem, mountpoint, required=True))
    calls = [Call(_read_until_gone, mountpoint) for _ in range(3)]
    until(lambda: one.brought() > 200)
    unmount(str(mountpoint), lazy=True)
    assert {call.result() for call in calls} <= {errno.errorcode[number] for number in GONE}
    assert os.waitpid(one.pid, 0)[1] == 0
    assert not connections()


def test_callers_of_a_killed_daemon_get_errors(mountpoint: Path) -> None:
    with (
        pytest.raises(efuse.errors.MountError, match="-9"),
        on(BlockingFileSystem(), mountpoint) as one,
    ):
        held = Call(act, mountpoint, "gate")
        calls = [Call(_read_until_gone, mountpoint) for _ in range(3)]
        until(lambda: one.brought() > 200)
        os.kill(one.pid, signal.SIGKILL)
        assert {call.result() for call in calls} <= {errno.errorcode[number] for number in GONE}
        with pytest.raises(OSError):
            held.result()
    unmount(str(mountpoint))


def test_two_processes_serve_one_mount_each(mountpoint: Path) -> None:
    (mountpoint / "a").mkdir()
    (mountpoint / "b").mkdir()
    with (
        on(BlockingFileSystem(), mountpoint / "a") as one,
        on(BlockingFileSystem(), mountpoint / "b") as other,
    ):
        calls = [Call(read_all, each.path, 3) for each in (one, other) for _ in range(2)]
        for call in calls:
            call.result()
        for each in (one, other):
            assert each.brought() >= each.sent() - 1
