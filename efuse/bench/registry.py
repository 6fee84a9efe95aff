# SPDX-License-Identifier: LGPL-2.1-or-later
"""All workloads by name."""

from __future__ import annotations

from dataclasses import replace

from efuse.bench.io import IO
from efuse.bench.requests import REQUESTS
from efuse.bench.shift import Shift
from efuse.bench.trees import TREES
from efuse.bench.workload import Workload
from efuse.bench.workloads import CALLS, MetadataWorkload

__all__ = ["DATA", "DEFAULT", "METADATA", "WORKLOADS"]

_SHIFT = Shift(
    "shift",
    "t1-single for the first half, t3-large for the second half",
    (replace(IO["t1-single"], unit="MiB/s"), IO["t3-large"]),
)

METADATA: dict[str, MetadataWorkload] = {**CALLS, **TREES}
"""The workloads of names, attributes and whole trees."""

DEFAULT = (*CALLS, "tree-walk")
"""The workloads that run if the user chooses none."""

DATA: dict[str, Workload] = {**IO, _SHIFT.name: _SHIFT}
"""The workloads that read and write data."""

WORKLOADS: dict[str, Workload] = {**METADATA, **DATA, **REQUESTS}
"""All workloads: of metadata, of data, and of requests alone."""
