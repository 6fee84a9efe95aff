# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a pass-through may promise the kernel, by what is mounted at and below its source."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from efuse.control.mounts import Mount
from efuse.display import shown
from efuse.errors import EfuseError
from efuse.fs.options import Options
from efuse.fs.passthrough.inodes import Inodes, Node
from efuse.fs.passthrough.stacking import (
    below,
    has_inode_per_file,
    is_there_twice,
    may_show_again,
)

__all__ = ["Promises"]

_log = logging.getLogger("efuse.fs")


class Promises:
    """Takes back promises that do not hold (any more) because of what is mounted.

    A reply that tells the kernel of an inode is sent only while the promises hold, by all mounts
    that inodes were found on. One that cannot be taken back is owed until it has been: such replies
    fail so long.

    :param inodes: the nodes, with the mounts that they lie on.
    :param used: returns the promises that are in use.
    :param withdraw: tells the kernel of fields of :class:`Options` that changed, and voids what the
        kernel has learned; may be called with the same ones again after it has raised an
        :class:`EfuseError`.
    """

    def __init__(
        self,
        inodes: Inodes,
        used: Callable[[], Options],
        withdraw: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self._inodes = inodes
        self._used = used
        self._withdraw = withdraw
        self._owed: dict[str, Any] = {}
        self._is_void_owed = False
        self._is_told = False
        self._reading = -1
        self._weighed: frozenset[int] = frozenset()
        self._there: frozenset[tuple[int, int, str]] | None = None

    def keep(self, node: Node) -> None:
        """Have the promises hold before the kernel is told of *node*.

        :raises OSError: one of them cannot be taken back; the next call tries again.
        """
        is_read = self._inodes.mounts.readings == self._reading
        if not is_read or node.mount.number not in self._weighed:
            self.weigh()
        self._settle()

    def look(self) -> None:
        """Take back what cannot be promised any more; later, if that fails now."""
        with contextlib.suppress(OSError):  # it is told, and owed
            self.weigh()

    def distrust(self) -> None:
        """Have the kernel ask again for all that it has learned; later, if that fails now."""
        self._is_void_owed = True
        with contextlib.suppress(OSError):  # it is told, and owed
            self._settle()

    def weigh(self) -> None:
        """Take back what cannot be promised (any more).

        Where a mount has come, a name that the kernel has learned may lead to what it covers.

        :raises OSError: as of :meth:`keep`.
        """
        mounts, root = self._inodes.mounts, self._inodes.root
        mounts.read()
        path = str(Path(f"/proc/self/fd/{self._inodes.fd(root)}").readlink())
        found: list[Mount] = []
        if mounts.row(root.mount.number) is not None:  # else the path is that of nothing
            found = below(path, root.mount.number, mounts.table, own=mounts.own)
        # One that has been unmounted, or moved out of the source, may still be in use.
        found += [row for row in mounts.rows if row is not None and row not in found]
        is_whole = all(row is not None for row in mounts.rows)
        ended = self._ended(found, is_whole=is_whole)
        if "consistency" in ended:
            self._log_end_of_exclusive(shown(path), found, is_whole=is_whole)
        self._owed |= ended
        there = frozenset((mount.mount_id, mount.connection, mount.mountpoint) for mount in found)
        self._is_void_owed |= self._there is not None and not there <= self._there
        self._there = there
        self._weighed = mounts.numbers | {mount.mount_id for mount in found}
        self._reading = mounts.readings
        self._settle()

    def _ended(self, found: list[Mount], *, is_whole: bool) -> dict[str, Any]:
        """Return what does not hold of the promises in use, with its new value.

        Two mounts of one file system show a directory as two inodes, and a file system that shows
        the files of another one shows each file as another inode. The kernel is not told of one of
        them what is done to it by the other: it has to ask again. Where another name of a file can
        lead past the inode that is open, the daemon has to know what is open. A mount of which
        nothing is known may be any of these.

        :param found: the mounts that are known.
        :param is_whole: they are all that inodes were found on.
        """
        used = self._used()
        ended: dict[str, Any] = {}
        is_shown_again = may_show_again(found) or not is_whole
        is_numbered = has_inode_per_file(self._inodes.root.mount.kind, found)
        if used.nodeid_per_file and (is_shown_again or not is_numbered):
            ended["nodeid_per_file"] = False
        if used.handleless and is_shown_again:
            ended["handleless"] = False
        if used.consistency == "exclusive" and (is_shown_again or is_there_twice(found)):
            ended["consistency"] = "ttl"
        return ended

    @staticmethod
    def _log_end_of_exclusive(source: str, found: list[Mount], *, is_whole: bool) -> None:
        if not is_whole:
            _log.warning(
                "%s is passed through as with ttl, not exclusive: a mount there is in no table of"
                " mounts",
                source,
            )
        elif is_there_twice(found):
            _log.warning(
                "%s is passed through as with ttl, not exclusive: a file system is mounted twice"
                " there",
                source,
            )
        else:
            _log.warning(
                "%s is passed through as with ttl, not exclusive: a file system there may show the"
                " files of another one",
                source,
            )

    def _settle(self) -> None:
        if not self._owed and not self._is_void_owed:
            return
        try:
            self._withdraw(self._owed)
        except EfuseError as error:
            if not self._is_told:
                _log.warning("a promise to the kernel cannot be taken back: %s", error)
            self._is_told = True
            raise OSError(errno.EIO, str(error)) from error
        self._owed.clear()
        self._is_told = self._is_void_owed = False
