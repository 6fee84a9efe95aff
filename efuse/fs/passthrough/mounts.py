# SPDX-License-Identifier: LGPL-2.1-or-later
"""The mounts at and below the source of a pass-through."""

from __future__ import annotations

import contextlib
import errno
import os
import select

from efuse.control.mounts import MOUNTINFO, Mount, read_table
from efuse.fs.forking import Maker
from efuse.fs.passthrough.stacking import FUSE, is_local, kind_by_row
from efuse.fs.passthrough.syscalls import Status, check_write_access, file_system_type

__all__ = ["LowerMount", "LowerMounts"]

_READ_ONLY, _WRITABLE = -1, -2  # rights; no mount in the table has such an id
_MOST_READINGS = 8


class LowerMount:
    """A mount in use. A descriptor of it prevents that its id is used again.

    :ivar number: id of the mount, see `Status`.
    :ivar kind: type of its file system, see
        :func:`efuse.fs.passthrough.syscalls.file_system_type`. A FUSE daemon is not asked, because
        it need not implement statfs.
    :ivar is_local: see :func:`efuse.fs.passthrough.stacking.is_local`.
    :ivar rights: a value that is equal for all mounts by which a file has the same node:
        `_READ_ONLY`, `_WRITABLE`, or the id of a mount that maps the owners of files. No other
        option of a mount gives a file another node, because two nodes would both cache pages of the
        file, and the one that is written back last would win.
    :ivar uses: number of nodes on the mount, and of searches that have met it and not ended.
    :ivar row: the last row of the mount in the table of mounts. None if the table never had one,
        because the mount is in another namespace or outside of a chroot.
    """

    __slots__ = ("_anchor", "_by_handle", "is_local", "kind", "number", "rights", "row", "uses")

    def __init__(self, number: int, fd: int, row: Mount | None) -> None:
        """Describe the mount that *fd* is on: an O_PATH descriptor, which the caller keeps.

        :raises OSError: the kernel does not tell the rights of the mount. Wrong rights would give
            files a second node, or write them by a read-only mount.
        """
        self.number = number
        self.uses = 0
        self.row = row
        kind = kind_by_row(row)
        self.kind = _kind_at(fd) if kind is None else kind
        self.is_local = is_local(self.kind)
        self.rights = _rights_of(row) if row is not None else _rights_at(fd)
        self._by_handle = -1
        self._anchor = os.dup(fd)

    def rights_by_descriptor(self) -> int:
        """Return the present rights of the mount, without the table of mounts.

        The last known ones if the kernel does not tell them, for example because a FUSE daemon has
        ended.
        """
        if self.row is not None:
            return self.rights  # it was unmounted: it cannot be remounted, and its daemon may hang
        try:
            return _rights_at(self._anchor if self._anchor >= 0 else self._by_handle)
        except OSError:
            return self.rights

    @property
    def by_handle(self) -> int:
        """A descriptor for open_by_handle_at(2) on this mount; -1 if there is none."""
        return self._by_handle

    def open_by(self, directory: int) -> None:
        """Make it possible to open file handles on this mount.

        :param directory: O_PATH descriptor of a directory on this mount.
        """
        if self._by_handle >= 0:
            return
        with contextlib.suppress(OSError):
            self._by_handle = os.open(
                b"/proc/self/fd/%d" % directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
            )
            os.close(self._anchor)
            self._anchor = -1

    def close(self) -> None:
        """Close the descriptors of the mount."""
        for fd in (self._by_handle, self._anchor):
            if fd >= 0:
                os.close(fd)
        self._by_handle = self._anchor = -1


