# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which mounts `efuse run` attributes to its daemon.

The kernel of the host has no eFuse. If a test needs an eFuse mount, a FUSE mount with the subtype
``ours`` stands for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from efuse.control import Mount
from efuse.control.mounts import all_mounts, is_mounted, number_at, numbered, numbers
from efuse.errors import MountError
from efuse.fs import own_mount, run
from efuse.fs.mountpoint import detach
from efuse.fs.options import Options
from efuse.fs.run import Daemon, Ended, PlainMount, Running

_NOBODY = 65534
_ROOT = Path(__file__).parent.parent.parent
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)

_SENDS = """
import os, socket, sys
user, records = int(sys.argv[1]), eval(sys.argv[2])
if user:
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
with socket.socket(fileno=int(os.environ["EFUSE_REPORT_FD"].split(":")[0])) as reports:
    for record in records:
        reports.send(record)
raise SystemExit(3)
"""


@contextlib.contextmanager
def _running(*words: object, adopt: bool = False) -> Iterator[Running]:
    command = [sys.executable, "-c", *map(str, words)]
    with contextlib.closing(Running(command, adopt=adopt)) as running:
        try:
            yield running
        finally:
            running.process.kill()
            running.process.wait()
            if adopt:
                _libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(0))


def _sending(user: int, *records: bytes) -> tuple[list[Daemon | PlainMount | Ended], Running]:
    """Return the events of a daemon that sends *records* as *user* and ends with status 3."""
    with _running(_SENDS, user, records) as running:
        return list(running.events()), running


@contextlib.contextmanager
def _fuse_mounted(mountpoint: Path, subtype: str = "x", user: int = 0) -> Iterator[int]:
    """Mount a file system for *user*, and yield its device. This process answers no request."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = b"fd=%d,rootmode=40000,user_id=%d,group_id=%d" % (device, user, user)
    kind = f"fuse.{subtype}".encode()
    try:
        assert _libc.mount(b"x", os.fsencode(mountpoint), kind, ctypes.c_ulong(0), options) == 0
        yield device
    finally:
        os.close(device)
        _unmount(mountpoint)


def _unmount(mountpoint: Path) -> None:
    _libc.umount2(os.fsencode(mountpoint), 2)


def _number(mountpoint: Path) -> int:
    number = number_at(str(mountpoint))
    assert number is not None
    return number


def test_numbers_are_those_of_the_mount_table(place: Path) -> None:
    before = numbers()
    subprocess.run(["mount", "-t", "tmpfs", "x", place], check=True)
    try:
        assert numbers() == [*before, _number(place)]
        seen = numbered(_number(place))
        row = next(m for m in all_mounts() if m.mountpoint == str(place))
        assert seen is not None
        assert (seen.mount_id, seen.connection) == (row.mount_id, row.connection)
        assert seen.fstype == "tmpfs"
    finally:
        _unmount(place)


@pytest.mark.parametrize("user", [0, _NOBODY])
def test_report_of_another_user_than_root_is_ignored(place: Path, user: int) -> None:
    """The report names a mount that is newer than the run, so it may be the daemon's."""
    mountpoint, pipe = place / "mnt", place / "pipe"
    mountpoint.mkdir()
    os.mkfifo(pipe)
    with (
        _running(_SENDS, user, f"[open({str(pipe)!r}, 'rb').read()]") as running,
        _fuse_mounted(mountpoint),
    ):
        pipe.write_bytes(b"fuse.x %d /there" % _number(mountpoint))
        events = list(running.events())
    assert [type(event) for event in events] == [Ended] if user else [PlainMount, Ended]
    assert events[-1] == Ended(3)


def test_report_of_anything_but_a_new_fuse_mount_is_ignored(place: Path) -> None:
    """The mount is older than the run, or not FUSE, or of another type than reported."""
    old, new, fuse = place / "old", place / "new", place / "fuse"
    with contextlib.ExitStack() as stack:
        for directory in (old, new, fuse):
            directory.mkdir()
            stack.callback(_unmount, directory)
        stack.enter_context(_fuse_mounted(old))
        # The daemon's own process makes and reports the other mounts.
        makes = f"""
import subprocess
from efuse.control.mounts import number_at
subprocess.run(["mount", "-t", "tmpfs", "x", {str(new)!r}], check=True)
subprocess.run(["mount", "--bind", {str(old)!r}, {str(fuse)!r}], check=True)
records = [b"efuse %d /there" % number_at(path) for path in {[str(old), str(new), str(fuse)]!r}]
records += [b"fuse.x" + record[5:] for record in records]
records += [b"efuse %d /proc" % number_at("/proc"), b"tmpfs" + records[1][5:]]
"""
        sends = _SENDS.replace("user, records = int(sys.argv[1]), eval(sys.argv[2])", makes)
        sends = sends.replace("if user:", "if False:")
        with _running(sends) as running:
            assert list(running.events()) == [Ended(3)]
            assert (running.mounts, running.plain) == ([], [])
        running.unmount_dead()
        assert os.path.ismount(new)
        assert is_mounted(_number(old)) is not None


def test_all_reports_are_read_before_the_end_of_the_daemon_is_reported() -> None:
    names = ["/a", "/b", "/c"]
    with _running(_SENDS, 0, [b"fuse.x 1 " + name.encode() for name in names]) as running:
        os.waitid(os.P_PID, running.process.pid, os.WEXITED | os.WNOWAIT)
        *mounts, end = running.events()
    assert [plain.mount.mountpoint for plain in running.plain] == names
    assert (mounts, end) == (running.plain, Ended(3))


