# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mounting and unmounting, and the failures of both."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyfuse3
import pytest
import trio

import efuse
from efuse.control import Mount, find
from efuse.control.mounts import all_mounts, number_at
from efuse.errors import MountError, NotSupportedError, UsageError
from efuse.fs import mountpoint as mountpoint_module
from efuse.fs import own_mount
from efuse.fs import session as session_module
from tests.stuck_file_system import CALLERS, end_while_stuck

_libc = ctypes.CDLL(None, use_errno=True)


def _places(place: Path) -> tuple[Path, Path]:
    source, mountpoint = place / "source", place / "mountpoint"
    source.mkdir()
    mountpoint.mkdir()
    return source, mountpoint


def test_mount_is_gone_after_its_with_block(place: Path) -> None:
    source, mountpoint = _places(place)
    with efuse.mount(efuse.Passthrough(source), mountpoint, plain=True) as mounted:
        assert (mounted.type, mounted.accelerated) == ("fuse", False)
        assert mounted.reason == "plain FUSE was requested"
        assert (mounted.channels, mounted.channels_reason) == (False, "the mount is plain FUSE")
        (mountpoint / "f").write_bytes(b"through")
        assert os.path.ismount(mountpoint)
    assert not os.path.ismount(mountpoint)
    assert (source / "f").read_bytes() == b"through"


def test_with_block_ends_without_error_after_an_unmount_from_outside(place: Path) -> None:
    """The signal that ends the serving process comes while the process ends by itself."""
    source, mountpoint = _places(place)
    for _ in range(20):
        with efuse.mount(efuse.Passthrough(source), mountpoint, plain=True):
            mountpoint_module.unmount(str(mountpoint))


@pytest.mark.parametrize("mounted_by", ["this process", "libfuse"])
@pytest.mark.parametrize("is_used", [False, True], ids=["gone", "detached"])
def test_end_keeps_a_later_mount_of_another_program(
    place: Path, mounted_by: str, is_used: bool
) -> None:
    """The later mount gets the number of the ended connection, since it is the lowest free one."""
    source, mountpoint = _places(place)
    here = str(mountpoint)
    # libfuse mounts a file system that leaves umasks to the kernel.
    own = mounted_by == "this process"
    operations = efuse.Passthrough(source) if own else efuse.Operations()
    with contextlib.ExitStack() as at_end:

        async def main() -> int | None:
            async with trio.open_nursery() as nursery:
                await nursery.start(
                    lambda **k: efuse.serve(operations, mountpoint, plain=True, **k)
                )
                ours = find(mountpoint, fuse=True).connection
                if is_used:
                    at_end.callback(os.close, os.open(mountpoint, os.O_PATH))
                mountpoint_module.unmount(here, lazy=True)
                options = mountpoint_module.MountOptions.parse([])
                theirs = mountpoint_module.mount_efuse(here, options, plain=True)
                at_end.callback(mountpoint_module.unmount, here, lazy=True)
                at_end.callback(os.close, theirs)
                assert (find(mountpoint, fuse=True).connection == ours) is not is_used
                number = number_at(here)
                nursery.cancel_scope.cancel()
            return number

        number = trio.run(main)
        assert number is not None
        assert number_at(here) == number


# The mount is removed before this process has identified it. The mount below belongs to the test,
# in a private mount namespace.
_GOES = """
import os, subprocess, sys
import pyfuse3, trio, efuse
from efuse.control.mounts import is_mounted, number_at
from efuse.errors import EfuseError
from efuse.fs import session

below, mounted_by = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "below", below], check=True)
source, mountpoint = below + "/source", below + "/mnt"
os.mkdir(source)
os.mkdir(mountpoint)
number = number_at(below)

def goes(mount):
    def mounts(*arguments, **options):
        made = mount(*arguments, **options)
        subprocess.run(["umount", "--lazy", mountpoint], check=True)
        return made
    return mounts

if mounted_by == "libfuse":
    pyfuse3.init = goes(pyfuse3.init)
    operations = efuse.Operations()
else:
    session.mount_efuse = goes(session.mount_efuse)
    operations = efuse.Passthrough(source)
try:
    trio.run(lambda: efuse.serve(operations, mountpoint, plain=True))
except EfuseError as error:
    print(type(error).__name__, error)
print(is_mounted(number) is not None, operations.efuse.mounted_connection)
"""


