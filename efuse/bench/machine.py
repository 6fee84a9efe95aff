# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a benchmark is asked for, and what it runs on."""

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
    """What to run. ``scale`` multiplies the size of each workload; ``clock`` only says what the
    guest's clock counts: ``time`` or ``instructions``; ``lower`` is what the lower file system lies
    on. Without ``systems``, or ``daemon``, each
    workload has those that it is meant for."""

    workloads: tuple[str, ...]
    systems: tuple[str, ...] = ()
    daemon: str | None = None
    rounds: int = 5
    scale: float = 0.1
    clock: str = "time"
    lower: str = "memory"


def machine() -> dict[str, Any]:
    """Return what the machine is that it runs on."""
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
    """Return the versions of what takes part.

    :param module: the kernel module's; by default efuse.ko's.
    """
    return {
        "efuse": efuse.__version__,
        "module": module_version() if module is None else module,
        "python": platform.python_version(),
        "pyfuse3": importlib.metadata.version("pyfuse3"),
    }
