# SPDX-License-Identifier: LGPL-2.1-or-later
"""All workloads by name."""

from __future__ import annotations

from efuse.bench.io import DATA
from efuse.bench.workload import Workload
from efuse.bench.workloads import METADATA

__all__ = ["WORKLOADS"]

WORKLOADS: dict[str, Workload] = {**METADATA, **DATA}
"""The metadata workloads, then those that read and write data."""
