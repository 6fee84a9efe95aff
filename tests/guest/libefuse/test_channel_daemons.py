# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test unmodified libfuse daemons over channels: what they serve, how they block, how they end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from efuse.bench.load import load, prepare
from efuse.control import Connection, find
from efuse.fs.mountpoint import unmount
from efuse.module import live
from tests.guest.support.channel_daemon import (
    CPUS,
    LOOP_DAEMON_DATA,
    ChannelDaemon,
    Daemon,
    bindfs,
    brought,
    change_names,
    facts,
    hello,
    loop_daemon,
    mapped,
    passthrough_fh,
    passthrough_ll,
    sshfs,
    started,
    write_and_compare,
)
from tests.guest.support.daemons import lookup_again
from tests.guest.support.forked import efuse
from tests.guest.support.manual_daemon import DEADLINE_S, until
from tests.threads import reading_stdin


@pytest.fixture
def looper(mountpoint: Path) -> Iterator[ChannelDaemon]:
    """Yield tests/libefuse/loop_daemon.c with its default number of threads."""
    with started([loop_daemon(), "0", mountpoint], mountpoint) as daemon:
        yield daemon


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as made:
        yield made


def read(path: Path, size: int = 100) -> bytes:
    """Read from a file: one READ, or those that readahead makes of it."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)


def stat_on(cpu: int, path: Path) -> int:
    words = ["timeout", str(DEADLINE_S), "taskset", "-c", str(cpu), "stat", "-c", "%s", str(path)]
    return int(subprocess.check_output(words))


def served(daemon: ChannelDaemon) -> bool:
    """Return whether the root's size can be read on each CPU."""
    return [stat_on(cpu, daemon.path) for cpu in range(CPUS)] == [0] * CPUS


# What the daemons serve


@pytest.mark.parametrize("program", [passthrough_ll, passthrough_fh, sshfs])
def test_daemon_with_channels_shows_the_lower_files(
    program: Daemon, lower: Path, mountpoint: Path
) -> None:
    source = lower / "source"
    source.mkdir()
    with started([*program(source), mountpoint], mountpoint) as daemon:
        daemon.wait_for_channels()
        before = daemon.brought()
        write_and_compare(mountpoint, source)
        change_names(mountpoint)
        assert facts(mountpoint) == facts(source)
        assert daemon.brought() > before
        assert "no channels" not in daemon.output()
        assert daemon.end() == 0


@pytest.mark.parametrize("program", [passthrough_ll, passthrough_fh])
def test_run_gives_channels_to_a_background_daemon(
    program: Daemon, lower: Path, mountpoint: Path
) -> None:
    words = [word for word in program(lower) if word != "-f"]
    efuse("run", "--require", "--", *words, mountpoint)
    connection = Connection(find(mountpoint).connection)
    try:
        write_and_compare(mountpoint, lower)
        assert brought(connection) > 0
        assert [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _maps(pid)]
    finally:
        unmount(str(mountpoint))


def _maps(pid: int) -> bool:
    try:
        return mapped(pid) == CPUS
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_forgets_reach_the_daemon(lower: Path, mountpoint: Path) -> None:
    """passthrough_ll holds a descriptor of each inode until the kernel forgets the inode."""
    for number in range(600):
        (lower / str(number)).touch()
    with started([*passthrough_ll(lower), mountpoint], mountpoint) as daemon:
        fds = Path(f"/proc/{daemon.pid}/fd")
        until(lambda: _maps(daemon.pid))
        before = len(os.listdir(fds))
        brought_before = daemon.brought()
        for name in os.listdir(mountpoint):
            os.stat(mountpoint / name)
        assert len(os.listdir(fds)) >= before + 600
        lookup_again(mountpoint)
        until(lambda: len(os.listdir(fds)) <= before)
        assert daemon.brought() > brought_before
        assert daemon.end() == 0


@pytest.mark.parametrize("name", ["plain", "thread"])
@pytest.mark.parametrize("size", [1, 8000, 100_000, 300_000])
def test_reply_of_any_size_from_any_thread_arrives(
    looper: ChannelDaemon, name: str, size: int
) -> None:
    """The handler replies, or another thread does after the worker has gone on."""
    looper.wait_for_channels()
    for _ in range(20):
        assert read(looper.path / name, size) == LOOP_DAEMON_DATA[:size]
    assert looper.brought() > 0


