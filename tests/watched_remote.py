# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run fsspec_fs.py with a remote for tests: ``watched_remote.py LOG ARGUMENTS``.

``watched://DIRECTORY`` is a directory of this machine. The remote writes a line to LOG for each
fetch, and a line to ``LOG.asked`` for each request for the size and time of a file. If the file
``LOG.down`` exists, the remote cannot be reached; if ``LOG.strange`` exists, it raises ValueError.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

EXAMPLE = Path(__file__).resolve().parents[1] / "docs/examples/fsspec_fs/fsspec_fs.py"
LOG = sys.argv.pop(1)


class Watched(LocalFileSystem):
    protocol = "watched"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(os.fspath(path).removeprefix("watched://"))

    def _reach(self) -> None:
        if os.path.exists(f"{LOG}.down"):
            raise ConnectionError("the remote is out of reach")
        if os.path.exists(f"{LOG}.strange"):
            raise ValueError("the remote says what nobody understands")

    def info(self, path: Any, **more: Any) -> Any:
        self._reach()
        with open(f"{LOG}.asked", "a") as log:
            log.write(f"{Path(path).name}\n")
        return super().info(path, **more)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> Any:
        self._reach()
        with open(LOG, "a") as log:
            log.write(f"{Path(path).name} {start}\n")
        return super().cat_file(path, start, end)


fsspec.register_implementation("watched", Watched)
sys.argv[0] = str(EXAMPLE)
sys.path.insert(0, str(EXAMPLE.parent))
runpy.run_path(str(EXAMPLE), run_name="__main__")
