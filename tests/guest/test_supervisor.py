# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every way in which a daemon can mount FUSE becomes an eFuse mount with handlers."""

from __future__ import annotations

import collections
import contextlib
import itertools
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from efuse.bench.programs import built
from efuse.control import Connection, find
from efuse.control.mounts import all_mounts
from efuse.errors import AttachError, MountError
from efuse.fs.acceleration import Acceleration
from efuse.fs.options import Options
from efuse.supervisor import running as supervisor
from efuse.supervisor.daemon_mount import DaemonMount
from efuse.supervisor.running import Ended, Running, started
from tests.guest.support.raw_daemons import TEXT, raw_daemon


@pytest.fixture(scope="session")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A statically linked daemon."""
    return raw_daemon(tmp_path_factory.mktemp("raw"))


def _directories(parent: Path, *names: str) -> list[Path]:
    for name in names:
        (parent / name).mkdir()
    return [parent / name for name in names]


@contextlib.contextmanager
def _mounted(command: list[str], mountpoint: Path) -> Iterator[tuple[Running, DaemonMount]]:
    with started(command, Options()) as (running, mount):
        try:
            yield running, mount
        finally:
            subprocess.run(["umount", mountpoint], check=True)
            assert running.process.wait(30) == 0


def _hits(mount: DaemonMount, opcode: str) -> int:
    return Connection(mount.connection).counts(f"stats/{opcode}")["hits"]


def _check(mount: DaemonMount, mountpoint: Path, fstype: str = "efuse.raw") -> None:
    """Check that the mount has handlers, and shows what the daemon has."""
    seen = find(mountpoint)
    assert (seen.fstype, seen.connection) == (fstype, mount.connection)
    assert Connection(mount.connection).state == "attached"
    assert mount.mountpoint == str(mountpoint)
    assert (mountpoint / "f").read_text() == TEXT
    for _ in range(4):
        assert os.readlink(mountpoint / "link") == "f"
    assert _hits(mount, "readlink") >= 3, "the kernel answered nothing"
    with pytest.raises(FileNotFoundError):
        os.stat(mountpoint / "missing")


_WAYS = ["mount", "fsopen", "mount,signals", "mount,twice", "mount,odd", "mount,sync_init"]
_WAYS += ["mount,dup", "fsopen,dup", "mount,proc", "mount,dev", "fsopen,proc", "mount,hex"]
_WAYS += ["mount,restricted"]
_WAYS += ["mount,int80"] if platform.machine() == "x86_64" else []


@pytest.mark.parametrize("way", _WAYS)
def test_mount_of_a_static_daemon_is_accelerated(way: str, raw: Path, mountpoint: Path) -> None:
    with _mounted([str(raw), way, str(mountpoint)], mountpoint) as (_, mount):
        _check(mount, mountpoint, "efuse" if "fsopen" in way else "efuse.raw")


@pytest.mark.parametrize("way", ["mount", "fsopen"])
def test_nothing_holds_a_mount_that_was_just_made(way: str, raw: Path, mountpoint: Path) -> None:
    """The daemon mounts and unmounts 20 times, and cannot do so if the mount is busy."""
    running = Running([str(raw), f"{way},again", str(mountpoint)], Options())
    with contextlib.closing(running):
        events = running.events()
        mounts = list(itertools.islice(events, 21))
        assert all(isinstance(m, DaemonMount) and not m.reason for m in mounts[-1:])
        assert (mountpoint / "f").read_text() == TEXT
        subprocess.run(["umount", mountpoint], check=True)
        assert list(events) == [Ended(0)]


def test_mount_in_the_background_is_accelerated(raw: Path, mountpoint: Path) -> None:
    with started([str(raw), "mount,fork", str(mountpoint)], Options()) as (running, mount):
        assert running.process.wait(30) == 0
        _check(mount, mountpoint)
        subprocess.run(["umount", mountpoint], check=True)


def test_each_mount_of_a_process_is_accelerated(
    raw: Path, tmp_path: Path, eventually: Callable[..., object]
) -> None:
    places = _directories(tmp_path, "one", "two", "three")
    with started([str(raw), "mount", *map(str, places)], Options()) as (running, _):
        names = {*map(str, places)}
        eventually(lambda: names <= {m.mountpoint for m in all_mounts()}, what="all to be mounted")
        assert [m.mountpoint for m in running.mounts] == list(map(str, places))
        for mount, place in zip(running.mounts, places, strict=True):
            _check(mount, place)
        subprocess.run(["umount", *places], check=True)
        assert running.process.wait(30) == 0


@pytest.fixture
def open_device() -> Iterator[None]:
    """Let every user open /dev/fuse, as udev does, which does not run in the guest."""
    device = Path("/dev/fuse")
    before = device.stat().st_mode
    device.chmod(0o666)
    yield
    device.chmod(before)


@pytest.mark.parametrize("user", [0, 65534])
@pytest.mark.usefixtures("reachable", "open_device")
def test_mount_by_the_set_user_id_helper_is_accelerated(user: int, mountpoint: Path) -> None:
    """The helper sends the descriptor over a socket, which the caller got before."""
    mountpoint.chmod(0o777)
    os.chown(mountpoint, user, user)
    script = """
