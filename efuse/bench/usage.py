# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a daemon has done, and what the kernel did in its place."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from efuse.control import Connection
from efuse.control.attributes import read_file
from efuse.stats import Sample, read

__all__ = ["Usage", "kernel_counts", "switches"]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a daemon has done so far: requests, and voluntary context switches.

    ``requests`` are by handler where the daemon counts them, else all under one name.
    ``sample`` holds the kernel's counters, without times, and ``paths`` the READs and WRITEs by the
    path that answered them; None and nothing where there is no eFuse.
    """

    requests: dict[str, int] = field(default_factory=dict)
    switches: int = 0
    sample: Sample | None = None
    paths: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """All requests that wait for an answer: FORGET is none."""
        return sum(n for name, n in self.requests.items() if name != "forget")


def kernel_counts(connection: int | None) -> tuple[Sample | None, dict[str, int]]:
    """Return the kernel's counters of *connection*; None is one of plain FUSE."""
    if connection is None:
        return None, {}
    directory = Connection(connection)
    files = sorted((directory.path / "paths").glob("*/requests"))
    paths = {file.parent.name: int(read_file(file)) for file in files}
    return read(directory, timing=False), paths


def switches(pids: Iterable[int]) -> int:
    """Return the voluntary context switches of all threads of *pids*."""
    tasks = (task for pid in pids for task in Path(f"/proc/{pid}/task").glob("*/status"))
    text = "".join(task.read_text() for task in tasks)
    return sum(int(n) for n in re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", text, re.M))
