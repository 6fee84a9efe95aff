# SPDX-License-Identifier: LGPL-2.1-or-later
"""File systems whose listings fail, which daemon.py imports by name."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pyfuse3

import efuse
from tests.host.filesystems import FILE, attributes

__all__ = ["Listing"]


class Listing(efuse.Operations):
    """A directory whose listing fails with EIO behind some of its files.

    :param files: number of files.
    :param fails_behind: numbers of the files behind which the listing fails.
    :param times: how often the listing fails behind each of them.
    """

    def __init__(self, files: int, fails_behind: Sequence[int], times: int) -> None:
        super().__init__()
        self._names = [b"file%d" % number for number in range(files)]
        self._left = dict.fromkeys(fails_behind, times)

    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        if name not in self._names:
            raise pyfuse3.FUSEError(errno.ENOENT)
        return attributes(FILE + self._names.index(name))

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return attributes(inode)

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return 0

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        if self._left.get(start_id):
            self._left[start_id] -= 1
            raise pyfuse3.FUSEError(errno.EIO)
        for number in range(start_id, len(self._names)):
            name, behind = self._names[number], number + 1
            if not pyfuse3.readdir_reply(token, name, attributes(FILE + number), behind):
                return
            if behind in self._left:
                return
