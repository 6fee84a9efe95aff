# SPDX-License-Identifier: LGPL-2.1-or-later
"""Decide what a pass-through may promise the kernel, by the mounts at and below its source."""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from efuse.control.mounts import Mount, Numbered, numbered, numbers
from efuse.display import shown
from efuse.errors import EfuseError
from efuse.fs.options import Options
from efuse.fs.passthrough.inodes import Inodes, Node, lacks_descriptor
from efuse.fs.passthrough.lasting import Lasting
from efuse.fs.passthrough.stacking import (
    below,
    has_inode_per_file,
    is_there_twice,
    may_show_again,
)

__all__ = ["Promises"]

_log = logging.getLogger("efuse.fs")


class Promises:
    """Take back the promises that the mounts at and below the source do not allow.

    Before a reply gives the kernel an inode, the promises are compared with all mounts that inodes
    were found on. If a promise cannot be taken back, the reply fails, and the next one tries again.

    :param inodes: the nodes and the mounts that they are on.
    :param used: returns the promises that are in use.
    :param withdraw: declares changed fields of :class:`Options` (possibly none) to the kernel, and
        makes everything void that the kernel has learned. If it raises an :class:`EfuseError`, it
        is called again later with the same fields.
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
        self._failure = Lasting()
        self._reading = -1
        self._weighed: frozenset[int] = frozenset()
        self._there: frozenset[tuple[int, str]] | None = None
        self._seen: dict[int, Numbered | None] = {}

    def keep(self, node: Node) -> None:
        """Make the promises true before a reply gives the kernel *node*.

        :raises OSError: a promise cannot be taken back. The next call tries again.
        """
        is_read = self._inodes.mounts.readings == self._reading
        if not is_read or node.mount.number not in self._weighed:
            self.weigh()
        if self._owed or self._is_void_owed:
            self._settle()

    def look(self) -> bool:
        """Follow the mounts, and take back promises that are no longer true.

        :returns: whether that succeeded. If not, the log has the reason, and :meth:`keep` and the
            next call try again.
        """
        try:
            self.weigh()
        except OSError:
            return False
        return True

    def distrust(self) -> None:
        """Make void what the kernel has learned. If that fails, :meth:`keep` tries again."""
        self._is_void_owed = True
        with contextlib.suppress(OSError):  # _settle() has logged it
            self._settle()

    def weigh(self) -> None:
        """Make the nodes follow the mounts, and take back the promises that these do not allow.

        A name that the kernel has learned may lead to a directory that a new mount covers. So a new
        mount also makes void what the kernel has learned.

        :raises OSError: a promise cannot be taken back, or the mounts cannot be followed. The log
            has the reason. The next call of :meth:`keep` tries again.
        """
        try:
            self._inodes.follow_mounts(again=True)
        except OSError:
            # The kernel must not rely on the promises until the nodes follow.
            self._compare()
            self._settle()
            raise
        self._weighed = self._compare()
        self._reading = self._inodes.mounts.readings
        self._settle()

    def _compare(self) -> frozenset[int]:
        """Find out what the mounts do not allow. Return the numbers of the mounts."""
        mounts, root = self._inodes.mounts, self._inodes.root
        path = str(Path(f"/proc/self/fd/{self._inodes.fd(root)}").readlink())
        found: list[Mount] = []
        if mounts.row(root.mount.number) is not None:  # otherwise the path may mean another one
            found = below(path, root.mount.number, mounts.table, own=mounts.own)
        # A mount that was unmounted or moved out of the source may still be in use.
        found += [row for row in mounts.rows if row is not None and row not in found]
        is_whole = all(row is not None for row in mounts.rows)
        ended = self._ended(found, is_whole=is_whole)
        if "consistency" in ended:
            self._log_end_of_exclusive(shown(path), found, is_whole=is_whole)
        self._owed |= ended
        unique = self._unique_numbers()
        there = frozenset((unique.get(m.mount_id, m.mount_id), m.mountpoint) for m in found)
        self._is_void_owed |= self._there is not None and there != self._there
        self._there = there
        return mounts.numbers | {mount.mount_id for mount in found}

    def _unique_numbers(self) -> dict[int, int]:
        """Return, by its number in the table, the number of each mount that no other one ever gets.

        A mount gets the number in the table, and the device, of one that was unmounted before it.
        On a kernel before 6.8 there are no others.
        """
        self._seen = {number: self._seen.get(number) or numbered(number) for number in numbers()}
        return {seen.mount_id: seen.number for seen in self._seen.values() if seen is not None}

    def _ended(self, found: list[Mount], *, is_whole: bool) -> dict[str, Any]:
        """Return the used promises that are not true, with their new values.

        Two mounts of one file system show a directory as two inodes. A file system that shows the
        files of another one gives each file a second inode. The kernel does not see that a change
        of one inode also changes the other, so it has to ask again. A file may also lose its name
        through the other inode, so the daemon has to know which files are open. A mount that the
        table does not have may be any of these.

        :param found: the known mounts.
        :param is_whole: whether *found* has all mounts that inodes were found on.
        """
        used = self._used()
        ended: dict[str, Any] = {}
        is_shown_again = may_show_again(found) or not is_whole
        is_numbered = has_inode_per_file(self._inodes.root.mount.kind, found)
        if used.nodeid_per_file and (is_shown_again or not is_numbered):
            ended["nodeid_per_file"] = False
        if used.no_open and is_shown_again:
            ended["no_open"] = False
        if used.consistency == "exclusive" and (is_shown_again or is_there_twice(found)):
            ended["consistency"] = "ttl"
        return ended

    @staticmethod
    def _log_end_of_exclusive(source: str, found: list[Mount], *, is_whole: bool) -> None:
        if not is_whole:
            _log.warning(
                "%s is passed through with ttl instead of exclusive: a mount there is missing from"
                " the mount table",
                source,
            )
        elif is_there_twice(found):
            _log.warning(
                "%s is passed through with ttl instead of exclusive: a file system is mounted twice"
                " there",
                source,
            )
        else:
            _log.warning(
                "%s is passed through with ttl instead of exclusive: a file system there may show"
                " the files of another one",
                source,
            )

    def _settle(self) -> None:
        if not self._owed and not self._is_void_owed:
            return
        try:
            self._withdraw_owed()
        except EfuseError as error:
            if self._failure.begins(str(error)):
                _log.warning("a promise to the kernel cannot be withdrawn: %s", error)
            raise OSError(errno.EIO, str(error)) from error
        self._owed.clear()
        self._is_void_owed = False
        if self._failure.ends():
            _log.info("the promises to the kernel are true again")

    def _withdraw_owed(self) -> None:
        try:
            self._withdraw(self._owed)
        except EfuseError as error:
            if not (lacks_descriptor(error.__cause__) and self._inodes.make_room()):
                raise
            self._withdraw(self._owed)
