# SPDX-License-Identifier: LGPL-2.1-or-later
"""libefuse's loop with sanitizers. ``tests/libefuse/plain_channel.c`` emulates channels on FUSE."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from efuse import locations
from efuse.bench.programs import built
from efuse.fs.mountpoint import unmount
from tests.conftest import Eventually
from tests.libefuse.callers import ask_until_it_fails
from tests.libefuse.sanitizers import ADDRESS, SANITIZER_OPTIONS, THREAD
from tests.threads import reading_stdin

_ROOT = locations.package().parent
_DATA = bytes((i * 31 + i // 251) & 0xFF for i in range(300000))
_DEADLINE_S = 60
_CPUS = os.cpu_count() or 1
_ONLINE = Path("/sys/devices/system/cpu/online")


@dataclass(frozen=True)
class Build:
    """A build of the loop, and of the daemon whose handlers do what a test asks for.

    :ivar preload: value of LD_PRELOAD for the daemon.
    :ivar libraries: libraries of the sanitizer.
    :ivar daemon: path of the daemon.
    :ivar online: the file from which the loop reads the CPUs that are online.
    """

    preload: str
    libraries: tuple[str, ...]
    daemon: Path
    online: Path


@pytest.fixture(
    scope="module",
    params=[
        ("-O2", ()),
        (f"-O1 {ADDRESS.flags}", ADDRESS.libraries),
        (f"-O1 {THREAD.flags}", THREAD.libraries),
    ],
    ids=["fast", "address", "thread"],
)
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    flags, libraries = request.param
    base = tmp_path_factory.mktemp("loop")
    online = base / "online"
    online.write_text(_ONLINE.read_text())
    fuse = subprocess.check_output(["pkg-config", "fuse3", "--cflags", "--libs"], text=True).split()
    warn = ["-g", "-Wall", "-Wextra", "-Werror", "-Wno-nonnull-compare", "-pthread"]
    source = _ROOT / "libefuse"
    loop = [source / name for name in ("preload.c", "spawn.c", "session.c", "loop.c")]
    loop.append(_ROOT / "tests/libefuse/plain_channel.c")
    include = [f"-I{source}", f"-I{_ROOT / 'kernel_patches/include/uapi'}"]
    version = f"-Wl,--version-script={source / 'preload.map'}"
    words = [
        "gcc",
        *flags.split(),
        *warn,
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        f'-DONLINE_CPUS="{online}"',
        *include,
        *fuse[:1],
    ]
    subprocess.run([*words, version, "-o", base / "loop.so", *loop], check=True)
    daemon = _ROOT / "tests/libefuse/loop_daemon.c"
    subprocess.run(["gcc", *warn, "-rdynamic", "-o", base / "daemon", daemon, *fuse], check=True)
    return Build(":".join([*libraries, str(base / "loop.so")]), libraries, base / "daemon", online)


@dataclass
class Daemon:
    process: subprocess.Popen[bytes]
    path: Path
    pool: ThreadPoolExecutor
    eventually: Eventually

    def read(self, name: str, size: int = 100) -> Future[bytes]:
        return self.pool.submit(_read, self.path / name, size)

    def say(self, times: int = 1) -> None:
        """Let *times* handlers go on."""
        assert self.process.stdin
        self.process.stdin.write(b"." * times)
        self.process.stdin.flush()

    def hear(self) -> None:
        assert self.process.stdout
        assert self.process.stdout.readline() == b"waiting\n"

    def blocked(self, times: int) -> list[Future[bytes]]:
        reads = [self.read("block") for _ in range(times)]
        self.eventually(lambda: reading_stdin(self.process.pid) == times, what="handlers that wait")
        return reads

    def end(self) -> int:
        unmount(str(self.path))
        return self.process.wait(_DEADLINE_S)


def _read(path: Path, size: int) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.read(fd, size)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _started(
    build: Build, words: list[str | Path], mountpoint: Path, eventually: Eventually, output: Path
) -> Iterator[Daemon]:
    environment = {**os.environ, **SANITIZER_OPTIONS, "LD_PRELOAD": build.preload}
    with output.open("wb") as stderr, ThreadPoolExecutor(24) as pool:
        # setarch -R, because TSan fails with the address randomization of recent kernels.
        process = subprocess.Popen(
            ["setarch", "-R", "env", "--default-signal", *words],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
        try:
            eventually(lambda: os.path.ismount(mountpoint) or process.poll() is not None)
            assert process.poll() is None, output.read_text()
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            assert "/loop.so" in maps
            assert all(f"/{library}" in maps for library in build.libraries)
            yield Daemon(process, mountpoint, pool, eventually)
        finally:
            process.kill()
            process.communicate()
            print(output.read_text())  # pytest shows it if the test fails
            with contextlib.suppress(OSError):
                unmount(str(mountpoint), lazy=True)
    # libfuse prints that it ignores the default number of idle threads of its own example.
    lines = output.read_text().splitlines()
    assert [line for line in lines if not line.startswith("Ignoring invalid max threads")] == []


@contextlib.contextmanager
def _looping(build: Build, tmp_path: Path, eventually: Eventually) -> Iterator[Daemon]:
    """Start the daemon whose handlers do what a test asks for."""
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir(exist_ok=True)
    words: list[str | Path] = [build.daemon, "0", mountpoint]
    with _started(build, words, mountpoint, eventually, tmp_path / "output") as made:
        yield made


@pytest.fixture
def daemon(build: Build, tmp_path: Path, eventually: Eventually) -> Iterator[Daemon]:
    with _looping(build, tmp_path, eventually) as made:
        yield made


def _stat_for(path: Path, seconds: float) -> int:
    end = time.monotonic() + seconds
    done = 0
    while time.monotonic() < end:
        os.stat(path)
        done += 1
    return done


def test_reply_of_any_size_from_any_thread_is_delivered(daemon: Daemon) -> None:
    for _ in range(100):
        reads = {
            (name, size): daemon.read(name, size)
            for name in ("plain", "thread")
            for size in (1, 4000, 8193, 300_000)
        }
        for (_, size), result in reads.items():
            assert result.result(_DEADLINE_S) == _DATA[:size]
    assert daemon.end() == 0


@pytest.mark.parametrize("amid", [0, 3])
def test_reply_does_not_wait_for_the_end_of_its_handler(daemon: Daemon, amid: int) -> None:
    traffic = [daemon.pool.submit(_stat_for, daemon.path, 1.0) for _ in range(amid)]
    for _ in range(30):
        assert daemon.read("early").result(_DEADLINE_S) == _DATA[:100]
        daemon.say()
    assert all(each.result(_DEADLINE_S) for each in traffic)
    assert daemon.end() == 0


def test_handler_may_notify_after_its_reply(daemon: Daemon) -> None:
    """The notification waits for pages that the reply unlocks."""
    traffic = daemon.pool.submit(_stat_for, daemon.path, 1.0)
    for _ in range(100):
        assert daemon.read("notify").result(_DEADLINE_S) == _DATA[:100]
    assert traffic.result(_DEADLINE_S)
    assert daemon.end() == 0


def test_blocked_handlers_do_not_block_other_requests(daemon: Daemon) -> None:
    for times in (1, _CPUS, 9):
        reads = daemon.blocked(times)
        assert daemon.read("plain").result(_DEADLINE_S) == _DATA[:100]
        assert daemon.pool.submit(_stat_for, daemon.path, 0.1).result(_DEADLINE_S) > 0
        daemon.say(times)
        assert [each.result(_DEADLINE_S) for each in reads] == [_DATA[:100]] * times
    assert daemon.end() == 0


def test_interrupted_callers_end(daemon: Daemon) -> None:
    for _ in range(20):
        with subprocess.Popen(["cat", daemon.path / "interrupt"]) as caller:
            daemon.hear()
            caller.send_signal(signal.SIGTERM)
            assert caller.wait(_DEADLINE_S) == -signal.SIGTERM
    assert daemon.end() == 0


def test_threads_and_children_of_handlers_run_on_any_cpu(daemon: Daemon) -> None:
    os.stat(daemon.path)
    handler, again, *others = map(int, daemon.read("affinity").result(_DEADLINE_S).split())
    assert handler == again == 1
    # Numbers of CPUs allowed for: INIT, a thread, fork(), posix_spawnp(), vfork() with execlp() and
    # with execvp(), popen(), system(). The last is a child that has set its own affinity before it
    # executes another program.
    assert others == [len(os.sched_getaffinity(0))] * 8 + [1]


@pytest.fixture
def online(build: Build) -> Iterator[Path]:
    """The file that lists the online CPUs. Its content is restored after the test."""
    yield build.online
    build.online.write_text(_ONLINE.read_text())


@pytest.mark.parametrize(("text", "number"), [("0", 1), ("0-1,3", 3), ("1,7-9,11", 5)])
def test_only_online_cpus_have_channels(
    build: Build, tmp_path: Path, eventually: Eventually, online: Path, text: str, number: int
) -> None:
    online.write_text(f"{text}\n")
    with _looping(build, tmp_path, eventually) as daemon:
        # The session has one descriptor, and so has each channel.
        eventually(lambda: _devices(daemon) == 1 + number, what="a channel for each CPU")
        assert daemon.read("plain").result(_DEADLINE_S) == _DATA[:100]
        assert _devices(daemon) == 1 + number
        assert daemon.end() == 0


def _devices(daemon: Daemon) -> int:
    links = Path(f"/proc/{daemon.process.pid}/fd").iterdir()
    return sum(str(link.readlink()) == "/dev/fuse" for link in links)


def _read_last(daemon: Daemon, name: str) -> bytes:
    """Read from a file whose handler ends the session."""
    fd = os.open(daemon.path / name, os.O_RDONLY)
    try:
        return daemon.pool.submit(os.read, fd, 100).result(_DEADLINE_S)
    finally:
        with contextlib.suppress(OSError):  # the daemon has ended
            os.close(fd)


def test_handler_can_end_the_session(daemon: Daemon) -> None:
    assert _read_last(daemon, "exit") == _DATA[:100]
    assert daemon.process.wait(_DEADLINE_S) == 0


def test_loop_ends_without_error_after_econnaborted(
    build: Build, tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EFUSE_TEST_ABORTED", "1")
    with _looping(build, tmp_path, eventually) as daemon:
        assert daemon.read("plain").result(_DEADLINE_S) == _DATA[:100]
        assert daemon.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_loop_returns_the_signal_that_ended_it_under_load(
    daemon: Daemon, number: signal.Signals
) -> None:
    roots = [os.open(daemon.path, os.O_RDONLY) for _ in range(4)]
    callers = [daemon.pool.submit(ask_until_it_fails, root) for root in roots]
    assert daemon.pool.submit(_stat_for, daemon.path, 0.3).result(_DEADLINE_S) > 0
    daemon.process.send_signal(number)
    assert daemon.process.wait(_DEADLINE_S) == number
    assert all(each.result(_DEADLINE_S) for each in callers)
    for root in roots:
        os.close(root)


def test_replies_are_delivered_when_the_session_ends(daemon: Daemon) -> None:
    """Requests that are being handled are completed, too."""
    blocked = daemon.blocked(1)
    early = daemon.read("early")
    assert early.result(_DEADLINE_S) == _DATA[:100]
    daemon.process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        daemon.process.wait(0.5)
    daemon.say(2)
    assert blocked[0].result(_DEADLINE_S) == _DATA[:100]
    assert daemon.process.wait(_DEADLINE_S) == signal.SIGTERM


def test_worker_is_not_cancelled_during_a_reply(
    build: Build, tmp_path: Path, eventually: Eventually
) -> None:
    """A cancelled worker would keep the lock that the end of the loop then waits for."""
    for _ in range(20):
        with _looping(build, tmp_path, eventually) as daemon:
            assert _read_last(daemon, "cancelled") == _DATA[:100]
            assert daemon.process.wait(_DEADLINE_S) == 0
            assert daemon.process.stdout
            # Otherwise the reply was delivered immediately, or by the end of the loop.
            if daemon.process.stdout.read() == b"cancelled\n":
                return
    pytest.fail("no worker was cancelled amid a reply")


def test_request_that_crosses_the_cancellation_is_handled_fully_or_not(
    build: Build, tmp_path: Path, eventually: Eventually
) -> None:
    """The worker takes it after the check whether it may be cancelled, and before the signal."""
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    words: list[str | Path] = [build.daemon, "1", mountpoint]
    with _started(build, words, mountpoint, eventually, tmp_path / "output") as daemon:
        fd = os.open(mountpoint / "crossed", os.O_RDONLY)
        assert os.pread(fd, 100, 0) == _DATA[:100]
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.stdout
        assert daemon.process.stdout.readline() == b"cancelling\n"
        read = daemon.pool.submit(os.pread, fd, 100, 200_000)
        assert daemon.process.wait(_DEADLINE_S) == signal.SIGTERM
        assert daemon.process.stdout.read() in (b"", b"begun\nended\n")
        with contextlib.suppress(OSError):  # the session may have ended before the request
            assert read.result(_DEADLINE_S) == _DATA[200_000:200_100]
        with contextlib.suppress(OSError):
            os.close(fd)


def test_passthrough_ll_under_load_keeps_all_bytes(
    build: Build, tmp_path: Path, eventually: Eventually
) -> None:
    mountpoint, source = tmp_path / "mnt", tmp_path / "source"
    mountpoint.mkdir()
    source.mkdir()
    program = [built("passthrough_ll"), "-f", "-o", f"timeout=0,source={source}", mountpoint]

    def work(number: int) -> None:
        for size in (0, 1, 8000, 8193, 200_000, 3 << 20):
            data = os.urandom(size)
            (mountpoint / f"{number}").write_bytes(data)
            assert (source / f"{number}").read_bytes() == data
            assert (mountpoint / f"{number}").read_bytes() == data
        for name in range(100):
            (mountpoint / f"{number}-{name}").touch()
        assert len([n for n in os.listdir(mountpoint) if n.startswith(f"{number}-")]) == 100
        for name in range(100):
            os.unlink(mountpoint / f"{number}-{name}")

    with _started(build, program, mountpoint, eventually, tmp_path / "output") as daemon:
        for each in [daemon.pool.submit(work, number) for number in range(8)]:
            each.result(_DEADLINE_S)
        assert daemon.end() == 0
