# SPDX-License-Identifier: LGPL-2.1-or-later
"""The base class of file systems: pyfuse3's, and what eFuse adds to it."""

from __future__ import annotations

import errno
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import pyfuse3
import trio

from efuse.errors import MountError, UsageError, reason
from efuse.fs.events import Events
from efuse.fs.extents import Extent, map_extent, unmap_extents
from efuse.fs.handing_out import handing_out
from efuse.fs.options import Options
from efuse.fs.state import State

__all__ = ["Operations", "PublishedEntry"]


@dataclass(frozen=True)
class PublishedEntry:
    """A directory entry to be told to the kernel before it asks.

    ``attributes.st_ino`` is the inode's number, or 0 for a name that does not exist. Its
    ``entry_timeout`` and ``attr_timeout`` hold as they would in a reply.
    """

    parent: int
    name: bytes
    attributes: pyfuse3.EntryAttributes


class Operations(pyfuse3.Operations):
    """A pyfuse3 file system whose answers the kernel may keep and give by itself.

    Every ``pyfuse3.Operations`` works unchanged with this as its base. Mounted by
    :func:`efuse.serve` on a kernel with eFuse, requests that the kernel can answer never reach the
    handlers; elsewhere all of them do. An exception in a handler that is not a ``FUSEError``
    becomes EIO for the caller, is logged and counted, and leaves the mount as it is.
    """

    efuse_options: Options = Options()
    """What the file system promises; may be set on the class or on the instance."""

    efuse_handlers: ClassVar[Mapping[str, str]] = {}
    """C texts of handlers of your own, by opcode, attached beside the built-in ones."""

    efuse_applies_umask: ClassVar[bool] = False
    """``create``, ``mkdir`` and ``mknod`` apply ``ctx.umask`` themselves, or leave it out where the
    directory has a default ACL. Otherwise the kernel applies it to ``mode`` before it asks."""

    efuse_stack_depth: int = 1
    """How deep a mount counts as stacked, if the mount option ``stack_depth`` does not say: 1 or 2.
    Backing files may lie on file systems of a lower depth: 2 is for those on overlayfs. An overlay
    cannot have a mount of depth 2 as its layer."""

    @functools.cached_property
    def efuse(self) -> State:
        """State of the mount: ``accelerated``, ``reason``, ``maps`` and ``statistics()``."""
        return State()

    async def invalidate(
        self,
        inode: int | None = None,
        *,
        parent: int | None = None,
        name: bytes | None = None,
    ) -> None:
        """Make the kernel forget what it knows, because it changed behind the mount's back.

        With *inode*: its attributes, its extended attributes and its data. With *parent* and
        *name*: that directory entry, present or absent, soon after this returns (the kernel may
        have to wait for requests of the same directory); of a file that has other names, its
        *inode* is told as well, since its link count has changed. With nothing: everything eFuse
        has learned or been given; on plain FUSE there is nothing of that kind. Lookup counts stay
        as they are. May be called from a handler, and is no error for what the kernel does not
        know.

        :raises UsageError: *parent* without *name*, or the other way round.
        :raises MountError: the kernel refused it.
        """
        if (parent is None) != (name is None):
            raise UsageError(
                "an entry cannot be invalidated without both its parent and its name (EINVAL)",
                hint="give parent=INODE and name=BYTES",
            )
        if inode is None and parent is None:
            if self.efuse.accelerator is not None:
                self.efuse.accelerator.invalidate_all()
            return
        if inode is not None:
            await _invalidate_inode(inode)
        if parent is not None and name is not None:
            pyfuse3.invalidate_entry_async(parent, name, ignore_enoent=True)

    def publish_entries(
        self,
        entries: Iterable[PublishedEntry],
        *,
        epoch: int | None = None,
        uid: int = 0,
        gid: int = 0,
    ) -> int:
        """Tell the kernel directory entries and their attributes before it asks for them.

        The values stand as if they were replies to a LOOKUP: until their timeouts end (in mode
        ``exclusive``: until something changes). Lookup counts are not changed: an entry is used
        for an inode that the kernel holds already, or for any where ``stable_nodeids`` is
        promised. A value that changes later has to be invalidated.

        :param epoch: what ``self.efuse.epoch()`` said before the values were read. May be left out
            only if nothing was awaited between reading and publishing them.
        :param uid: whom the values are for, where answers depend on the caller: for every process
            of these ids, whatever supplementary groups and capabilities it has.
        :param gid: likewise.
        :returns: how many entries the maps took; 0 without acceleration.
        :raises UsageError: a name is empty, too long, or holds a NUL or a slash.
        :raises AttachError: a map refused them.
        """
        batch = list(entries)
        for entry in batch:
            if not 1 <= len(entry.name) <= 255 or b"\0" in entry.name or b"/" in entry.name:
                raise UsageError(
                    f"an entry cannot be called {entry.name!r} (EINVAL)",
                    hint="a name has 1 to 255 bytes, none of them NUL or a slash",
                )
        accelerator = self.efuse.accelerator
        if accelerator is None:
            return 0
        if epoch is None:
            epoch = accelerator.epoch()
        return accelerator.publish(batch, epoch=epoch, uid=uid, gid=gid)

    def publish_data(
        self,
        inode: int,
        offset: int,
        data: bytes | bytearray | memoryview,
        *,
        epoch: int,
        valid_ns: int = 0,
        end: bool = False,
    ) -> int:
        """Give the kernel a range of a file before it asks for it.

        The blocks of 4 KiB go into the data cache, and are served as if they had been read: until
        *valid_ns* is over (in mode ``exclusive``: until something changes). Nothing that changed
        since *epoch* is served, and no system call is made. May be called from any thread.

        The number of an inode that the kernel does not hold may be given to another file only
        after ``invalidate(inode)``, if data of it was published.

        :param offset: where the range begins, in bytes: a multiple of 4096.
        :param data: its bytes: a multiple of 4096, but where the file ends.
        :param epoch: what ``self.efuse.epoch()`` said before *data* was read.
        :param valid_ns: how long the data is valid, in ns; not asked in mode ``exclusive``.
        :param end: the file ends where *data* ends.
        :returns: how many blocks the cache took; those whose slots were in use at that moment it
            did not. 0 without acceleration.
        :raises UsageError: *data* does not begin or end at a block's edge.
        """
        from efuse.bpf.cache import check_range

        check_range(inode, offset, memoryview(data).nbytes, end=end)
        accelerator = self.efuse.accelerator
        if accelerator is None:
            return 0
        return accelerator.publish_data(
            inode, offset, data, epoch=epoch, valid_ns=valid_ns, end=end
        )

    def events(self) -> Events:
        """Return what happens in the kernel from now on: ``async for event in self.events()``.

        Each is an :class:`efuse.bpf.Event`: a block left the data cache, what was known of an
        inode or a name became void, or I/O on a file takes another path. It is told behind the
        fact and can be lost (``lost`` says how many were), so that it is a reason to look again,
        not a record. Only while somebody listens does it cost anything: ``close()`` it, or leave
        the loop and let go of it. It ends at the unmount.

        Without acceleration there is nothing to hear: it ends at once.

        :raises MountError: somebody listens to this mount already.
        """
        accelerator = self.efuse.accelerator
        return accelerator.events() if accelerator is not None else Events(None)

    def backing(
        self,
        inode: int,
        fd: int,
        *,
        offset: int = 0,
        length: int | None = None,
        backing_offset: int = 0,
        version: int = 0,
        write: bool = False,
        sealed: bool = False,
    ) -> bool:
        """Let the kernel read a range of a file in a backing file by itself.

        From the next request on, what lies in the range is read from *fd* (a regular file on
        another file system than the mount; it may be closed afterwards) with the credentials that
        the daemon has now, without asking it. What lies in no range goes to the daemon, and so does
        what the backing file cannot give. A later range takes the place of what it overlaps; all
        end when the kernel forgets the inode. When it returns, nothing is read or written any more
        through what it replaced. Needs CAP_SYS_ADMIN.

        It waits for what is being read or written through what it replaces. Where a range of an
        open file is replaced, call it with ``trio.to_thread.run_sync``: requests are to be answered
        meanwhile.

        The kernel has to hold the inode, as it does while the inode is open. A handler whose reply
        tells the kernel of the inode (``lookup``, ``create``, ...) may hand a range over before.

        :param offset: where the range begins in the file, in bytes.
        :param length: bytes; None: the backing file ends where the file ends.
        :param backing_offset: where the range begins in the backing file.
        :param version: of the file's content, in a count of your own: ranges of earlier versions
            are not used any more.
        :param write: the kernel writes there, too, without asking. ``fsync`` still reaches the
            daemon, which has to sync what it handed over.
        :param sealed: use it only as long as nobody changes the backing file. Needs a file system
            that counts changes, such as ext4.
        :returns: whether the kernel took it; False on plain FUSE.
        :raises UsageError: a range that does not exist.
        :raises StaleError: the kernel does not hold the inode (any more), or knows a later version.
        :raises MountError: the kernel refused it; the message says why.
        """
        extent = Extent(
            inode,
            fd,
            offset,
            length,
            backing_offset,
            version,
            write,
            sealed,
            new=handing_out(),
        )
        if self.efuse.device is None:
            return False
        map_extent(self.efuse.device, extent)
        return True

    async def drop_backing(
        self, inode: int, *, offset: int = 0, length: int | None = None, version: int = 0
    ) -> None:
        """End what :meth:`backing` began, for a range of a file or (*length* None) to its end.

        Afterwards nothing is read or written there any more without asking. With *version*, ranges
        of earlier versions end wherever they lie, and none can be handed over later.

        :raises MountError: the kernel refused it.
        """
        device = self.efuse.device
        if device is None:
            return

        def drop() -> None:
            unmap_extents(device, inode, offset=offset, length=length, version=version)

        # In a thread: it waits for what is being read or written.
        await trio.to_thread.run_sync(drop)


async def _invalidate_inode(inode: int) -> None:
    # In a thread: the kernel may have to write dirty pages back, through this very daemon.
    try:
        await trio.to_thread.run_sync(pyfuse3.invalidate_inode, inode)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise MountError(f"inode {inode} cannot be invalidated: {reason(error)}") from error
