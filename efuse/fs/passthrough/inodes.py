# SPDX-License-Identifier: LGPL-2.1-or-later
"""The inodes that the kernel knows, each with its lookup count and a way to its lower inode."""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import stat
from collections import OrderedDict

from efuse.fs.passthrough.stacking import forgets_handles, parts_hard_links
from efuse.fs.passthrough.syscalls import file_handle, file_system_type, open_by_handle

__all__ = ["Inodes", "Node"]

_log = logging.getLogger("efuse.fs")

ROOT = 1
_FIRST_SYNTHETIC = 1 << 61
_FEWEST_DESCRIPTORS = 32


class Node:
    """One inode, whatever its names. It lives until its last lookup is forgotten.

    ``fd`` is an O_PATH descriptor of the lower inode, or -1 while it is put aside. A node put
    aside is found again by ``handle``, or by its name in ``parent``. A ``pinned`` node is never
    put aside: it has lost a name and might not be found again. ``place`` is the parent's number and
    the name of a node that stands for this one name: others of its inode number are other nodes.
    """

    __slots__ = (
        "fd",
        "generation",
        "handle",
        "key",
        "kind",
        "lookups",
        "name",
        "nodeid",
        "parent",
        "place",
    )

    def __init__(
        self, nodeid: int, key: tuple[int, int], kind: int, generation: int, fd: int
    ) -> None:
        self.nodeid = nodeid
        self.key = key
        self.kind = kind
        self.generation = generation
        self.fd = fd
        self.lookups = 0
        self.handle: bytes | None = None
        self.parent: Node | None = None
        self.name = b""
        self.place: tuple[int, bytes] | None = None

    def __repr__(self) -> str:
        return f"Node({self.nodeid}, {self.name!r}, lookups={self.lookups})"


