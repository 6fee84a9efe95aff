# SPDX-License-Identifier: LGPL-2.1-or-later
"""Serve a file system in the test's own process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import trio

import efuse


@contextlib.asynccontextmanager
async def served(
    operations: efuse.Operations, mountpoint: Path, **more: Any
) -> AsyncIterator[trio.Nursery]:
    """Serve until the end of the context; yield a nursery for tasks that run meanwhile.

    :param more: arguments of efuse.serve().
    """
    async with trio.open_nursery() as nursery:
        serving = trio.CancelScope()

        async def serve(task_status: trio.TaskStatus[object]) -> None:
            with serving:
                await efuse.serve(
                    operations, mountpoint, required=True, task_status=task_status, **more
                )

        await nursery.start(serve)
        yield nursery
        serving.cancel()
