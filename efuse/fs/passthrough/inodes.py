# SPDX-License-Identifier: LGPL-2.1-or-later
"""The inodes that the kernel holds, each with its lookup count and a way to its lower inode."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import stat
from collections import OrderedDict
from collections.abc import Callable
from typing import Self

from efuse.errors import reason
from efuse.fs.passthrough.lasting import Lasting
from efuse.fs.passthrough.mounts import LowerMount, LowerMounts
from efuse.fs.passthrough.stacking import forgets_handles, keeps_numbers, parts_hard_links
from efuse.fs.passthrough.syscalls import (
    DirectoryEntry,
    Status,
    file_handle,
    open_by_handle,
    status,
)
from efuse.fs.passthrough.watches import Watches

__all__ = ["FIND", "Inodes", "Node", "lacks_descriptor"]

_log = logging.getLogger("efuse.fs")

ROOT = 1
_FIRST_SYNTHETIC = 1 << 61
_FEWEST_DESCRIPTORS = 32
_MOST_WATCHES = 4096
"""Half of the kernel's smallest limit per user. The rest is for other programs of the user."""
_MOST_OTHER_NAMES = 15
_MOST_KEPT = 4096
FIND = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_DT_DIR = 4
_GONE = (errno.ENOENT, errno.ESTALE, errno.ENOTDIR)
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_NOTHING_LOST = contextlib.nullcontext()

Key = tuple[int, int, int]
"""Device, inode number, and the mount or its rights: see :func:`_key`."""


def lacks_descriptor(error: BaseException | None) -> bool:
    """Tell whether *error* is a system call's that got no descriptor, or no memory for one."""
    return isinstance(error, OSError) and error.errno in _NO_DESCRIPTOR


class Node:
    """One inode, with all its names. It exists until its last lookup is forgotten.

    A node is put aside if its descriptor is closed to save descriptors. It is found again by its
    handle or by a name.

    :ivar nodeid: number of the inode, for the kernel.
    :ivar key: identity of the lower inode.
    :ivar kind: type of the file: ``S_IFMT`` of its mode.
    :ivar generation: generation of *nodeid*.
    :ivar fd: O_PATH descriptor of the lower inode; -1 while the node is put aside.
    :ivar mount: the mount that the descriptor is on.
    :ivar lookups: lookup count.
    :ivar opens: descriptors of the open files and streams of the node. While there are any, a node
        without a handle is not put aside.
    :ivar pinned: whether the node must not be put aside, because it has lost a name and might not
        be found again.
    :ivar outdated: whether the node has rights that its mount no longer has. No lookup finds such a
        node any more, and nothing is written by it.
    :ivar moved: whether the node was on a mount whose rights have changed, so that names on that
        mount lead to another node now. A lookup must find the node again before it is opened for
        writing.
    :ivar handle: file handle of the lower inode; None if it is not known.
    :ivar parent: directory in which the node was found last.
    :ivar name: name by which the node was found last.
    :ivar others: further directories and names that lead to the node.
    :ivar place: number of the parent, and name, of a node with several names on a file system whose
        inode numbers do not identify files (overlayfs); otherwise None.
    :ivar watch: number of an inotify watch. A node has one only while it has a *place* and a
        descriptor; otherwise it is 0.
    """

    __slots__ = (
        "fd",
        "generation",
        "handle",
        "key",
        "kind",
        "lookups",
        "mount",
        "moved",
        "name",
        "nodeid",
        "opens",
        "others",
        "outdated",
        "parent",
        "pinned",
        "place",
        "watch",
    )

    def __init__(
        self, nodeid: int, key: Key, kind: int, generation: int, fd: int, mount: LowerMount
    ) -> None:
        self.nodeid = nodeid
        self.key = key
        self.kind = kind
        self.generation = generation
        self.fd = fd
        self.mount = mount
        self.lookups = 0
        self.opens: list[int] = []
        self.pinned = False
        self.outdated = False
        self.moved = False
        self.handle: bytes | None = None
        self.parent: Node | None = None
        self.name = b""
        self.others: tuple[tuple[Node, bytes], ...] = ()
        self.place: tuple[int, bytes] | None = None
        self.watch = 0

    def __repr__(self) -> str:
        return f"Node({self.nodeid}, {self.name!r}, lookups={self.lookups})"


