# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mounts whose daemon a test can stop at any point, and calls that run during a test.

    with mounted(mountpoint, consistency="exclusive") as m:
        m.model.create("file", b"data")
        m.hold("getattr", "after")
        call = Call(force_stat, m / "file")
        m.wait_held()
        ...
        m.release()
        assert call.result().st_size == 4

When a mount ends, it has been checked that the kernel forgot each lookup exactly once, and that it
released only handles that the daemon had opened.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import multiprocessing
import os
import pickle
import select
import signal
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from efuse import bpf
from efuse.control import Connection
from efuse.fs.mountpoint import DEVICE, MountOptions, mount_efuse, unmount
from tests.guest.support.scripted_daemon import Options, ScriptedDaemon, State
from tests.guest.support.wire import STATX_BASIC_STATS, STATX_BTIME

T = TypeVar("T")

DEADLINE_S = 180.0
_MS_REMOUNT = 32
_SYS_PIDFD_GETFD = 438
# Few entries: creating and freeing maps of the default size takes much of the time of an attach.
_CAPACITY = {"entries": 4096, "attrs": 4096, "blobs": 512, "grants": 1024, "blocks": 1024}
# Functions in which a call waits for its own request, at the daemon or below.
_CARRIED_OUT = {"request_wait_answer", "vfs_iocb_iter_read", "ext4_buffered_write_iter"}
_AT_FORCE_SYNC, _AT_NOFOLLOW, _AT_FDCWD = 0x2000, 0x100, -100
_libc = ctypes.CDLL(None, use_errno=True)


def eventually(condition: Callable[[], T], what: str = "", *, deadline_s: float = DEADLINE_S) -> T:
    """Poll until *condition* returns a true value, and return that."""
    end = time.monotonic() + deadline_s
    while not (result := condition()):
        assert time.monotonic() < end, f"never came true: {what or condition}"
        threading.Event().wait(0.01)
    return result


def _waits_in(task: str | int) -> list[str]:
    """Return the kernel functions in which a task waits, without suffixes of the compiler."""
    lines = Path(f"/proc/{task}/stack").read_text().splitlines()
    return [line.split()[1].partition("+")[0].partition(".")[0] for line in lines]


def some_task_waits_in(*functions: str) -> bool:
    """Return whether a task of this machine waits in a call chain of all these kernel functions."""
    for task in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # the task has ended
            if {*functions} <= {*_waits_in(task)}:
                return True
    return False


def monotonic_ns() -> int:
    """Return the time of the clock that the kernel uses for timeouts, ns."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


class Call(Generic[T]):
    """A function that runs in a process of its own, possibly as another user."""

    def __init__(self, function: Callable[..., T], *args: Any, uid: int = 0, gid: int = 0) -> None:
        self._from, to = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(to)
            self._ended = False
            return
        status = 1
        try:
            gc.disable()  # a collection would copy all pages that hold objects
            os.close(self._from)
            if uid or gid:
                os.setgroups([])
                os.setresgid(gid, gid, gid)
                os.setresuid(uid, uid, uid)
            try:
                result: tuple[bool, Any] = (True, function(*args))
            except OSError as error:
                result = (False, error)
            with os.fdopen(to, "wb") as pipe:
                pickle.dump(result, pipe)
            status = 0
        finally:
            if status:
                traceback.print_exc()
            os._exit(status)

    def done(self) -> bool:
        """Return whether the function has returned."""
        return bool(select.select([self._from], [], [], 0)[0])

    def within(self) -> list[str]:
        """Return the kernel functions in which the process waits, the innermost first.

        The kernel leaves out functions of the scheduler and of locks.
        """
        return _waits_in(self.pid)

    def sleeps(self) -> bool:
        """Return whether the process waits for something."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat.rsplit(")", 1)[1].split()[0] in "SD"

    def sleeps_in(self, *prefixes: str) -> bool:
        """Return whether the process sleeps in a kernel function, and not in a request.

        :param prefixes: how the names of these functions begin.
        """
        names = self.within() if self.sleeps() else []
        return "request_wait_answer" not in names and any(n.startswith(prefixes) for n in names)

    def result(self) -> T:
        """Wait for the function's return value; raise the exception that it raised."""
        ready = select.select([self._from], [], [], DEADLINE_S)[0]
        assert ready, f"the call hangs: {Path(f'/proc/{self.pid}/stack').read_text()}"
        with os.fdopen(self._from, "rb") as pipe:
            raw = pipe.read()
        os.waitpid(self.pid, 0)
        self._ended = True
        assert raw, "the caller died"
        good, value = pickle.loads(raw)
        if good:
            return value  # type: ignore[no-any-return]
        raise value

    def kill(self) -> None:
        """Kill the process if it still runs."""
        if not self._ended:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self._from)
            self._ended = True