import os, socket, subprocess, sys
a, b = socket.socketpair()
os.set_inheritable(b.fileno(), True)
words = ["fusermount3", "-o", "subtype=raw", "--", sys.argv[1]]
environment = {**os.environ, "_FUSE_COMMFD": str(b.fileno())}
subprocess.run(words, env=environment, close_fds=False, check=True)
fd = socket.recv_fds(a, 1, 1)[1][0]
os.read(fd, 1 << 17)
print(os.readlink(f"/proc/self/fd/{fd}"), flush=True)
sys.stdin.read()
"""
    words = [
        "setpriv",
        f"--reuid={user}",
        "--clear-groups",
        "/usr/bin/python3",
        "-c",
        script,
        mountpoint,
    ]
    with started(list(map(str, words)), Options()) as (running, mount):
        assert mount.accelerated
        assert find(mountpoint).fstype == "efuse.raw"
        running.end()


@pytest.mark.usefixtures("reachable", "open_device")
@pytest.mark.parametrize("way", ["mount", "fsopen"])
def test_user_without_the_right_to_mount_gets_no_mount(
    way: str, raw: Path, mountpoint: Path
) -> None:
    mountpoint.chmod(0o777)
    program = mountpoint.parent / "raw_daemon"
    shutil.copy(raw, program)
    words = ["setpriv", "--reuid=65534", "--clear-groups", str(program), way, str(mountpoint)]
    before = all_mounts()
    with pytest.raises(MountError, match="mounted nothing"), started(words, Options()):
        pass
    assert all_mounts() == before


def test_mount_with_auto_unmount_goes_with_its_daemon(
    tmp_path: Path, eventually: Callable[..., object]
) -> None:
    """With this option, libfuse leaves mounting and unmounting to fusermount3."""
    source, mountpoint = _directories(tmp_path, "source", "mnt")
    words = ["bindfs", "-f", "-o", "auto_unmount", str(source), str(mountpoint)]
    with started(words, Options()) as (running, mount):
        assert mount.accelerated
        running.process.kill()
        running.process.wait(30)
        eventually(lambda: not mount.is_mounted, what="it to be unmounted")
        assert str(mountpoint) not in [m.mountpoint for m in all_mounts()]


def _links(directory: Path) -> list[str]:
    found = []
    for fd in directory.iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(str(fd.readlink()))
    return found


def test_clones_of_the_device_serve_the_mount(
    tmp_path: Path, eventually: Callable[..., object]
) -> None:
    """With clone_fd, each thread of the daemon opens /dev/fuse and clones the mount's device."""
    source, mountpoint = _directories(tmp_path, "source", "mnt")
    (source / "f").write_text(TEXT)
    words = [str(built("passthrough_ll")), "-f", "-o", f"source={source},clone_fd", str(mountpoint)]
    with started(words, Options(), channels=False) as (running, _):
        with open(mountpoint / "f") as file:
            assert file.read() == TEXT
        # A new thread of the daemon opens /dev/fuse for a moment.
        opened = Path(f"/proc/{running.process.pid}/fd")
        eventually(lambda: _links(opened).count("/dev/efuse") >= 2, what="a clone")
        subprocess.run(["umount", mountpoint], check=True)
        assert running.process.wait(30) == 0


