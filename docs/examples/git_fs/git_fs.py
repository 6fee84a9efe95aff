# SPDX-License-Identifier: LGPL-2.1-or-later
"""Browse a git repository: ``git_fs.py REPOSITORY MOUNTPOINT``.

``commits/SHA`` is the tree of a commit, which never changes. ``branches/NAME`` and ``tags/NAME``
are symbolic links to commits. The daemon invalidates a link when its branch or tag has moved.
"""

import errno
import logging
import os
import stat
import subprocess
import sys
import threading
from dataclasses import dataclass

import pyfuse3
import trio
from git_repository import Repository

import efuse

REFS = {b"branches": "refs/heads", b"tags": "refs/tags"}
WATCH_S = 1.0  # The interval of checks for changed references, and their timeout on plain FUSE.
ALWAYS_S = 365 * 24 * 3600  # The timeouts of everything that never changes.
SUBMODULE = 0o160000
HEX = set("0123456789abcdef")

log = logging.getLogger("git_fs")


@dataclass(frozen=True)
class Node:
    """The identity of an inode. Equal files have the same inode number in all commits."""

    mode: int
    oid: str = ""
    place: tuple[int, bytes] = (0, b"")  # Parent and name of a directory, branch or tag.
    target: bytes = b""  # The target of the symbolic link of a branch or tag.


