# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pass-through file system with one more rule: names that begin with a dot do not exist.

Run: efuse mount mirror:NoDots --arg source=/srv/data MOUNTPOINT
"""

import errno

import pyfuse3

import efuse


class NoDots(efuse.Passthrough):
    async def lookup(
        self, parent_inode: int, name: bytes, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        if name.startswith(b".") and name not in (b".", b".."):
            raise pyfuse3.FUSEError(errno.ENOENT)
        return await super().lookup(parent_inode, name, ctx)

    async def create(
        self, parent_inode: int, name: bytes, mode: int, flags: int, ctx: pyfuse3.RequestContext
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        if name.startswith(b"."):
            raise pyfuse3.FUSEError(errno.EPERM)
        return await super().create(parent_inode, name, mode, flags, ctx)