def test_malformed_reports_are_ignored() -> None:
    records = [b"x", b"efuse", b"efuse x /", b"efuse 1 there", b"efuse -1 /", b"\xff 1 /"]
    records += [b"efuse %d /" % (1 << 64), b"efuse %s /" % (b"9" * 5000), b"efuse \xd9\xa1 /"]
    # An empty record does not mean the end of the socket: the last record comes after it.
    events, running = _sending(0, *records, b"", b"fuse.x 1 /no/such")
    assert [type(event) for event in events] == [PlainMount, Ended]
    assert [plain.mount.mountpoint for plain in running.plain] == ["/no/such"]


_MOUNTS = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
libc.umount2(os.fsencode(sys.argv[1]), 0)
fd = os.open("/dev/fuse", os.O_RDWR)
options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % fd
libc.mount(b"x", os.fsencode(sys.argv[1]), sys.argv[2].encode(), ctypes.c_ulong(0), options)
"""
_STAYS = "signal.alarm(20)\nsignal.pause()"
_REPORTS = """
import socket
from efuse.control.mounts import number_at
with socket.socket(fileno=int(os.environ["EFUSE_REPORT_FD"].split(":")[0])) as reports:
    words = [sys.argv[2], str(number_at(sys.argv[1])), sys.argv[1]]
    reports.send(" ".join(words).encode())
"""


@pytest.fixture
def past_the_shim(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run daemons without the preloaded library, so that they open /dev/fuse."""
    monkeypatch.setattr(run, "preload_library", lambda: "")


@pytest.mark.usefixtures("past_the_shim")
def test_mount_over_an_older_mount_is_noticed(place: Path) -> None:
    """The new mount also gets the same id in mountinfo, because ids are reused."""
    subprocess.run(["mount", "-t", "tmpfs", "x", place], check=True)
    try:
        with _running(_MOUNTS + _STAYS, place, "fuse.x") as running:
            found = next(running.events())
            assert isinstance(found, PlainMount)
            assert found.mount.mountpoint == str(place)
    finally:
        _unmount(place)


# Makes a mount by fsmount(2), and attaches it by move_mount(2) when the test asks for it.
_MOUNTS_IN_TWO_STEPS = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*arguments):
    result = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    assert result >= 0, os.strerror(ctypes.get_errno())
    return result
device = os.open("/dev/fuse", os.O_RDWR)
context = call(430, b"fuse", 0)
for key, value in (("fd", device), ("rootmode", 40000), ("user_id", 0), ("group_id", 0)):
    call(431, context, 1, key.encode(), str(value).encode(), 0)
