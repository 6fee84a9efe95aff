# SPDX-License-Identifier: LGPL-2.1-or-later
"""A cancellation of efuse.serve ends a mount that another mount namespace has copied."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pyfuse3
import trio

import efuse


class Empty(efuse.Operations):
    async def getattr(self, inode: int, ctx: Any = None) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino, entry.st_mode = inode, 0o40755
        return entry


def test_cancellation_ends_a_mount_copied_to_another_namespace(place: Path) -> None:
    at = place / "at"
    at.mkdir()
    words = ["unshare", "-m", "--propagation", "private", "sh", "-c", "echo; exec sleep 60"]

    async def main() -> None:
        with trio.CancelScope(deadline=trio.current_time() + 40, shield=True) as late:
            async with trio.open_nursery() as nursery:
                await nursery.start(efuse.serve, Empty(), at)
                other = subprocess.Popen(words, stdout=subprocess.PIPE)
                assert other.stdout is not None
                other.stdout.readline()
                nursery.cancel_scope.cancel()
            other.kill()
            other.communicate()
        assert not late.cancelled_caught

    trio.run(main)