def test_clones_are_answered_while_the_supervisor_has_files_of_the_mount_open(
    tmp_path: Path,
) -> None:
    """A process that it forked would have them, too: closing them waits for the daemon."""
    source, mountpoint = _directories(tmp_path, "source", "mnt")
    (source / "f").write_text(TEXT)
    options = f"source={source},clone_fd,cache=never"
    words = [str(built("passthrough_ll")), "-f", "-o", options, str(mountpoint)]
    with started(words, Options(), channels=False) as (running, _):
        files = [os.open(mountpoint / "f", os.O_RDONLY) for _ in range(8)]
        with ThreadPoolExecutor(len(files)) as pool:
            read = [pool.submit(os.pread, fd, 100, 0) for fd in files * 50]
            assert {each.result(30) for each in read} == {TEXT.encode()}
        opened = Path(f"/proc/{running.process.pid}/fd")
        assert _links(opened).count("/dev/efuse") >= 2, "no clone was made"
        for fd in files:
            os.close(fd)
        subprocess.run(["umount", mountpoint], check=True)
        assert running.process.wait(30) == 0


@pytest.mark.parametrize("path", ["absolute", "relative"])
def test_mount_in_a_mount_namespace_of_its_own_is_accelerated(
    path: str, raw: Path, tmp_path: Path, eventually: Callable[..., object]
) -> None:
    """The relative path leads through a symbolic link."""
    (mountpoint,) = _directories(tmp_path, "mnt")
    (tmp_path / "link").symlink_to(tmp_path)
    target = str(mountpoint) if path == "absolute" else "link/mnt"
    script = 'cd "$0" && exec unshare -m -- "$1" mount "$2"'
    with started(["sh", "-c", script, str(tmp_path), str(raw), target], Options()) as (
        running,
        mount,
    ):
        assert mount.accelerated
        assert str(mountpoint) not in [m.mountpoint for m in all_mounts()]
        inside = ["nsenter", "-t", str(running.process.pid), "-m", "cat", mountpoint / "f"]
        assert subprocess.check_output(inside, text=True) == TEXT
        assert mount.is_mounted
        running.end()
        eventually(lambda: not mount.is_mounted, what="its namespace to end")


def test_mount_below_another_root_is_accelerated(raw: Path, tmp_path: Path) -> None:
    """Its absolute symbolic link leads to a place below that root."""
    root, mountpoint, _ = _directories(tmp_path, "root", "root/mnt", "root/dev")
    (root / "link").symlink_to("/mnt")
    shutil.copy(raw, root / "raw")
    (root / "dev/fuse").touch()
    subprocess.run(["mount", "--bind", "/dev/fuse", root / "dev/fuse"], check=True)
    try:
        words = ["chroot", str(root), "/raw", "mount", "/link"]
        with _mounted(words, mountpoint) as (_, mount):
            _check(mount, mountpoint)
    finally:
        subprocess.run(["umount", root / "dev/fuse"], check=True)


def _plain(
    words: list[str], mountpoint: Path, inside: list[str], eventually: Callable[..., object]
) -> str:
    """Return the reason why the mount of a daemon is not one of eFuse. Check that it works."""
    running = Running(words, Options())
    with contextlib.closing(running):
        mount = next(running.events())
        assert isinstance(mount, DaemonMount)
        assert not mount.accelerated
        table = Path(f"/proc/{running.process.pid}/mountinfo")
        # By fsopen(2), the reason is known before the mount is made by further calls.
        attending = threading.Thread(target=collections.deque, args=(running.more(), 0))
        attending.start()
        eventually(lambda: f" {mountpoint} " in table.read_text(), what="the mount")
        where = ["nsenter", "-t", str(running.process.pid), *inside, "cat", mountpoint / "f"]
        assert subprocess.check_output(where, text=True) == TEXT
        running.end()
        attending.join()
        return mount.reason