def test_two_mounts_in_one_process_have_channels(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    with started([loop_daemon(), "0", one, two], one) as daemon:
        daemon.wait_for_channels(2 * CPUS)
        with ThreadPoolExecutor(4) as pool:
            reads = [
                pool.submit(read, path / name, size)
                for path in (one, two)
                for name in ("plain", "thread")
                for size in (100, 300_000)
                for _ in range(10)
            ]
            for each in reads:
                result = each.result(DEADLINE_S)
                assert result == LOOP_DAEMON_DATA[: len(result)]
                assert len(result) in (100, 300_000)
        assert brought(Connection(find(one).connection)) > 0
        assert brought(Connection(find(two).connection)) > 0
        unmount(str(two))
        daemon.wait_for_channels()
        assert served(daemon)
        assert daemon.end() == 0


def test_daemon_linked_with_libefuse_uses_channels(mountpoint: Path) -> None:
    """tests/host/test_libefuse.py builds the same program with pkg-config, as an author would."""
    program, environment = hello()
    with started([program, "-f", mountpoint], mountpoint, **environment) as daemon:
        daemon.wait_for_channels()
        for _ in range(50):
            assert read(mountpoint / "hello") == b"Hello, world!\n"
        assert os.listdir(mountpoint) == ["hello"]
        assert daemon.brought() > 0
        assert daemon.end() == 0
        assert daemon.output() == ""


# Handlers that block


def _blocked(daemon: ChannelDaemon, pool: ThreadPoolExecutor, number: int) -> list[Future[bytes]]:
    """Block *number* handlers, each of which waits for a byte, and return their reads."""
    reads = [pool.submit(read, daemon.path / "block") for _ in range(number)]
    until(lambda: reading_stdin(daemon.pid) == number)
    return reads


def test_channel_of_a_blocked_worker_is_served_by_others(
    looper: ChannelDaemon, pool: ThreadPoolExecutor
) -> None:
    reads = _blocked(looper, pool, 1)
    assert served(looper)
    looper.say()
    assert reads[0].result(DEADLINE_S) == LOOP_DAEMON_DATA[:100]


def test_workers_are_added_when_all_block(looper: ChannelDaemon, pool: ThreadPoolExecutor) -> None:
    reads = _blocked(looper, pool, CPUS + 3)
    assert served(looper)
    looper.say(b"." * len(reads))
    for each in reads:
        assert each.result(DEADLINE_S) == LOOP_DAEMON_DATA[:100]


def test_request_to_a_worker_about_to_poll_wakes_no_other(lower: Path, mountpoint: Path) -> None:
    """The worker shares a CPU with its caller, which sends the next request after each answer."""
    prepare(lower / "file")
    with started([*passthrough_ll(lower, "cache=never"), mountpoint], mountpoint) as daemon:
        daemon.wait_for_channels()
        woken = []
        for _ in range(5):
            before = daemon.others_woken()
            found = load(mountpoint / "file", "stat", 4096, 200, [0])
            woken.append((daemon.others_woken() - before) / found.requests)
    # If senders did not notice the worker about to poll, 3 to 8 of 100 requests would wake another.
    assert min(woken) < 0.01, woken


def test_daemon_limited_to_one_thread_has_one_channel(
    mountpoint: Path, pool: ThreadPoolExecutor
) -> None:
    with started([loop_daemon(), "1", mountpoint], mountpoint) as daemon:
        assert served(daemon)
        assert mapped(daemon.pid) == 1
        until(lambda: daemon.waiting() == 1)
        first, second = _blocked(daemon, pool, 1)[0], pool.submit(read, mountpoint / "plain")
        daemon.say()
        assert first.result(DEADLINE_S) == second.result(DEADLINE_S) == LOOP_DAEMON_DATA[:100]
        until(lambda: daemon.waiting() == 1)


def test_early_reply_does_not_wait_for_the_end_of_its_handler(
    looper: ChannelDaemon, pool: ThreadPoolExecutor
) -> None:
    """The reply comes after a pause, and also amid other requests, when replies go with the call
    that fetches the next request."""
    for amid in (False, True):
        for _ in range(5):
            traffic = [pool.submit(_stat_often, looper.path) for _ in range(3 * amid)]
            assert read(looper.path / "early") == LOOP_DAEMON_DATA[:100]
            looper.say()
            for each in traffic:
                each.result(DEADLINE_S)


def _stat_often(path: Path) -> None:
    for _ in range(100):
        os.stat(path)


def test_notification_after_a_reply_in_the_same_handler_ends(
    looper: ChannelDaemon, pool: ThreadPoolExecutor
) -> None:
    """The notification waits for a page that the reply unlocks."""
    for _ in range(20):
        traffic = pool.submit(_stat_often, looper.path)
        assert read(looper.path / "notify") == LOOP_DAEMON_DATA[:100]
        traffic.result(DEADLINE_S)


def test_threads_and_children_of_handlers_may_run_on_any_cpu(looper: ChannelDaemon) -> None:
    assert served(looper)
    handler, again, *others = map(int, read(looper.path / "affinity").split())
    assert handler == again == 1
    # The children come from INIT, a thread, fork(), posix_spawnp(), vfork() with execlp() and
    # execvp(), popen(), and system(). The last one has chosen a CPU itself before it calls exec.
    assert others == [CPUS] * 8 + [1]


def test_daemon_stays_on_the_cpus_of_its_affinity(mountpoint: Path) -> None:
    words = [loop_daemon(), "0", mountpoint]
    with started(words, mountpoint, before=("taskset", "-c", "1")) as daemon:
        assert served(daemon)
        for task in Path(f"/proc/{daemon.pid}/task").iterdir():
            assert os.sched_getaffinity(int(task.name)) == {1}
        daemon.wait_for_channels()


# Interrupts, and how daemons end


def test_signal_to_a_caller_interrupts_its_handler(looper: ChannelDaemon) -> None:
    for _ in range(5):
        with subprocess.Popen(["cat", looper.path / "interrupt"]) as caller:
            assert looper.hear() == b"waiting\n"
            caller.send_signal(signal.SIGTERM)
            assert caller.wait(DEADLINE_S) == -signal.SIGTERM
    assert served(looper)


@pytest.mark.parametrize("channels", ["1", "0"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signal_ends_the_daemon(mountpoint: Path, number: signal.Signals, channels: str) -> None:
    words = [loop_daemon(), "0", mountpoint]
    with started(words, mountpoint, EFUSE_CHANNELS=channels) as daemon:
        assert served(daemon)
        daemon.process.send_signal(number)
        assert daemon.process.wait(DEADLINE_S) == number
        assert not os.path.ismount(mountpoint)


def test_handler_ends_the_session(mountpoint: Path) -> None:
    with started([loop_daemon(), "0", mountpoint], mountpoint) as daemon:
        fd = os.open(mountpoint / "exit", os.O_RDONLY)
        assert os.read(fd, 100) == LOOP_DAEMON_DATA[:100]
        with contextlib.suppress(OSError):  # The daemon no longer gets the RELEASE.
            os.close(fd)
        assert daemon.process.wait(DEADLINE_S) == 0
        assert not os.path.ismount(mountpoint)


def test_abort_ends_the_session(looper: ChannelDaemon, pool: ThreadPoolExecutor) -> None:
    reads = _blocked(looper, pool, CPUS)
    looper.connection.abort()
    for each in reads:
        assert isinstance(each.exception(DEADLINE_S), OSError)
    looper.say(b"." * CPUS)
    assert looper.process.wait(DEADLINE_S) == 0


def test_killed_daemon_fails_its_callers_and_frees_the_module(
    mountpoint: Path, pool: ThreadPoolExecutor, module_file: Path
) -> None:
    with started([loop_daemon(), "0", mountpoint], mountpoint) as daemon:
        # There are more requests than threads, so some were delivered and some were not.
        reads = [pool.submit(read, mountpoint / "block") for _ in range(14)]
        until(lambda: reading_stdin(daemon.pid) == 10)
        daemon.process.kill()
        for each in reads:
            assert isinstance(each.exception(DEADLINE_S), OSError)
        daemon.process.wait(DEADLINE_S)
        unmount(str(mountpoint))
    live.unload()
    live.load(module_file)


# Without channels


@pytest.mark.parametrize(
    ("more", "environment"),
    [(["-s"], {}), ([], {"EFUSE_CHANNELS": "0"})],
    ids=["single", "unwanted"],
)
@pytest.mark.parametrize("program", [passthrough_ll, passthrough_fh])
def test_daemon_works_without_channels(
    program: Daemon, more: list[str], environment: dict[str, str], lower: Path, mountpoint: Path
) -> None:
    with started([*program(lower), *more, mountpoint], mountpoint, **environment) as daemon:
        write_and_compare(mountpoint, lower)
        assert mapped(daemon.pid) == 0
        assert daemon.brought() == 0
        assert "no channels" not in daemon.output()
        assert daemon.end() == 0


def test_daemon_of_libfuse_2_works_without_channels_or_messages(
    lower: Path, mountpoint: Path
) -> None:
    with started([*bindfs(lower), mountpoint], mountpoint) as daemon:
        write_and_compare(mountpoint, lower)
        assert mapped(daemon.pid) == 0
        assert daemon.brought() == 0
        assert daemon.output() == ""
        assert daemon.end() == 0


def test_run_with_no_channels_uses_none(lower: Path, mountpoint: Path) -> None:
    words = [word for word in passthrough_ll(lower) if word != "-f"]
    efuse("run", "--require", "--no-channels", "--", *words, mountpoint)
    try:
        write_and_compare(mountpoint, lower)
        assert brought(Connection(find(mountpoint).connection)) == 0
    finally:
        unmount(str(mountpoint))


def test_daemon_that_cannot_make_channels_says_why(lower: Path, mountpoint: Path) -> None:
    """The daemon may open too few files."""
    words = ["prlimit", "--nofile=5", *passthrough_ll(lower), mountpoint]
    with started(words, mountpoint) as daemon:
        until(lambda: "efuse: no channels: Too many open files" in daemon.output())
        assert daemon.brought() == 0