class Inodes:
    """All nodes by number and by lower identity, with a bounded number of descriptors.

    ``node()`` and ``adopt()`` may close descriptors of nodes that were not used lately, ``fd()``
    never does: find all nodes of an operation first, then take their descriptors.
    """

    def __init__(self, source: str, descriptors: int) -> None:
        """Open the directory *source*; keep about *descriptors* descriptors open.

        :raises OSError: it is no directory or cannot be opened.
        """
        self._limit = max(_FEWEST_DESCRIPTORS, descriptors)
        self._generations = itertools.count(1)
        self._synthetic = itertools.count(_FIRST_SYNTHETIC)
        self._by_id: dict[int, Node] = {}
        self._by_key: dict[tuple[int, int], Node] = {}
        self._by_place: dict[tuple[int, bytes], Node] = {}
        self._open: OrderedDict[Node, None] = OrderedDict()
        self._mounts: dict[int, int] = {}
        self._kinds: dict[int, int] = {}
        # Not O_PATH: open_by_handle_at() takes it as the mount.
        mount_fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fd = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        st = os.fstat(fd)
        self.root = Node(ROOT, (st.st_dev, st.st_ino), stat.S_IFDIR, 0, fd)
        self.root.parent = self.root
        self._mounts[st.st_dev] = mount_fd
        self._by_id[ROOT] = self._by_key[self.root.key] = self.root

    def __len__(self) -> int:
        return len(self._by_id)

    @property
    def lookups(self) -> dict[int, int]:
        """The lookup counts that are not zero, by node; the root has none."""
        return {n.nodeid: n.lookups for n in self._by_id.values() if n.lookups}

    @property
    def descriptors(self) -> int:
        """How many nodes have a descriptor."""
        return len(self._open) + 1

    def node(self, nodeid: int) -> Node:
        """Return the node of that number.

        :raises KeyError: the kernel should not know it.
        """
        self._put_aside()
        return self._by_id[nodeid]

    def known(self, parent: Node, name: bytes, key: tuple[int, int]) -> Node | None:
        """Return the node of *name* in *parent*, of the lower inode *key*, if there is one.

        :param key: its st_dev and st_ino.
        """
        placed = self._by_place.get((parent.nodeid, name))
        if placed is not None and self._identity(placed) == key:
            return placed
        return self._by_key.get(key)

    def fd(self, node: Node) -> int:
        """Return an O_PATH descriptor of *node*, which remains the table's.

        :raises OSError: ESTALE when the lower inode cannot be found any more.
        """
        if node.fd >= 0:
            if node in self._open:
                self._open.move_to_end(node)
            return node.fd
        node.fd = self._find(node)
        self._open[node] = None
        return node.fd

    def adopt(self, parent: Node, name: bytes, fd: int) -> Node:
        """Return the node of the O_PATH descriptor *fd*, found as *name* in *parent*.

        *fd* is the table's from now on. The lookup count is left to the caller.

        :raises OSError: the inode has no attributes (any more).
        """
        try:
            st = os.fstat(fd)
        except OSError:
            os.close(fd)
            raise
        key = (st.st_dev, st.st_ino)
        node = self.known(parent, name, key)
        linked = st.st_nlink > 1 and not stat.S_ISDIR(st.st_mode)
        alone = linked and parts_hard_links(self._kind(st.st_dev, fd))
        if node is not None and not (
            self._is_same(node, fd, st)
            and (not alone or (node.parent is parent and node.name == name))
        ):
            node = None
        if node is None:
            node = Node(
                self._nodeid(key), key, stat.S_IFMT(st.st_mode), next(self._generations), fd
            )
            self._by_id[node.nodeid] = node
            if not alone:
                self._by_key[key] = node
            self._open[node] = None
        elif node.fd >= 0 and self._identity(node) == key:
            os.close(fd)
        else:
            if node.fd >= 0:
                # The lower file system goes by names: that of the old one is another file's now.
                os.close(node.fd)
            node.fd = fd
            self._open[node] = None
        if alone:
            self._place(node, (parent.nodeid, name))
        if node is not self.root:
            node.parent, node.name = parent, name
        self._put_aside()
        return node

    def _place(self, node: Node, place: tuple[int, bytes] | None) -> None:
        """Let *node* be found as *place* alone, or if that is None, not at all."""
        self._unregister(node)
        node.place = place
        if place is not None:
            self._by_place[place] = node

    def _unregister(self, node: Node) -> None:
        if self._by_key.get(node.key) is node:
            del self._by_key[node.key]
        if node.place is not None and self._by_place.get(node.place) is node:
            del self._by_place[node.place]

    def _identity(self, node: Node) -> tuple[int, int] | None:
        """Return the st_dev and st_ino that *node* has now, None if it is not to be found.

        An overlay copies a file up when it is changed: its number may be another one then.
        """
        if node.fd < 0:
            return node.key
        try:
            st = os.fstat(node.fd)
        except OSError:
            return None
        return st.st_dev, st.st_ino

    def renamed(self, node: Node, parent: Node, name: bytes) -> None:
        """Find *node* as *name* in *parent* from now on."""
        node.parent, node.name = parent, name
        if node.place is not None:
            self._place(node, (parent.nodeid, name))

    def lost(self, parent: Node, name: bytes, kind: int) -> Node:
        """Return a node for what was made as *name* in *parent* and cannot be found any more.

        The kernel may know it and forget it as any other; ``fd()`` fails with ESTALE.
        """
        nodeid = next(self._synthetic)
        node = Node(nodeid, (-1, nodeid), kind, next(self._generations), -1)
        node.parent, node.name = parent, name
        self._by_id[nodeid] = self._by_key[node.key] = node
        return node

    def pin(self, node: Node) -> None:
        """Hold the descriptor of *node*, which is about to lose a name."""
        self.fd(node)
        self._open.pop(node, None)

    def unpin(self, node: Node, *, lost: bool) -> None:
        """Let *node* be put aside again, unless it could not be found then: it *lost* its name."""
        if lost and node.place is not None:
            self._place(node, None)
        if lost and self._is_out_of_reach(node):
            return  # held until it is forgotten
        if node is not self.root:
            self._open[node] = None

    def _is_out_of_reach(self, node: Node) -> bool:
        """Can *node*, which lost a name, be found only by the descriptor that it has?"""
        try:
            return os.fstat(node.fd).st_nlink == 0 or self._handle(node) is None
        except OSError:
            # The lower file system finds files by their names. That the name is gone stays true.
            return True

    def forget(self, nodeid: int, count: int) -> Node | None:
        """Take *count* lookups back; returns the node if the kernel no longer knows it."""
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
        """Drop a node that was adopted but whose lookup the kernel did not take."""
        if node.lookups == 0 and node is not self.root:
            self._drop(node)

    def close(self) -> None:
        """Close every descriptor."""
        for node in list(self._by_id.values()):
            self._close(node)
        for fd in self._mounts.values():
            os.close(fd)
        self._mounts.clear()
        self._by_id.clear()
        self._by_key.clear()
        self._by_place.clear()

    def _drop(self, node: Node) -> None:
        del self._by_id[node.nodeid]
        self._unregister(node)
        self._close(node)

    def _close(self, node: Node) -> None:
        self._open.pop(node, None)
        if node.fd >= 0:
            os.close(node.fd)
            node.fd = -1

    def _nodeid(self, key: tuple[int, int]) -> int:
        """Choose the number: the lower inode's own, unless that would not be unique."""
        device, inode = key
        own = device == self.root.key[0] and ROOT < inode < _FIRST_SYNTHETIC
        return inode if own and inode not in self._by_id else next(self._synthetic)

    def _is_same(self, node: Node, fd: int, st: os.stat_result) -> bool:
        """Tell whether the known *node* is the inode of *fd*: inode numbers are used again."""
        if node.fd >= 0:
            return True  # its descriptor keeps the number from being used again
        if node.kind != stat.S_IFMT(st.st_mode):
            return False
        return node.handle is None or node.handle == file_handle(fd)

    def _put_aside(self) -> None:
        while len(self._open) > self._limit:
            node, _ = self._open.popitem(last=False)
            self._handle(node)
            if node.place is not None:
                node.key = self._identity(node) or node.key
            os.close(node.fd)
            node.fd = -1

    def _handle(self, node: Node) -> bytes | None:
        """Return what finds *node* again without a name, None if its file system has no such."""
        if (
            node.handle is None
            and self._mount(node) is not None
            and not forgets_handles(self._kind(node.key[0], node.fd))
        ):
            node.handle = file_handle(node.fd)
        return node.handle

    def _kind(self, device: int, fd: int) -> int:
        """Return the type of the file system *device* that *fd* is on; 0 if it does not say."""
        if device not in self._kinds:
            try:
                self._kinds[device] = file_system_type(fd)
            except OSError:
                return 0
        return self._kinds[device]

    def _mount(self, node: Node) -> int | None:
        """Return a descriptor of the mount that *node* lies on."""
        device = node.key[0]
        if device not in self._mounts and node.kind == stat.S_IFDIR:
            with contextlib.suppress(OSError):
                self._mounts[device] = os.open(
                    b"/proc/self/fd/%d" % node.fd, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
                )
        return self._mounts.get(device)

    def _find(self, node: Node) -> int:
        mount = self._mounts.get(node.key[0])
        if node.handle is not None and mount is not None:
            try:
                return open_by_handle(mount, node.handle, os.O_PATH | os.O_NOFOLLOW)
            except PermissionError:
                pass  # without CAP_DAC_READ_SEARCH: by name
        return self._find_by_name(node)

    def _find_by_name(self, node: Node) -> int:
        chain = [node]
        while chain[-1].fd < 0 and chain[-1].parent is not None:
            chain.append(chain[-1].parent)
        fd = os.dup(chain.pop().fd)
        for step in reversed(chain):
            try:
                below = os.open(step.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            except FileNotFoundError:
                raise _stale(step) from None
            finally:
                os.close(fd)
            fd = below
            try:
                st = os.fstat(fd)
            except OSError:
                os.close(fd)
                raise
            if (st.st_dev, st.st_ino) != step.key or stat.S_IFMT(st.st_mode) != step.kind:
                os.close(fd)
                raise _stale(step)
        return fd


def _stale(node: Node) -> OSError:
    return OSError(errno.ESTALE, os.strerror(errno.ESTALE), node.name)
