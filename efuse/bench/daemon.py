# SPDX-License-Identifier: LGPL-2.1-or-later
"""The daemon that is measured: ``efuse.fs.Passthrough`` in a process of its own.

Run as ``python -m efuse.bench.daemon SYSTEM SOURCE MOUNTPOINT``. Prints a line of JSON when it is
mounted, and for each line that it reads another one: the requests that its handlers were called
for, by handler. It ends, and unmounts, when its standard input does.
"""

from __future__ import annotations

import json
import os
import sys

import trio

from efuse.bench.systems import is_efuse
from efuse.fs import Passthrough, serve

__all__ = ["main"]

_TUNED_TIMEOUT_S = 3600.0


def _make(system: str, source: str) -> tuple[Passthrough, bool]:
    """Return the file system, and whether it is mounted as plain FUSE.

    ``fuse`` has no time-outs: each answer is true only at the moment it is given. ``fuse-tuned``
    has what plain FUSE offers: long time-outs of what is there, pages kept over an open, the
    write-back cache; ``fuse-writeback`` nothing but that. ``efuse`` has no time-outs either; it is
    the only writer, with the write-back cache too, ``efuse-writethrough`` without.
    """
    timeout_s = _TUNED_TIMEOUT_S if system == "fuse-tuned" else 0.0
    accelerated = is_efuse(system)
    operations = Passthrough(
        source,
        consistency="exclusive" if accelerated else "ttl",
        entry_timeout=timeout_s,
        attr_timeout=timeout_s,
        writeback=system not in {"fuse", "efuse-writethrough"},
        lazy_atime=True,
    )
    return operations, not accelerated


async def _answer(operations: Passthrough, scope: trio.CancelScope) -> None:
    lines = trio.wrap_file(sys.stdin)
    async for _line in lines:
        print(json.dumps(dict(operations.efuse.statistics().requests)), flush=True)
    scope.cancel()


async def _serve(system: str, source: str, mountpoint: str) -> None:
    operations, plain = _make(system, source)
    async with trio.open_nursery() as nursery:
        state = await nursery.start(
            lambda task_status: serve(
                operations, mountpoint, plain=plain, required=not plain, task_status=task_status
            )
        )
        print(json.dumps({"pid": os.getpid(), "connection": state.connection}), flush=True)
        await _answer(operations, nursery.cancel_scope)


def main() -> None:
    """Serve until standard input ends."""
    system, source, mountpoint = sys.argv[1:4]
    trio.run(_serve, system, source, mountpoint)


if __name__ == "__main__":
    main()
