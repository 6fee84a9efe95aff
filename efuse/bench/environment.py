# SPDX-License-Identifier: LGPL-2.1-or-later
"""The settings of a benchmark, and the machine on which it runs."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import efuse
from efuse.control import module_version

__all__ = ["Settings", "machine", "versions"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What to run.

    :ivar workloads: names of the workloads.
    :ivar systems: names of the systems; empty: each workload's own.
    :ivar daemon: name of the daemon; None: each workload's own.
    :ivar rounds: number of measured rounds.
    :ivar scale: factor for the size of each workload.
    :ivar clock: what the guest's clock counts, ``time`` or ``instructions``. This only describes
        the guest.
    :ivar lower: where the lower file system is, one of :data:`~efuse.bench.lower.LOWER`.
    """

    workloads: tuple[str, ...]
    systems: tuple[str, ...] = ()
    daemon: str | None = None
    rounds: int = 5
    scale: float = 0.1
    clock: str = "time"
    lower: str = "memory"


def machine() -> dict[str, Any]:
    """Describe the machine that runs the benchmark."""
    cpu = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.partition(":")[2].strip()
            break
    memory = Path("/proc/meminfo").read_text().split()[1]
    return {
        "cpu": cpu,
        "cpus": os.cpu_count(),
        "memory_bytes": int(memory) * 1024,
        "architecture": platform.machine(),
        "guest": os.environ.get("EFUSE_GUEST") == "1",
    }


def versions(module: str | None = None) -> dict[str, str]:
    """Return the versions of the software that takes part.

    :param module: version of the kernel module; None: that of efuse.ko.
    """
    return {
        "efuse": efuse.__version__,
        "module": module_version() if module is None else module,
        "python": platform.python_version(),
        "pyfuse3": importlib.metadata.version("pyfuse3"),
    }