class Inodes:
    """All nodes, by number and by lower inode, with a bounded number of descriptors.

    Each call may close descriptors of nodes: of nodes that were not used lately, and of nodes that
    move to another mount because the rights of their mount have changed. The number of a closed
    descriptor is soon that of another file. So use the result of ``fd()`` before the next call, or
    take a copy with ``held()``.

    :ivar root: node of the source directory.
    :ivar mounts: the mounts that nodes are on.
    :ivar doubt: called with a parent and a name that may lead to another node from now on.
    :ivar changed: called after the rights of files have changed, even if not all of them have yet.
    """

    def __init__(self, source: str, descriptors: int, *, kept: int = _MOST_KEPT) -> None:
        """Open the directory *source*.

        :param source: path of the directory.
        :param descriptors: about how many descriptors may be open.
        :param kept: how many further nodes keep a descriptor because of :meth:`keep`.
        :raises OSError: *source* is not a directory or cannot be opened; or it is on overlayfs, and
            no watches are available (see :class:`Watches`).
        """
        self._limit = max(_FEWEST_DESCRIPTORS, descriptors)
        self._generations = itertools.count(1)
        self._synthetic = itertools.count(_FIRST_SYNTHETIC)
        self._by_id: dict[int, Node] = {}
        self._by_key: dict[Key, Node] = {}
        self._by_place: dict[tuple[int, bytes], Node] = {}
        self._by_watch: dict[tuple[int, int], Node] = {}
        self._watches = Watches()
        self._open: OrderedDict[Node, None] = OrderedDict()
        self._kept: OrderedDict[Node, None] = OrderedDict()
        self._most_kept = kept
        self._is_attending = False
        self._failure = Lasting()
        self.doubt: Callable[[Node, bytes], None] = lambda parent, name: None
        self.changed: Callable[[], None] = lambda: None
        fd = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.close(os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            self.mounts = LowerMounts()
        except OSError:
            os.close(fd)
            raise
        try:
            with self._look(fd) as found:
                mount = self.mounts.use(found.mount)
                self.root = Node(ROOT, found.key, stat.S_IFDIR, 0, found.take(), mount)
        except OSError:
            self.mounts.close()
            raise
        self.root.parent = self.root
        mount.open_by(fd)
        self._by_id[ROOT] = self._by_key[self.root.key] = self.root
        if parts_hard_links(mount.kind):
            self._try_watches(fd)

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def lookups(self) -> dict[int, int]:
        """The lookup counts that are not zero, by nodeid. The root has no lookup count."""
        return {n.nodeid: n.lookups for n in self._by_id.values() if n.lookups}

    @property
    def descriptors(self) -> int:
        """Number of nodes that have a descriptor, whether it may be closed or not."""
        return sum(node.fd >= 0 for node in self._by_id.values())

    def node(self, nodeid: int) -> Node:
        """Return the node with the number *nodeid*.

        :raises KeyError: there is no such node, so the kernel should not hold it, either.
        :raises OSError: some nodes do not follow the changed rights of their mounts yet.
        """
        if self._failure.reason is not None or not self.mounts.are_followed():
            self.follow_mounts()
        if len(self._open) > self._limit - len(self.mounts.used):
            self._put_aside()
        return self._by_id[nodeid]

    def check_writable(self, node: Node) -> None:
        """Refuse to write by a node that has rights which its mount no longer has.

        :raises OSError: ESTALE. The kernel then looks the file's name up again.
        """
        if node.outdated:
            raise _stale(node)

    def check_name(self, node: Node) -> None:
        """Refuse to open a node for writing by a name that may lead to another node by now.

        :raises OSError: ESTALE. The kernel then looks the file's name up again.
        """
        if node.outdated or node.moved:
            raise _stale(node)

    def follow_mounts(self, *, again: bool = False) -> None:
        """Make the nodes follow mounts whose rights have changed.

        If no descriptor is left, because callers have many files open, nodes that were not used
        lately are put aside.

        :param again: whether to read the table of mounts even if the kernel has not reported a
            change of it.
        :raises OSError: the table cannot be read, or some nodes do not follow yet. The log has the
            reason. The next call tries again.
        """
        try:
            while True:
                try:
                    self.mounts.follow(again=again)
                    self._attend_to_mounts()
                    break
                except OSError as error:
                    if not lacks_descriptor(error) or not self.make_room():
                        raise
        except OSError as error:
            if self._failure.begins(reason(error)):
                _log.warning("mounts below cannot be followed: %s", reason(error))
            raise
        if self._failure.ends():
            _log.info("mounts below are followed again")

    def _attend_to_mounts(self) -> None:
        if self._is_attending:
            return  # :meth:`_change_rights` is looking for a file
        altered = self.mounts.take_altered()
        if not altered:
            return
        self._is_attending = True
        try:
            for node in list(self._by_id.values()):
                if node.mount in altered and node.kind != stat.S_IFDIR and not node.outdated:
                    self._change_rights(node)
        except OSError:
            self.mounts.give_back(altered)
            raise
        finally:
            self._is_attending = False
            self.changed()  # after a failure as well: some files have changed by then

    def _change_rights(self, node: Node) -> None:
        """Make the file *node* follow the changed rights of its mount.

        All users of a file share the pages and locks of one node. So the node moves to another
        mount with the old rights. If there is none, it takes the new rights. If another node of the
        file already has these, *node* becomes outdated. It then has no dirty pages: a mount does
        not become read-only while files on it are open for writing, and a file on a read-only mount
        was not open for writing.
        """
        self._follow(node)
        rights = node.mount.rights
        if node.key[2] == rights or self._goes_on_elsewhere(node):
            return
        if self._has_other_node(node, rights):
            node.outdated = True
            self._unregister_key(node)
            self._place(node, None)
            self._unwatch(node)
            return
        self._unregister_key(node)
        is_watched = bool(node.watch)
        self._unwatch(node)
        node.key = (*node.key[:2], rights)
        self._by_key[node.key] = node
        if is_watched:
            self._try_to_watch(node)

    def _has_other_node(self, node: Node, rights: int) -> bool:
        """Tell whether the file of *node* has, or may have, another node with *rights*."""
        other = self._by_key.get((*node.key[:2], rights))
        if node.watch and (other is None or other.watch):
            return (node.watch, rights) in self._by_watch
        return other is not None

    def _goes_on_elsewhere(self, node: Node) -> bool:
        """Move *node* to a mount with its old rights, if it is open or has a name there.

        :returns: whether the node was moved.
        :raises OSError: there may be such a mount, but no descriptor is left.
        """
        if not self._is_open_elsewhere(node) and not self._is_named_elsewhere(node):
            return False
        node.moved = True
        for parent, name in (*node.others, (node.parent, node.name)):
            if parent is not None:
                self.doubt(parent, name)
        self._let_go(node)
        self._put_aside()
        return True

    def _is_open_elsewhere(self, node: Node) -> bool:
        for opened in node.opens:
            try:
                with self._copied(opened) as found:
                    if found.mount.rights == node.key[2]:
                        self._exchange(node, found)
                        return True
            except OSError as error:
                if lacks_descriptor(error):
                    raise
                # Its file is dead (FUSE: EIO; NFS: ESTALE). The others are not.
        return False

    def _copied(self, opened: int) -> Found:
        """Return what the open file *opened* leads to."""
        path = b"/proc/self/fd/%d" % opened
        return Found(self.mounts, os.open(path, os.O_PATH | os.O_CLOEXEC))

    def _is_named_elsewhere(self, node: Node) -> bool:
        if not node.others and node.parent is not None and node.parent.mount is node.mount:
            return False  # its only name is on the mount that has changed
        for parent, name in reversed((*node.others, (node.parent, node.name))):
            if parent is None:
                continue
            try:
                with self._find_at(node, parent, name) as found:
                    if self._is_same(node, found):
                        self._exchange(node, found)
                        return True
            except OSError as error:
                if lacks_descriptor(error):
                    raise
                # This name leads nowhere (FUSE: EIO). Another one may lead to the node.
        return False

    def named(self, parent: Node, name: bytes) -> Node | None:
        """Return the node of the inode that is *name* in *parent*, or None.

        On a local file system this needs no new descriptor unless the node has none, either.

        :raises OSError: the inode cannot be found, although the name exists; or see :meth:`known`.
        """
        directory = self.fd(parent)
        try:
            st = status(directory, name) if parent.mount.is_local else None
            if st is not None and st.mount == parent.mount.number and not self.mounts.altered:
                node = self._by_key.get(_key(parent.mount, st))
                if node is None or _is_certain(node, st):
                    return node
            fd = os.open(name, FIND, dir_fd=directory)
        except FileNotFoundError:
            return None
        return self.known(parent, name, fd)

    def known(self, parent: Node, name: bytes, fd: int) -> Node | None:
        """Return the node of the inode that was found as *name* in *parent*, or None.

        :param fd: O_PATH descriptor of the inode. This object closes it.
        :raises OSError: the inode has no attributes (any more), or is on overlayfs and the kernel
            does not tell whether it is the inode of another name (see :class:`Watches`).
        """
        with self._look(fd) as found:
            return self._known(parent, name, found)

    def _look(self, fd: int, st: Status | None = None) -> Found:
        """Return what *fd* leads to. On FUSE its daemon is asked for fresh values.

        :param fd: O_PATH descriptor. The result owns it, and a failure closes it.
        :param st: status of *fd*, if it is already known.
        """
        found = Found(self.mounts, fd, st)
        try:
            self._attend_to_mounts()
            if forgets_handles(found.mount.kind):
                found.status = status(fd, fresh=True)
        except OSError:
            found.close()
            raise
        return found

    def _known(self, parent: Node, name: bytes, found: Found) -> Node | None:
        key, st, rights = found.key, found.status, found.mount.rights
        known = self._by_key.get(key)
        if stat.S_ISDIR(st.mode) or not parts_hard_links(found.mount.kind):
            return known if known is not None and self._is_same(known, found) else None
        placed = self._by_place.get((parent.nodeid, name))
        for node in (placed, known) if st.links == 1 else (placed,):
            if node and self._identity(node) == key and self._is_same(node, found):
                # If the node has no watch, the inode may have another node that has one by now.
                is_found = node.watch or node.place is None
                return node if is_found else self._watched(found.fd, rights) or node
        # A hard link that overlayfs has copied up under a new name has a number of its own.
        if st.links == 1:
            return self._watched(found.fd, rights)
        return self._linked(known, found.fd, rights)

    def fd(self, node: Node) -> int:
        """Return an O_PATH descriptor of *node*, which is valid until the next call of any method.

        The caller must not close it.

        :raises OSError: ESTALE if the lower inode cannot be found any more.
        """
        if node.fd < 0:
            self._find(node)
            self._open[node] = None
            if node.place is not None:
                self._try_to_watch(node)
            return node.fd
        if node.others and self._is_astray(node):
            self._exchange_by_name(node)
        if node in self._open:
            self._open.move_to_end(node)
        return node.fd

    def held(self, node: Node) -> Held:
        """Return a context manager with an O_PATH descriptor of *node* that stays open within it.

        Entering it raises an OSError: ESTALE if the lower inode cannot be found any more; EMFILE if
        no descriptor is left.
        """
        return Held(self, node)

    def by_name(self, node: Node) -> int:
        """Open *node* by the name that found it last, and return an O_PATH descriptor.

        Several mounts may show the file, and :meth:`fd` may be on another one than the name. If the
        name is gone, the result is a copy of :meth:`fd`. The caller closes it.

        :raises OSError: the inode cannot be found (ESTALE), or no descriptor is left.
        """
        parent = node.parent
        if parent is not None and (node.others or parent.mount is not node.mount):
            try:
                with self._find_at(node, parent, node.name) as found:
                    return found.take()
            except OSError as error:
                if error.errno not in _GONE:
                    raise
        return os.dup(self.fd(node))

    def adopt(self, parent: Node, name: bytes, fd: int) -> tuple[Node, Status | None]:
        """Return the node of the inode that was found as *name* in *parent*. Make it if necessary.

        The caller has to change the lookup count.

        :param fd: O_PATH descriptor of the inode. This object owns it from now on.
        :returns: the node; and its status, or None if the file system has to be asked for fresh
            attributes.
        :raises OSError: the inode has no attributes (any more), or is on overlayfs and the kernel
            does not tell whether it is the inode of another name (see :class:`Watches`).
        """
        try:
            st = status(fd)
        except OSError:
            os.close(fd)
            raise
        mount = self.mounts.used.get(st.mount)
        if mount is not None and mount.is_local and not self.mounts.altered:
            key = _key(mount, st)
            node = self._by_key.get(key)
            if node is None:
                node = self._new(key, st, fd, mount)
                self._name(node, parent, name)
                self._put_aside()
                return node, st
            if _is_certain(node, st):
                os.close(fd)
                self._found_again(node, parent, name)
                return node, st
        return self._adopt_by_search(parent, name, fd, st)

    def listed(
        self, parent: Node, directory: int, entry: DirectoryEntry
    ) -> tuple[Node, Status] | None:
        """Return the node that an *entry* of *parent* leads to, if no new descriptor is needed.

        This is so on a local file system if the node has a descriptor, which keeps the number of
        the inode from being used again. Otherwise return None: :meth:`adopt` finds or makes the
        node. The caller has to change the lookup count.

        :param directory: descriptor of *parent*.
        :returns: the node and its status.
        """
        _, kind, name, inode = entry
        mount = parent.mount
        key = parent.key[0], inode, mount.number if kind == _DT_DIR else mount.rights
        node = self._by_key.get(key)
        if node is None or not mount.is_local:
            return None
        try:
            st = status(directory, name)
        except OSError:
            return None  # opening the name fails, too, or the name is there again
        if st.mount != mount.number or self.mounts.altered:
            return None
        if _key(mount, st) != key or not _is_certain(node, st):
            return None
        self._found_again(node, parent, name)
        return node, st

    def _found_again(self, node: Node, parent: Node, name: bytes) -> None:
        if node in self._open:
            self._open.move_to_end(node)
        node.moved = False
        self._name(node, parent, name)

    def _adopt_by_search(
        self, parent: Node, name: bytes, fd: int, st: Status
    ) -> tuple[Node, Status | None]:
        """Do the work of :meth:`adopt` on any mount, also on one that has changed or is new."""
        with self._look(fd, st) as found:
            st = found.status
            node = self._known(parent, name, found)
            if node is not None and node.fd < 0 and found.mount is not node.mount:
                self._find_where_it_was(node)
            if node is None:
                node = self._new(found.key, st, found.take(), found.mount)
            elif node.fd < 0 or not self._leads_to(node, found.key):
                # If the node has another descriptor, that one leads to another file now.
                self._exchange(node, found)
                self._open[node] = None
        node.moved = False
        self._name(node, parent, name)
        linked = st.links > 1 and node.kind != stat.S_IFDIR
        if node.place is not None or (linked and parts_hard_links(node.mount.kind)):
            self._place(node, (parent.nodeid, name))
            self._try_to_watch(node)
            self._follow(node)
        self._put_aside()
        return node, None

    def _new(self, key: Key, st: Status, fd: int, mount: LowerMount) -> Node:
        nodeid, generation = self._nodeid(key), next(self._generations)
        kind = stat.S_IFMT(st.mode)
        node = Node(nodeid, key, kind, generation, fd, self.mounts.use(mount))
        self._by_id[nodeid] = self._by_key[key] = node
        self._open[node] = None
        return node

    def _leads_to(self, node: Node, key: Key) -> bool:
        """Tell whether the descriptor of *node*, which was just found, leads to the inode *key*.

        overlayfs may give a file that it copies up another number. On any other file system the
        node was found by its number, so this is true.
        """
        return not parts_hard_links(node.mount.kind) or self._identity(node) == key

    def _exchange(self, node: Node, found: Found) -> None:
        """Replace the descriptor of *node* by the one of *found*."""
        if node.fd >= 0:
            os.close(node.fd)
        node.fd = found.take()
        before, node.mount = node.mount, self.mounts.use(found.mount)
        self.mounts.let_go(before)

    def _exchange_by_name(self, node: Node) -> None:
        """Replace the descriptor of *node* by one that a name of it leads to.

        :raises OSError: ESTALE if no known name leads to the node.
        """
        with self._find_by_name(node) as found:
            self._exchange(node, found)

    def _name(self, node: Node, parent: Node, name: bytes) -> None:
        """Record that *node* was found as *name* in *parent*, and keep its earlier names."""
        if node is self.root or (node.parent is parent and node.name == name):
            return
        if node.parent is not None and node.kind != stat.S_IFDIR:
            known = (*node.others, (node.parent, node.name))
            others = tuple(place for place in known if place != (parent, name))
            node.others = others[-_MOST_OTHER_NAMES:]
        node.parent, node.name = parent, name

    def _linked(self, known: Node | None, fd: int, rights: int) -> Node | None:
        """Return the node of a file with several names whose number does not identify it, or None.

        On overlayfs, two names with one inode number are one inode, unless they are hard links of a
        lower layer. Of these, overlayfs copies up only the name that is changed. If one inode had
        two nodes, writes by one name would overwrite writes by the other. If two inodes had one
        node, writes would go to the wrong file. So this method fails if the kernel does not tell.

        :param known: a node with the same number, or None.
        :param fd: descriptor of the file.
        :param rights: rights of the mount that *fd* is on.
        :raises OSError: the kernel does not tell whether *known* is the inode of *fd*.
        """
        node, watch = None, 0
        try:
            watch = self._new_watch(fd)
            node = self._by_watch.get((watch, rights))
            if node is None and known is not None and not known.watch:
                node = known if self._is_watched_as(known, watch) else None
        except OSError as error:
            if known is None or (error.errno == errno.EACCES and not _is_writable(fd)):
                return None  # the file cannot be read or written here, so no write can be lost
            _log.error("whether a file is also %r cannot be determined: %s", known, reason(error))
            raise
        finally:
            if node is None and watch:
                self._give_back(watch)
        return node

    def _watched(self, fd: int, rights: int) -> Node | None:
        """Return the node with *rights* that has a watch of the inode of *fd*, or None."""
        if not self._by_watch:
            return None
        try:
            watch = self._new_watch(fd)
        except OSError:
            return None
        node = self._by_watch.get((watch, rights))
        if node is None:
            self._give_back(watch)
        return node

    def _is_watched_as(self, node: Node, watch: int) -> bool:
        try:
            self.fd(node)
        except OSError as error:
            if error.errno in _GONE:
                return False
            raise
        return self._watch(node) == watch

    def _watch(self, node: Node) -> int:
        watch = node.watch or self._new_watch(node.fd)
        before = self._by_watch.get((watch, node.key[2]))
        if before is not None:
            before.watch = 0
        node.watch = watch
        self._by_watch[watch, node.key[2]] = node
        if len(self._by_watch) > _MOST_WATCHES:
            self._unwatch(next(iter(self._by_watch.values())))
        return watch

    def _new_watch(self, fd: int) -> int:
        try:
            return self._watches.add(fd)
        except OSError as error:
            if error.errno != errno.ENOSPC or not self._by_watch:
                raise
        self._unwatch(next(iter(self._by_watch.values())))
        return self._watches.add(fd)

    def _try_to_watch(self, node: Node) -> None:
        # Without a watch the node is found by its name and number, unless another process changes
        # and links the file in the lower directory, so that overlayfs copies it up.
        with contextlib.suppress(OSError):
            self._watch(node)

    def _unwatch(self, node: Node) -> None:
        if node.watch:
            watch, node.watch = node.watch, 0
            del self._by_watch[watch, node.key[2]]
            self._give_back(watch)

    def _give_back(self, watch: int) -> None:
        """Give back a watch unless another node of the inode, with other rights, still has it."""
        if not any((watch, rights) in self._by_watch for rights in self.mounts.rights):
            self._watches.remove(watch)

    def _try_watches(self, fd: int) -> None:
        """Fail now, and not at a later lookup, if no watches are available.

        The inotify descriptor is closed again and made when it is needed, so that a process that
        leaves serving to a child does not hold it.

        :raises OSError: no watches are available.
        """
        try:
            self._watches.add(fd)
        except OSError:
            self.close()
            raise
        self._watches.close()

    def _follow(self, node: Node) -> None:
        """Register *node* by the present number of its inode, which a copy-up may have changed."""
        key = self._identity(node) if node.place is not None else None
        if key is not None and key != node.key:
            self._unregister_key(node)
            node.key = key
            self._by_key[key] = node

    def _place(self, node: Node, place: tuple[int, bytes] | None) -> None:
        """Register *node* by *place*. None: it is no longer found by a place."""
        if node.place is not None and self._by_place.get(node.place) is node:
            del self._by_place[node.place]
        node.place = place
        if place is not None:
            self._by_place[place] = node

    def _unregister_key(self, node: Node) -> None:
        if self._by_key.get(node.key) is node:
            del self._by_key[node.key]

    def _identity(self, node: Node) -> Key | None:
        """Return the present key of *node*, or None if its inode cannot be found.

        An overlay copies a file up when it is changed, which may change its number.
        """
        if node.fd < 0:
            return node.key
        try:
            st = status(node.fd, fresh=self._goes_by_names(node))
        except OSError:
            return None
        return st.device, st.inode, node.key[2]

    def linked(self, node: Node, parent: Node, name: bytes) -> None:
        """Record that *node* also has the name *name* in *parent*."""
        self._name(node, parent, name)
        if node.place is not None:
            self._place(node, (parent.nodeid, name))
            self._follow(node)

    def renamed(self, node: Node, old: tuple[Node, bytes], new: tuple[Node, bytes]) -> None:
        """Record that *node* has the name *new* and no longer the name *old*."""
        node.others = tuple(place for place in node.others if place not in (old, new))
        if (node.parent, node.name) not in (old, new):
            assert node.parent is not None
            node.others += ((node.parent, node.name),)
        node.parent, node.name = new
        if node.place is not None:
            self._place(node, (new[0].nodeid, new[1]))

    def lost(self, parent: Node, name: bytes, kind: int) -> Node:
        """Return a node for what was made as *name* in *parent* and cannot be found any more.

        The kernel may hold and forget it like any other node, but ``fd()`` fails with ESTALE.

        :param kind: type of the file: ``S_IFMT`` of its mode.
        """
        nodeid = next(self._synthetic)
        mount = self.mounts.use(parent.mount)
        node = Node(nodeid, (-1, nodeid, 0), kind, next(self._generations), -1, mount)
        node.parent, node.name = parent, name
        self._by_id[nodeid] = self._by_key[node.key] = node
        return node

    def pin(self, node: Node) -> None:
        """Keep the descriptor of *node*, which is about to lose a name, until :meth:`unpin`."""
        self.fd(node)
        self._open.pop(node, None)

    def unpin(self, node: Node, *, lost: tuple[Node, bytes] | None = None) -> None:
        """Allow *node* to be put aside again, unless it could not be found afterwards.

        :param lost: parent and name that the node has lost; None if it has lost none.
        """
        if lost is not None:
            self._forget_name(node, lost)
            node.pinned |= self._is_out_of_reach(node)  # until it is forgotten
        self._let_go(node)

    def losing(
        self, node: Node | None, name: tuple[Node, bytes]
    ) -> contextlib.AbstractContextManager[None]:
        """Return a context manager within which *node*, if any, loses *name* (parent and name).

        It keeps the node reachable meanwhile and afterwards.
        """
        return Losing(self, node, name) if node is not None else _NOTHING_LOST

    def opened(self, node: Node, fd: int) -> None:
        """Record that *node* is open as *fd*, so that it can be found until :meth:`closed`."""
        node.opens.append(fd)

    def closed(self, node: Node, fd: int) -> None:
        """Record that *fd*, which was given to :meth:`opened`, is not open any more."""
        node.opens.remove(fd)
        if not node.opens and node not in self._kept:
            self._let_go(node)

    def keep(self, node: Node) -> None:
        """Treat *node* as open, because the kernel may open it without a request from now on.

        There may be many such nodes, so only the most recent ones are treated as open.
        """
        self._kept[node] = None
        self._kept.move_to_end(node)
        while len(self._kept) > self._most_kept:
            oldest, _ = self._kept.popitem(last=False)
            if not oldest.opens:
                self._let_go(oldest)

    def _let_go(self, node: Node) -> None:
        if node.fd >= 0 and not node.pinned and node is not self.root:
            self._open.setdefault(node)

    def _forget_name(self, node: Node, lost: tuple[Node, bytes]) -> None:
        node.others = tuple(place for place in node.others if place != lost)
        if (node.parent, node.name) != lost:
            return
        if node.others:
            *others, (node.parent, node.name) = node.others
            node.others = tuple(others)
            if node.place is not None:
                self._place(node, (node.parent.nodeid, node.name))
        else:
            self._place(node, None)

    def _is_out_of_reach(self, node: Node) -> bool:
        """Tell whether *node*, which lost a name, can be found only by its present descriptor."""
        try:
            if self._goes_by_names(node):
                # The descriptor proves nothing: the kernel may have cached attributes for it.
                self._exchange_by_name(node)
            elif status(node.fd).links == 0:
                return True
            elif self._handle(node) is None:
                self._find_by_name(node).close()
            return False
        except OSError:
            # The lower file system finds files by their names, and the name is gone.
            self._go_by_what_is_open(node)
            return True

    def _go_by_what_is_open(self, node: Node) -> None:
        """Find *node* by an open file of it, which a FUSE daemon has renamed to a hidden name."""
        if node.opens and self._goes_by_names(node):
            with contextlib.suppress(OSError), self._copied(node.opens[-1]) as found:
                self._exchange(node, found)

    def _is_astray(self, node: Node) -> bool:
        """Tell whether the descriptor of *node* leads to no inode or to another one."""
        return self._goes_by_names(node) and self._identity(node) != node.key

    def _goes_by_names(self, node: Node) -> bool:
        """Tell whether a descriptor of *node* may follow the name by which it was opened.

        A FUSE daemon that goes by paths may give that name to another file.
        """
        return forgets_handles(node.mount.kind)

    def forget(self, nodeid: int, count: int) -> Node | None:
        """Take *count* lookups back. Return the node if the kernel no longer holds it, or None."""
        node = self._by_id.get(nodeid)
        if node is None or node.lookups < count:
            _log.error("FORGET of %d lookups of %r, which has fewer", count, node or nodeid)
        if node is None or node is self.root:
            return None
        node.lookups = max(0, node.lookups - count)
        if node.lookups:
            return None
        self._drop(node)
        return node

    def drop_unused(self, node: Node) -> None:
        """Drop a node that was adopted, if its lookup count is still 0."""
        if node.lookups == 0 and node is not self.root:
            self._drop(node)

    def close(self) -> None:
        """Close every descriptor."""
        for node in list(self._by_id.values()):
            self._close(node)
        self._watches.close()
        self.mounts.close()
        self._by_id.clear()
        self._by_key.clear()
        self._by_place.clear()
        self._by_watch.clear()

    def _drop(self, node: Node) -> None:
        del self._by_id[node.nodeid]
        self._unregister_key(node)
        self._place(node, None)
        self._unwatch(node)
        self._kept.pop(node, None)
        self._close(node)
        self.mounts.let_go(node.mount)

    def _close(self, node: Node) -> None:
        self._open.pop(node, None)
        if node.fd >= 0:
            os.close(node.fd)
            node.fd = -1

    def _nodeid(self, key: Key) -> int:
        """Choose a nodeid: the number of the lower inode, unless that would not be unique."""
        device, inode, _ = key
        own = device == self.root.key[0] and ROOT < inode < _FIRST_SYNTHETIC
        return inode if own and inode not in self._by_id else next(self._synthetic)

    def _is_same(self, node: Node, found: Found) -> bool:
        """Tell whether *node* is the inode *found*, since another file may get the same number."""
        if node.kind != stat.S_IFMT(found.status.mode):
            return False
        if node.fd < 0:
            return _has_handle_of(node, found)
        if keeps_numbers(node.mount.kind):
            return True
        handle = file_handle(found.fd)
        # With equal handles, both descriptors lead to one inode, which has just been asked.
        if handle is not None and handle == file_handle(node.fd):
            return True
        if self._goes_by_names(node):
            return self._is_there(node)
        was_removed = found.status.links > 0 and status(node.fd).links == 0
        return handle is None and file_handle(node.fd) is None and not was_removed

    def _is_there(self, node: Node) -> bool:
        """Tell whether *node* can be found by its descriptor or, unless it is pinned, by a name."""
        if self._identity(node) == node.key:
            return True
        if node.pinned:
            return False
        try:
            self._exchange_by_name(node)
        except OSError:
            return False
        return True

    def make_room(self) -> bool:
        """Put a few nodes aside that were not used lately, because no descriptor is left.

        :returns: whether there were any.
        """
        before = len(self._open)
        self._put_aside(most=max(_FEWEST_DESCRIPTORS, before - _FEWEST_DESCRIPTORS))
        return len(self._open) < before

    def _put_aside(self, *, most: int | None = None) -> None:
        if most is None:
            most = max(_FEWEST_DESCRIPTORS, self._limit - len(self.mounts.used))
        while len(self._open) > most:
            node, _ = self._open.popitem(last=False)
            if self._handle(node) is None and (node.opens or node in self._kept):
                continue  # _let_go() makes it a candidate again once it is not open any more
            self._follow(node)
            self._unwatch(node)
            os.close(node.fd)
            node.fd = -1

    def _handle(self, node: Node) -> bytes | None:
        """Return the file handle of *node*, or None if its file system cannot open by handle."""
        if node.handle is None and not self._goes_by_names(node):
            if node.kind == stat.S_IFDIR:
                node.mount.open_by(node.fd)
            if node.mount.by_handle >= 0:
                node.handle = file_handle(node.fd)
        return node.handle if node.mount.by_handle >= 0 else None

    def _find(self, node: Node) -> None:
        if not self._find_by_handle(node):
            self._exchange_by_name(node)

    def _find_where_it_was(self, node: Node) -> None:
        """Find *node* on its own mount, if possible, although another mount leads to it as well.

        Its open files are on its own mount and have the rights of that mount.
        """
        with contextlib.suppress(OSError):
            if self._find_by_handle(node):
                self._open[node] = None

    def _find_by_handle(self, node: Node) -> bool:
        if node.handle is None or node.mount.by_handle < 0:
            return False
        try:
            node.fd = open_by_handle(node.mount.by_handle, node.handle, os.O_PATH | os.O_NOFOLLOW)
        except PermissionError:
            return False  # without CAP_DAC_READ_SEARCH
        return True

    def _find_by_name(self, node: Node) -> Found:
        """Return what the first name that leads to *node* leads to.

        :raises OSError: ESTALE if no known name leads to the node.
        """
        for parent, name in reversed(node.others):
            try:
                return self._find_at(node, parent, name)
            except OSError as error:
                if error.errno not in _GONE:
                    raise
        if node.parent is None:
            raise _stale(node)
        return self._find_at(node, node.parent, node.name)

    def find_on(self, node: Node, mount: LowerMount) -> int:
        """Return a descriptor of *node* that is on *mount*. The caller closes it.

        :raises OSError: EXDEV if no known name leads to the node on *mount*.
        """
        for parent, name in reversed((*node.others, (node.parent, node.name))):
            if parent is None or parent.mount is not mount:
                continue
            try:
                with self._find_at(node, parent, name) as found:
                    if found.mount is mount:
                        return found.take()
            except OSError as error:
                if error.errno not in _GONE:
                    raise
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    def _find_at(self, node: Node, parent: Node, name: bytes) -> Found:
        """Return what *name* in *parent* leads to.

        :raises OSError: ESTALE if that is not *node*.
        """
        above: dict[Node, bytes] = {}
        while parent.fd < 0 and parent.parent is not None:
            if parent is node or parent in above:
                raise _stale(node)  # the known names form a circle: directories were moved since
            above[parent] = parent.name
            parent = parent.parent
        directory = os.dup(parent.fd)
        for step, called in reversed(above.items()):
            with self._find_in(directory, step, called) as found:
                directory = found.take()
        return self._find_in(directory, node, name)

    def _find_in(self, directory: int, node: Node, name: bytes) -> Found:
        """Return what *name* leads to, and close *directory*.

        :raises OSError: ESTALE if that is not *node*.
        """
        try:
            fd = os.open(name, FIND, dir_fd=directory)
        except FileNotFoundError:
            raise _stale(node) from None
        finally:
            os.close(directory)
        found = self._look(fd)
        is_same = stat.S_IFMT(found.status.mode) == node.kind and _has_handle_of(node, found)
        if found.key != node.key or not is_same:
            found.close()
            raise _stale(node)
        return found


class Found:
    """An inode that was found by a descriptor. A context manager.

    Closing it closes the descriptor, unless :meth:`take` was called before. As long as it is not
    closed, its mount stays in use: a search for other names may meet the mount meanwhile, too.

    :ivar fd: O_PATH descriptor, which this object owns; -1 after :meth:`take`.
    :ivar status: status of the inode.
    :ivar mount: the mount that the descriptor is on.
    """

    __slots__ = ("_mounts", "fd", "mount", "status")

    def __init__(self, mounts: LowerMounts, fd: int, st: Status | None = None) -> None:
        """Take over *fd*. A failure closes it.

        :param st: status of *fd*, if it is already known.
        :raises OSError: the inode has no status (any more), or see :meth:`LowerMounts.of`.
        """
        self._mounts = mounts
        self.fd = fd
        try:
            self.status = status(fd) if st is None else st
            self.mount = mounts.of(fd, self.status)
        except OSError:
            os.close(fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def key(self) -> Key:
        """The key of the inode, by the present rights of its mount."""
        return _key(self.mount, self.status)

    def take(self) -> int:
        """Return the descriptor, which the caller owns from now on."""
        fd, self.fd = self.fd, -1
        return fd

    def close(self) -> None:
        """Close the descriptor unless it was taken, and let go of the mount. Call it once."""
        if self.fd >= 0:
            os.close(self.take())
        self._mounts.let_go(self.mount)


class Held:
    """A context manager that lends a copy of a node's descriptor; see :meth:`Inodes.held`.

    Each link and rename enters one or two, and a generator would take longer than the copy.
    """

    __slots__ = ("_fd", "_inodes", "_node")

    def __init__(self, inodes: Inodes, node: Node) -> None:
        self._inodes = inodes
        self._node = node

    def __enter__(self) -> int:
        self._fd = os.dup(self._inodes.fd(self._node))
        return self._fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


class Losing:
    """A context manager that keeps a node reachable which loses a name; see :meth:`Inodes.losing`.

    If the block raises, the name is not lost.
    """

    __slots__ = ("_inodes", "_name", "_node")

    def __init__(self, inodes: Inodes, node: Node, name: tuple[Node, bytes]) -> None:
        self._inodes = inodes
        self._node = node
        self._name = name

    def __enter__(self) -> None:
        self._inodes.pin(self._node)

    def __exit__(self, kind: object, *_: object) -> None:
        self._inodes.unpin(self._node, lost=self._name if kind is None else None)


def _has_handle_of(node: Node, found: Found) -> bool:
    """Tell whether *found* has the handle of *node*, unless the node has a descriptor or none."""
    return node.fd >= 0 or node.handle is None or node.handle == file_handle(found.fd)


def _is_certain(node: Node, st: Status) -> bool:
    """Tell whether a file with the key of *node* on a local file system is certainly that node.

    The descriptor of the node keeps the inode number from being used again, and its file system
    keeps the device number.
    """
    return node.fd >= 0 and node.mount.is_local and node.kind == stat.S_IFMT(st.mode)


def _key(mount: LowerMount, st: Status) -> Key:
    """Return the key of an inode.

    Another mount of the same file system may show other names in a directory, so each mount has a
    node of its own for a directory. Any other file has one node for all mounts that allow writing,
    and one for all other mounts.
    """
    return st.device, st.inode, mount.number if stat.S_ISDIR(st.mode) else mount.rights


def _is_writable(fd: int) -> bool:
    return os.access(b"/proc/self/fd/%d" % fd, os.W_OK, effective_ids=True)


def _stale(node: Node) -> OSError:
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE), node.name)