call(431, context, 6, None, None, 0)
mount = call(432, context, 0, 0)
open(sys.argv[2], "rb").read()
call(429, mount, b"", -100, os.fsencode(sys.argv[1]), 4)
"""


@pytest.mark.usefixtures("past_the_shim")
def test_mount_that_is_attached_after_a_newer_one_is_noticed(place: Path) -> None:
    mountpoint, other, pipe = place / "mnt", place / "other", place / "pipe"
    mountpoint.mkdir()
    other.mkdir()
    os.mkfifo(pipe)
    with (
        _running(_MOUNTS_IN_TWO_STEPS + _STAYS, mountpoint, pipe) as running,
        contextlib.ExitStack() as at,
    ):
        at.callback(_unmount, mountpoint)
        at.callback(_unmount, other)
        with pipe.open("wb"):  # the daemon has made its mount
            subprocess.run(["mount", "-t", "tmpfs", "x", other], check=True)
            assert list(running._look()) == []
        found = next(running.events())
        assert isinstance(found, PlainMount)
        assert found.number == _number(mountpoint) < _number(other)


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch, past_the_shim: None) -> None:
    """Treat mounts of the type ``fuse.ours`` as eFuse mounts."""
    monkeypatch.setattr(Mount, "is_efuse", property(lambda m: m.fstype == "fuse.ours"))
    monkeypatch.setattr(Mount, "is_fuse", property(lambda m: m.fstype == "fuse.x"))
    monkeypatch.setattr(run, "_DEVICE", "/dev/fuse", raising=False)
    monkeypatch.setattr(run, "_REPORT_S", 0.3, raising=False)


def _does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Emulate a kernel that does not show which mount an open device serves."""
    monkeypatch.setattr(own_mount, "_CONNECTION", re.compile("no such line"))


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("tells", [True, False])
def test_mount_without_a_report_belongs_to_the_daemon(
    place: Path, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    """The command names the mount point."""
    if not tells:
        _does_not_tell(monkeypatch)
    try:
        with _running(_MOUNTS + _STAYS, place, "fuse.ours") as running:
            found = next(running.events())
            assert isinstance(found, Daemon)
            assert (found.mountpoint, found.number) == (str(place), _number(place))
            assert running.mounts == [found]
    finally:
        _unmount(place)


@pytest.mark.usefixtures("ours")
def test_mount_that_may_belong_to_another_daemon_is_reported_and_kept(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command does not name the mount point, and the kernel does not show its daemon."""
    _does_not_tell(monkeypatch)
    script = _MOUNTS.replace("sys.argv[1]", repr(str(place)))
    try:
        with _running(script + _STAYS, "-", "fuse.ours") as running:
            found = next(running.events())
            assert isinstance(found, PlainMount)
            assert "may be the mount of another daemon" in found.reason
            assert not found.is_certain
            number = _number(place)
            # A mount that has no daemon any more was this daemon's, if no other may serve it.
            with Path("/dev/fuse").open("rb") as device:
                other = subprocess.Popen(["sleep", "60"], stdin=device)
            running.end()
            assert is_mounted(number) is not None
            other.kill()
            other.wait()
            running.unmount_dead()
            assert is_mounted(number) is None
    finally:
        _unmount(place)


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("tells", [True, False])
def test_mount_of_another_daemon_is_not_taken_for_one_of_this_daemon(
    place: Path, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    """The other mount comes later, on a directory that the command names, such as its source."""
    mountpoint, source = place / "mnt", place / "source"
    mountpoint.mkdir()
    source.mkdir()
    script = _MOUNTS + _STAYS
    if not tells:
        # The daemon has reported its own mount, so it would have reported this one, too.
        _does_not_tell(monkeypatch)
        script = _MOUNTS + _REPORTS + _STAYS
    with _running(script, mountpoint, "fuse.ours", source) as running, contextlib.ExitStack() as at:
        at.callback(_unmount, mountpoint)
        found = next(running.events())
        assert isinstance(found, Daemon)
        assert found.mountpoint == str(mountpoint)
        monkeypatch.setattr(run, "_REPORT_S", 0.0)
        at.enter_context(_fuse_mounted(source, "ours"))
        assert list(running._look()) == []
        assert _number(source) in running._seen
        assert running._unreported == {}
        assert (running.mounts, running.plain) == ([found], [])


_OPENS = """
import os, signal, sys
device = sys.argv[1] == "True" and os.open("/dev/fuse", os.O_RDWR)
open(sys.argv[2], "wb").close()
"""


@contextlib.contextmanager
def _ended_connection(mountpoint: Path) -> Iterator[int]:
    """Yield the number of a connection that has ended, while its device is still open."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % device
    where = os.fsencode(mountpoint)
    try:
        assert _libc.mount(b"x", where, b"fuse.x", ctypes.c_ulong(0), options) == 0
        connection = is_mounted(_number(mountpoint))
        assert connection is not None
        assert _libc.umount2(where, 0) == 0
        yield connection
    finally:
        os.close(device)


@pytest.mark.usefixtures("past_the_shim")
def test_device_of_an_ended_connection_does_not_keep_a_dead_mount(
    two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has given the number of the ended connection to the mount."""
    one, other = two
    monkeypatch.setattr(run, "_REPORT_S", 0.0)
    with (
        _ended_connection(other) as ended,
        _running(_MOUNTS + _STAYS, one, "fuse.x", adopt=True) as running,
    ):
        events = running.events()
        found = next(events)
        assert isinstance(found, PlainMount)
        assert is_mounted(found.number) == ended
        running.process.kill()
        assert isinstance(next(events), Ended)
        running.unmount_dead()
        assert is_mounted(found.number) is None


@pytest.mark.usefixtures("past_the_shim")
def test_mount_of_another_daemon_with_a_reused_number_is_not_taken(
    two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon still has the device of the ended connection open."""
    one, other = two
    monkeypatch.setattr(run, "_REPORT_S", 0.0)
    with _running(_MOUNTS + _STAYS, one, "fuse.x") as running:
        found = next(running.events())
        assert isinstance(found, PlainMount)
        ended = is_mounted(found.number)
        assert _libc.umount2(os.fsencode(one), 0) == 0
        with _fuse_mounted(other):
            assert is_mounted(_number(other)) == ended
            assert list(running._look()) == []
            assert _number(other) in running._seen


@contextlib.contextmanager
def _running_past_the_shim(place: Path, *, opens: bool) -> Iterator[tuple[Running, Path]]:
    """Yield a daemon that is about to mount plain FUSE, and a directory that its command names."""
    source, pipe = place / "source", place / "pipe"
    source.mkdir()
    os.mkfifo(pipe)
    with _running(_OPENS + _STAYS, opens, pipe, source) as running:
        pipe.read_bytes()  # wait until the daemon has opened the device
        yield running, source


@pytest.mark.usefixtures("past_the_shim")
@pytest.mark.parametrize("opens", [False, True])
def test_plain_mount_of_another_daemon_is_not_taken_for_one_of_this_daemon(
    place: Path, monkeypatch: pytest.MonkeyPatch, opens: bool
) -> None:
    monkeypatch.setattr(run, "_REPORT_S", 0.0)
    with (
        _running_past_the_shim(place, opens=opens) as (running, source),
        _fuse_mounted(source) as device,
    ):
        is_told = "fuse_connection:" in Path(f"/proc/self/fdinfo/{device}").read_text()
        # An older kernel does not show the connection, so the mount may be the daemon's.
        assert [plain.is_certain for plain in running._look() if isinstance(plain, PlainMount)] == (
            [] if is_told or not opens else [False]
        )
        assert _number(source) in running._seen


@pytest.mark.usefixtures("past_the_shim")
def test_plain_mount_that_may_belong_to_another_daemon_is_reported_and_kept(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel does not show which mount it serves, but the daemon has the device open."""
    monkeypatch.setattr(run, "_REPORT_S", 0.0)
    _does_not_tell(monkeypatch)
    with (
        _running_past_the_shim(place, opens=True) as (running, source),
        _fuse_mounted(source),
    ):
        (found,) = running._look()
        assert isinstance(found, PlainMount)
        assert not found.is_certain
        assert "may have mounted it" in found.reason
        running.end()
        assert is_mounted(found.number) is not None


_DIES = {
    "with 3": "os._exit(3)",
    "with 0": "os._exit(0)",
    "by a signal": "os.kill(os.getpid(), 15)",
}


def _mounts_of(user: int) -> str:
    return _MOUNTS.replace("user_id=0,group_id=0", f"user_id={user},group_id={user}")


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("user", [0, _NOBODY])
@pytest.mark.parametrize("kind", ["fuse.x", "fuse.ours"])
@pytest.mark.parametrize("end", _DIES.values(), ids=_DIES)
def test_mount_of_a_daemon_that_dies_immediately_is_reported_and_unmounted(
    place: Path, monkeypatch: pytest.MonkeyPatch, end: str, kind: str, user: int
) -> None:
    """The owner of the mount does not matter, although statfs(2) reports the death only to it."""
    monkeypatch.setattr(run, "_REPORT_S", 0.0)
    before = set(numbers())
    try:
        with _running(_mounts_of(user) + end, place, kind, adopt=True) as running:
            os.waitid(os.P_PID, running.process.pid, os.WEXITED | os.WNOWAIT)
            found, ended = running.events()
            assert isinstance(found, PlainMount)
            assert isinstance(ended, Ended)
            assert found.is_dead
            assert "no process serves it" in found.reason
            assert {found.number} == set(numbers()) - before
            running.unmount_dead()
            assert is_mounted(found.number) is None
    finally:
        _unmount(place)


_NAMED = """
import sys
with open("/proc/self/comm", "wb") as name:
    name.write(b"\\xff")
print("named", flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("ours")
def test_dead_mount_is_unmounted_beside_a_process_whose_name_is_no_utf8(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_REPORT_S", 0.0)
    words = [sys.executable, "-c", _NAMED]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    try:
        with _running(_mounts_of(0) + "os._exit(3)", place, "fuse.ours", adopt=True) as running:
            os.waitid(os.P_PID, running.process.pid, os.WEXITED | os.WNOWAIT)
            with subprocess.Popen(words, **pipes) as named:
                assert named.stdout and named.stdout.readline() == b"named\n"
                found, _ = running.events()
                named.communicate()
            assert isinstance(found, PlainMount)
            running.unmount_dead()
            assert is_mounted(found.number) is None
    finally:
        _unmount(place)


# The command line, as if the kernel had eFuse. The daemon mounts without the preloaded library.
_COMMAND_LINE = """
from efuse.fs import mountpoint, run
mountpoint.kernel_lacks_efuse = lambda: None
run.preload_library = lambda: ""
run._REPORT_S = 0.0
from efuse.cli.main import main
main()
"""


@pytest.mark.parametrize("end", _DIES.values(), ids=_DIES)
def test_command_leaves_no_mount_of_a_daemon_that_dies_immediately(place: Path, end: str) -> None:
    before = numbers()
    words = [sys.executable, "-c", _COMMAND_LINE, "run", "--"]
    words += [sys.executable, "-c", _MOUNTS + end, str(place), "fuse.x"]
    try:
        done = subprocess.run(words, timeout=60, capture_output=True, text=True, check=False)
        assert f"{place}: not accelerated: " in done.stderr
        assert numbers() == before
    finally:
        _unmount(place)


# The command line with a fake in place of attached handlers. Mounts of the type `fuse.ours` count
# as eFuse mounts. Calls are written to a pipe, also by the process that the command leaves in the
# background. The daemon goes on once handlers are attached to as many mounts as the test asks for.
_ATTACHES = """
import os
from efuse.control import Mount
from efuse.errors import ControlError
from efuse.fs import mountpoint, run

told, go_on, wanted = (int(word) for word in os.environ["PIPES"].split(","))
mountpoint.kernel_lacks_efuse = lambda: None
run.preload_library = lambda: ""
run._REPORT_S = 0.0
run._DEVICE = "/dev/fuse"
Mount.is_efuse = property(lambda mount: mount.fstype == "fuse.ours")
Mount.is_fuse = property(lambda mount: mount.fstype == "fuse.x")

def gone(*_, **__):
    raise ControlError("there is no eFuse connection 1 (ENOENT)")

class Attached:
    count = 0

    def __init__(self, number, *_, check):
        check()
        self.connection = number
        Attached.count += 1
        self.attach()

    def attach(self):
        os.write(told, b"attached\\n")
        if Attached.count == wanted:
            os.write(go_on, b"\\n")

    def close(self):
        os.write(told, b"closed\\n")

class Plain:
    state = "plain"
    def __init__(self, number):
        pass

run.accelerate = Attached
run.Connection = Plain
"""
_MOUNTS_ALL = f"""
import os, sys
devices = []
kind = "fuse.ours"
for sys.argv[1:] in [[place, kind] for place in sys.argv[1:]]:
    exec({_MOUNTS!r})
    devices.append(fd)
"""
_WAITS = "sys.stdin.readline()\n"
_READS = """
for fd in devices:
    try:
        while True:
            os.read(fd, 1 << 20)
    except OSError:
        pass
"""


def _attaching(
    patch: str, daemon: str, two: tuple[Path, Path], *options: str, wanted: int = 2
) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run the command. Return its result, and a descriptor from which the calls can be read."""
    telling, told = os.pipe()
    waiting, go_on = os.pipe()
    script = _ATTACHES + patch + "\nfrom efuse.cli.main import main; main()"
    words = [sys.executable, "-c", script, "run", *options, "--"]
    try:
        done = subprocess.run(
            [*words, sys.executable, "-c", _MOUNTS_ALL + daemon, *two],
            env={**os.environ, "PIPES": f"{told},{go_on},{wanted}"},
            pass_fds=[told, go_on],
            stdin=waiting,
            timeout=60,
            capture_output=True,
            text=True,
            check=False,
        )
    except BaseException:
        os.close(telling)
        raise
    finally:
        for fd in (told, waiting, go_on):
            os.close(fd)
    return done, telling


def _called(telling: int) -> list[str]:
    """Return the calls until the last process has ended."""
    with open(telling) as lines:
        return lines.read().splitlines()


@pytest.fixture
def two(place: Path) -> Iterator[tuple[Path, Path]]:
    """Two directories to mount on. Mounts there are unmounted after the test."""
    one, other = place / "one", place / "other"
    one.mkdir()
    other.mkdir()
    yield one, other
    _unmount(one)
    _unmount(other)


@pytest.mark.parametrize("closes", ["well", "after its connection"])
def test_each_mount_of_a_daemon_has_handlers_and_ends_with_the_daemon(
    two: tuple[Path, Path], closes: str
) -> None:
    """The exit status is the daemon's, even if detaching the handlers fails."""
    before = numbers()
    patch = "" if closes == "well" else "close = Attached.close\n"
    if patch:
        patch += "Attached.close = lambda self: (close(self), gone())"
    done, telling = _attaching(patch, _WAITS + "os._exit(7)", two)
    assert done.returncode == 7, done.stderr
    for place in two:
        assert f"{place}: eFuse, connection " in done.stderr
    assert _called(telling) == ["attached"] * 2 + ["closed"] * 2
    assert numbers() == before
    assert ("cannot be detached: there is no eFuse connection" in done.stderr) == bool(patch)


@pytest.mark.parametrize("fails", ["place_of", "read_table", "all_mounts"])
def test_exit_status_is_that_of_the_daemon_if_the_mount_table_cannot_be_read(
    two: tuple[Path, Path], fails: str
) -> None:
    """The table becomes unreadable before the daemon mounts, or when its mounts are unmounted."""
    end = {
        "place_of": "run.place_of = gone",
        "read_table": "def refused(_): raise OSError(12, 'x')\nrun.read_table = refused",
        "all_mounts": "start = run._start\ndef starts(*a):\n    run.all_mounts = gone\n"
        "    return start(*a)\nrun._start = starts",
    }[fails]
    daemon = (_WAITS if fails != "read_table" else "") + "os._exit(7)"
    done, telling = _attaching(end, daemon, two)
    _called(telling)
    assert done.returncode == 7, done.stderr
    assert "Traceback" not in done.stderr
    for output in ("stays mounted: there is no", "are no longer watched: cannot list the mounts: "):
        if output in done.stderr:
            break
    else:
        pytest.fail(done.stderr)


@pytest.mark.parametrize("first", ["unmounted", "not unmounted"])
def test_required_run_ends_every_mount_if_one_has_no_handlers(
    two: tuple[Path, Path], first: str
) -> None:
    patch = """
attach = Attached.attach
Attached.attach = lambda self: attach(self) if Attached.count == 1 else gone()
"""
    if first != "unmounted":
        patch += """
real, calls = run.detach, []
def detach(*arguments):
    calls.append(arguments)
    return gone() if len(calls) == 1 else real(*arguments)
run.detach = detach
"""
    before = numbers()
    done, telling = _attaching(patch, _WAITS + "os._exit(7)", two, "--require")
    assert done.returncode == 1, done.stderr
    assert "efuse: there is no eFuse connection 1 (ENOENT)" in done.stderr
    assert _called(telling) == ["attached"]
    # The mounts that could not be unmounted before are unmounted once the daemon has ended.
    assert numbers() == before


def test_handlers_of_each_mount_are_held_until_all_are_unmounted(two: tuple[Path, Path]) -> None:
    """The daemon goes into the background."""
    leaves = "null = os.open(os.devnull, os.O_RDWR)\nos.dup2(null, 1)\nos.dup2(null, 2)\n"
    # The daemon ends when reading a request fails because its mounts are gone.
    daemon = _WAITS + "if os.fork(): os._exit(0)\nos.setsid()\n" + leaves + _READS
    done, telling = _attaching("", daemon, two)
    assert done.returncode == 0, done.stderr
    assert all(is_mounted(_number(place)) is not None for place in two)
    assert os.read(telling, 4096) == b"attached\nattached\nclosed\nclosed\n"
    for place in two:
        _unmount(place)
    assert _called(telling) == ["closed"] * 2


def test_command_leaves_no_mount_after_its_interpreter_was_replaced(place: Path) -> None:
    """An upgrade of Python's package may replace it while a daemon runs."""
    interpreter, mountpoint = place / "python", place / "mnt"
    interpreter.symlink_to(os.path.realpath(sys.executable))
    mountpoint.mkdir()
    words = [interpreter, "-c", _COMMAND_LINE, "run", "--", sys.executable, "-c"]
    words += [_MOUNTS + "print(os.getpid(), flush=True)\n" + _STAYS, mountpoint, "fuse.x"]
    before = numbers()
    process = subprocess.Popen(
        words,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ":".join([str(_ROOT), *sys.path])},
    )
    try:
        assert process.stdout is not None
        daemon = int(process.stdout.readline())
        interpreter.unlink()
        os.kill(daemon, signal.SIGKILL)
        _, output = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGKILL, output
        assert numbers() == before
    finally:
        process.kill()
        _unmount(mountpoint)


@pytest.mark.usefixtures("past_the_shim")
@pytest.mark.parametrize("call", ["fork", "pidfd_open"])
def test_mount_that_cannot_be_tested_is_kept_and_reported(
    place: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    def refused(*_: object) -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with _fuse_mounted(place) as device, _running("pass", adopt=True) as running:
        with Path(os.devnull).open("rb") as nothing:
            os.dup2(nothing.fileno(), device)  # now no process serves the mount
        mount = next(m for m in all_mounts() if m.mountpoint == str(place))
        with monkeypatch.context() as at_the_limit:
            at_the_limit.setattr(os, call, refused)
            assert not running._answers_nothing(mount)
        assert "cannot be determined" in caplog.text
        assert running._answers_nothing(mount)
        assert running._adopted() == set()


# Checks whether a mount is dead when the table of mounts cannot be read any more.
_CANNOT_READ = """
import os, sys
from efuse.errors import ControlError
from efuse.fs import run

def unreadable(**_):
    raise ControlError("cannot list the mounts: the test says so")

parent = os.getpid()
mount = next(m for m in run.all_mounts() if m.mountpoint == sys.argv[1])
running = run.Running(["true"], adopt=True)
run.all_mounts = unreadable
answer = None
try:
    answer = running._answers_nothing(mount)
finally:
    print(os.getpid() == parent, answer, flush=True)
"""


def test_mount_is_kept_if_the_mount_table_cannot_be_read(
    place: Path,
) -> None:
    with _fuse_mounted(place):
        words = [sys.executable, "-c", _CANNOT_READ, place]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "True False\n"
    assert "so it stays mounted: cannot list the mounts: the test says so" in done.stderr
    assert done.returncode == 0


@pytest.mark.usefixtures("past_the_shim")
def test_dead_mount_is_unmounted_at_its_renamed_path(place: Path) -> None:
    """A directory above the mount was renamed."""
    above, renamed = place / "above", place / "renamed"
    (above / "mnt").mkdir(parents=True)
    try:
        with _running(_MOUNTS + _STAYS, above / "mnt", "fuse.x", adopt=True) as running:
            events = running.events()
            found = next(events)
            assert isinstance(found, PlainMount)
            above.rename(renamed)
            running.process.kill()
            assert isinstance(next(events), Ended)
            running.unmount_dead()
            assert is_mounted(found.number) is None
    finally:
        _unmount(renamed / "mnt")


# Serves a mount. Answers the first request, INIT, with success, and the others with the error in
# argv[3], or not at all if that is 0.
_ANSWERS = """
import struct
print(flush=True)
signal.alarm(60)
while True:
    _, opcode, unique = struct.unpack_from("=IIQ", os.read(fd, 1 << 20))
    if opcode == 26:
        told = struct.pack("=IIIIHHIIHH8I", 7, 31, 65536, 0, 16, 12, 131072, 1, 32, 0, *[0] * 8)
        os.write(fd, struct.pack("=IiQ", 16 + 64, 0, unique) + told[:64])
        continue
    print(opcode, flush=True)
    if sys.argv[3] != "0":
        os.write(fd, struct.pack("=IiQ", 16, -int(sys.argv[3]), unique))
"""


@contextlib.contextmanager
def _another_daemon(mountpoint: Path, answer: int) -> Iterator[subprocess.Popen[str]]:
    """Mount and serve *mountpoint* in another process.

    :param answer: the errno of all replies; 0 to send none.
    """
    words = [sys.executable, "-c", _MOUNTS + _ANSWERS, mountpoint, "fuse.x", str(answer)]
    daemon = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    try:
        assert daemon.stdout is not None
        daemon.stdout.readline()
        yield daemon
    finally:
        daemon.kill()
        daemon.communicate()
        _unmount(mountpoint)


@pytest.mark.usefixtures("past_the_shim")
@pytest.mark.parametrize("tells", [True, False])
def test_mount_of_a_live_daemon_that_returns_enotconn_is_kept(
    place: Path, monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    """The daemon may return this error because its server, or the mount below it, is gone."""
    monkeypatch.setattr(run, "_REPORT_S", 0.0)
    if not tells:
        _does_not_tell(monkeypatch)
    with (
        _running_past_the_shim(place, opens=not tells) as (running, source),
        _another_daemon(source, errno.ENOTCONN) as daemon,
    ):
        number = _number(source)
        assert [plain.is_certain for plain in running._look() if isinstance(plain, PlainMount)] == (
            [] if tells else [False]
        )
        running.unmount_dead()
        running.end()
        assert is_mounted(number) is not None
        assert daemon.poll() is None


# Runs a daemon that ends when the test asks for it, and then unmounts its dead mounts.
_RUNS = """
import os, sys
from efuse.fs import own_mount, run
run.preload_library = lambda: ""
run._REPORT_S = 0.0
script = "print(flush=True); raise SystemExit(len(input()))"
running = run.Running([sys.executable, "-c", script, *sys.argv[1:]], adopt=True)
list(running.events())
running.unmount_dead()
os._exit(7)
"""


def test_hung_daemon_of_another_mount_does_not_delay_the_end(place: Path) -> None:
    """A process that asks it cannot be killed before it answers."""
    words = [sys.executable, "-c", _RUNS, place]
    pipe = subprocess.PIPE
    running = subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)
    assert running.stdout is not None
    running.stdout.readline()
    with _another_daemon(place, 0):
        running.communicate("x\n", timeout=60)
        assert running.returncode == 7


@pytest.mark.usefixtures("past_the_shim")
def test_check_of_a_mount_whose_daemon_never_answers_times_out(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mount is asked if no process is seen to serve it, but its daemon may be hidden."""
    monkeypatch.setattr(run, "_ANSWER_S", 0.3)
    with _another_daemon(place, 0) as daemon, _running("pass", adopt=True) as running:
        mount = next(m for m in all_mounts() if m.mountpoint == str(place))
        assert not running._answers_nothing(mount)
        assert daemon.stdout is not None
        assert daemon.stdout.readline() == "17\n"  # STATFS
        assert running._adopted() == set()


# Starts another `efuse run`, which leaves a process in the background that holds the handlers.
_NESTED = """
import subprocess, sys
with open(sys.argv[1], "w") as told:
    nested = subprocess.Popen([sys.executable, "-c", sys.argv[2]], stdout=told)
nested.wait()
"""
_LEAVES_A_HOLDER = """
import os, signal
from efuse.fs import own_mount, run
run.preload_library = lambda: ""
signal.alarm(60)
running = run.Running(["sleep", "60"], adopt=True)
holder = os.fork()
if holder:
    print(os.getpid(), holder, running.process.pid, flush=True)
signal.alarm(60)
signal.pause()
"""


def test_processes_of_a_nested_run_do_not_belong_to_the_daemon(place: Path) -> None:
    """They manage eFuse mounts. Except for its daemon, they have the outer run's environment."""
    told = place / "told"
    os.mkfifo(told)
    with _running(_NESTED, told, _LEAVES_A_HOLDER) as running:
        with told.open() as pipe:
            nested = {int(word) for word in pipe.readline().split()}
        try:
            assert len(nested) == 3
            assert nested < running._tree()
            assert running._own_tree() == {running.process.pid}
        finally:
            for pid in nested:
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("knows", [True, False])
def test_started_process_belongs_to_the_daemon_despite_its_environment(
    monkeypatch: pytest.MonkeyPatch, knows: bool
) -> None:
    """The process may have changed its environment, or /proc may show another one by this id."""
    script = "import os; os.environ['EFUSE_REPORT_FD'] = '9:9'; os.execlp('sleep', 'sleep', '60')"
    with _running(script) as running:
        environment = Path(f"/proc/{running.process.pid}/environ")
        poll = select.poll()
        while b"EFUSE_REPORT_FD=9:9" not in environment.read_bytes():
            poll.poll(10)
        monkeypatch.setattr(running, "_knows_processes", knows)
        assert running._own_tree() == {running.process.pid}


_RUNS_NOWHERE = """
import os, sys
from efuse.fs.run import Running
os.chdir(sys.argv[1])
os.rmdir(sys.argv[1])
running = Running(["true", "x"])
print(list(running.events()))
"""


def test_daemon_runs_in_a_removed_working_directory(place: Path) -> None:
    """A relative path in its command does not count as a mount point."""
    gone = place / "gone"
    gone.mkdir()
    words = [sys.executable, "-c", _RUNS_NOWHERE, gone]
    assert subprocess.check_output(words, text=True, timeout=60) == "[Ended(status=0)]\n"


# Prints the type of the first event of a run.
_LOOKS = """
import sys
from efuse.fs import own_mount, run
run.preload_library = lambda: ""
run._REPORT_S = 0.0
running = run.Running([sys.executable, "-c", *sys.argv[1:]], adopt=True)
print(type(next(running.events())).__name__)
running.process.kill()
running.process.wait()
"""


# Goes into the background, and waits until its parent has been reaped.
_LEAVES = """
import os, time
parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    time.sleep(0.01)
"""


def _first_event(place: Path, daemon: str, *within: str) -> str:
    """Return the type of the first event of a *daemon* that mounts on *place*.

    :param within: a command that runs the command in its arguments, such as ``unshare``.
    """
    try:
        words = (*within, sys.executable, "-c", _LOOKS, daemon, place, "fuse.x")
        return subprocess.check_output(words, text=True, timeout=60).strip()
    finally:
        _unmount(place)


def test_plain_mount_of_an_inaccessible_process_is_reported(place: Path) -> None:
    """Without CAP_SYS_PTRACE, as in a container, open files of other users are not visible."""
    daemon = _MOUNTS + "os.setgid(65534)\nos.setuid(65534)\n" + _STAYS
    assert _first_event(place, daemon, "setpriv", "--bounding-set=-sys_ptrace") == "PlainMount"


def test_mount_of_a_background_process_in_another_pid_namespace_is_awaited(
    place: Path,
) -> None:
    """In the /proc of another PID namespace, the same ids belong to other processes."""
    daemon = _LEAVES + _MOUNTS + _REPORTS + _STAYS
    within = ("unshare", "--pid", "--fork", "--kill-child")
    assert _first_event(place, daemon, *within) == "PlainMount"


def test_mount_of_another_user_is_found_and_unmounted_by_number(place: Path) -> None:
    """FUSE does not show the number of a mount to users who may not access it."""
    mine, other = place / "mine", place / "other"
    mine.mkdir()
    other.mkdir()
    before = set(numbers())
    with _fuse_mounted(mine, user=_NOBODY), contextlib.ExitStack() as at:
        (number,) = set(numbers()) - before
        at.enter_context(_fuse_mounted(other, user=_NOBODY))
        (another,) = set(numbers()) - before - {number}
        assert number_at(str(mine)) is None
        detach(str(mine), another)
        assert is_mounted(number) is not None
        assert is_mounted(another) is None
        detach(str(other), number)
        assert is_mounted(number) is None


@pytest.mark.usefixtures("past_the_shim")
def test_bind_mount_of_an_older_file_system_does_not_belong_to_the_daemon(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_REPORT_S", 0.0)
    _does_not_tell(monkeypatch)
    old = place / "old"
    old.mkdir()
    with contextlib.ExitStack() as at:
        at.enter_context(_fuse_mounted(old))
        running, source = at.enter_context(_running_past_the_shim(place, opens=True))
        at.callback(_unmount, source)
        subprocess.run(["mount", "--bind", old, source], check=True)
        assert list(running._look()) == []
        assert _number(source) in running._seen


# First, a process of another run mounts the first directory, or a program that knows eFuse does.
# Then this daemon, which cannot report its mount, mounts the second directory.
_BESIDE_ANOTHERS = """
import os, subprocess, sys
mounts, ready, stays, reports, is_own, mountpoint, kind = sys.argv[1:8]
if is_own != "True":
    os.environ["EFUSE_REPORT_FD"] = "9:9"
script = mounts + (reports if is_own == "True" else "") + ready + stays
words = [sys.executable, "-c", script, mountpoint, "fuse.ours"]
with subprocess.Popen(words, stdout=subprocess.PIPE, close_fds=False) as another:
    another.stdout.readline()
    sys.argv[1:] = sys.argv[8:]
    exec(mounts + stays)
"""


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("is_own", [True, False])
def test_mount_of_another_efuse_program_is_left_alone(
    place: Path, monkeypatch: pytest.MonkeyPatch, is_own: bool, tells: bool
) -> None:
    """The daemon starts `efuse run` or `efuse mount` on a directory that its command names."""
    if not tells:
        _does_not_tell(monkeypatch)
    anothers, mine = place / "another", place / "mine"
    anothers.mkdir()
    mine.mkdir()
    reports = _REPORTS.replace("[sys.argv[2], ", '["own", ')
    words = (_MOUNTS, "print(flush=True)\n", _STAYS, reports, is_own, anothers, "-", mine)
    with contextlib.ExitStack() as at:
        running = at.enter_context(_running(_BESIDE_ANOTHERS, *words, "fuse.ours"))
        at.callback(_unmount, anothers)
        at.callback(_unmount, mine)
        at.callback(running.end)
        found = next(running.events())
        if not tells and not is_own:
            # Two processes have the device open, and it is not known which mount each one serves.
            assert isinstance(found, PlainMount)
            assert "may be the mount of another daemon" in found.reason
        else:
            assert isinstance(found, Daemon)
            assert found.mountpoint == str(mine)
            assert running.mounts == [found]


def test_mount_with_handlers_of_another_program_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is declared before the refusal."""

    class Taken:
        state = "attached"

        def __init__(self, _number: int) -> None:
            pass

    root = next(m for m in all_mounts() if m.mountpoint == "/")
    number = number_at("/")
    assert number is not None
    monkeypatch.setattr(run, "Connection", Taken, raising=False)
    monkeypatch.setattr(run, "accelerate", lambda *_args, **_kwargs: pytest.fail("it declares"))
    with _running("pass") as running:
        daemon = Daemon(running.process, root, number)
        with pytest.raises(MountError, match=r"another program has attached handlers .*\(EBUSY\)"):
            daemon.attach(Options())
        assert "another program" in daemon.reason


@pytest.mark.parametrize("status", [0, 7])
def test_records_of_another_user_cannot_keep_the_command_busy(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    """The daemon has ended. Each time a record is read, there is another one, up to a limit."""
    limit, sent = 50_000, 0
    nobody = struct.pack("=iII", os.getpid(), _NOBODY, _NOBODY)
    pairs = []

    def socketpair(*arguments: int) -> tuple[socket.socket, socket.socket]:
        pairs.append(real_socketpair(*arguments))
        return pairs[-1][0], pairs[-1][1].dup()

    def receive() -> bytes | None:
        nonlocal sent
        if sent < limit:
            sent += 1
            credentials = (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, nobody)
            pairs[0][1].sendmsg([b"efuse 1 /"], [credentials])
        else:
            pairs[0][1].close()
        return real_receive()

    real_socketpair = socket.socketpair
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socketpair", socketpair)
        running = Running([sys.executable, "-c", f"raise SystemExit({status})"])
    real_receive = running._receive
    monkeypatch.setattr(running, "_receive", receive)
    with contextlib.closing(running), pairs[0][1]:
        pairs[0][1].send(b"")
        assert list(running.events()) == [Ended(status)]
    assert sent < limit


# Goes into the background like python-daemon, and mounts once its parent has been reaped.
_MOUNTS_LATER = """
import os, time
parent = os.getpid()
os.closerange(3, 256)
if os.fork():
    os._exit(0)
os.setsid()
while os.path.exists(f"/proc/{parent}"):
    time.sleep(0.01)
"""


@pytest.mark.usefixtures("past_the_shim")
def test_mount_of_a_background_process_without_the_socket_is_awaited(
    place: Path,
) -> None:
    try:
        with _running(_MOUNTS_LATER + _MOUNTS + _STAYS, place, "fuse.x", adopt=True) as running:
            try:
                assert [type(event) for event in running.events()] == [PlainMount, Ended]
                assert running.plain[0].number == _number(place)
            finally:
                running.end()
    finally:
        _unmount(place)


_HAS_A_CHILD = """
import subprocess, sys
with subprocess.Popen(["sleep", "60"]) as child:
    print(flush=True)
    sys.stdin.read()
    child.kill()
    print("killed by", -child.wait())
"""


@pytest.mark.parametrize("ends", [True, False])
def test_process_with_the_reused_pid_of_the_daemon_is_left_alone(ends: bool) -> None:
    """The started process has ended and was reaped, so another process may have its id."""
    words = [sys.executable, "-c", _HAS_A_CHILD]
    with (
        _running("pass") as running,
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger,
    ):
        assert running.process.wait() == 0
        assert stranger.stdout is not None
        stranger.stdout.readline()
        running.process.pid = stranger.pid
        if ends:
            running.end()
        else:
            running.hand_on(signal.SIGTERM)
        # The signal that reached the child first has ended it: SIGKILL from the stranger itself.
        assert stranger.communicate()[0] == b"killed by 9\n"


def test_children_of_another_thread_are_not_adopted() -> None:
    """They have ended, but only that thread may take their exit statuses."""
    with _running("pass", adopt=True) as running, ThreadPoolExecutor(1) as thread:
        child = thread.submit(subprocess.Popen, ["sh", "-c", "exit 5"]).result()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert list(running.events()) == [Ended(0)]
        assert thread.submit(child.wait).result() == 5