class Git(efuse.Operations):
    # Only references change, and watch() invalidates them.
    efuse_options = efuse.Options(
        consistency="exclusive",
        stable_nodeids=True,
        no_open=True,
        no_flush=True,
        lazy_atime=True,
    )

    def __init__(self, repository: str) -> None:
        super().__init__()
        self._repository = Repository(repository)
        self._nodes = [Node(0), Node(stat.S_IFDIR)]  # No inode has the number 0; 1 is the root.
        self._inodes: dict[Node, int] = {}
        self._numbering = threading.Lock()
        root = pyfuse3.ROOT_INODE
        self._commits = self._inode(Node(stat.S_IFDIR, place=(root, b"commits")))
        self._tops = {self._inode(Node(stat.S_IFDIR, place=(root, name))): name for name in REFS}
        self._refs = self._read_refs()
        self._in_vain: set[bytes] = set()  # Commits that were looked up and do not exist.

    def _inode(self, node: Node) -> int:
        with self._numbering:
            inode = self._inodes.setdefault(node, len(self._nodes))
            if inode == len(self._nodes):
                self._nodes.append(node)
            return inode

    def _read_refs(self) -> dict[int, dict[bytes, Node]]:
        """Return the names in each directory of branches or tags, by the directory's inode."""
        found: dict[int, dict[bytes, Node]] = {}
        for top, kind in self._tops.items():
            found[top] = {}
            for ref, oid in self._repository.refs(REFS[kind]).items():
                *parts, last = ref.split(b"/")
                parent = top
                for part in parts:  # The reference feature/x is in the directory feature.
                    directory = Node(stat.S_IFDIR, place=(parent, part))
                    found[parent][part] = directory
                    parent = self._inode(directory)
                    found.setdefault(parent, {})
                target = b"../" * (len(parts) + 1) + b"commits/" + oid.encode()
                found[parent][last] = Node(stat.S_IFLNK, place=(parent, last), target=target)
        return found

    async def watch(self) -> None:
        """Invalidate references that have moved, appeared or disappeared."""
        while True:
            await trio.sleep(WATCH_S)
            try:
                refs = await trio.to_thread.run_sync(self._read_refs)
            except subprocess.CalledProcessError as error:
                log.warning("the references cannot be read: %s", error.stderr.decode().strip())
                continue
            before, self._refs = self._refs, refs
            if refs == before:
                continue
            for parent in before | refs:
                old, new = before.get(parent, {}), refs.get(parent, {})
                for name in old | new:
                    if old.get(name) != new.get(name):
                        await self.invalidate(parent=parent, name=name)
            # Any number of commits may have come with a reference.
            in_vain, self._in_vain = self._in_vain, set()
            for name in in_vain:
                await self.invalidate(parent=self._commits, name=name)

    def _children(self, inode: int) -> dict[bytes, Node]:
        if inode == pyfuse3.ROOT_INODE:
            tops = (self._commits, *self._tops)
            return {self._nodes[top].place[1]: self._nodes[top] for top in tops}
        if inode == self._commits:
            return {}  # There are too many commits to list. lookup() finds them.
        if inode in self._refs:
            return self._refs[inode]
        node = self._nodes[inode]
        children = {}
        if node.oid:
            for mode, name, oid in self._repository.tree(node.oid):
                if mode == SUBMODULE:
                    children[name] = Node(stat.S_IFDIR, place=(inode, name))
                elif stat.S_ISDIR(mode):
                    children[name] = Node(stat.S_IFDIR, oid, place=(inode, name))
                else:
                    children[name] = Node(mode, oid)
        return children

    def _child(self, parent: int, name: bytes) -> Node | None:
        if parent == self._commits:
            oid = name.decode("ascii", "replace")
            if len(oid) not in (40, 64) or not set(oid) <= HEX:
                return None
            if self._repository.info(oid)[0] != "commit":
                return None
            return Node(stat.S_IFDIR, oid, place=(parent, name))
        return self._children(parent).get(name)

    def _attributes(self, node: Node) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = self._inode(node)
        kind = stat.S_IFMT(node.mode)
        entry.st_mode = kind | (0o444 if kind == stat.S_IFREG else 0o555) | (node.mode & 0o111)
        entry.st_nlink = 1
        if node.target:
            entry.st_size = len(node.target)
        elif kind != stat.S_IFDIR:
            entry.st_size = self._repository.info(node.oid)[1]
        changes = bool(node.target) or entry.st_ino in self._refs
        entry.entry_timeout = entry.attr_timeout = WATCH_S if changes else ALWAYS_S
        return entry

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        if parent_inode == self._commits:
            self._in_vain.add(name)  # Before asking git, since the commit may come meanwhile.
        child = await trio.to_thread.run_sync(self._child, parent_inode, name)
        if child is None:
            raise pyfuse3.FUSEError(errno.ENOENT)
        self._in_vain.discard(name)
        return self._attributes(child)

    async def getattr(
        self, inode: int, ctx: pyfuse3.RequestContext | None = None
    ) -> pyfuse3.EntryAttributes:
        if inode == pyfuse3.ROOT_INODE:
            entry = pyfuse3.EntryAttributes()
            entry.st_ino, entry.st_mode, entry.st_nlink = inode, stat.S_IFDIR | 0o555, 1
            entry.entry_timeout = entry.attr_timeout = ALWAYS_S
            return entry
        return self._attributes(self._nodes[inode])

    async def readlink(self, inode: int, ctx: pyfuse3.RequestContext) -> bytes:
        node = self._nodes[inode]
        if node.target:
            return node.target
        return await trio.to_thread.run_sync(self._repository.contents, node.oid)

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return inode

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        children = sorted((await trio.to_thread.run_sync(self._children, fh)).items())
        for number, (name, node) in enumerate(children[start_id:], start_id + 1):
            if not pyfuse3.readdir_reply(token, name, self._attributes(node), number):
                break

    async def releasedir(self, fh: int) -> None:
        pass

    async def open(self, inode: int, flags: int, ctx: pyfuse3.RequestContext) -> pyfuse3.FileInfo:
        if flags & os.O_ACCMODE != os.O_RDONLY:
            raise pyfuse3.FUSEError(errno.EROFS)
        return pyfuse3.FileInfo(fh=inode, keep_cache=True)

    async def read(self, fh: int, off: int, size: int) -> bytes:
        oid = self._nodes[fh].oid
        return (await trio.to_thread.run_sync(self._repository.contents, oid))[off : off + size]


async def main(repository: str, mountpoint: str) -> None:
    git = Git(repository)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(git.watch)
        await efuse.serve(git, mountpoint)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])
