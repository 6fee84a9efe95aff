# SPDX-License-Identifier: LGPL-2.1-or-later
"""The base class of file systems: pyfuse3's, with the additions of eFuse."""

from __future__ import annotations

import errno
import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

import pyfuse3
import trio

from efuse.blocks import check_range
from efuse.errors import MountError, UsageError, reason
from efuse.fs.events import Events
from efuse.fs.extents import Extent, map_extent, unmap_extents
from efuse.fs.handing_out import handing_out
from efuse.fs.options import Options
from efuse.fs.state import State

if TYPE_CHECKING:  # plain FUSE does without efuse.bpf
    from efuse.bpf import PublishedEntry

__all__ = ["Operations"]


class Operations(pyfuse3.Operations):
    """A pyfuse3 file system whose answers the kernel may keep, and give again by itself.

    Any subclass of ``pyfuse3.Operations`` works unchanged with this class as its base. If
    :func:`efuse.serve` mounts it on a kernel with eFuse, requests that the kernel can answer do not
    reach the handlers. On any other kernel all requests do. An exception in a handler that is not a
    ``FUSEError`` becomes EIO for the caller. It is logged and counted, and the file system stays
    mounted.
    """

    efuse_options: Options = Options()
    """Promises of the file system. They may be set on the class or on the instance."""

    efuse_handlers: ClassVar[Mapping[str, str]] = {}
    """C texts of your own BPF handlers, by opcode. They are attached with the built-in ones."""

    efuse_applies_umask: ClassVar[bool] = False
    """Whether ``create``, ``mkdir`` and ``mknod`` apply ``ctx.umask`` themselves, except in a
    directory with a default ACL. Otherwise the kernel applies it to ``mode`` before the request."""

    efuse_stack_depth: int = 1
    """Stacking depth of the mount, unless the mount option ``stack_depth`` sets it: 1 or 2. Backing
    files must be on a file system of a lower depth, so 2 allows files on overlayfs. A mount of
    depth 2 cannot be a layer of an overlay."""

    @functools.cached_property
    def efuse(self) -> State:
        """The state of the mount: ``accelerated``, ``reason``, ``maps``, ``statistics()`` ..."""
        return State()

    async def invalidate(
        self,
        inode: int | None = None,
        *,
        parent: int | None = None,
        name: bytes | None = None,
    ) -> None:
        """Make the kernel forget cached values, because something changed behind the mount.

        Without arguments, everything that eFuse has learned or that was published becomes void; on
        plain FUSE this does nothing. Lookup counts stay as they are. A handler may call this
        method. It is no error if the kernel has nothing cached.

        :param inode: forget the attributes, the extended attributes and the data of this inode. If
            a name of a file with several names was added or removed, give the inode as well,
            because its link count has changed.
        :param parent: directory of the entry to forget.
        :param name: name of the entry to forget, whether it exists or not. The kernel forgets it
            soon after this method returns, because it may have to wait for requests of the same
            directory.
        :raises UsageError: *parent* without *name*, or *name* without *parent*.
        :raises MountError: the kernel refused it.
        """
        if (parent is None) != (name is None):
            raise UsageError(
                "an entry cannot be invalidated without both its parent and its name (EINVAL)",
                hint="give parent=INODE and name=BYTES",
            )
        if inode is None and parent is None:
            if self.efuse.acceleration is not None:
                self.efuse.acceleration.invalidate_all()
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
        """Publish directory entries and their attributes, before the kernel asks for them.

        The values are valid like replies to LOOKUP: until their timeouts end, or in ``exclusive``
        mode until something changes. Lookup counts do not change. The kernel uses an entry only if
        it already holds the inode, or for any inode if ``stable_nodeids`` is promised. If a value
        changes later, you must invalidate it.

        :param entries: the entries to publish.
        :param epoch: result of ``self.efuse.epoch()``, read before the values. It may be left out
            only if nothing was awaited between reading and publishing the values.
        :param uid: user id that the values are for, if answers depend on the caller. They are for
            every process with this uid and *gid*, whatever its supplementary groups and
            capabilities are.
        :param gid: group id that the values are for, if answers depend on the caller.
        :returns: the number of entries stored in the maps; 0 without acceleration.
        :raises UsageError: a name is empty or too long, or contains a NUL or a slash.
        :raises AttachError: a map is full.
        """
        batch = list(entries)
        for entry in batch:
            if not 1 <= len(entry.name) <= 255 or b"\0" in entry.name or b"/" in entry.name:
                raise UsageError(
                    f"an entry cannot have the name {entry.name!r} (EINVAL)",
                    hint="a name has 1 to 255 bytes, none of them NUL or a slash",
                )
        acceleration = self.efuse.acceleration
        if acceleration is None:
            return 0
        if epoch is None:
            epoch = acceleration.epoch()
        return acceleration.publish(batch, epoch=epoch, uid=uid, gid=gid)

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
        """Publish the content of a range of a file, before the kernel asks for it.

        The data goes into the data cache, in blocks of 4 KiB, without a system call. The kernel
        serves it like data that it has read: until *valid_ns* has passed, or in ``exclusive`` mode
        until something changes. A block that has changed since *epoch* is not served. Any thread
        may call this method.

        If you published data of an inode that the kernel does not hold, call ``invalidate(inode)``
        before you give its number to another file.

        :param inode: number of the inode.
        :param offset: start of the range in the file, in bytes: a multiple of 4096.
        :param data: content of the range. Its length is a multiple of 4096, except at the end of
            the file.
        :param epoch: result of ``self.efuse.epoch()``, read before *data*.
        :param valid_ns: how long the data is valid, in ns; ignored in ``exclusive`` mode.
        :param end: whether the file ends where *data* ends.
        :returns: the number of blocks stored; 0 without acceleration. A block is left out if its
            slot is in use at that moment, or if the cache has it with a later epoch.
        :raises UsageError: *data* does not begin or end at the edge of a block.
        """
        check_range(inode, offset, memoryview(data).nbytes, end=end)
        acceleration = self.efuse.acceleration
        if acceleration is None:
            return 0
        return acceleration.publish_data(
            inode, offset, data, epoch=epoch, valid_ns=valid_ns, end=end
        )

    def events(self) -> Events:
        """Return the events in the kernel from now on: ``async for event in self.events()``.

        Each event is an :class:`efuse.bpf.Event`: a block was evicted from the data cache, the
        kernel's knowledge of an inode or a name became void, or I/O on a file takes another path.
        An event arrives after it has happened, and can be lost (``lost`` counts these). So treat it
        as a reason to look again, not as a record.

        Events cost time only while a task listens. To stop, call ``close()``, or leave the loop and
        drop the object. The iteration ends when the file system is unmounted. Without acceleration
        there are no events, and it ends immediately.

        :raises MountError: the events of an earlier call are still open.
        :raises AttachError: the kernel does not let this process read the events.
        """
        acceleration = self.efuse.acceleration
        return acceleration.events() if acceleration is not None else Events(None)

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
        """Let the kernel read a range of a file directly from a backing file.

        From the next request on, the kernel reads the range from *fd* without asking the daemon,
        with the credentials that the daemon has now. Requests outside all ranges still go to the
        daemon, and so does a request that fails in the backing file. A later range replaces the
        parts of earlier ones that it overlaps. When this method returns, nothing is read or written
        any more through the replaced parts. All ranges end when the kernel forgets the inode. This
        needs CAP_SYS_ADMIN.

        This method waits for I/O through the parts that it replaces, and requests must be answered
        meanwhile. So to replace a range of an open file, call it with ``trio.to_thread.run_sync``.

        The kernel must hold the inode, as it does while the inode is open. But a handler whose
        reply gives the kernel the inode (``lookup``, ``create``, ...) may call this method before
        it replies.

        :param inode: number of the inode.
        :param fd: descriptor of the backing file: a regular file on another file system than the
            mount. It may be closed after the call.
        :param offset: start of the range in the file, in bytes.
        :param length: length of the range, in bytes. None: the range goes to the end of the file,
            which is where the backing file ends.
        :param backing_offset: start of the range in the backing file, in bytes.
        :param version: version of the file's content, which you count. Ranges of earlier versions
            are not used any more.
        :param write: whether the kernel also writes to the backing file without asking the daemon.
            ``fsync`` still reaches the daemon, which has to sync the backing file.
        :param sealed: whether to use the range only until the backing file is changed. This needs a
            file system that counts changes, such as ext4.
        :returns: whether the kernel uses the range; False on plain FUSE.
        :raises UsageError: the range cannot exist.
        :raises StaleError: the kernel does not hold the inode (any more), or knows a later version.
        :raises MountError: the kernel refused the range; the message says why.
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
        """End the effect of :meth:`backing` for a range of a file.

        When this method returns, the kernel reads and writes nothing in backing files of the range.

        :param inode: number of the inode.
        :param offset: start of the range in the file, in bytes.
        :param length: length of the range, in bytes. None: the range goes to the end of the file.
        :param version: if not 0, also end all ranges of earlier versions, in the whole file. Such
            ranges can then no longer be handed over.
        :raises MountError: the kernel refused it.
        """
        device = self.efuse.device
        if device is None:
            return

        def drop() -> None:
            unmap_extents(device, inode, offset=offset, length=length, version=version)

        # In a thread, because it waits for I/O through the range.
        await trio.to_thread.run_sync(drop)


async def _invalidate_inode(inode: int) -> None:
    # In a thread, because the kernel may first write dirty pages back through this very daemon.
    try:
        await trio.to_thread.run_sync(pyfuse3.invalidate_inode, inode)
    except OSError as error:
        if error.errno != errno.ENOENT:
            raise MountError(f"inode {inode} cannot be invalidated: {reason(error)}") from error