@pytest.mark.parametrize("way", ["mount", "fsopen"])
def test_mount_stays_plain_if_another_process_serves_its_descriptor(
    way: str, raw: Path, mountpoint: Path, eventually: Callable[..., object]
) -> None:
    words = [str(raw), f"{way},shared", str(mountpoint)]
    reason = _plain(words, mountpoint, ["-m"], eventually)
    assert reason.endswith("has the same /dev/fuse open, and could not serve an eFuse mount")
    subprocess.run(["umount", mountpoint], check=True)


@pytest.mark.parametrize(
    ("way", "reason"),
    [
        ("mount,epoll", "the daemon watches /dev/fuse by epoll(7) before it mounts"),
        ("fsopen,epoll", "the daemon watches /dev/fuse by epoll(7) before it mounts"),
        (
            "mount,below",
            "the path of its mount point leads through a link of /proc, or through too many links",
        ),
    ],
)
def test_mount_that_cannot_be_carried_out_stays_plain(
    way: str, reason: str, raw: Path, mountpoint: Path, eventually: Callable[..., object]
) -> None:
    words = [str(raw), way, str(mountpoint)]
    assert _plain(words, mountpoint, ["-m"], eventually) == reason
    subprocess.run(["umount", mountpoint], check=True)


_CONFIGURES = """
import ctypes, os, sys
fd = os.open("/dev/fuse", os.O_RDWR)
libc = ctypes.CDLL(None, use_errno=True)
for context in (-1, fd):
    assert libc.syscall(ctypes.c_long(431), context, 1, b"fd", str(fd).encode(), 0) == -1
print(os.readlink(f"/proc/self/fd/{fd}"))
assert os.readlink(f"/proc/self/fd/{fd}") == "/dev/fuse"
"""


@pytest.mark.usefixtures("open_device")
@pytest.mark.parametrize("user", [0, 65534])
def test_device_is_not_given_without_a_context(user: int) -> None:
    words = ["setpriv", f"--reuid={user}", "--clear-groups", "/usr/bin/python3", "-c", _CONFIGURES]
    running = Running(words, Options())
    with contextlib.closing(running):
        assert list(running.events()) == [Ended(0)]


_CLONE_FAILS = """
import ctypes, os, threading, time
ours = os.open("/dev/efuse", os.O_RDWR)
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
libc = ctypes.CDLL(None)
libc.prctl(4, 1, 0, 0, 0)
fd, number = os.open("/dev/fuse", os.O_RDWR), (ctypes.c_int * 1)(ours)
before, end = os.fstat(fd), time.monotonic() + 10
def flip():
    while time.monotonic() < end:
        number[0] = -1
        number[0] = ours
threading.Thread(target=flip).start()
while time.monotonic() < end:
    assert libc.ioctl(fd, ctypes.c_ulong(0x8004E500), number) == -1
assert os.path.samestat(os.fstat(fd), before), os.readlink(f"/proc/self/fd/{fd}")
"""


@pytest.mark.usefixtures("open_device")
def test_clone_that_fails_gives_no_device() -> None:
    """A user with an open /dev/efuse, as `fusermount3` hands it over, cannot get a fresh one."""
    running = Running(["/usr/bin/python3", "-c", _CLONE_FAILS], Options())
    with contextlib.closing(running):
        assert list(running.events()) == [Ended(0)]


def test_mount_with_a_long_source_stays_plain(
    raw: Path, mountpoint: Path, eventually: Callable[..., object]
) -> None:
    reason = _plain([str(raw), "mount,long", str(mountpoint)], mountpoint, ["-m"], eventually)
    assert reason == "its source, or the value of an option, is longer than 255 bytes"
    subprocess.run(["umount", mountpoint], check=True)


