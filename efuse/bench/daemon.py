# SPDX-License-Identifier: LGPL-2.1-or-later
"""The measured daemon in Python: ``efuse.fs.Passthrough`` in a process of its own.

Run it as ``python -m efuse.bench.daemon SYSTEM SOURCE MOUNTPOINT``. It prints a line of JSON when
the file system is mounted. For each line on standard input it prints another one: the number of
requests for which each handler was called. At the end of standard input it unmounts and exits.
"""

from __future__ import annotations

import json
import os
import sys

import trio

from efuse.bench.systems import is_efuse
from efuse.fs import Passthrough, serve

_TUNED_TIMEOUT_S = 3600.0


def _make(system: str, source: str) -> tuple[Passthrough, bool]:
    """Return the file system, and whether to mount it as plain FUSE.

    ``fuse`` has timeouts of 0: an answer is valid only when it is given. ``fuse-tuned`` uses all
    that plain FUSE offers: long timeouts for existing names, pages kept from open to open, and the
    write-back cache. ``fuse-writeback`` is ``fuse`` with the write-back cache. ``efuse`` also has
    timeouts of 0, as well as the exclusive mode and the write-back cache; ``efuse-writethrough``
    is ``efuse`` without the write-back cache.
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
    """Serve the file system until the end of standard input."""
    system, source, mountpoint = sys.argv[1:4]
    trio.run(_serve, system, source, mountpoint)


if __name__ == "__main__":
    main()