@pytest.mark.parametrize("mounted_by", ["this process", "libfuse"])
def test_mount_that_is_gone_before_it_is_identified_unmounts_no_other(
    place: Path, mounted_by: str
) -> None:
    words = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", _GOES]
    done = subprocess.run(
        [*words, place, mounted_by], capture_output=True, text=True, timeout=120, check=True
    )
    *errors, rest = done.stdout.splitlines()
    assert rest == "True None"
    assert errors == [
        f"MountError {place}/mnt cannot be served: it was unmounted, or aborted,"
        " as soon as it was mounted (ENOTCONN)"
    ]


def _mount_over(mountpoint: Path, device: int) -> None:
    """Mount FUSE over a mount that is not served yet, without accessing that mount."""
    options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % device
    where = os.fsencode(mountpoint)
    assert _libc.mount(b"x", where, b"fuse", ctypes.c_ulong(0), options) == 0


@pytest.mark.parametrize("tells", [True, False], ids=["7.3", "6.12"])
@pytest.mark.parametrize("kind", ["tmpfs", "fuse"])
@pytest.mark.parametrize("mounted_by", ["this process", "libfuse"])
def test_mount_covered_before_it_is_identified_is_not_mistaken(
    place: Path, monkeypatch: pytest.MonkeyPatch, mounted_by: str, kind: str, tells: bool
) -> None:
    """Linux 6.12 does not show which connection a descriptor of /dev/fuse belongs to."""
    source, mountpoint = _places(place)
    made: list[int | None] = []

    def covered(mount: Callable[..., Any]) -> Callable[..., Any]:
        def mounts(*arguments: Any, **options: Any) -> Any:
            result = mount(*arguments, **options)
            made.append(find(mountpoint, fuse=True).connection)
            if kind == "tmpfs":
                subprocess.run(["mount", "-t", "tmpfs", "x", mountpoint], check=True)
            else:
                _mount_over(mountpoint, device)
            made.append(number_at(str(mountpoint)))
            return result

        return mounts

    own = mounted_by == "this process"
    if own:
        monkeypatch.setattr(session_module, "mount_efuse", covered(session_module.mount_efuse))
    else:
        monkeypatch.setattr(pyfuse3, "init", covered(pyfuse3.init))
    if not tells:
        monkeypatch.setattr(own_mount, "_CONNECTION", re.compile("no such line"))
    operations = efuse.Passthrough(source) if own else efuse.Operations()
    known = None
    with Path("/dev/fuse").open("r+b", buffering=0) as opened:
        device = opened.fileno()

        async def main() -> None:
            nonlocal known
            async with trio.open_nursery() as nursery:
                state = await nursery.start(
                    lambda **k: efuse.serve(operations, mountpoint, plain=True, **k)
                )
                known = state.mounted_connection
                nursery.cancel_scope.cancel()

        try:
            trio.run(main)
            # On 6.12, two new FUSE mounts at one place cannot be told apart.
            assert known == (made[0] if tells or kind == "tmpfs" else None)
            assert number_at(str(mountpoint)) == made[1]
        finally:
            for _ in range(sum(m.mountpoint == str(mountpoint) for m in all_mounts())):
                mountpoint_module.unmount(str(mountpoint), lazy=True)


_READ_FAILED = "fuse_session_receive_buf failed"


