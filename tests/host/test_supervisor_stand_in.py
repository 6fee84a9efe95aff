# SPDX-License-Identifier: LGPL-2.1-or-later
"""The supervisor of `efuse run` with plain FUSE in place of eFuse, so that mounts succeed.

Handlers are not attached. Another device node of /dev/fuse stands for /dev/efuse.
"""

from __future__ import annotations

import errno
import io
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

from efuse.cli import run
from efuse.control.mounts import mounts
from efuse.fs.acceleration import Acceleration
from efuse.supervisor import errands, hiding
from efuse.supervisor import running as supervisor
from efuse.supervisor.admission import Owner
from efuse.supervisor.daemon_mount import DaemonMount
from efuse.supervisor.errands import Errands
from efuse.supervisor.notifications import Notification
from efuse.supervisor.running import Ended
from efuse.supervisor.spawner import Spawner
from efuse.supervisor.unmounting import Unmounting
from efuse.supervisor.worker import Worker
from tests.stand_in import scripted

_ENOUGH_S = 30
_INIT = hiding.Needed.__init__


def _status(script: str, *words: object, **more: Any) -> int:
    """Run a daemon to its end, and return its exit status."""
    with scripted(script, *words, **more) as running:
        *_, end = running.events()
        assert isinstance(end, Ended)
        return end.status


_CLONES = """
fd, served = opened(), opened()
assert mount(sys.argv[1], served) == 0
assert clone(fd, struct.pack("=I", served)) == 0
os.set_blocking(fd, False)
assert struct.unpack_from("=II", os.read(fd, 1 << 17))[1] == 26  # INIT, read by the clone
assert clone(fd, struct.pack("=I", served)) == errno.EINVAL  # it serves already
libc.umount2(os.fsencode(sys.argv[1]), 2)
"""


def test_clone_serves_the_mount(stand_in: Path) -> None:
    (stand_in / "mnt").mkdir()
    assert _status(_CLONES, stand_in / "mnt") == 0


_CLONE_FAILS = """
ours = os.open(sys.argv[1], os.O_RDWR)
user()
fd = opened()
before = os.fstat(fd)
assert clone(fd, struct.pack("=I", ours)) != 0  # it serves no mount
number, end = (ctypes.c_int * 1)(ours), time.monotonic() + float(sys.argv[2])
def flip():
    while time.monotonic() < end:
        number[0] = -1
        number[0] = ours
threading.Thread(target=flip).start()
while time.monotonic() < end:
    clone(fd, number)
assert os.path.samestat(os.fstat(fd), before)
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_clone_that_fails_gives_no_device(stand_in: Path) -> None:
    """The device is one that the user may not open. The caller changes what it has said."""
    assert _status(_CLONE_FAILS, stand_in / "efuse", 2) == 0


_DUPLICATES = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[2]) + 100,) * 2)
fd = opened()
for _ in range(int(sys.argv[2])):
    os.dup(fd)
number = mount(sys.argv[1], fd)
assert number == 0 or sys.exit(number)
libc.umount2(os.fsencode(sys.argv[1]), 2)
"""


def test_mount_with_very_many_duplicates_is_plain(stand_in: Path) -> None:
    (stand_in / "mnt").mkdir()
    with scripted(_DUPLICATES, stand_in / "mnt", 400) as running:
        first, *_, end = running.events()
        assert isinstance(first, DaemonMount)
        assert first.reason.startswith("the daemon has more than 253 descriptors")
        assert end == Ended(0)


_MOUNTS = """
number = mount(sys.argv[1], opened())
libc.umount2(os.fsencode(sys.argv[1]), 2)
sys.exit(number)
"""


