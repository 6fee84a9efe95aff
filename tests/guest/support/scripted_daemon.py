# SPDX-License-Identifier: LGPL-2.1-or-later
"""A scripted daemon: one loop that answers the kernel and obeys the test.

It is not a pyfuse3 file system, because a test must control exactly how far a request has come. It
can hold a request before the request has changed the model, or afterwards, before its answer is
sent. A held request does not block the loop.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from efuse.errors import MountError
from efuse.fs import extents
from tests.guest.support import wire
from tests.guest.support.model_file_system import (
    RENAME_EXCHANGE,
    Inode,
    ModelFileSystem,
    Nodeids,
    fail,
)
from tests.guest.support.wire import Request

_MAP = 1 << 30 | 48 << 16 | 229 << 8 | 64
_BACKING_OPEN = 1 << 30 | 16 << 16 | 229 << 8 | 1


@dataclass(frozen=True)
class Options:
    """How the daemon answers.

    :ivar entry_timeout: seconds for which names are valid.
    :ivar attr_timeout: seconds for which attributes are valid.
    :ivar negative_timeout: seconds for which a missing name is valid; None: answer with ENOENT.
    :ivar reuse_nodeids: give the nodeid of a forgotten file to the next new file.
    :ivar one_generation: give the same generation to all files, as many daemons do.
    :ivar nodeid_per_name: give each name of a file its own nodeid, as path-based daemons do.
    :ivar numbers_inodes: report the nodeid as st_ino.
    :ivar counts_names: report how many names a file has; otherwise 0.
    :ivar check_modes: check owner and mode, as a file system without default_permissions.
    :ivar readdirplus: support READDIRPLUS.
    :ivar open_flags: flags of the answer to OPEN.
    :ivar first_handle: first handle of open files. The default is no nodeid, so that handles differ
        from those of files that the kernel opens itself.
    :ivar opendir_flags: flags of the answer to OPENDIR.
    :ivar passthrough: lower file that FUSE itself reads and writes in place of any opened file.
    :ivar passthrough_writers: use `passthrough` only for files opened for writing; the daemon reads
        the lower file for other ones.
    :ivar write_through: lower file into which each WRITE goes as well.
    :ivar locks: take part in POSIX locks.
    :ivar generic_flags: additional flags of the answer to INIT.
    :ivar statx: support STATX.
    :ivar lacks: opcodes to answer with ENOSYS.
    :ivar snapshots: an open file shows the data that the file had when it was opened.
    :ivar ioctl: answer to IOCTL: an errno or 0, and the result.
    """

    entry_timeout: float = 0.0
    attr_timeout: float = 0.0
    negative_timeout: float | None = None
    reuse_nodeids: bool = False
    one_generation: bool = False
    nodeid_per_name: bool = False
    numbers_inodes: bool = False
    counts_names: bool = True
    check_modes: bool = False
    readdirplus: bool = True
    open_flags: int = 0
    first_handle: int = 1 << 63
    opendir_flags: int = 0
    passthrough: str | None = None
    passthrough_writers: bool = False
    write_through: str | None = None
    locks: bool = False
    generic_flags: int = 0
    statx: bool = False
    lacks: tuple[str, ...] = ()
    snapshots: bool = False
    ioctl: tuple[int, int] = (errno.ENOSYS, 0)


@dataclass
class State:
    """What a daemon leaves to its successor: all but what it holds and has logged."""

    model: ModelFileSystem
    nodeids: Nodeids
    handles: dict[int, tuple[int, int]]
    last_handle: int
    strange: list[str]


@dataclass
class _Hold:
    opcode: str
    point: str
    name: bytes | None
    left: int


@dataclass
class _Held:
    request: Request
    answer: bytes | None


class ScriptedDaemon:
    """Answers requests of the device ``fd`` and obeys commands on ``control``."""

    def __init__(
        self, fd: int, control: Connection, options: Options, state: State | None = None
    ) -> None:
        self._fd = fd
        self._control = control
        self._options = options
        self._holds: list[_Hold] = []
        self._held: list[_Held] = []
        self._awaited = 0
        self._log: list[tuple[str, int, bytes, int]] = []
        self._handles: dict[int, tuple[int, int]] = {}
        self._snapshots: dict[int, bytes] = {}
        self._last_handle = options.first_handle - 1
        self._reads: list[tuple[int, int]] = []
        self._denied: dict[tuple[str, int], int] = {}
        self._minor = 0
        self._spoiled: tuple[bytes, Callable[[bytes], bytes]] | None = None
        self._poll = select.poll()
        self._paused = False
        self._pause_after: str | None = None
        self.model = ModelFileSystem()
        self.nodeids = Nodeids(
            reuse=options.reuse_nodeids,
            per_name=options.nodeid_per_name,
            one_generation=options.one_generation,
        )
        self.strange: list[str] = []
        if state:
            self.model, self.nodeids = state.model, state.nodeids
            self._handles, self._last_handle = state.handles, state.last_handle
            self.strange = state.strange

    def state(self) -> State:
        """Return what a successor needs."""
        return State(self.model, self.nodeids, self._handles, self._last_handle, self.strange)

    def run(self) -> None:
        """Serve until the test closes its end of the control pipe."""
        self._poll.register(self._fd, select.POLLIN)
        self._poll.register(self._control.fileno(), select.POLLIN)
        while True:
            for fd, event in self._poll.poll():
                if fd == self._fd:
                    if self._paused:
                        continue
                    if event & select.POLLERR or not self._serve():
                        self._poll.unregister(self._fd)
                elif not self._obey():
                    return

    # Commands of the test.

    def _obey(self) -> bool:
        try:
            name, args, kwargs = self._control.recv()
        except EOFError:
            return False
        try:
            target: Any = self
            for part in name.split("."):
                target = getattr(target, part)
            result = target(*args, **kwargs)
        except OSError as error:
            self._control.send((False, error))
        else:
            if result is not self:
                self._control.send((True, result))
        return True

    def hold(self, opcode: str, point: str, name: bytes | None = None, times: int = 1) -> None:
        """Hold the next *times* requests of an opcode at *point*, ``before`` or ``after``.

        ``before`` is before the request has changed the model, ``after`` is before its answer is
        sent.

        :param name: only requests with this name; None: any.
        """
        assert point in ("before", "after")
        self._holds.append(_Hold(opcode, point, name, times))

    def wait_held(self, number: int) -> ScriptedDaemon | None:
        """Answer this command when *number* requests are held."""
        if len(self._held) >= number:
            return None
        self._awaited = number
        return self

    def release(self, opcode: str | None = None) -> int:
        """Continue the held requests of an opcode, or all, and drop the holds; return how many."""
        self._holds = [h for h in self._holds if opcode not in (None, h.opcode)]
        going = [h for h in self._held if opcode in (None, h.request.opcode)]
        self._held = [h for h in self._held if h not in going]
        for held in going:
            self._send(held.answer if held.answer is not None else self._answer(held.request))
        return len(going)

    def release_and_hold(self, opcode: str, point: str) -> None:
        """Go on with the held requests of a kind, and hold the next one."""
        going = [h for h in self._held if h.request.opcode == opcode]
        self._held = [h for h in self._held if h not in going]
        self.hold(opcode, point)
        for held in going:
            self._send(held.answer if held.answer is not None else self._answer(held.request))

    def pause(self) -> None:
        """Read no more requests: they stay queued until `resume`."""
        self._poll.unregister(self._fd)
        self._paused = True

    def resume(self, pause_after: str | None = None) -> None:
        """Read requests again.

        :param pause_after: opcode; pause again when the next such request has been read, and
            answer it.
        """
        self._pause_after = pause_after
        self._poll.register(self._fd, select.POLLIN)
        self._paused = False

    def paused(self) -> bool:
        """Return whether requests stay queued."""
        return self._paused

    def log(self) -> list[tuple[str, int, bytes, int]]:
        """Return (opcode, nodeid, name, uid) of each request since the last call."""
        log, self._log = self._log, []
        return log

    def deny(self, opcode: str, uid: int, number: int) -> None:
        """Fail a user's requests of an opcode with the errno *number*."""
        self._denied[opcode, uid] = number

    def spoil(self, name: bytes, spoiled: Callable[[bytes], bytes] | None) -> None:
        """End a directory's listing with the entry *name*, changed by the function *spoiled*."""
        self._spoiled = (name, spoiled) if spoiled else None

    def reads(self) -> list[tuple[int, int]]:
        """Return (offset, size) of each READ since the last call."""
        reads, self._reads = self._reads, []
        return reads

    def counts(self) -> dict[int, int]:
        """Return the lookup count of each nodeid that the kernel holds."""
        return dict(self.nodeids.counts)

    def minor(self) -> int:
        """Return the minor version of the kernel's FUSE protocol, 7.*minor*."""
        return self._minor

    def handles(self) -> int:
        """Return the number of open files and directories."""
        return len(self._handles)

    def faults(self) -> list[str]:
        """Return what the kernel did that it must never do."""
        if self.nodeids.lowest < 0:
            self.strange.append(f"a lookup count fell to {self.nodeids.lowest}")
        return self.strange

    def many(self, calls: list[tuple[Any, ...]]) -> list[Any]:
        """Call methods of the model file system; each call is a tuple of name and arguments."""
        return [getattr(self.model, name)(*args) for name, *args in calls]

    def tree(self, path: str) -> dict[str, Inode]:
        """Return all inodes below a directory, by path from there."""
        found: dict[str, Inode] = {}
        for name, ino in self.model.walk(path).entries.items():
            inode = found[name.decode()] = self.model.get(ino)
            if inode.entries:
                below = self.tree(f"{path}/{name.decode()}")
                found |= {f"{name.decode()}/{n}": i for n, i in below.items()}
        return found

    def inode(self, path: str) -> Inode:
        """Return the inode of a file, from the model file system."""
        return self.model.walk(path)

    def answer_with(self, **options: Any) -> None:
        """Change how the daemon answers from now on; see `Options`."""
        self._options = replace(self._options, **options)

    def nodeid(self, path: str) -> int:
        """Return the nodeid by which the kernel knows a file, or this name of it, or 0."""
        above, _, name = path.rpartition("/")
        place = (self.nodeid(above), name.encode()) if name else None
        return self.nodeids.known(self.model.walk(path).ino, place)

    def reused(self) -> int:
        """Return how often a nodeid was given to another file."""
        return self.nodeids.reused

    def inval_inode(self, path: str, offset: int = 0, length: int = 0) -> ScriptedDaemon:
        """Make an inode's attributes invalid, and bytes of its pages; length 0: all that follow."""
        return self._notify(wire.inval_inode(self.nodeid(path), offset, length))

    def inval_attributes(self, path: str) -> ScriptedDaemon:
        """Make a file's attributes invalid. The kernel waits for no page of the file."""
        return self._notify(wire.inval_inode(self.nodeid(path), -1, 0))

    def inval_entry(self, parent: str, name: bytes) -> ScriptedDaemon:
        return self._notify(wire.inval_entry(self.nodeid(parent), name))

    def delete(self, parent: str, child: int, name: bytes) -> ScriptedDaemon:
        return self._notify(wire.delete(self.nodeid(parent), child, name))

    def store(self, path: str, offset: int, data: bytes) -> ScriptedDaemon:
        return self._notify(wire.store(self.nodeid(path), offset, data))

    def inc_epoch(self) -> ScriptedDaemon:
        return self._notify(wire.inc_epoch())

    def resend(self) -> ScriptedDaemon:
        """Have the requests that were read and not answered put back into their queues."""
        return self._notify(wire.resend())

    def _notify(self, message: bytes) -> ScriptedDaemon:
        """Notify the kernel, in a thread: the kernel may wait for an answer of this loop."""

        def write() -> None:
            try:
                os.write(self._fd, message)
            except OSError as error:
                # ENOENT: the kernel does not know the inode, so it has nothing to invalidate.
                self._control.send((error.errno == errno.ENOENT, error.errno))
            else:
                self._control.send((True, None))

        threading.Thread(target=write, daemon=True).start()
        return self

    def map_extent(
        self, path: str, lower: str, open_flags: int, *, later_flags: int = 0, **extent: Any
    ) -> None:
        """Map a range of a file to the file *lower*; see :class:`efuse.fs.extents.Extent`.

        :param later_flags: flags to set on the descriptor of *lower* afterwards, by fcntl(2).
        """
        fd = os.open(lower, open_flags)
        try:
            extents.map_extent(self._fd, extents.Extent(self.nodeid(path), fd, **extent))
            if later_flags:
                fcntl.fcntl(fd, fcntl.F_SETFL, later_flags)
        except MountError as error:
            raise fail(error.__cause__.errno) from error  # type: ignore[union-attr]
        finally:
            os.close(fd)

    def map_forgotten(self, path: str, lower: str, **extent: Any) -> int:
        """Map a file whose FORGET is queued but not yet read; return the errno, or 0.

        The kernel does not send the FORGET if the file is in use.
        """
        nodeid = self.nodeid(path)
        Path("/proc/sys/vm/drop_caches").write_text("2")
        fd = os.open(lower, os.O_RDWR)
        try:
            extents.map_extent(self._fd, extents.Extent(nodeid, fd, **extent))
        except OSError as error:
            return error.errno or 0
        finally:
            os.close(fd)
        return 0

    def raw_map(
        self, fields: tuple[int, ...], flags: int, lower: str, open_flags: int, uid: int = 0
    ) -> int:
        """Call the ioctl with arbitrary values, possibly as another user; return the errno or 0."""
        fd = os.open(lower, open_flags)
        os.setresuid(uid, uid, 0)
        try:
            fcntl.ioctl(self._fd, _MAP, struct.pack("=5QiI", *fields, fd, flags))
        except OSError as error:
            return error.errno or errno.EIO
        finally:
            os.setresuid(0, 0, 0)
            os.close(fd)
        return 0

    def set_open_flags(self, flags: int) -> None:
        """Answer all later OPENs with *flags*."""
        self._options = replace(self._options, open_flags=flags)

    def unmap_extents(self, path: str, **range_: int) -> None:
        extents.unmap_extents(self._fd, self.nodeid(path), **range_)

    # Requests of the kernel.

    def _serve(self) -> bool:
        try:
            raw = os.read(self._fd, 1 << 18)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EINTR, errno.ENOENT):
                return True
            if error.errno in (errno.ENODEV, errno.ECONNABORTED):
                return False
            raise
        request = wire.parse(raw)
        if request.opcode in ("forget", "batch_forget"):
            for nodeid, lookups in wire.forgets(request):
                self.nodeids.forget(nodeid, lookups)
            return True
        if request.opcode == "interrupt":
            return True
        self._log.append((request.opcode, request.nodeid, request.name, request.uid))
        if request.opcode == self._pause_after:
            self.pause()

        point = self._point(request)
        if point == "before":
            self._keep(_Held(request, None))
            return True
        answer = self._answer(request)
        if point == "after":
            self._keep(_Held(request, answer))
        else:
            self._send(answer)
        return True

    def _point(self, request: Request) -> str | None:
        for hold in self._holds:
            if hold.opcode == request.opcode and hold.name in (None, request.name):
                hold.left -= 1
                if not hold.left:
                    self._holds.remove(hold)
                return hold.point
        return None

    def _keep(self, held: _Held) -> None:
        self._held.append(held)
        if len(self._held) == self._awaited:
            self._awaited = 0
            self._control.send((True, None))

    def _send(self, answer: bytes) -> None:
        try:
            os.write(self._fd, answer)
        except OSError as error:
            # ENOENT: the caller was killed. The others: the connection has ended.
            if error.errno not in (errno.ENOENT, errno.ENODEV, errno.EPERM, errno.ECONNABORTED):
                raise

    def _answer(self, request: Request) -> bytes:
        handler: Callable[[Request], bytes] | None = getattr(self, f"_do_{request.opcode}", None)
        if handler is None or request.opcode in self._options.lacks:
            return wire.reply(request.unique, errno.ENOSYS)
        try:
            denied = self._denied.get((request.opcode, request.uid))
            if denied:
                raise fail(denied)
            return wire.reply(request.unique, 0, handler(request))
        except OSError as error:
            return wire.reply(request.unique, error.errno or errno.EIO)

    def _inode(self, request: Request) -> Inode:
        return self.model.get(self.nodeids.ino(request.nodeid))

    def _check(self, inode: Inode, request: Request, mask: int) -> None:
        """Check the inode's mode; *mask* has the bits of access(2)."""
        if not self._options.check_modes or request.uid == 0:
            return
        shift = 6 if request.uid == inode.uid else 3 if request.gid == inode.gid else 0
        if mask & ~(inode.mode >> shift) & 7:
            raise fail(errno.EACCES)

    def _attr(self, inode: Inode, nodeid: int) -> bytes:
        times = inode.atime_ns, inode.mtime_ns, inode.ctime_ns
        nlink = inode.nlink if self._options.counts_names else 0
        ino = nodeid if self._options.numbers_inodes else inode.ino
        return wire.attributes(
            ino, inode.size, times, inode.mode, nlink, inode.uid, inode.gid, inode.rdev
        )

    def _entry(self, inode: Inode, place: tuple[int, bytes] | None = None) -> bytes:
        nodeid, generation = self.nodeids.grant(inode.ino, place)
        return wire.entry(
            nodeid,
            generation,
            self._options.entry_timeout,
            self._options.attr_timeout,
            self._attr(inode, nodeid),
        )

    def _open(self, request: Request, open_flags: int) -> bytes:
        self._last_handle += 1
        self._handles[self._last_handle] = request.nodeid, request.fields["flags"]
        if self._options.snapshots:
            self._snapshots[self._last_handle] = bytes(self._inode(request).data)
        return wire.open_out(self._last_handle, open_flags)

    def _open_passthrough(self, request: Request, lower: str) -> bytes:
        fd = os.open(lower, os.O_RDWR)
        try:
            backing_id = fcntl.ioctl(
                self._fd, _BACKING_OPEN, bytearray(struct.pack("=iIQ", fd, 0, 0))
            )
        finally:
            os.close(fd)
        self._open(request, 0)
        return wire.open_out(self._last_handle, wire.FOPEN_PASSTHROUGH, backing_id)

    def _do_init(self, request: Request) -> bytes:
        self._minor = request.minor
        flags = wire.FUSE_ASYNC_READ | wire.FUSE_ATOMIC_O_TRUNC | wire.FUSE_BIG_WRITES
        flags |= wire.FUSE_AUTO_INVAL_DATA | wire.FUSE_PARALLEL_DIROPS | wire.FUSE_MAX_PAGES
        flags |= self._options.generic_flags
        if self._options.readdirplus:
            flags |= wire.FUSE_DO_READDIRPLUS
        if self._options.locks:
            flags |= wire.FUSE_POSIX_LOCKS
        if self._options.passthrough:
            flags |= wire.FUSE_INIT_EXT | wire.FUSE_PASSTHROUGH
            return wire.init_out(flags, max_stack_depth=1)
        return wire.init_out(flags)

    def _do_lookup(self, request: Request) -> bytes:
        directory = self._inode(request)
        self._check(directory, request, os.X_OK)
        try:
            return self._entry(
                self.model.child(directory.ino, request.name), (request.nodeid, request.name)
            )
        except OSError as error:
            timeout = self._options.negative_timeout
            if error.errno != errno.ENOENT or timeout is None:
                raise
            return wire.entry(0, 0, timeout, 0, bytes(88))

    def _do_getattr(self, request: Request) -> bytes:
        return wire.attr_out(
            self._options.attr_timeout, self._attr(self._inode(request), request.nodeid)
        )

    def _do_statx(self, request: Request) -> bytes:
        if not self._options.statx:
            raise fail(errno.ENOSYS)
        return wire.statx_out(
            self._options.attr_timeout, self._attr(self._inode(request), request.nodeid)
        )

    def _do_setattr(self, request: Request) -> bytes:
        inode, valid = self._inode(request), request.valid
        if request.uid not in (0, inode.uid) and self._options.check_modes:
            raise fail(errno.EPERM)
        if valid & 1:
            inode.mode = stat.S_IFMT(inode.mode) | stat.S_IMODE(request.mode)
        if valid & 2:
            inode.uid = request.fields["uid"]
        if valid & 4:
            inode.gid = request.fields["gid"]
        if valid & 8:
            self.model.truncate(inode.ino, request.size)
        now = self.model.tick()
        if valid & 16:
            inode.atime_ns = request.atime * 10**9 + request.atimensec
        if valid & 128:
            inode.atime_ns = now
        if valid & 32:
            inode.mtime_ns = request.mtime * 10**9 + request.mtimensec
        if valid & 256:
            inode.mtime_ns = now
        inode.ctime_ns = now
        return wire.attr_out(self._options.attr_timeout, self._attr(inode, request.nodeid))

    def _do_ioctl(self, request: Request) -> bytes:
        error, result = self._options.ioctl
        if error:
            raise fail(error)
        return wire.ioctl_out(result)

    def _do_readlink(self, request: Request) -> bytes:
        return self._inode(request).target

    def _make(self, request: Request, mode: int, rdev: int = 0) -> Inode:
        directory = self._inode(request)
        self._check(directory, request, os.W_OK)
        return self.model.make(
            directory.ino, request.name, mode, uid=request.uid, gid=request.gid, rdev=rdev
        )

    def _do_symlink(self, request: Request) -> bytes:
        inode = self._make(request, stat.S_IFLNK | 0o777)
        inode.target = request.names[1]
        return self._entry(inode, (request.nodeid, request.name))

    def _do_mknod(self, request: Request) -> bytes:
        return self._entry(
            self._make(request, request.mode, request.rdev), (request.nodeid, request.name)
        )

    def _do_mkdir(self, request: Request) -> bytes:
        return self._entry(
            self._make(request, stat.S_IFDIR | request.mode), (request.nodeid, request.name)
        )

    def _do_create(self, request: Request) -> bytes:
        directory = self._inode(request)
        if request.name in directory.entries:
            if request.flags & os.O_EXCL:
                raise fail(errno.EEXIST)
            inode = self.model.child(directory.ino, request.name)
            if request.flags & os.O_TRUNC:
                self.model.truncate(inode.ino, 0)
        else:
            inode = self._make(request, stat.S_IFREG | request.mode)
        entry = self._entry(inode, (request.nodeid, request.name))
        return entry + self._open(request, self._options.open_flags)

    def _do_link(self, request: Request) -> bytes:
        ino = self.nodeids.ino(request.oldnodeid)
        return self._entry(
            self.model.link(ino, self._inode(request).ino, request.name),
            (request.nodeid, request.name),
        )

    def _do_unlink(self, request: Request) -> bytes:
        self.model.unlink(self._inode(request).ino, request.name)
        self.nodeids.moved((request.nodeid, request.name), None)
        return b""

    def _do_rmdir(self, request: Request) -> bytes:
        self.model.unlink(self._inode(request).ino, request.name, directory=True)
        self.nodeids.moved((request.nodeid, request.name), None)
        return b""

    def _do_rename(self, request: Request) -> bytes:
        old, new = request.names
        target = self.nodeids.ino(request.newdir)
        flags = request.fields.get("flags", 0)
        source = self._inode(request)
        self.model.rename(source.ino, old, target, new, flags)
        places = (request.nodeid, old), (request.newdir, new)
        if flags & RENAME_EXCHANGE:
            self.nodeids.exchanged(*places)
        elif old not in source.entries:
            self.nodeids.moved(*places)
        return b""

    _do_rename2 = _do_rename

    def _do_open(self, request: Request) -> bytes:
        inode = self._inode(request)
        wanted = {os.O_RDONLY: os.R_OK, os.O_WRONLY: os.W_OK}
        mask = wanted.get(request.flags & os.O_ACCMODE, os.R_OK | os.W_OK)
        self._check(inode, request, mask)
        if request.flags & os.O_TRUNC:
            self.model.truncate(inode.ino, 0)
        if self._options.passthrough and (not self._options.passthrough_writers or mask != os.R_OK):
            return self._open_passthrough(request, self._options.passthrough)
        return self._open(request, self._options.open_flags)

    def _do_opendir(self, request: Request) -> bytes:
        self._check(self._inode(request), request, os.R_OK)
        return self._open(request, self._options.opendir_flags)

    def _do_release(self, request: Request) -> bytes:
        is_file = request.opcode == "release"
        if is_file and request.fh == request.nodeid:
            unlocks = request.release_flags & wire.FUSE_RELEASE_FLOCK_UNLOCK
            if self._options.locks or unlocks:
                return b""  # the kernel opened this file itself
        if self._handles.pop(request.fh, None) is None:
            self.strange.append(f"{request.opcode} of handle {request.fh}, which is not open")
        return b""

    _do_releasedir = _do_release

    def _do_flush(self, request: Request) -> bytes:
        return b""

    _do_fsync = _do_fsyncdir = _do_setlk = _do_setlkw = _do_flush

    def _do_access(self, request: Request) -> bytes:
        self._check(self._inode(request), request, request.mask)
        return b""

    def _do_read(self, request: Request) -> bytes:
        self._reads.append((request.offset, request.size))
        if self._options.passthrough:
            with open(self._options.passthrough, "rb", buffering=0) as file:
                return os.pread(file.fileno(), request.size, request.offset)
        data = self._snapshots.get(request.fh) or self._inode(request).data
        return bytes(data[request.offset : request.offset + request.size])

    def _do_write(self, request: Request) -> bytes:
        inode = self._inode(request)
        self.model.write(inode.ino, request.offset, request.rest[: request.size])
        if self._options.write_through:
            with open(self._options.write_through, "r+b", buffering=0) as file:
                os.pwrite(file.fileno(), request.rest[: request.size], request.offset)
        inode.xattrs.pop(b"security.capability", None)
        return struct.pack("=II", request.size, 0)

    def _do_fallocate(self, request: Request) -> bytes:
        inode = self._inode(request)
        if len(inode.data) < request.offset + request.length:
            self.model.truncate(inode.ino, request.offset + request.length)
        return b""

    def _do_copy_file_range(self, request: Request) -> bytes:
        return struct.pack("=II", self._copy(request), 0)

    def _do_copy_file_range_64(self, request: Request) -> bytes:
        return struct.pack("=Q", self._copy(request))

    def _copy(self, request: Request) -> int:
        data = self._inode(request).data[request.offset : request.offset + request.length]
        self.model.write(self.nodeids.ino(request.nodeid_out), request.off_out, bytes(data))
        return len(data)

    def _do_statfs(self, request: Request) -> bytes:
        files = len(self.model.inodes)
        return struct.pack("=5Q4I24x", 1 << 20, 1 << 19, 1 << 19, files, 1000, 4096, 255, 4096, 0)

    def _do_setxattr(self, request: Request) -> bytes:
        inode = self._inode(request)
        inode.xattrs[request.name] = request.rest[len(request.name) + 1 :][: request.size]
        self.model.changed(inode)
        return b""

    def _do_removexattr(self, request: Request) -> bytes:
        inode = self._inode(request)
        if inode.xattrs.pop(request.name, None) is None:
            raise fail(errno.ENODATA)
        self.model.changed(inode)
        return b""

    @staticmethod
    def _value(request: Request, value: bytes) -> bytes:
        if not request.size:
            return struct.pack("=II", len(value), 0)
        if len(value) > request.size:
            raise fail(errno.ERANGE)
        return value

    def _do_getxattr(self, request: Request) -> bytes:
        inode = self._inode(request)
        self._check(inode, request, os.R_OK)
        if request.name not in inode.xattrs:
            raise fail(errno.ENODATA)
        return self._value(request, inode.xattrs[request.name])

    def _do_listxattr(self, request: Request) -> bytes:
        inode = self._inode(request)
        return self._value(request, b"".join(name + b"\0" for name in inode.xattrs))

    def _dirents(self, request: Request, plus: bool) -> bytes:
        directory = self._inode(request)
        listed = [(b".", directory.ino), (b"..", directory.ino), *sorted(directory.entries.items())]
        out = b""
        for offset, (name, ino) in list(enumerate(listed, 1))[request.offset :]:
            raw = wire.dirent(ino, offset, name, self.model.get(ino).mode >> 12)
            if self._spoiled and name == self._spoiled[0]:
                # End with it, and without a lookup: the kernel cannot forget what it cannot parse.
                return out + self._spoiled[1](bytes(128 * plus) + raw)
            if len(out) + len(raw) + 128 * plus > request.size:
                break
            if plus:
                real = name not in (b".", b"..")
                out += (
                    self._entry(self.model.get(ino), (request.nodeid, name)) if real else bytes(128)
                )
            out += raw
        return out

    def _do_readdir(self, request: Request) -> bytes:
        return self._dirents(request, plus=False)

    def _do_readdirplus(self, request: Request) -> bytes:
        return self._dirents(request, plus=True)