@contextlib.contextmanager
def running(function: Callable[..., T], *args: Any) -> Iterator[Call[T]]:
    """Call a function in a process that is killed at the end, however the test ends."""
    call = Call(function, *args)
    try:
        yield call
    finally:
        call.kill()


def as_user(uid: int, function: Callable[..., T], *args: Any) -> T:
    """Call a function as another user, with a group of the same number."""
    groups = os.getgroups()
    os.setgroups([])
    os.setresgid(uid, uid, 0)
    os.setresuid(uid, uid, 0)
    try:
        return function(*args)
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        os.setgroups(groups)


@dataclass(frozen=True)
class Statx:
    """The result of statx(2)."""

    st_mode: int
    st_ino: int
    st_nlink: int
    st_uid: int
    st_gid: int
    st_size: int
    st_mtime_ns: int
    st_ctime_ns: int


def force_stat(path: str | os.PathLike[str] | int) -> Statx:
    """Get the attributes from the server, not from a cache (AT_STATX_FORCE_SYNC)."""
    return _statx(path, _AT_FORCE_SYNC, STATX_BASIC_STATS)


def birth_stat(path: str | os.PathLike[str] | int) -> Statx:
    """Get the attributes, and ask for the time of birth, too."""
    return _statx(path, 0, STATX_BASIC_STATS | STATX_BTIME)


def _statx(path: str | os.PathLike[str] | int, how: int, mask: int) -> Statx:
    buffer = ctypes.create_string_buffer(256)
    if isinstance(path, int):
        dirfd, name, flags = path, b"", 0x1000
    else:
        dirfd, name, flags = _AT_FDCWD, os.fsencode(path), _AT_NOFOLLOW
    if _libc.statx(dirfd, name, flags | how, mask, buffer):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    _, _, _, nlink, uid, gid, mode, ino, size = struct.unpack_from("=IIQIIIHxxQQ", buffer, 0)
    times = [struct.unpack_from("=qI", buffer, at) for at in (96, 112)]
    ctime_ns, mtime_ns = (s * 10**9 + ns for s, ns in times)
    return Statx(mode, ino, nlink, uid, gid, size, mtime_ns, ctime_ns)


def lookup_again(path: str | os.PathLike[str]) -> None:
    """Drop all unused dentries of a mount, so that the next use of each sends a LOOKUP."""
    if _libc.mount(None, os.fsencode(path), None, ctypes.c_ulong(_MS_REMOUNT), None):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)


class _Remote:
    def __init__(self, mount: Mount, name: str) -> None:
        self._mount = mount
        self._name = name

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._mount.call(f"{self._name}.{name}", *args, **kwargs)

        return call