class LowerMounts:
    """The mounts in use, by their ids.

    A device number does not identify a mount: two mounts of one file system share it, although
    their rights and the mounts below them differ. And a later file system may get the same number.

    The kernel's table of mounts shows the type and the rights of a mount, without a request to any
    daemon. The kernel reports each change of the table once to each open file of the table, so each
    process opens its own. For a mount that the table does not have, each request gets the rights
    from the kernel by a descriptor.

    :ivar own: device of the pass-through's own mount, which cannot be passed through.
    :ivar used: the mounts in use, by their ids. Each has a descriptor.
    :ivar table: mounts of every type that this process sees.
    :ivar readings: how often the table was read.
    :ivar altered: the mounts whose rights have changed since the last :meth:`take_altered`.
    """

    def __init__(self) -> None:
        """Read the table of mounts.

        :raises OSError: the table cannot be read.
        """
        self.used: dict[int, LowerMount] = {}
        self.altered: set[LowerMount] = set()
        self._unlisted: set[LowerMount] = set()
        self.own = -1
        self.table: tuple[Mount, ...] = ()
        self.readings = 0
        self._is_read = False
        self._opener: Maker | None = None
        self._mountinfo = -1
        self.read()

    @property
    def rows(self) -> list[Mount | None]:
        """Rows of these mounts, see :class:`LowerMount`."""
        return [mount.row for mount in self.used.values()]

    @property
    def numbers(self) -> frozenset[int]:
        """Ids of these mounts."""
        return frozenset(self.used)

    @property
    def rights(self) -> set[int]:
        """All rights that these mounts may have or have had, see :class:`LowerMount`."""
        return {_READ_ONLY, _WRITABLE, *(mount.rights for mount in self.used.values())}

    def of(self, fd: int, st: Status) -> LowerMount:
        """Return the mount that *fd* is on, with a use for the caller: see :meth:`use`.

        :param st: status of *fd*.
        :raises OSError: ELOOP if it is the pass-through's own mount, where a request would wait for
            itself. Or the table of mounts cannot be read. Or the mount is in no table, and the
            kernel does not tell its rights.
        """
        mount = self.used.get(st.mount)
        if mount is None:
            if st.device == self.own:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            self.follow()
            mount = self.used[st.mount] = LowerMount(st.mount, fd, self.row(st.mount))
            if mount.row is None:
                self._unlisted.add(mount)
        return self.use(mount)

    def use(self, mount: LowerMount) -> LowerMount:
        """Count a use of *mount*, which :meth:`let_go` ends. Return *mount*."""
        mount.uses += 1
        return mount

    def row(self, number: int) -> Mount | None:
        """Return the row of the mount with the id *number*; None if the table does not have it."""
        return next((row for row in self.table if row.mount_id == number), None)

    def take_altered(self) -> set[LowerMount]:
        """Return the mounts whose rights have changed since the last call."""
        altered, self.altered = self.altered, set()
        return altered

    def give_back(self, altered: set[LowerMount]) -> None:
        """Make the next :meth:`take_altered` return the mounts *altered* again."""
        self.altered |= altered

    def let_go(self, mount: LowerMount) -> None:
        """End a use of *mount*. Forget it if it has no other one."""
        mount.uses -= 1
        if not mount.uses and self.used.get(mount.number) is mount:
            del self.used[mount.number]
            self._unlisted.discard(mount)
            mount.close()

    def close(self) -> None:
        """Close the descriptors of all mounts, and the table."""
        for mount in self.used.values():
            mount.close()
        self.used.clear()
        self.altered.clear()
        self._unlisted.clear()
        if self._mountinfo >= 0:
            os.close(self._mountinfo)
            self._mountinfo = -1

    def follow(self, *, again: bool = False) -> None:
        """Read the table again if it has changed.

        :param again: whether to read it even if the kernel has not reported a change. The kernel
            does not report that the mounts below a renamed directory move with it.
        :raises OSError: the table cannot be read. The next call tries again.
        """
        if again or not self._is_open_here() or self._has_changed():
            self._is_read = False  # the kernel reports a change only once
        if not self._is_read:
            self.read()
        for mount in self._unlisted:
            self._note_rights(mount, mount.rights_by_descriptor())

    def are_followed(self) -> bool:
        """Tell whether :meth:`follow` has nothing to do, and no mount has altered rights.

        Each request calls this, so it does not call the methods that tell parts of it.

        :raises OSError: the kernel does not tell whether the table has changed.
        """
        opener = self._opener
        if opener is None or not opener.is_this_process():
            return False
        if self._changes.poll(0):
            self._is_read = False  # the kernel reports a change only once
        return self._is_read and not self._unlisted and not self.altered

    def _has_changed(self) -> bool:
        return bool(self._changes.poll(0))

    def _is_open_here(self) -> bool:
        return self._opener is not None and bool(self._opener.is_this_process())

    def _open(self) -> None:
        """Open the table in this process. A forked process would share reports with its parent."""
        opener = Maker()
        mountinfo = os.open(MOUNTINFO, os.O_RDONLY | os.O_CLOEXEC)
        if self._mountinfo >= 0:
            os.close(self._mountinfo)
        self._opener, self._mountinfo = opener, mountinfo
        self._changes = select.poll()
        self._changes.register(mountinfo, select.POLLPRI)

    def read(self) -> None:
        """Read the table.

        :raises OSError: the table cannot be read.
        """
        if not self._is_open_here():
            self._open()
        self._is_read = False
        for _ in range(_MOST_READINGS):
            self.table = read_table(self._mountinfo)
            # One read(2) returns a part of the table. If the table changes between two of them, a
            # row may be missing.
            if not self._has_changed():
                self._is_read = True
                break
        self.readings += 1
        rows = {row.mount_id: row for row in self.table}
        self._unlisted.clear()
        for mount in self.used.values():
            row = rows.get(mount.number)
            if row is None:
                self._unlisted.add(mount)
            else:
                mount.row = row
                self._note_rights(mount, _rights_of(row))

    def _note_rights(self, mount: LowerMount, rights: int) -> None:
        if mount.rights != rights:
            mount.rights = rights
            self.altered.add(mount)


def _rights_of(row: Mount) -> int:
    if row.is_idmapped:
        return row.mount_id
    return _READ_ONLY if row.is_read_only else _WRITABLE


def _rights_at(fd: int) -> int:
    """Return the rights of the mount that *fd* is on.

    :raises OSError: the kernel does not tell them.
    """
    try:
        is_read_only = bool(os.fstatvfs(fd).f_flag & os.ST_RDONLY)
    except OSError:
        is_read_only = _is_read_only(fd)  # a FUSE daemon need not implement statfs
    return _READ_ONLY if is_read_only else _WRITABLE


def _is_read_only(fd: int) -> bool:
    """Tell by access(2) whether the mount of *fd* is read-only.

    The kernel checks the mount last, after the permissions of the file (EACCES, EPERM) and, on
    FUSE, after the answer of the daemon (ENOTCONN, EIO). So only success and EROFS tell something
    about the mount. Success does so for a device, pipe or socket as well, although the kernel does
    not check the mount then: such a file can be written on every mount.

    :raises OSError: the kernel does not tell it.
    """
    try:
        check_write_access(fd)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return True
    return False


def _kind_at(fd: int) -> int:
    try:
        return file_system_type(fd)
    except OSError:
        return FUSE  # statfs fails on other file systems only if they are broken