@pytest.mark.parametrize("code", [errno.ECONNABORTED, errno.EIO])
def test_only_an_unmount_during_a_read_ends_without_error(
    place: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """The race lasts only a few instructions in the kernel, so the test fakes libfuse's answer."""

    async def main() -> None:
        raise ExceptionGroup("pyfuse3's nursery", [OSError(code, _READ_FAILED)])

    monkeypatch.setattr(pyfuse3, "main", main)
    source, mountpoint = _places(place)
    ends_well = contextlib.nullcontext()
    fails = pytest.raises(MountError, match="ended with 1")
    with (
        ends_well if code == errno.ECONNABORTED else fails,
        efuse.mount(efuse.Passthrough(source), mountpoint, plain=True) as mounted,
    ):
        os.waitid(os.P_PID, mounted.pid, os.WEXITED | os.WNOWAIT)
    assert not os.path.ismount(mountpoint)


def test_two_mounts_are_served_by_two_processes(place: Path) -> None:
    source, mountpoint = _places(place)
    second = place / "second"
    second.mkdir()
    with (
        efuse.mount(efuse.Passthrough(source), mountpoint),
        efuse.mount(efuse.Passthrough(source), second),
    ):
        (mountpoint / "f").write_bytes(b"x")
        assert (second / "f").read_bytes() == b"x"


def test_with_block_that_raises_is_unmounted(place: Path) -> None:
    source, mountpoint = _places(place)
    with pytest.raises(KeyError), efuse.mount(efuse.Passthrough(source), mountpoint):
        raise KeyError
    assert not os.path.ismount(mountpoint)


def test_mount_on_a_missing_directory_fails(place: Path) -> None:
    with (
        pytest.raises(MountError, match="not a directory"),
        efuse.mount(efuse.Passthrough(place), place / "none"),
    ):
        pytest.fail("it was mounted")


_SERVE_ON_PROC = """
import sys, trio, efuse
from efuse.errors import MountError
try:
    trio.run(lambda: efuse.serve(efuse.Passthrough("/usr"), sys.argv[1], plain=True))
except MountError as error:
    print(error)
"""


@pytest.mark.parametrize("target", ["/proc", "/proc/sys", "/proc/self/../self/fdinfo"])
def test_mount_on_proc_fails(target: str) -> None:
    """The daemon reads /proc/self, where it would wait for itself."""
    words = ["unshare", "-m", "--propagation", "private", sys.executable, "-c", _SERVE_ON_PROC]
    # The time limit ends a daemon that waits for itself.
    ended = subprocess.run([*words, target], capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout == f"{target} cannot be mounted on: this process reads /proc (EBUSY)\n"


_FAILING = """
import linecache, efuse
assert linecache.getlines(__file__)  # the traceback module would check whether they are outdated
class Failing(efuse.Operations):
    async def getattr(self, inode, ctx):
        try:
            {}["cause"]
        except KeyError as error:
            raise ValueError("a mistake") from error
"""
_SERVE_FAILING = """
import sys
sys.path.insert(0, sys.argv[1])
import trio, efuse, failing
trio.run(lambda: efuse.serve(failing.Failing(), sys.argv[1], plain=True))
"""


def test_traceback_of_a_handler_whose_source_is_below_the_mount_is_logged(
    place: Path, eventually: Callable[..., Any]
) -> None:
    """The daemon would wait for itself if it read the lines of the source."""
    mountpoint = place / "mnt"
    mountpoint.mkdir()
    (mountpoint / "failing.py").write_text(_FAILING)
    with subprocess.Popen(
        [sys.executable, "-c", _SERVE_FAILING, mountpoint], stderr=subprocess.PIPE, text=True
    ) as daemon:
        try:
            eventually(
                lambda: any(m.mountpoint == str(mountpoint) for m in all_mounts()), what="the mount"
            )
            with subprocess.Popen(
                ["stat", mountpoint], stderr=subprocess.PIPE, text=True, env={"LC_ALL": "C"}
            ) as asking:
                try:
                    # The time limit ends a daemon that waits for itself.
                    _, printed = asking.communicate(timeout=30)
                finally:
                    daemon.kill()
        finally:
            daemon.kill()
            mountpoint_module.unmount(str(mountpoint), lazy=True)
        assert printed.endswith("Input/output error\n")
        _, logged = daemon.communicate()
    assert "getattr failed: ValueError: a mistake (EIO to the caller)" in logged
    for line in (7, 9):
        assert f'File "{mountpoint}/failing.py", line {line}, in getattr\n' in logged
    assert "KeyError: 'cause'\n" in logged
    assert "The above exception was the direct cause of the following exception" in logged


def test_passthrough_of_a_missing_directory_fails(place: Path) -> None:
    with pytest.raises(MountError, match=r"cannot be passed through: .*ENOENT"):
        efuse.Passthrough(place / "none")


def test_passthrough_with_a_negative_timeout_fails(place: Path) -> None:
    with pytest.raises(UsageError, match="entry_timeout"):
        efuse.Passthrough(place, entry_timeout=-1)


def test_unknown_mount_option_fails(place: Path) -> None:
    source, mountpoint = _places(place)
    with (
        pytest.raises(MountError),
        efuse.mount(efuse.Passthrough(source), mountpoint, ("no_such_option",), plain=True),
    ):
        pytest.fail("it was mounted")
    assert not os.path.ismount(mountpoint)


def test_required_acceleration_without_efuse_fails(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mountpoint_module, "DEVICE", place / "none")
    source, mountpoint = _places(place)
    with (
        pytest.raises(NotSupportedError, match="module is not loaded"),
        efuse.mount(efuse.Passthrough(source), mountpoint, required=True),
    ):
        pytest.fail("it was mounted")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_unmounts_after_writing_back_all_data(served: Any, number: int) -> None:
    mounted = served(arguments={"writeback": True})
    fd = os.open(mounted.path / "f", os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"x" * 100_000)
    os.close(fd)
    mounted.process.send_signal(number)
    mounted.ended()
    assert not os.path.ismount(mounted.path)
    assert (mounted.source / "f").read_bytes() == b"x" * 100_000


def test_signal_detaches_a_mount_in_use(served: Any) -> None:
    mounted = served()
    fd = os.open(mounted.path / "f", os.O_WRONLY | os.O_CREAT)
    mounted.process.send_signal(signal.SIGTERM)
    mounted.ended()
    assert not os.path.ismount(mounted.path)
    with pytest.raises(OSError):
        os.write(fd, b"x")
    with pytest.raises(OSError):
        os.close(fd)


def test_unmount_from_outside_ends_the_daemon_without_error(served: Any) -> None:
    mounted = served()
    (mounted.path / "f").touch()
    assert mounted.unmount()["logged"] == []


SERVE_TWICE = """
import sys, trio, efuse
from efuse.errors import MountError
async def main():
    async with trio.open_nursery() as nursery:
        state = await nursery.start(efuse.serve, efuse.Passthrough(sys.argv[1]), sys.argv[2])
        try:
            await efuse.serve(efuse.Passthrough(sys.argv[1]), sys.argv[3])
        except MountError as error:
            print(error)
        nursery.cancel_scope.cancel()
    print(state.mounted_type, state.reason)
trio.run(main)
"""


def test_second_file_system_in_one_process_fails_and_cancelling_unmounts(place: Path) -> None:
    source, mountpoint = _places(place)
    done = subprocess.run(
        [sys.executable, "-c", SERVE_TWICE, source, mountpoint, place],
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("a second file system cannot be served by one process")
    assert lines[1] == "None it is not mounted"
    assert not os.path.ismount(mountpoint)


def test_serve_on_a_missing_directory_fails_and_can_be_tried_again(place: Path) -> None:
    operations = efuse.Passthrough(place)
    for _ in range(2):
        with pytest.raises(MountError, match="not a directory"):
            trio.run(efuse.serve, operations, place / "none")
    operations.close()


def test_mount_of_plain_fuse_ends_with_its_daemon(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, mountpoint = _places(place)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            serve = functools.partial(efuse.serve, recovery=60)
            await nursery.start(serve, efuse.Passthrough(source), mountpoint)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert f"{mountpoint} ends with its daemon: it mounts plain FUSE" in caplog.messages


def test_umask_of_the_serving_process_stays_unchanged(place: Path) -> None:
    """Files that are made through the mount get the caller's umask."""
    source, mountpoint = _places(place)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(
                lambda **k: efuse.serve(efuse.Passthrough(source), mountpoint, plain=True, **k)
            )
            script = 'umask 002; cd "$0" && mkdir d && mknod p p && >f'
            await trio.run_process(["sh", "-c", script, str(mountpoint)])
            assert os.umask(0o027) == 0o027
            nursery.cancel_scope.cancel()

    before = os.umask(0o027)
    try:
        trio.run(main)
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in source.iterdir()}
    assert modes == {"d": 0o775, "p": 0o664, "f": 0o664}


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("handler", list(CALLERS))
def test_signal_ends_a_mount_whose_handler_does_not_return(
    place: Path, handler: str, signals: int
) -> None:
    _, mountpoint = _places(place)
    assert end_while_stuck(mountpoint, handler, signals, "plain") == "fuse None False"


# A file system whose handlers fork. The name that is looked up tells how the new process ends.
_FORKS = """
import errno, os, signal, stat, sys, time
import pyfuse3, trio, efuse

class Forks(efuse.Operations):
    async def getattr(self, inode, ctx=None):
        found = pyfuse3.EntryAttributes()
        found.st_ino, found.st_nlink, found.st_mode = inode, 1, stat.S_IFDIR | 0o755
        return found
    async def lookup(self, parent, name, ctx):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(writing, b"x")  # Python forgets signals that come before it has forked
            if name == b"exits":
                sys.exit(0)
            if name == b"raises":
                raise RuntimeError
            if name == b"waits":
                while True:
                    time.sleep(1000)
            return await self.getattr(2)
        os.read(reading, 1)
        os.close(reading)
        os.close(writing)
        if name == b"waits":
            os.kill(child, signal.SIGTERM)
        _, status = os.waitpid(child, 0)
        found = await self.getattr(2)
        found.st_size = os.waitstatus_to_exitcode(status) % 256
        return found

trio.run(lambda: efuse.serve(Forks(), sys.argv[1], plain=True))
"""


@pytest.mark.parametrize(
    ("name", "status"), [("exits", 0), ("raises", 1), ("returns", 1), ("waits", 256 - 15)]
)
def test_process_that_a_handler_forks_neither_serves_nor_unmounts(
    place: Path, eventually: Any, name: str, status: int
) -> None:
    _, mountpoint = _places(place)
    words = [sys.executable, "-c", _FORKS, str(mountpoint)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as daemon:
        try:
            eventually(lambda: os.path.ismount(mountpoint) or daemon.poll() is not None)
            looks = "import os, sys; print(os.stat(sys.argv[1]).st_size)"
            for _ in range(2):
                words = [sys.executable, "-c", looks, str(mountpoint / name)]
                printed = subprocess.check_output(words, text=True, timeout=30)
                assert int(printed) == status
            daemon.send_signal(signal.SIGTERM)
            _, logged = daemon.communicate(timeout=60)
        finally:
            daemon.kill()
            _libc.umount2(os.fsencode(mountpoint), 2)
    assert daemon.returncode == 0
    assert ("a process that lookup has forked is ended" in logged) == (status == 1)


_LEAVES_THE_BLOCK = """
import os, sys
import efuse
with efuse.mount(efuse.Passthrough(sys.argv[1]), sys.argv[2], plain=True):
    child = os.fork()
    if child == 0:
        sys.exit(5)
    status = os.waitpid(child, 0)[1]
    print(os.waitstatus_to_exitcode(status), os.path.ismount(sys.argv[2]))
"""


def test_forked_process_may_leave_the_with_block(place: Path) -> None:
    source, mountpoint = _places(place)
    words = [sys.executable, "-c", _LEAVES_THE_BLOCK, source, mountpoint]
    printed = subprocess.check_output(words, text=True, timeout=60)
    assert printed == "5 True\n"
    assert not os.path.ismount(mountpoint)


_ENDING = """
import os, signal, sys, time
import trio
from efuse.fs.ending import Ending

def fails():
    raise RuntimeError("no such connection")

async def main():
    with Ending(fails):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        while True:
            time.sleep(1000)

trio.run(main)
"""


def test_process_ends_even_if_its_mount_cannot_be_aborted() -> None:
    done = subprocess.run([sys.executable, "-c", _ENDING], capture_output=True, timeout=120)
    assert done.returncode == 128 + signal.SIGTERM


@pytest.fixture
def on_the_way(place: Path) -> Iterator[Path]:
    """``place/fuse/link``: a symbolic link on a FUSE mount, which leads to a directory."""
    for name in ("below", "fuse", "real"):
        (place / name).mkdir()
    (place / "below" / "link").symlink_to(place / "real")
    subprocess.run(["bindfs", place / "below", place / "fuse"], check=True)
    yield place / "fuse" / "link"
    subprocess.run(["umount", "--lazy", place / "fuse"], check=True)


def _row(mountpoint: Path) -> Mount:
    return next(m for m in all_mounts() if m.mountpoint == str(mountpoint))


@pytest.mark.parametrize("mounted_by", ["this process", "libfuse"])
def test_mount_below_another_fuse_mount_is_distinguished_from_it(
    place: Path, on_the_way: Path, mounted_by: str
) -> None:
    """Attaching, aborting, and leaving out of listings must affect its own connection."""
    own = mounted_by == "this process"
    real = place / "real"
    (real / "mnt").mkdir()
    operations = efuse.Passthrough(real) if own else efuse.Operations()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            state = await nursery.start(
                lambda **k: efuse.serve(operations, on_the_way / "mnt", plain=True, **k)
            )
            assert state.mounted_connection == _row(real / "mnt").connection
            assert state.mounted_connection != _row(place / "fuse").connection
            if own:
                listing = await trio.to_thread.run_sync(os.listdir, real / "mnt")
                assert listing == []
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert operations.efuse.mounted_connection is None
    assert not os.path.ismount(real / "mnt")
    assert os.listdir(place / "fuse") == ["link"]


@pytest.mark.parametrize("mounted_by", ["this process", "libfuse"])
def test_mount_is_unmounted_after_a_directory_above_it_was_renamed(
    place: Path, mounted_by: str
) -> None:
    own = mounted_by == "this process"
    source, above = place / "source", place / "above"
    source.mkdir()
    (above / "mnt").mkdir(parents=True)
    operations = efuse.Passthrough(source) if own else efuse.Operations()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(lambda **k: efuse.serve(operations, above / "mnt", plain=True, **k))
            above.rename(place / "renamed")
            (above / "mnt").mkdir(parents=True)
            _row(place / "renamed" / "mnt")
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert [m for m in all_mounts() if m.mountpoint.startswith(str(place))] == []


# A user who mounts by fusermount3 may rename a directory above the mount, and may mount something
# else at the old path.
_OF_A_USER = """
import ctypes, os, subprocess, sys
import pyfuse3, trio, efuse
from efuse.control.mounts import mounts

place, change = sys.argv[1:3]
is_used, is_dumpable = (word == "True" for word in sys.argv[3:])
above, renamed = f"{place}/above", f"{place}/renamed"
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
# As a program that the user has started is: /proc/self is its own.
ctypes.CDLL(None).prctl(4, ctypes.c_ulong(is_dumpable))

async def main():
    async with trio.open_nursery() as nursery:
        await nursery.start(lambda **k: efuse.serve(efuse.Operations(), above + "/mnt", (), **k))
        if change != "none":
            os.rename(above, renamed)
            os.makedirs(above + "/mnt")
        if change == "another":
            subprocess.run(["bindfs", "--no-allow-other", place, above + "/mnt"], check=True)
        if is_used:
            os.open((above if change == "none" else renamed) + "/mnt", os.O_PATH)
        nursery.cancel_scope.cancel()

trio.run(main)
print(sorted(m.mountpoint for m in mounts(fuse=True) if m.mountpoint.startswith(place)))
"""


@pytest.mark.parametrize("is_dumpable", [True, False])
@pytest.mark.parametrize("is_used", [True, False])
@pytest.mark.parametrize("change", ["none", "renamed", "another"])
def test_mount_of_a_user_is_unmounted_after_a_directory_above_it_was_renamed(
    place: Path, change: str, is_used: bool, is_dumpable: bool
) -> None:
    (place / "above" / "mnt").mkdir(parents=True)
    for directory in (place, place / "above", place / "above" / "mnt"):
        os.chown(directory, 65534, 65534)
    words = [sys.executable, "-c", _OF_A_USER, place, change, str(is_used), str(is_dumpable)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == repr([f"{place}/above/mnt"] if change == "another" else [])
    finally:
        for row in all_mounts():
            if row.mountpoint.startswith(f"{place}/"):
                mountpoint_module.unmount(row.mountpoint, lazy=True)


def test_promises_of_a_source_below_a_fuse_mount_depend_on_the_source_alone(
    place: Path, on_the_way: Path
) -> None:
    """The promises depend on the mounts below the source, not on the mount on the way to it."""
    inner = place / "real" / "inner"
    inner.mkdir()
    before = efuse.Passthrough(on_the_way)
    assert before.efuse_options.nodeid_per_file
    subprocess.run(["bindfs", place / "below", inner], check=True)
    try:
        after = efuse.Passthrough(on_the_way)
        assert not after.efuse_options.nodeid_per_file
        after.close()
    finally:
        subprocess.run(["umount", "--lazy", inner], check=True)
        before.close()