class Mount:
    """A mount with its daemon and its connection."""

    def __init__(
        self,
        mountpoint: Path,
        options: Options,
        kernel_options: tuple[str, ...] = (),
        *,
        allow_other: bool = True,
    ) -> None:
        self.path = mountpoint
        self.options = options
        others = ("allow_other",) if allow_other else ()
        options_ = MountOptions.parse((*others, *kernel_options))
        device = mount_efuse(str(mountpoint), options_)
        self._spare: tuple[int, Any, socket.socket] | None = None
        self._start(device, None)
        self.model = _Remote(self, "model")
        """The daemon's `ModelFileSystem`; changes to it take effect immediately."""
        self.files: dict[str, int] = {}
        """Descriptors that a test keeps open, by name."""
        self.connection = Connection.at(mountpoint)
        # With FUSE's strict limit a single store may start write-back, also where a test holds it.
        Path(f"/sys/class/bdi/0:{self.connection.id}/strict_limit").write_text("0")
        self.attachment: bpf.Attachment | None = None

    def _start(self, device: int, state: State | None) -> None:
        os.set_blocking(device, False)
        self._control: Any
        self._control, theirs = multiprocessing.Pipe()
        self.pid = os.fork()
        if not self.pid:
            serve(device, theirs, self.options, state)
        os.close(device)
        theirs.close()
        self._alive = True

    def die(self) -> State:
        """Kill the daemon; return what a successor needs, as it was when it died."""
        self.call("pause")  # it must not carry anything out after that
        state: State = self.call("state")
        self.kill()
        return state

    def succeed(self, device: int, state: State, hold: tuple[str, str] | None = None) -> None:
        """Start a successor of the daemon.

        :param device: an open /dev/efuse that has taken the mount over; closed here.
        :param hold: what it holds from its beginning, see `ScriptedDaemon.hold`; only for a
            successor that `prepare_successor` has started.
        """
        self._control.close()
        if not self._spare:
            assert not hold
            self._start(device, state)
            return
        self.pid, self._control, passing = self._spare
        self._spare = None
        socket.send_fds(passing, [b"."], [device])
        passing.close()
        os.close(device)
        self._control.send((state, hold))
        self._alive = True

    def prepare_successor(self) -> None:
        """Fork the next successor now, so that it has no files open that the test opens later.

        A daemon that has files of its own mount open waits for itself when it closes them.
        """
        passing, end = socket.socketpair()
        control, theirs = multiprocessing.Pipe()
        pid = os.fork()
        if not pid:
            passing.close()
            control.close()
            self._control.close()
            _, (device,), _, _ = socket.recv_fds(end, 1, 1)
            os.set_blocking(device, False)
            serve(device, theirs, self.options, *theirs.recv())
        end.close()
        theirs.close()
        self._spare = pid, control, passing

    def __truediv__(self, name: str | bytes) -> str:
        return f"{self.path}/{os.fsdecode(name)}"

    def call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the daemon's `ScriptedDaemon`."""
        self._control.send((name, args, kwargs))
        assert self._control.poll(DEADLINE_S), f"the daemon does not answer {name}: {self._state()}"
        good, value = self._control.recv()
        if good:
            return value
        raise value if isinstance(value, OSError) else AssertionError(f"{name}: {value}")

    def _state(self) -> str:
        """Return what the daemon's process does, for the message of a failure."""
        process = Path(f"/proc/{self.pid}")
        state = (process / "stat").read_text().rsplit(")", 1)[1].split()[0]
        return f"state {state}, {(process / 'stack').read_text()}"

    def begin(self, name: str, *args: Any) -> None:
        """Call a method without waiting for it. Before the next call, call :meth:`ended`."""
        self._control.send((name, args, {}))

    def ended(self, number: int) -> None:
        """Wait for the results of *number* calls."""
        for _ in range(number):
            assert self._control.poll(DEADLINE_S), f"the daemon does not answer: {self._state()}"
            good, value = self._control.recv()
            assert good, value

    def device(self) -> int:
        """Return a duplicate of the daemon's descriptor of the device; the test closes it."""
        fds = Path(f"/proc/{self.pid}/fd")
        its = next(int(fd.name) for fd in fds.iterdir() if os.readlink(fd) == str(DEVICE))
        process = os.pidfd_open(self.pid)
        try:
            fd: int = _libc.syscall(_SYS_PIDFD_GETFD, process, its, 0)
        finally:
            os.close(process)
        assert fd >= 0, os.strerror(ctypes.get_errno())
        return fd

    def hold(self, opcode: str, point: str, name: bytes | None = None, times: int = 1) -> None:
        """Hold requests; see `ScriptedDaemon.hold`."""
        self.call("hold", opcode, point, name, times)

    def wait_held(self, number: int = 1) -> None:
        """Wait until *number* requests are held."""
        self.call("wait_held", number)

    def held(self) -> int:
        """Return the number of held requests."""
        number: int = self.call("_held.__len__")
        return number

    def release(self, opcode: str | None = None) -> int:
        """Continue held requests; see `ScriptedDaemon.release`."""
        released: int = self.call("release", opcode)
        return released

    @contextlib.contextmanager
    def threads(self, number: int) -> Iterator[ThreadPoolExecutor]:
        """Run calls in threads. At the end, held requests continue: also if the test has failed."""
        with ThreadPoolExecutor(number) as pool:
            try:
                yield pool
            finally:
                self.release()

    @property
    def copy_opcode(self) -> str:
        """The first opcode that this kernel uses for copy_file_range(2)."""
        return "copy_file_range_64" if self.call("minor") >= 45 else "copy_file_range"

    def log(self) -> list[tuple[str, int, bytes, int]]:
        """Return the requests that the daemon got since the last call."""
        log: list[tuple[str, int, bytes, int]] = self.call("log")
        return log

    def asked(self) -> list[str]:
        """Return the opcodes of the requests that the daemon got since the last call."""
        return [opcode for opcode, *_ in self.log()]

    def count(self, opcode: str, counter: str) -> int:
        """Return one of the connection's counters for an opcode."""
        return self.connection.counts(f"stats/{opcode}")[counter]

    @contextlib.contextmanager
    def answered(self, opcode: str, times: int = 1) -> Iterator[None]:
        """Check that the kernel answers *times* requests of an opcode, and the daemon none."""
        self.log()
        hits = self.count(opcode, "hits")
        yield
        new = self.count(opcode, "hits") - hits
        asked = self.asked()
        assert new == times, f"{new} {opcode} answered in the kernel, not {times}; asked: {asked}"
        assert opcode not in asked, f"the daemon was asked {opcode}"

    @contextlib.contextmanager
    def passed(self, opcode: str, reason: str | None = None) -> Iterator[None]:
        """Check that the kernel answers no request of an opcode, and that the daemon gets one."""
        self.log()
        hits, why = self.count(opcode, "hits"), self.count(opcode, reason) if reason else 0
        yield
        assert self.count(opcode, "hits") == hits, f"{opcode} was answered in the kernel"
        asked = self.asked()
        assert opcode in asked, f"the daemon was not asked {opcode}, only {asked}"
        if reason:
            assert self.count(opcode, reason) > why, f"{opcode} did not pass as {reason}"

    def keeps_waiting(self, call: Call[Any], requests: int) -> bool:
        """Return whether a call sleeps in FUSE without a request of its own.

        :param requests: how many requests of other calls the daemon has not answered.
        """
        if not call.sleeps() or self.connection.waiting != requests:
            return False
        names = call.within()
        return not _CARRIED_OUT & set(names) and any(
            name.startswith(("fuse_", "efuse_")) for name in names
        )

    def drop(self) -> None:
        """Drop all unused dentries of the mount."""
        lookup_again(self.path)

    def evict(self) -> None:
        """Drop all unused dentries, and wait until the daemon is told to forget an inode."""
        before = self.call("counts")
        self.drop()
        eventually(lambda: self.call("counts") != before, "an inode to be forgotten")

    def attach(
        self, *, capacity: Mapping[str, int] | None = None, **options: Any
    ) -> bpf.Attachment:
        """Attach the built-in handlers.

        :param capacity: capacities of maps, by name, that are to differ from those of other tests.
        """
        capacity = {**_CAPACITY, **(capacity or {})}
        self.attachment = bpf.attach(self.connection.id, capacity=capacity, **options)
        return self.attachment

    def kill(self) -> None:
        """Kill the daemon."""
        if self._alive:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self._alive = False

    def balanced(self) -> bool:
        """Drop unused dentries; return whether the kernel then holds no lookups."""
        self.drop()
        return not self.call("counts")

    def end(self) -> None:
        """Check that the kernel has returned all lookups and handles, then unmount."""
        eventually(self.balanced, "the kernel keeps lookups for itself")
        eventually(lambda: not self.call("handles"), "the kernel keeps files open")
        faults = self.call("faults")
        assert not faults, faults
        unmount(str(self.path))

    def close(self) -> None:
        """Remove the mount and the daemon, however the test ended."""
        with contextlib.suppress(OSError):
            unmount(str(self.path), lazy=True)
        self.kill()
        if self._spare:
            pid, control, passing = self._spare
            control.close()
            passing.close()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        if self.attachment:
            self.attachment.close()
        self._control.close()


