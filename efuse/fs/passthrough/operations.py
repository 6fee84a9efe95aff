# SPDX-License-Identifier: LGPL-2.1-or-later
"""The handlers of the pass-through, which carry requests out on the lower directory.

No handler awaits anything, except that fsync runs in a thread. So each request is complete before
the next one begins, and no request sees another one half done. The decorator :func:`_request` makes
such a handler, which is a plain function, asynchronous.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import resource
import stat
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileInfo, FUSEError, RequestContext, StatvfsData

from efuse.errors import MountError, UsageError, reason
from efuse.fs.operations import Operations
from efuse.fs.options import Options
from efuse.fs.overriding import (
    Shortcut,
    Shortcuts,
    promises_for_subclasses,
    shortcuts,
    stands_for,
)
from efuse.fs.passthrough import syscalls
from efuse.fs.passthrough.backing import BackingFiles
from efuse.fs.passthrough.credentials import UNCHANGED, Credentials
from efuse.fs.passthrough.handles import Files, Stream, Streams, reopen
from efuse.fs.passthrough.inodes import FIND, Inodes, Node
from efuse.fs.passthrough.promises import Promises
from efuse.fs.passthrough.stacking import depth_above
from efuse.fs.passthrough.syscalls import Status
from efuse.fs.passthrough.watching import watch_table

__all__ = ["Passthrough"]

_log = logging.getLogger("efuse.fs")

P = ParamSpec("P")
T = TypeVar("T")

# Flags of an open that are passed to the lower file. O_APPEND is missing because the kernel sends
# each WRITE with its offset, and other writers of the inode may use the same descriptor. O_DIRECT
# is missing because the buffers here are not aligned.
_OPEN_FLAGS = os.O_ACCMODE | os.O_TRUNC | os.O_SYNC | os.O_DSYNC | os.O_NOATIME
# The entry was removed meanwhile, or its mount is dead, or its mount is the pass-through's own.
_ENTRY_GONE = (errno.ENOENT, errno.ESTALE, errno.ENOTCONN, errno.ELOOP)
_MOST_DESCRIPTORS = 1 << 17
_NOW_NS = 2 * 10**9


def _request(handler: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Make *handler* asynchronous, and pass errors of the lower file system on, as FUSEError.

    The handler itself is a plain function, because a coroutine within another one costs more.
    """

    @functools.wraps(handler)
    async def carried_out(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return handler(*args, **kwargs)
        except OSError as error:
            raise FUSEError(error.errno or errno.EIO) from None

    return carried_out


def _waiting_request(
    handler: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    """Pass errors of the lower file system on, as FUSEError, for a handler that awaits."""

    @functools.wraps(handler)
    async def carried_out(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await handler(*args, **kwargs)
        except OSError as error:
            raise FUSEError(error.errno or errno.EIO) from None

    return carried_out


@promises_for_subclasses
class Passthrough(Operations):
    """Show the directory *source* through the mount, with every operation that pyfuse3 has.

    All hard links of a file are one inode. The exception is overlayfs, which separates the hard
    links of a lower layer when one of them is changed: each of these is an inode of its own. Inode
    numbers are those of the lower files if these are unique. The number of descriptors does not
    limit the number of inodes. New files belong to the caller.

    With the mount option ``default_permissions`` the kernel checks permissions, by modes and POSIX
    access control lists. Without it, each request is carried out as its caller, and the lower file
    system checks permissions.

    A subclass may override any handler, which then gets every request. Overriding any handler turns
    ``exclusive`` into ``ttl``, so that the kernel keeps nothing for longer than the timeouts of
    replies allow. If ``read`` is overridden, the kernel reads no lower file by itself. If ``write``
    is overridden, it writes none.

    If *source* is on a file system that stacks on others (overlayfs, eCryptfs, eFuse), the stacking
    depth of the mount is 2 (``efuse_stack_depth``), so that the kernel can read and write lower
    files by itself there, too. Such a mount cannot be a layer of an overlay. With the mount option
    ``stack_depth=1`` it can, but the daemon then reads and writes the files.

    The pass-through promises ``no_open`` and ``no_flush``. It promises ``nodeid_per_file``
    unless FUSE, overlayfs, or one file system twice is mounted at or below *source*. If one of
    several mounts there may show the files of another one (FUSE, overlayfs, a network file system),
    it promises neither ``no_open`` nor ``nodeid_per_file``. It never promises
    ``stable_nodeids``, because the lower file system uses inode numbers again.

    :param source: path of the lower directory.
    :param consistency: see :class:`efuse.Options`. Use ``exclusive`` only if all changes in
        *source* go through this mount. ``exclusive`` becomes ``ttl`` while one file system is
        mounted twice at or below *source*, or one of several mounts there may show the files of
        another one.
    :param entry_timeout: how long the kernel believes a name, in seconds; 0 with ``strict``, and on
        plain FUSE without ``default_permissions``.
    :param attr_timeout: how long the kernel believes attributes, in seconds; 0 with ``strict``.
    :param negative_timeout: how long the kernel believes that a name does not exist, in seconds; 0
        with ``strict``, and on plain FUSE without ``default_permissions``.
    :param writeback: whether to use FUSE's writeback cache, in which the kernel gathers writes.
    :param lazy_atime: whether to promise ``lazy_atime``.
    :param descriptors: about how many inodes keep a descriptor. The default is half of the limit of
        open files, which is raised as far as possible. The other half is for open files.
    :raises UsageError: a parameter is out of its range.
    :raises MountError: *source* cannot be opened, or the mounts below it cannot be read.
    """

    supports_dot_lookup = False
    efuse_applies_umask = True

    def __init__(
        self,
        source: str | os.PathLike[str],
        *,
        consistency: str = "ttl",
        entry_timeout: float = 1.0,
        attr_timeout: float = 1.0,
        negative_timeout: float = 0.0,
        writeback: bool = False,
        lazy_atime: bool = False,
        descriptors: int | None = None,
    ) -> None:
        super().__init__()
        for name, seconds in (
            ("entry_timeout", entry_timeout),
            ("attr_timeout", attr_timeout),
            ("negative_timeout", negative_timeout),
        ):
            if not 0 <= seconds < 2**31:
                raise UsageError(
                    f"{name} cannot be {seconds!r} (EINVAL)", hint="it is a number of seconds"
                )
        self.efuse_options = Options(
            consistency=consistency,
            nodeid_per_file=True,
            no_open=True,
            no_flush=True,
            lazy_atime=lazy_atime,
        )
        used = shortcuts(self.efuse_options, self)
        self.enable_writeback_cache = writeback
        strict = consistency == "strict"
        self._entry_timeout = 0.0 if strict else entry_timeout
        self._attr_timeout = 0.0 if strict else attr_timeout
        self._negative_timeout = 0.0 if strict else negative_timeout
        self._flag_mask = _OPEN_FLAGS
        limit = _raise_descriptor_limit()
        try:
            self._inodes = Inodes(
                os.fspath(source),
                descriptors or min(_MOST_DESCRIPTORS, limit // 2),
                kept=min(_MOST_DESCRIPTORS, limit // 4),
            )
            self._promises = Promises(
                self._inodes, lambda: self._shortcuts().options, self._withdraw
            )
            self._promises.weigh()
            if used.reads:
                mounts, own = self._inodes.mounts, self._inodes.root.mount
                self.efuse_stack_depth = depth_above(own.kind, mounts.row(own.number))
        except OSError as error:
            raise MountError(
                f"{os.fspath(source)} cannot be passed through: {reason(error)}",
                hint="raise fs.inotify.max_user_instances, or the limit of open files"
                if error.errno == errno.EMFILE
                else "name a directory that can be read",
            ) from error
        self._watching = trio.CancelScope()
        self._inodes.doubt, self._inodes.changed = self._disbelieve, self._promises.distrust
        self._files = Files(self._inodes, min(256, limit // 16))
        self._streams = Streams(self._inodes, min(64, limit // 32))
        self._backing = BackingFiles(self.backing, self._shortcuts)
        self._credentials = Credentials()
        self._as_caller: Callable[
            [RequestContext | None], contextlib.AbstractContextManager[None]
        ] = self._credentials.of

    # Mount and unmount

    def _shortcuts(self) -> Shortcuts:
        """Return what the kernel may do instead of calling handlers, as decided at the mount."""
        return self.efuse.shortcuts or shortcuts(self.efuse_options, self)

    def _withdraw(self, withdrawn: Mapping[str, Any]) -> None:
        """Take back promises (or none), and make void what the kernel has learned.

        :raises EfuseError: the kernel did not accept the change.
        """
        self.efuse_options = replace(self.efuse_options, **withdrawn)
        used = self.efuse.shortcuts
        if used is not None:
            self.efuse.shortcuts = replace(used, options=replace(used.options, **withdrawn))
        if self.efuse.acceleration is not None:
            self.efuse.acceleration.withdraw(withdrawn)

    @property
    def _kernel_checks(self) -> bool:
        """Whether the kernel checks permissions. Otherwise the lower file system does."""
        options = self.efuse.mount_options
        return options is not None and "default_permissions" in options

    @property
    def enable_acl(self) -> bool:  # type: ignore[override]
        """Whether the kernel checks access control lists. It does if it checks permissions."""
        return self._kernel_checks

    def init(self) -> None:
        """Prepare for requests, after the mount."""
        if self.efuse.mounted_connection is not None:
            self._inodes.mounts.own = self.efuse.mounted_connection
        self._promises.look()
        self._watch_mounts()
        if self._kernel_checks:
            self._as_caller = _as_daemon
            self._credentials.checked_by_kernel = True
        elif self.efuse.mounted_type != "efuse":
            # FUSE lets every user use the cached names that one caller looked up. eFuse does not.
            self._entry_timeout = self._negative_timeout = 0.0

    def _watch_mounts(self) -> None:
        """Check the promises after each change of the mounts, even without any request."""
        try:
            trio.lowlevel.current_task()
        except RuntimeError:
            return  # outside of trio, no task can wait for changes
        self._watching.cancel()
        self._watching = trio.CancelScope()
        trio.lowlevel.spawn_system_task(self._watch, self._watching)

    async def _watch(self, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await watch_table(self._promises.look)
        except OSError as error:
            _log.warning(
                "new mounts below the source are noticed only by lookups: %s", reason(error)
            )

    def close(self) -> None:
        """Close all descriptors. Call this after the file system has been unmounted."""
        self._watching.cancel()
        self._files.close()
        self._streams.close()
        self._inodes.close()
        self._credentials.close()

    @property
    def lookups(self) -> dict[int, int]:
        """The lookup counts that are not zero, by inode number."""
        return self._inodes.lookups

    # Names

    @stands_for(Shortcut.ANSWERS)
    @_request
    def lookup(self, parent_inode: int, name: bytes, ctx: RequestContext) -> EntryAttributes:
        """Look *name* up, and add one to the lookup count of its inode."""
        parent = self._node(parent_inode)
        try:
            return self._found(parent, name, ctx)
        except FileNotFoundError:
            if not self._negative_timeout:
                raise
        absent = EntryAttributes()
        absent.st_ino = 0
        absent.entry_timeout = self._negative_timeout
        return absent

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """Take lookups back, and drop the inodes whose lookup count is then 0."""
        for nodeid, count in inode_list:
            self._backing.forget(nodeid)
            if self._inodes.forget(nodeid, count) is not None:
                self._files.forget(nodeid)
                self._streams.forget(nodeid)

    @stands_for(Shortcut.NONE)
    @_request
    def mknod(
        self, parent_inode: int, name: bytes, mode: int, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        """Make a file, pipe, socket or device node, and add one to its lookup count."""
        parent = self._node(parent_inode)
        fd = self._inodes.fd(parent)
        with self._credentials.of(ctx), _Umask(ctx.umask):
            os.mknod(name, mode, rdev, dir_fd=fd)
        return self._made(parent, name, mode if stat.S_IFMT(mode) else mode | stat.S_IFREG, ctx)

    @stands_for(Shortcut.NONE)
    @_request
    def mkdir(
        self, parent_inode: int, name: bytes, mode: int, ctx: RequestContext
    ) -> EntryAttributes:
        """Make a directory, and add one to its lookup count."""
        parent = self._node(parent_inode)
        fd = self._inodes.fd(parent)
        with self._credentials.of(ctx), _Umask(ctx.umask):
            os.mkdir(name, stat.S_IMODE(mode), dir_fd=fd)
        return self._made(parent, name, stat.S_IFDIR | stat.S_IMODE(mode), ctx)

    @stands_for(Shortcut.NONE)
    @_request
    def symlink(
        self, parent_inode: int, name: bytes, target: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        """Make a symbolic link, and add one to its lookup count."""
        parent = self._node(parent_inode)
        fd = self._inodes.fd(parent)
        with self._credentials.of(ctx):
            os.symlink(target, name, dir_fd=fd)
        return self._made(parent, name, stat.S_IFLNK | 0o777, ctx, size=len(target))

    @stands_for(Shortcut.NONE)
    @_request
    def link(
        self, inode: int, new_parent_inode: int, new_name: bytes, ctx: RequestContext
    ) -> EntryAttributes:
        """Give *inode* another name, and add one to its lookup count."""
        node, parent = self._node(inode), self._node(new_parent_inode)
        with self._inodes.held(node) as fd:
            before = os.fstat(fd)
            try:
                self._link(fd, parent, new_name, ctx)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                # The descriptor may be on another mount than the name that the caller used.
                beside = self._inodes.find_on(node, parent.mount)
                try:
                    self._link(beside, parent, new_name, ctx)
                finally:
                    os.close(beside)
        # The name is not looked up again. It may be gone already, although the link was made.
        self._inodes.linked(node, parent, new_name)
        attributes = self._attributes_now(node, before)
        node.lookups += 1
        return attributes

    @stands_for(Shortcut.NONE)
    @_request
    def unlink(self, parent_inode: int, name: bytes, ctx: RequestContext) -> None:
        """Remove a name. The inode stays usable while the kernel holds it."""
        self._remove(parent_inode, name, ctx, os.unlink)

    @stands_for(Shortcut.NONE)
    @_request
    def rmdir(self, parent_inode: int, name: bytes, ctx: RequestContext) -> None:
        """Remove an empty directory. The inode stays usable while the kernel holds it."""
        self._remove(parent_inode, name, ctx, os.rmdir)

    @stands_for(Shortcut.NONE)
    @_request
    def rename(
        self,
        parent_inode_old: int,
        name_old: bytes,
        parent_inode_new: int,
        name_new: bytes,
        flags: int,
        ctx: RequestContext,
    ) -> None:
        """Rename, with the flags of renameat2(2). Lookup counts do not change."""
        old_parent, new_parent = self._node(parent_inode_old), self._node(parent_inode_new)
        with self._inodes.held(old_parent) as old_fd, self._inodes.held(new_parent) as new_fd:
            moved = self._inodes.named(old_parent, name_old)
            target = self._inodes.named(new_parent, name_new)
            for node in (moved, target):
                if node is not None:
                    self._inodes.fd(node)
            old, new = (old_parent, name_old), (new_parent, name_new)
            if target is moved:
                # For two names of one inode, rename(2) does nothing.
                replaced = moved = target = None
            else:
                replaced = None if flags & pyfuse3.RENAME_EXCHANGE else target
            with self._inodes.losing(replaced, new), self._as_caller(ctx):
                syscalls.rename(old_fd, name_old, new_fd, name_new, flags)
        if moved is not None:
            self._inodes.renamed(moved, old, new)
        if target is not None and flags & pyfuse3.RENAME_EXCHANGE:
            self._inodes.renamed(target, new, old)

    # Attributes

    @stands_for(Shortcut.ANSWERS)
    @_request
    def getattr(self, inode: int, ctx: RequestContext | None = None) -> EntryAttributes:
        """Return the attributes."""
        return self._attributes(self._node(inode))

    @stands_for(Shortcut.HANDLES)
    @_request
    def setattr(
        self,
        inode: int,
        attr: EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: int | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        """Change the mode, the owner, the size and the times that *fields* selects."""
        node = self._node(inode)
        opened = self._files.opened(fh) if fh is not None else None
        if fields.update_size and opened is None:
            # A handle of a file that the kernel opened by itself: it was opened for writing.
            (self._inodes.check_name if fh is None else self._inodes.check_writable)(node)
        fd = self._inodes.fd(node)
        path, before = b"/proc/self/fd/%d" % fd, os.fstat(fd)
        with self._as_caller(ctx):
            if fields.update_uid or fields.update_gid:
                uid = attr.st_uid if fields.update_uid else -1
                gid = attr.st_gid if fields.update_gid else -1
                os.chown(path, uid, gid)
            if fields.update_mode:
                self._set_mode(path, stat.S_IMODE(attr.st_mode))
            if fields.update_size:
                os.truncate(path if opened is None else opened, attr.st_size)
            if fields.update_atime or fields.update_mtime:
                _set_times(
                    path,
                    attr.st_atime_ns if fields.update_atime else None,
                    attr.st_mtime_ns if fields.update_mtime else None,
                )
        return self._attributes_now(node, before, attr, fields)

    @stands_for(Shortcut.ANSWERS)
    @_request
    def readlink(self, inode: int, ctx: RequestContext) -> bytes:
        """Return the target of a symbolic link."""
        return os.readlink(b"", dir_fd=self._inodes.fd(self._node(inode)))

    @stands_for(Shortcut.ANSWERS)
    @_request
    def access(self, inode: int, mode: int, ctx: RequestContext) -> bool:
        """Return True if the caller has the access *mode* (a mask of R_OK, W_OK and X_OK).

        Otherwise fail with the error of the lower file system. Whether a file may be executed also
        depends on the mount that its name is on.
        """
        node = self._node(inode)
        is_of_name = mode & os.X_OK and node.kind == stat.S_IFREG
        fd = self._inodes.by_name(node) if is_of_name else os.dup(self._inodes.fd(node))
        try:
            with self._as_caller(ctx):
                syscalls.check_access(fd, mode)
        except OSError as error:
            if error.errno != errno.ENOSYS:  # FUSE would allow every access from then on
                raise
            with self._as_caller(ctx):
                return os.access(b"/proc/self/fd/%d" % fd, mode, effective_ids=True)
        finally:
            os.close(fd)
        return True

    @stands_for(Shortcut.ANSWERS)
    @_request
    def statfs(self, ctx: RequestContext) -> StatvfsData:
        """Return the statistics of the lower file system."""
        lower = os.fstatvfs(self._inodes.fd(self._inodes.root))
        result = StatvfsData()
        for name in _STATVFS:
            setattr(result, name, getattr(lower, name))
        return result

    # Extended attributes

    @stands_for(Shortcut.NONE)
    @_request
    def setxattr(self, inode: int, name: bytes, value: bytes, ctx: RequestContext) -> None:
        """Set an extended attribute."""
        path = self._path(self._node(inode))
        with self._changing_xattr(name, ctx):
            os.setxattr(path, name, value)

    @stands_for(Shortcut.ANSWERS)
    @_request
    def getxattr(self, inode: int, name: bytes, ctx: RequestContext) -> bytes:
        """Return an extended attribute. Fail with ENODATA if it does not exist."""
        path = self._path(self._node(inode))
        with self._as_caller(ctx):
            return os.getxattr(path, name)

    @stands_for(Shortcut.ANSWERS)
    @_request
    def listxattr(self, inode: int, ctx: RequestContext) -> list[bytes]:
        """Return the names of the extended attributes."""
        path = self._path(self._node(inode))
        with self._as_caller(ctx):
            return [os.fsencode(name) for name in os.listxattr(path)]

    @stands_for(Shortcut.NONE)
    @_request
    def removexattr(self, inode: int, name: bytes, ctx: RequestContext) -> None:
        """Remove an extended attribute. Fail with ENODATA if it does not exist."""
        path = self._path(self._node(inode))
        with self._changing_xattr(name, ctx):
            os.removexattr(path, name)

    # Files

    @stands_for(Shortcut.HANDLES)
    @_request
    def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        """Make and open a file, and add one to its lookup count.

        If its inode cannot be found any more, the file can be read and written only by its handle.
        """
        parent = self._node(parent_inode)
        how = self._flags(flags) | (flags & os.O_EXCL) | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        parent_fd = self._inodes.fd(parent)
        spare = os.dup(parent_fd)  # fail here, before the file exists, if no descriptor is left
        try:
            with self._credentials.of(ctx), _Umask(ctx.umask):
                fd = os.open(name, how, mode, dir_fd=parent_fd)
        finally:
            os.close(spare)
        try:
            node, status = self._inodes.adopt(parent, name, reopen(fd, os.O_PATH))
            attributes = self._count(node, status)
        except OSError:
            attributes = self._lost(parent, name, stat.S_IFREG | stat.S_IMODE(mode), ctx)
            return FileInfo(fh=self._files.add(fd)), attributes
        return self._info(node, fd, how), attributes

    @stands_for(Shortcut.ANSWERS | Shortcut.HANDLES)
    @_request
    def open(self, inode: int, flags: int, ctx: RequestContext) -> FileInfo:
        """Open a file."""
        node = self._node(inode)
        if node.kind != stat.S_IFREG:
            raise FUSEError(errno.EISDIR if node.kind == stat.S_IFDIR else errno.ENXIO)
        if flags & (os.O_ACCMODE | os.O_TRUNC) != os.O_RDONLY:
            self._inodes.check_name(node)
        fd = self._inodes.fd(node)
        with self._as_caller(ctx):
            opened = reopen(fd, self._flags(flags))
        return self._info(node, opened, self._flags(flags))

    @stands_for(Shortcut.READS | Shortcut.HANDLES)
    @_request
    def read(self, fh: int, off: int, size: int) -> bytes:
        """Read *size* bytes, or less only at the end of the file."""
        fd = self._file(fh)
        data = os.pread(fd, size, off)
        # A short read does not prove the end of the file. Only an empty one does.
        while 0 < len(data) < size and (more := os.pread(fd, size - len(data), off + len(data))):
            data += more
        return data

    @stands_for(Shortcut.WRITES | Shortcut.HANDLES)
    @_request
    def write(self, fh: int, off: int, buf: bytes) -> int:
        """Write, and return the number of bytes written."""
        fd = self._file(fh, write=True)
        done = os.pwrite(fd, buf, off)
        rest = memoryview(buf)
        while done < len(buf):
            try:
                more = os.pwrite(fd, rest[done:], off + done)
            except OSError:
                if self._is_write_back(fd, off + len(buf)):
                    raise
                break  # the reply is the size of the written part; the next write gets the error
            if not more:
                break
            done += more
        return done

    def _is_write_back(self, fd: int, end: int) -> bool:
        """Tell whether a WRITE up to the offset *end* may be a write-back of dirty pages.

        After a short reply to such a WRITE the kernel does not write the rest, so it needs the
        error, which fsync(2) then reports. Without the writeback cache, dirty pages are only within
        the file. Any other WRITE there may fail as well, although a part was written: the caller
        can write the same bytes again.
        """
        return self.enable_writeback_cache or end <= os.fstat(fd).st_size

    @stands_for(Shortcut.ANSWERS | Shortcut.FLUSH | Shortcut.HANDLES)
    @_request
    def flush(self, fh: int) -> None:
        """Report the error that closing the lower file would report, without closing it."""
        fd = self._files.opened(fh)
        if fd is not None:
            os.close(os.dup(fd))

    @stands_for(Shortcut.HANDLES)
    @_request
    def release(self, fh: int) -> None:
        """Close a file."""
        self._files.release(fh)

    @stands_for(Shortcut.HANDLES)
    @_waiting_request
    async def fsync(self, fh: int, datasync: bool) -> None:
        """Write a file to its storage. Other requests are answered meanwhile."""
        await _sync(self._file(fh), datasync)

    # Directories

    @stands_for(Shortcut.ANSWERS | Shortcut.HANDLES)
    @_request
    def opendir(self, inode: int, ctx: RequestContext) -> int:
        """Open a directory."""
        node = self._node(inode)
        self._inodes.fd(node)
        with self._as_caller(ctx):
            return self._streams.add(self._streams.open(node))

    @stands_for(Shortcut.HANDLES)
    @_request
    def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """Reply with entries and their attributes, and add one to the lookup count of each.

        Positions are those of the lower directory, and survive its changes equally well.
        """
        try:
            stream = self._streams.take(fh, start_id)
        except KeyError:
            raise FUSEError(errno.EBADF) from None
        ended = replied = False
        try:
            while True:
                try:
                    entry = stream.peek()
                except OSError as error:
                    if not replied:
                        raise
                    stream.failure = error  # the replied entries are valid; the next call fails
                    return
                if entry is None:
                    break
                try:
                    if not self._reply(token, stream, entry):
                        return
                    replied = True
                except OSError as error:
                    if error.errno not in _ENTRY_GONE:
                        if replied:
                            return  # the replied entries are valid; the next call meets the error
                        raise
                    stream.skip()
                else:
                    stream.advance()
            ended = stream.position == start_id
        finally:
            self._streams.put(fh, stream, ended=ended)

    @stands_for(Shortcut.HANDLES)
    @_request
    def releasedir(self, fh: int) -> None:
        """Close a directory."""
        self._streams.release(fh)

    @stands_for(Shortcut.HANDLES)
    @_waiting_request
    async def fsyncdir(self, fh: int, datasync: bool) -> None:
        """Write a directory to its storage. Other requests are answered meanwhile."""
        stream = self._streams.get(fh)
        await _sync(stream.fd if stream is not None else self._file(fh), datasync)

    # What the handlers share

    def _node(self, inode: int) -> Node:
        try:
            return self._inodes.node(inode)
        except KeyError:
            raise FUSEError(errno.ESTALE) from None

    def _path(self, node: Node) -> bytes:
        """Return a path to the lower inode, which is not followed if it is a symbolic link."""
        return b"/proc/self/fd/%d" % self._inodes.fd(node)

    def _file(self, fh: int, *, write: bool = False) -> int:
        try:
            return self._files.get(fh, write=write)
        except KeyError:
            raise FUSEError(errno.EBADF) from None

    def _set_mode(self, path: bytes, mode: int) -> None:
        """Change the mode as the caller, within ``self._as_caller(ctx)``."""
        try:
            os.chmod(path, mode)  # noqa: PTH101 - a path of bytes
        except PermissionError:
            # When a file is written by another user than its owner, the kernel clears set-uid and
            # set-gid with the writer's identity. So every process that may write may clear them.
            now = stat.S_IMODE(os.stat(path).st_mode)  # noqa: PTH116 - a path of bytes
            privileges = now & ~mode
            only_less = mode & ~now == 0 and privileges & ~(stat.S_ISUID | stat.S_ISGID) == 0
            if not only_less or not privileges or not os.access(path, os.W_OK, effective_ids=True):
                raise
            with self._credentials.of_daemon():
                os.chmod(path, mode)  # noqa: PTH101

    def _link(self, fd: int, parent: Node, name: bytes, ctx: RequestContext) -> None:
        parent_fd = self._inodes.fd(parent)
        with self._as_caller(ctx):
            os.link(b"/proc/self/fd/%d" % fd, name, dst_dir_fd=parent_fd)

    def _changing_xattr(
        self, name: bytes, ctx: RequestContext
    ) -> contextlib.AbstractContextManager[None]:
        """Act as a user who may change the extended attribute *name*.

        For names that begin with ``system.``, such as access control lists, the kernel leaves the
        permission check to each file system. So such a change is made as the caller. The lower file
        system then also clears set-gid of a file if the caller is not in its group.
        """
        own = name.startswith(b"system.")
        return self._credentials.of(ctx) if own else self._as_caller(ctx)

    def _flags(self, flags: int) -> int:
        """Return the flags with which the lower file is opened."""
        if self.enable_writeback_cache and flags & os.O_ACCMODE == os.O_WRONLY:
            flags = flags & ~os.O_ACCMODE | os.O_RDWR  # the kernel reads pages to fill them
        return flags & self._flag_mask

    def _info(self, node: Node, fd: int, flags: int) -> FileInfo:
        self._backing.opened(node, fd, flags)
        options = self._shortcuts().options
        if options.no_open and self.efuse.mounted_type == "efuse":
            self._inodes.keep(node)
        keep = options.consistency == "exclusive"
        return FileInfo(fh=self._files.add(fd, node), keep_cache=keep)

    def _found(
        self, parent: Node, name: bytes, ctx: RequestContext | None = None
    ) -> EntryAttributes:
        """Look *name* up as the caller of *ctx*, if any, and add one to its lookup count."""
        if name in (b".", b".."):
            return self._count(parent if name == b"." else parent.parent or parent)
        parent_fd = self._inodes.fd(parent)
        if self._as_caller is _as_daemon:  # even an empty context manager costs as much as the open
            fd = os.open(name, FIND, dir_fd=parent_fd)
        else:
            with self._as_caller(ctx):
                fd = os.open(name, FIND, dir_fd=parent_fd)
        return self._count(*self._inodes.adopt(parent, name, fd))

    def _made(
        self, parent: Node, name: bytes, mode: int, ctx: RequestContext, size: int = 0
    ) -> EntryAttributes:
        """Return the reply for *name*, which was made but may lead to another inode by now.

        This adds one to the lookup count of the inode in the reply.
        """
        try:
            fd = os.open(name, FIND, dir_fd=self._inodes.fd(parent))
            node, status = self._inodes.adopt(parent, name, fd)
            if node.kind == stat.S_IFMT(mode):
                return self._count(node, status)
            self._inodes.drop_unused(node)
        except OSError as error:
            _log.info("%r was created and cannot be found: %s", name, reason(error))
        return self._lost(parent, name, mode, ctx, size)

    def _lost(
        self, parent: Node, name: bytes, mode: int, ctx: RequestContext, size: int = 0
    ) -> EntryAttributes:
        """Return a reply with an inode that cannot be reached, and add one to its lookup count.

        The request succeeded, so its reply needs an inode. Requests for this inode fail with
        ESTALE. Its timeouts are 0, so the next use of the name looks it up.
        """
        attributes = self._unseen(parent, name, mode & ~(0 if stat.S_ISLNK(mode) else ctx.umask))
        attributes.st_uid = ctx.uid
        attributes.st_gid = ctx.gid
        attributes.st_size = size
        return attributes

    def _unseen(self, parent: Node, name: bytes, mode: int) -> EntryAttributes:
        """Return made-up attributes, with timeouts of 0, of an inode that cannot be accessed.

        This adds one to the lookup count of a new node.
        """
        node = self._inodes.lost(parent, name, stat.S_IFMT(mode))
        node.lookups += 1
        self._disbelieve(parent, name)  # in exclusive mode the kernel ignores timeouts
        attributes = EntryAttributes()
        attributes.st_ino = node.nodeid
        attributes.generation = node.generation
        attributes.entry_timeout = attributes.attr_timeout = 0.0
        attributes.st_mode = mode
        attributes.st_nlink = 0
        now = time.time_ns()
        attributes.st_atime_ns = attributes.st_mtime_ns = attributes.st_ctime_ns = now
        return attributes

    def _disbelieve(self, parent: Node, name: bytes) -> None:
        """Make the kernel look *name* up again."""
        if self.efuse.mounted_type is not None:
            pyfuse3.invalidate_entry_async(parent.nodeid, name, ignore_enoent=True)

    def _count(self, node: Node, known: Status | None = None) -> EntryAttributes:
        """Add one to the lookup count of *node*, and return the attributes for the reply.

        :param known: the attributes of the lower inode, if they need not be asked for.
        """
        try:
            self._promises.keep(node)
            if known is None:
                attributes = self._attributes(node)
            else:
                attributes = self._without_status(node)
                syscalls.set_attributes(attributes, known)
        except OSError:
            self._inodes.drop_unused(node)
            raise
        node.lookups += 1
        return attributes

    def _remove(
        self, parent_inode: int, name: bytes, ctx: RequestContext, how: Callable[..., None]
    ) -> None:
        parent = self._node(parent_inode)
        with self._inodes.held(parent) as fd:
            node = self._inodes.named(parent, name)
            with self._inodes.losing(node, (parent, name)), self._as_caller(ctx):
                how(name, dir_fd=fd)

    def _reply(
        self, token: pyfuse3.ReaddirToken, stream: Stream, entry: syscalls.DirectoryEntry
    ) -> bool:
        """Reply with one entry. Return False if there was no room for it."""
        position, kind, name, _ = entry
        if name == b"." or name == b"..":
            node = stream.node if name == b"." else stream.node.parent or stream.node
            return pyfuse3.readdir_reply(token, name, self._attributes(node), position)
        try:
            found = self._inodes.listed(stream.node, stream.fd, entry)
            if found is None:
                fd = os.open(name, FIND, dir_fd=stream.fd)
                attributes = self._count(*self._inodes.adopt(stream.node, name, fd))
            else:
                attributes = self._count(*found)
        except PermissionError:
            # For example, the entry is a FUSE mount of another user. The name exists nevertheless.
            attributes = self._unseen(stream.node, name, kind << 12 or stat.S_IFREG)
        if pyfuse3.readdir_reply(token, name, attributes, position):
            return True
        self._inodes.forget(attributes.st_ino, 1)
        return False

    def _attributes_now(
        self,
        node: Node,
        before: os.stat_result,
        attr: EntryAttributes | None = None,
        fields: pyfuse3.SetattrFields | None = None,
    ) -> EntryAttributes:
        """Return the attributes after a change that succeeded.

        If the lower inode cannot be reached any more, the result is *before* with the *fields* of
        *attr* that were set, and timeouts of 0.

        :param before: the attributes before the change.
        """
        try:
            return self._attributes(node)
        except OSError as error:
            _log.info("%r was changed and cannot be found: %s", node, reason(error))
        attributes = self._attributes(node, before)
        attributes.entry_timeout = attributes.attr_timeout = 0.0
        attributes.st_ctime_ns = time.time_ns()
        if attr is None or fields is None:
            return attributes
        if fields.update_mode:
            attributes.st_mode = stat.S_IFMT(before.st_mode) | stat.S_IMODE(attr.st_mode)
        for name in ("uid", "gid", "size"):
            if getattr(fields, f"update_{name}"):
                setattr(attributes, f"st_{name}", getattr(attr, f"st_{name}"))
        for name in ("atime", "mtime"):
            if getattr(fields, f"update_{name}"):
                setattr(attributes, f"st_{name}_ns", getattr(attr, f"st_{name}_ns"))
        return attributes

    def _without_status(self, node: Node) -> EntryAttributes:
        """Return attributes without those of the lower inode, which the caller sets."""
        attributes = EntryAttributes()
        attributes.st_ino = node.nodeid
        attributes.generation = node.generation
        attributes.entry_timeout = self._entry_timeout
        attributes.attr_timeout = self._attr_timeout
        return attributes

    def _attributes(self, node: Node, known: os.stat_result | None = None) -> EntryAttributes:
        st = os.fstat(self._inodes.fd(node)) if known is None else known
        attributes = self._without_status(node)
        attributes.st_mode = st.st_mode
        attributes.st_nlink = st.st_nlink
        attributes.st_uid = st.st_uid
        attributes.st_gid = st.st_gid
        attributes.st_rdev = st.st_rdev
        attributes.st_size = st.st_size
        attributes.st_blksize = st.st_blksize
        attributes.st_blocks = st.st_blocks
        attributes.st_atime_ns = st.st_atime_ns
        attributes.st_mtime_ns = st.st_mtime_ns
        attributes.st_ctime_ns = st.st_ctime_ns
        return attributes


_STATVFS = (
    "f_bsize",
    "f_frsize",
    "f_blocks",
    "f_bfree",
    "f_bavail",
    "f_files",
    "f_ffree",
    "f_favail",
    "f_namemax",
)


def _as_daemon(ctx: RequestContext | None) -> contextlib.AbstractContextManager[None]:
    return UNCHANGED


class _Umask:
    """A context manager in which files are created with a mask.

    The lower file system ignores the mask where there is a default ACL. The umask belongs to the
    whole process, so await nothing within the block. A file that another thread creates at that
    moment gets this umask, too.
    """

    __slots__ = ("_before", "_mask")

    def __init__(self, mask: int) -> None:
        self._mask = mask & 0o777

    def __enter__(self) -> None:
        self._before = os.umask(self._mask)

    def __exit__(self, *_: object) -> None:
        os.umask(self._before)


def _set_times(path: bytes, atime_ns: int | None, mtime_ns: int | None) -> None:
    try:
        syscalls.set_times(path, atime_ns, mtime_ns)
    except PermissionError:
        # pyfuse3 has replaced "now" by a time. But a user who is not the owner, and may only write
        # the file, may only set "now".
        given = [t for t in (atime_ns, mtime_ns) if t is not None]
        if any(not 0 <= time.time_ns() - t < _NOW_NS for t in given):
            raise
        syscalls.set_times(path, atime_ns, mtime_ns, now=True)


async def _sync(fd: int, datasync: bool) -> None:
    own = os.dup(fd)  # a request may close the file meanwhile
    try:
        await trio.to_thread.run_sync(os.fdatasync if datasync else os.fsync, own)
    finally:
        os.close(own)


def _raise_descriptor_limit() -> int:
    """Raise the soft limit of open files to the hard limit, and return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