@pytest.mark.parametrize("at", ["_advance", "_answer_mount", "_make"])
def test_fault_with_a_call_fails_this_call_alone(
    at: str, stand_in: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise IndexError("a fault")

    (stand_in / "mnt").mkdir()
    monkeypatch.setattr(Errands, at, fails)
    assert _status(_MOUNTS, stand_in / "mnt") == errno.EIO
    assert "IndexError: a fault" in caplog.text


_TRIES = """
user()
fd = opened()
assert clone(fd, struct.pack("=I", opened())) in (errno.EINVAL, errno.EPERM)
assert libc.syscall(ctypes.c_long(430), b"fuse", 0) == -1 and ctypes.get_errno() == errno.EPERM
assert mount("/", fd) == errno.EPERM
assert libc.umount2(b"/", 2) == -1 and ctypes.get_errno() == errno.EPERM
"""


@pytest.mark.parametrize("recovery_s", [0, 60])
def test_user_without_the_right_to_mount_causes_no_process(
    recovery_s: int, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object) -> None:
        raise AssertionError("a process")

    monkeypatch.setattr(Spawner, "start", start)
    assert _status(_TRIES, recovery_s=recovery_s) == 0


class _Full(io.StringIO):
    def write(self, _: str) -> int:
        raise OSError(errno.ENOSPC, "no space is left")


def test_mount_goes_on_if_nothing_can_be_printed(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in ``efuse run ... 2>&1 | head -1``, and with a log file on a full disk."""
    (stand_in / "mnt").mkdir()
    monkeypatch.setattr(sys, "stderr", _Full())
    with scripted(_MOUNTS, stand_in / "mnt") as running:
        assert run._attend(running, require=False) == 0


_MOUNTS_AS_USER = """
import socket, subprocess
os.chown(sys.argv[1], 65534, 65534)
user()
receives, sends = socket.socketpair()
os.set_inheritable(sends.fileno(), True)
environment = {**os.environ, "_FUSE_COMMFD": str(sends.fileno())}
words = ["fusermount3", "--", sys.argv[1]]
subprocess.run(words, env=environment, close_fds=False, check=True)
device = socket.recv_fds(receives, 1, 1)[1]
time.sleep(600)
"""


def test_mount_of_a_user_is_unmounted(stand_in: Path) -> None:
    """FUSE does not let root look at it. So it is known by its connection."""
    (stand_in / "mnt").mkdir()
    with scripted(_MOUNTS_AS_USER, stand_in / "mnt") as running:
        mount = next(running.events())
        assert isinstance(mount, DaemonMount)
        assert mount.by_user
        assert str(stand_in / "mnt") in [each.mountpoint for each in mounts(fuse=True)]
        running.end()
    assert str(stand_in / "mnt") not in [each.mountpoint for each in mounts(fuse=True)]


# A file system with one file. For twenty seconds it answers all requests but FLUSH.
_ON_A_FILE = """
def serve(device):
    import signal
    signal.alarm(20)
    attributes = lambda node, mode: struct.pack("=QQQQQQ10I", node, *[0] * 8, mode, 1, *[0] * 5)
    while True:
        data = os.read(device, 1 << 17)
        _, opcode, unique, node = struct.unpack_from("=IIQQ", data)
        found = attributes(1, 0o40755) if node == 1 else attributes(2, 0o100644)
        answers = {
            1: struct.pack("=QQQQII", 2, *[0] * 5) + attributes(2, 0o100644),  # LOOKUP
            3: struct.pack("=QII", 0, 0, 0) + found,  # GETATTR
            14: struct.pack("=QII", 1, 0, 0),  # OPEN
            26: struct.pack("=IIIIHHII", 7, 31, 4096, 0, 12, 12, 4096, 1).ljust(64, b"\\0"),
        }
        if opcode in (2, 25, 42):  # FORGET, FLUSH, BATCH_FORGET
            continue
        answer, number = answers.get(opcode, b""), 0 if opcode in answers else -errno.ENOSYS
        os.write(device, struct.pack("=IiQ", 16 + len(answer), number, unique) + answer)
device = opened()
assert mount(sys.argv[1], device) == 0
serving = os.fork()
if serving == 0:
    serve(device)
os.close(device)
file, began = os.open(sys.argv[1] + "/f", os.O_WRONLY), time.monotonic()
options = b"fd=%d,rootmode=100000,user_id=0,group_id=0" % opened()
assert libc.mount(b"x", b"/proc/self/fd/%d" % file, b"fuse.x", ctypes.c_ulong(0), options) == 0
assert time.monotonic() - began < 15
os.kill(serving, 9)
"""


def test_mount_on_an_open_file_does_not_wait_for_its_daemon(stand_in: Path) -> None:
    """As `fusermount3` mounts on a file. To close a duplicate would be to wait (FUSE_FLUSH)."""
    (stand_in / "mnt").mkdir()
    assert _status(_ON_A_FILE, stand_in / "mnt") == 0


# It answers INIT, and reads all other requests without answering them.
_HANGS = """
fd = opened()
assert mount(sys.argv[1], fd) == 0
def serve():
    while True:
        _, opcode, unique = struct.unpack_from("=IIQ", os.read(fd, 1 << 17))
        if opcode == 26:
            told = struct.pack("=IIIIHHII", 7, 31, 4096, 0, 12, 12, 4096, 1).ljust(64, b"\\0")
            os.write(fd, struct.pack("=IiQ", 80, 0, unique) + told)
threading.Thread(target=serve, daemon=True).start()
threading.Thread(target=lambda: mount(sys.argv[1] + "/below", opened()), daemon=True).start()
time.sleep(2)
number = mount(sys.argv[2], opened(), 1 << 16)  # a flag that eFuse does not pass on
assert number == errno.EPERM, number
time.sleep(600)
"""


def test_end_does_not_wait_for_a_daemon_that_hangs(stand_in: Path) -> None:
    for name in ("one", "two"):
        (stand_in / name).mkdir()
    with scripted(_HANGS, stand_in / "one", stand_in / "two", require=True) as running:
        for event in running.events():
            assert isinstance(event, DaemonMount)
            if not event.connection:
                break
        began = time.monotonic()
        running.end()
        assert time.monotonic() - began < _ENOUGH_S
    assert str(stand_in / "one") not in [each.mountpoint for each in mounts(fuse=True)]


def test_thread_that_attends_to_a_daemon_and_fails_leaves_no_call_waiting(stand_in: Path) -> None:
    with scripted("sys.exit(mount(sys.argv[1], opened()))", stand_in) as daemon:
        daemon.more = _fails  # type: ignore[method-assign]
        with pytest.raises(IndexError):
            supervisor._attend(daemon)
        assert daemon.process.wait(_ENOUGH_S) == errno.ENOSYS


def _fails(*_: object) -> Iterator[DaemonMount]:
    raise IndexError("a fault")


def test_one_thread_closes_while_no_other_looks(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that closes a descriptor of a process while another polls would close it twice."""
    owned: list[bool] = []
    with scripted("time.sleep(600)") as daemon:
        lock: Any = daemon._errands._lock

        def looked(_: Unmounting) -> list[int]:
            owned.append(lock._is_owned())
            return []

        monkeypatch.setattr(Unmounting, "fds", property(looked))
        monkeypatch.setattr(Unmounting, "close", looked)
        daemon._errands.await_unmounts(1)
        daemon.close()
        daemon.process.kill()
        daemon.process.wait(_ENOUGH_S)
    assert owned == [True, True]


def _waits(_: socket.socket) -> None:
    signal.pause()


def test_processes_that_cannot_be_killed_are_awaited_together(
    stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def awaited(_: Worker, most_s: float) -> bool:
        time.sleep(most_s)
        return False

    monkeypatch.setattr(errands, "_END_S", 1.0)
    monkeypatch.setattr(Worker, "await_end", awaited)
    with scripted("time.sleep(600)") as daemon:
        under_way = daemon._errands
        for number in range(4):
            call = Notification(number, 0, "mount", (0,) * 6)
            errand = errands._Errand(call, Owner(1, 0), under_way._spawner.start(_waits))
            errand.mount = DaemonMount("/")
            under_way._errands.append(errand)
        began = time.monotonic()
        under_way.end_all()
        assert time.monotonic() - began < 3
        daemon.process.kill()
        daemon.process.wait(_ENOUGH_S)


_PROBES = (
    """
assert libc.syscall(ctypes.c_long(446), -1, 0) == -1
"""
    + _MOUNTS
)


def test_probe_for_landlock_confines_no_process(stand_in: Path) -> None:
    (stand_in / "mnt").mkdir()
    with scripted(_PROBES, stand_in / "mnt") as running:
        mount, _ = running.events()
        assert isinstance(mount, DaemonMount)
        assert mount.accelerated or not mount.reason or "detached" in mount.reason


_USER_CONFINES_ITSELF = """
confining = os.fork()
if confining == 0:
    user()
    libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    libc.syscall(ctypes.c_long(446), 0, 0)
    os._exit(0)
os.waitpid(confining, 0)
receives, sends = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:  # in the background, so that nothing tells below which process it is
        while os.getppid() != int(sys.argv[2]):
            time.sleep(0.01)
        number = mount(sys.argv[1], opened())
        libc.umount2(os.fsencode(sys.argv[1]), 2)
        os.write(sends, bytes([number]))
    os._exit(0)
sys.exit(os.read(receives, 1)[0])
"""


def test_confined_user_has_no_effect_on_others(stand_in: Path) -> None:
    (stand_in / "mnt").mkdir()
    with scripted(_USER_CONFINES_ITSELF, stand_in / "mnt", os.getpid(), adopt=True) as running:
        mount, end = running.events()
        assert isinstance(mount, DaemonMount)
        assert "Landlock" not in mount.reason
        assert end == Ended(0)


_MOUNTS_ELSEWHERE = """
if sys.argv[2] == "namespace":
    assert libc.unshare(0x20000) == 0
number = mount(sys.argv[1], opened())
libc.umount2(os.fsencode(sys.argv[1]), 2)
sys.exit(number)
"""


@pytest.mark.parametrize("way", ["path", "namespace", "same", "private"])
def test_mount_that_is_propagated_hides_nothing(
    way: str, stand_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would appear where the supervisor looks, although it is made elsewhere."""
    at, other = stand_in / "at", stand_in / "other"
    for directory in (at, other, at / "needed"):
        directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "x", at], check=True)
    (at / "needed").mkdir()
    propagation = "private" if way == "private" else "shared"
    subprocess.run(["mount", f"--make-{propagation}", at], check=True)
    subprocess.run(["mount", "--bind", at, other], check=True)
    needed = at / "needed"
    monkeypatch.setattr(hiding.Needed, "__init__", partialmethod(_INIT, (str(needed / "x"),)))
    target = other / "needed" if way in ("path", "private") else needed
    with scripted(_MOUNTS_ELSEWHERE, target, way) as running:
        mount, end = running.events()
        assert isinstance(mount, DaemonMount)
        assert ("would hide" in mount.reason) == (way != "private")
        assert end == Ended(0 if way == "private" else errno.EBUSY)


# As automount(8): a process looks at a directory, and waits until the daemon has mounted there.
_SERVES_AUTOMOUNTS = """
import signal
signal.alarm(20)
os.setpgid(0, 0)
receives, sends = os.pipe()
options = b"fd=%d,pgrp=%d,minproto=5,maxproto=5,indirect" % (sends, os.getpgrp())
autofs = os.fsencode(sys.argv[1])
assert libc.mount(b"x", autofs, b"autofs", ctypes.c_ulong(0), options) == 0
directory = os.open(autofs, os.O_RDONLY)
if os.fork() == 0:
    signal.alarm(30)
    os.setpgid(0, 0)
    os.stat(sys.argv[1] + "/x")
    os._exit(0)
_, _, token, _ = struct.unpack_from("=iiiI", os.read(receives, 304))
os.mkdir(sys.argv[1] + "/x")
number = mount(sys.argv[1] + "/x", opened())
fcntl.ioctl(directory, 0x9360, token)  # AUTOFS_IOC_READY
sys.exit(number)
"""


@pytest.mark.skipif(
    "\tautofs\n" not in Path("/proc/filesystems").read_text(), reason="the kernel has no autofs"
)
def test_mount_by_the_daemon_of_autofs_is_plain(stand_in: Path) -> None:
    """Any other process would wait for the mount that it is to make."""
    (stand_in / "auto").mkdir()
    with scripted(_SERVES_AUTOMOUNTS, stand_in / "auto") as running:
        mount, end = running.events()
        assert end == Ended(0)
        assert isinstance(mount, DaemonMount)
        assert "serves a mount of autofs" in mount.reason


# A thread uses the number of a duplicate for another file while the mount is being made.
_USES_A_NUMBER_AGAIN = """
fd = opened()
duplicate = os.dup(fd)
def use():
    while not os.path.exists(sys.argv[2] + "/begun"):
        time.sleep(0.01)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, duplicate)
    open(sys.argv[2] + "/used", "w").close()
threading.Thread(target=use, daemon=True).start()
assert mount(sys.argv[1], fd) == 0
libc.umount2(os.fsencode(sys.argv[1]), 2)
assert os.path.samestat(os.fstat(duplicate), os.stat("/dev/null"))
"""


def test_only_the_device_is_replaced(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (stand_in / "mnt").mkdir()
    begin = DaemonMount.begin

    def slowly(self: DaemonMount, connection: int, attach: Callable[[int], Acceleration]) -> None:
        (stand_in / "begun").touch()
        until = time.monotonic() + _ENOUGH_S
        while not (stand_in / "used").exists() and time.monotonic() < until:
            time.sleep(0.01)
        begin(self, connection, attach)

    monkeypatch.setattr(DaemonMount, "begin", slowly)
    assert _status(_USES_A_NUMBER_AGAIN, stand_in / "mnt", stand_in) == 0


_MOUNTS_BELOW_DESCRIPTOR = """
os.dup2(os.open(sys.argv[1], os.O_PATH), 300)
number = mount("/proc/self/fd/300/mnt", opened())
libc.umount2(os.fsencode(sys.argv[1] + "/mnt"), 2)
sys.exit(number)
"""


def test_path_below_a_descriptor_of_the_caller_is_left_to_the_kernel(stand_in: Path) -> None:
    (stand_in / "mnt").mkdir()
    with scripted(_MOUNTS_BELOW_DESCRIPTOR, stand_in) as running:
        mount, end = running.events()
        assert isinstance(mount, DaemonMount)
        assert "leads through a link of /proc" in mount.reason
        assert end == Ended(0)


_CONFIGURES = """
fd = opened()
def configure(context, key, value=None, command=1, aux=0):
    done = libc.syscall(ctypes.c_long(431), context, command, key, value, aux)
    return ctypes.get_errno() if done else 0
import select
if sys.argv[2] == "before":
    watch = select.epoll()
    watch.register(fd)
context = libc.syscall(ctypes.c_long(430), b"fuse", 0)
if sys.argv[2] == "after":
    watch = select.epoll()
    watch.register(fd)
for key, value in ((b"rootmode", b"40000"), (b"user_id", b"0"), (b"group_id", b"0")):
    assert configure(context, key, value) == 0
number = configure(context, b"fd", b"%d" % fd)
print(os.fstat(fd).st_dev == os.stat("/dev/fuse").st_dev, flush=True)
if number:
    sys.exit(number)
assert configure(context, None, None, 6) == 0
"""


@pytest.mark.parametrize(
    ("watches", "status", "reason"),
    [
        ("never", 0, ""),
        ("before", 0, "the daemon watches /dev/fuse by epoll(7) before it mounts"),
        ("after", errno.EPERM, "the daemon watches /dev/fuse by epoll(7) before it mounts"),
    ],
)
def test_context_gets_a_device_of_its_type(
    watches: str, status: int, reason: str, stand_in: Path
) -> None:
    """It is plain from the beginning if that can be known, and otherwise the call fails."""
    with scripted(_CONFIGURES, stand_in, watches) as running:
        *found, end = running.events()
        assert [each.reason for each in found if isinstance(each, DaemonMount)] == (
            [reason] if reason else []
        )
        assert isinstance(end, Ended)
        assert end.status == (status or 0)