def test_mount_in_a_pid_namespace_stays_plain(raw: Path, mountpoint: Path) -> None:
    """Its daemon knows callers by the ids of that namespace."""
    words = ["unshare", "-pfm", "--", str(raw), "mount", str(mountpoint)]
    script = ["sh", "-c", 'exec "$@"', "sh", *words]
    running = Running(script, Options())
    with contextlib.closing(running):
        mount = next(running.events())
        assert isinstance(mount, DaemonMount)
        assert mount.reason == "the daemon mounts it in a PID namespace of its own"
        running.end()


def test_process_that_landlock_confines_gets_no_mount(raw: Path, mountpoint: Path) -> None:
    before = all_mounts()
    running = Running([str(raw), "mount,landlock", str(mountpoint)], Options())
    with contextlib.closing(running):
        *mounts, end = running.events()
        assert [m.reason for m in mounts if isinstance(m, DaemonMount)] == [
            "a process of the daemon has confined itself by Landlock"
        ]
        assert end == Ended(1)
    assert all_mounts() == before


def test_mount_on_a_file_fails_as_without_efuse(
    raw: Path, mountpoint: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    words = [str(raw), f"mount,file={tmp_path}/file", str(mountpoint)]
    with _mounted(words, mountpoint) as (_, mount):
        _check(mount, mountpoint)


_WAITS_IN_MOUNT = """
is_mounted() { until grep -q " $1 " /proc/self/mountinfo; do sleep 0.1; done; }
"$0" mount "$1" & first=$!
is_mounted "$1"
kill -STOP $first
"$0" mount "$1/missing" & second=$!
until grep -Eq "^(165|40) " /proc/$second/syscall; do sleep 0.1; done
"$0" mount "$2" & third=$!
is_mounted "$2"
kill -CONT $first
wait $second
[ $? = 1 ] || exit 2
umount "$1" "$2"
wait
"""


def test_mount_below_a_daemon_that_hangs_holds_up_no_other(raw: Path, tmp_path: Path) -> None:
    places = _directories(tmp_path, "one", "two")
    running = Running(["sh", "-c", _WAITS_IN_MOUNT, str(raw), *map(str, places)], Options())
    with contextlib.closing(running):
        *mounts, end = running.events()
        assert [m.mountpoint for m in mounts if isinstance(m, DaemonMount)] == [*map(str, places)]
        assert end == Ended(0)


_DIES_BELOW = """
is_mounted() { until grep -q " $1 " /proc/self/mountinfo; do sleep 0.1; done; }
bindfs -f "$1" "$2" & first=$!
is_mounted "$2"
bindfs -f -o auto_unmount "$1" "$2/sub" & second=$!
is_mounted "$2/sub"
kill -STOP $first
sleep 3  # until the name on the way is not valid any more
kill -KILL $second
sleep 7
for _ in 1 2 3; do
    "$0" mount "$3" & third=$!
    is_mounted "$3"
    sleep 3
    umount "$3"
    wait $third || exit 3
done
kill -CONT $first
while grep -q " $2/sub " /proc/self/mountinfo; do sleep 0.1; done
# The other program that was to unmount it may still be there.
tries=0
until umount "$2"; do
    [ $((tries += 1)) -lt 100 ] || exit 4
    sleep 0.1
done
wait $first
"""


def test_dead_mount_below_a_daemon_that_hangs_holds_up_no_other(
    raw: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is unmounted once the way to it is free. Until then there is one warning."""
    source, *places = _directories(tmp_path, "source", "one", "two")
    (source / "sub").mkdir()
    words = ["sh", "-c", _DIES_BELOW, str(raw), str(source), *map(str, places)]
    running = Running(words, Options(), channels=False, adopt=True)
    with contextlib.closing(running):
        *_, end = running.events()
        assert end == Ended(0)
    warned = [each.message for each in caplog.records if "cannot be unmounted" in each.message]
    assert warned == [
        f"{places[0]}/sub cannot be unmounted: a file system on the way to it does not answer"
    ]


def test_mount_is_accelerated_after_the_process_that_makes_others_was_killed(
    raw: Path, mountpoint: Path
) -> None:
    running = Running(["sh", "-c", f"sleep 2; exec {raw} mount {mountpoint}"], Options())
    with contextlib.closing(running):
        os.kill(running._errands._spawner.process, signal.SIGKILL)
        mount = next(running.events())
        assert isinstance(mount, DaemonMount)
        assert mount.accelerated
        subprocess.run(["umount", mountpoint], check=True)
        assert running.process.wait(30) == 0
        assert [*running.more()] == []  # it drops the handlers of the mount


def test_nothing_is_held_for_a_mount_that_has_ended(
    raw: Path, tmp_path: Path, eventually: Callable[..., object]
) -> None:
    first, second = _directories(tmp_path, "one", "two")
    with started([str(raw), "mount", str(first), str(second)], Options()) as (running, mount):
        eventually(lambda: len(running.mounts) == 2, what="both to be mounted")
        subprocess.run(["umount", first], check=True)
        eventually(lambda: not mount.accelerated, what="the handlers of the first to go")
        subprocess.run(["umount", second], check=True)
        assert running.process.wait(30) == 0
        eventually(lambda: not running.mounts, what="both to be forgotten")


_MOVES = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
fd = libc.syscall(ctypes.c_long(428), -100, os.fsencode(sys.argv[1]), 0)  # open_tree(2)
to = os.fsencode(sys.argv[2])
sys.exit(fd < 0 or libc.syscall(ctypes.c_long(429), fd, b"", -100, to, 4) != 0)
"""


def test_mount_of_another_daemon_that_is_moved_gets_no_handlers(raw: Path, tmp_path: Path) -> None:
    place, other = _directories(tmp_path, "place", "other")
    with _mounted([str(raw), "mount", str(place)], other) as (_, mount):
        mount.detach()
        words = ["/usr/bin/python3", "-c", _MOVES, str(place), str(other)]
        running = Running(words, Options())
        with contextlib.closing(running):
            (end,) = running.events()
            assert end == Ended(0)
        assert (other / "f").read_text() == TEXT
        assert Connection(mount.connection).state == "plain"


def test_mount_in_a_user_namespace_stays_plain_and_is_reported(raw: Path, mountpoint: Path) -> None:
    words = ["unshare", "-Urm", "--", str(raw), "mount", str(mountpoint)]
    running = Running(words, Options())
    with contextlib.closing(running):
        mount = next(running.events())
        assert isinstance(mount, DaemonMount)
        assert mount.reason == "the daemon mounts it in a user namespace of its own"
        inside = ["nsenter", "-t", str(running.process.pid), "-U", "-m", "cat", mountpoint / "f"]
        assert subprocess.check_output(inside, text=True) == TEXT
        running.end()


@pytest.mark.parametrize("way", ["mount", "fsopen"])
def test_required_mount_that_gets_no_handlers_is_not_made(
    way: str, raw: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attach(*_args: object, **_more: object) -> Acceleration:
        raise AttachError("not this time")

    monkeypatch.setattr(supervisor, "accelerate", attach)
    before = all_mounts()
    with (
        pytest.raises(MountError, match="cannot be accelerated: not this time"),
        started([str(raw), way, str(mountpoint)], Options()),
    ):
        pass
    assert all_mounts() == before


def test_mount_that_gets_no_handlers_is_made_and_reported(
    raw: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attach(*_args: object, **_more: object) -> Acceleration:
        raise AttachError("not this time")

    monkeypatch.setattr(supervisor, "accelerate", attach)
    running = Running([str(raw), "mount", str(mountpoint)], Options())
    with contextlib.closing(running):
        mount = next(running.events())
        assert isinstance(mount, DaemonMount)
        assert (mount.accelerated, mount.reason) == (False, "not this time")
        assert (mountpoint / "f").read_text() == TEXT
        running.end()


@pytest.mark.parametrize("way", ["mount", "fsopen"])
def test_handlers_are_attached_before_the_mount_can_be_reached(
    way: str, raw: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Meanwhile the path leads to the directory below, and the daemon waits."""
    real = supervisor.accelerate
    seen: list[object] = []

    def attach(connection: int, *args: object) -> Acceleration:
        assert Connection(connection).state == "plain"
        seen.append([m.mountpoint for m in all_mounts()].count(str(mountpoint)))
        seen.append(os.listdir(mountpoint))
        # No other process can unmount it.
        seen.append(subprocess.run(["umount", mountpoint], stderr=subprocess.DEVNULL).returncode)
        made = real(connection, *args)  # type: ignore[arg-type]
        seen.append(os.listdir(mountpoint))
        return made

    (mountpoint / "below").touch()
    monkeypatch.setattr(supervisor, "accelerate", attach)
    with _mounted([str(raw), way, str(mountpoint)], mountpoint) as (_, mount):
        assert seen == [0, ["below"], 32, ["below"]]
        os.stat(mountpoint / "f")
        learned = Connection(mount.connection).learned
        assert learned > 0, "the first request was not learned"


def test_mount_ends_before_anything_is_attached_if_its_daemon_is_killed(
    raw: Path, mountpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = supervisor.accelerate

    def attach(*args: object) -> Acceleration:
        running.process.kill()
        running.process.wait()
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(supervisor, "accelerate", attach)
    running = Running([str(raw), "mount", str(mountpoint)], Options())
    with contextlib.closing(running):
        events = list(running.events())
        assert events[-1] == Ended(137)
        running.unmount_dead()
        assert str(mountpoint) not in [m.mountpoint for m in all_mounts()]


def test_mount_goes_on_when_its_supervisor_is_gone(
    raw: Path, mountpoint: Path, eventually: Callable[..., object]
) -> None:
    """The descriptors of a killed process are closed, as here. The daemon can mount no more."""
    running = Running([str(raw), "mount", str(mountpoint)], Options())
    mount = next(running.events())
    assert isinstance(mount, DaemonMount)
    assert mount.accelerated
    running.detach()
    running.close()
    assert (mountpoint / "f").read_text() == TEXT
    assert Connection(mount.connection).state == "plain"
    subprocess.run(["umount", mountpoint], check=True)
    assert running.process.wait(30) == 0


def test_mount_over_proc_is_refused(raw: Path) -> None:
    """The supervisor looks at the daemon there, and would wait for it."""
    running = Running([str(raw), "mount", "/proc/sys/fs/binfmt_misc"], Options())
    with contextlib.closing(running):
        mount, end = running.events()
        assert isinstance(mount, DaemonMount)
        assert "it would hide /proc" in mount.reason
        assert end == Ended(1)


def test_daemon_whose_calls_another_program_answers_cannot_be_run(tmp_path: Path) -> None:
    script = """
from efuse.errors import MountError
from efuse.fs.options import Options
from efuse.supervisor.running import Running
try:
    Running(["true"], Options())
except MountError as error:
    print(error)
"""
    out = tmp_path / "out"
    words = ["sh", "-c", f'exec {sys.executable} -c "$0" > {out}', script]
    with pytest.raises(MountError, match="mounted nothing"), started(words, Options()):
        pass
    assert "its mounts cannot be carried out: " in out.read_text()
    assert "(EBUSY)" in out.read_text()


def test_mounts_of_type_fuseblk_are_accelerated(
    raw: Path, tmp_path: Path, mountpoint: Path
) -> None:
    disk = tmp_path / "disk"
    disk.write_bytes(bytes(1 << 20))
    subprocess.run(["modprobe", "loop"], check=True)
    loop = subprocess.check_output(["losetup", "-f", "--show", disk], text=True).strip()
    try:
        with _mounted([str(raw), f"mount,blk={loop}", str(mountpoint)], mountpoint) as (_, mount):
            _check(mount, mountpoint, "efuseblk.raw")
    finally:
        subprocess.run(["losetup", "-d", loop], check=True)
