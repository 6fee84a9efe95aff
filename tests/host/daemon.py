# SPDX-License-Identifier: LGPL-2.1-or-later
"""Serve one file system for a test: daemon.py '{"what": ..., "mountpoint": ...}'.

The daemon prints one line of JSON when the file system is mounted, one for each SIGUSR1, and one
after the unmount.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import trio

import efuse
from efuse.fs.passthrough import inodes
from efuse.fs.passthrough.operations import Passthrough


class _Errors(logging.Handler):
    """Collect the logged errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


def main() -> None:
    told: dict[str, Any] = json.loads(sys.argv[1])
    errors = _Errors()
    logging.getLogger().addHandler(errors)
    logging.getLogger().addHandler(logging.StreamHandler())
    if "descriptors" in told:
        resource.setrlimit(resource.RLIMIT_NOFILE, (told["descriptors"],) * 2)
    if told.get("no_file_handles"):
        inodes.file_handle = lambda fd: None
    sys.path.insert(0, str(Path(__file__).parent))
    module, _, name = told["what"].partition(":")
    operations = getattr(importlib.import_module(module), name)(**told.get("arguments", {}))

    def report(what: str) -> None:
        state = operations.efuse
        statistics = state.statistics()
        line: dict[str, Any] = {
            "what": what,
            "accelerated": state.accelerated,
            "reason": state.reason,
            "type": state.mounted_type,
            "requests": dict(statistics.requests),
            "handler_errors": dict(statistics.errors),
            "logged": errors.texts,
            "open": len(os.listdir("/proc/self/fd")),
        }
        if isinstance(operations, Passthrough):
            line["lookups"] = operations.lookups
        print(json.dumps(line), flush=True)

    async def reports() -> None:
        with trio.open_signal_receiver(signal.SIGUSR1) as signals:
            async for _ in signals:
                report("asked")

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reports)
            await trio.lowlevel.checkpoint()
            async with trio.open_nursery() as serving:
                await serving.start(
                    efuse.serve, operations, told["mountpoint"], told.get("options", [])
                )
                report("mounted")
            nursery.cancel_scope.cancel()

    assert threading.active_count() == 1
    trio.run(run)
    report("ended")
    if isinstance(operations, Passthrough):
        operations.close()


if __name__ == "__main__":
    main()