def serve(
    device: int,
    control: Any,
    options: Options,
    state: State | None,
    hold: tuple[str, str] | None = None,
) -> None:
    """Run the daemon in this process; never returns."""
    status = 1
    try:
        keep = {0, 1, 2, device, control.fileno()}
        for fd in map(int, os.listdir("/proc/self/fd")):
            if fd not in keep:
                with contextlib.suppress(OSError):
                    os.close(fd)
        daemon = ScriptedDaemon(device, control, options, state)
        if hold:
            daemon.hold(*hold)
        daemon.run()
        status = 0
    finally:
        if status:
            # Not to sys.stderr, which is a file of pytest that was closed above.
            os.write(2, traceback.format_exc().encode())
        os._exit(status)


@contextlib.contextmanager
def mounted(
    mountpoint: Path,
    *,
    consistency: str = "ttl",
    declare: tuple[str, ...] = (),
    default_permissions: bool = True,
    allow_other: bool = True,
    attach: bool = True,
    capacity: dict[str, int] | None = None,
    path: str = "auto",
    stack_depth: int = 1,
    max_read: int = 0,
    options: Options | None = None,
    **answers: Any,
) -> Iterator[Mount]:
    """Mount an empty file system on eFuse.

    :param consistency: mode of the connection.
    :param declare: promises of the file system, such as ``no_open``.
    :param allow_other: whether other users than root have access.
    :param attach: whether to attach the built-in handlers.
    :param capacity: capacities of maps, by name, that are to differ from those of other tests.
    :param path: path to which READs and WRITEs are forced.
    :param stack_depth: stacking depth of the mount.
    :param max_read: FUSE's mount option, in bytes; 0: none.
    :param answers: members of `Options`.
    """
    kernel = [f"stack_depth={stack_depth}"]
    if max_read:
        kernel.append(f"max_read={max_read}")
    if default_permissions:
        kernel.append("default_permissions")
    mount = Mount(mountpoint, options or Options(**answers), tuple(kernel), allow_other=allow_other)
    try:
        mount.connection.consistency = consistency
        mount.connection.forced_path = path
        for name in declare:
            setattr(mount.connection, name, True)
        if attach:
            mount.attach(capacity=capacity)
        yield mount
        mount.end()
    finally:
        mount.close()


def fails(number: int, function: Callable[..., Any], *args: Any) -> None:
    """Check that a call fails with the errno *number*."""
    try:
        result = function(*args)
    except OSError as error:
        assert error.errno == number, f"{errno.errorcode[error.errno or 0]}: {error}"
    else:
        raise AssertionError(f"{function.__name__}{args} returned {result!r}")
