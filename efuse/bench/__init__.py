# SPDX-License-Identifier: LGPL-2.1-or-later
"""Workloads run side by side on several ways to mount the same files, and what came of it."""

from efuse.bench.catalog import DATA, WORKLOADS
from efuse.bench.report import Ratio, Report, Result, table
from efuse.bench.run import Settings, run
from efuse.bench.systems import DAEMONS, ON_REQUEST, SYSTEMS
from efuse.bench.workload import Workload
from efuse.bench.workloads import METADATA

__all__ = [
    "DAEMONS",
    "DATA",
    "METADATA",
    "ON_REQUEST",
    "SYSTEMS",
    "WORKLOADS",
    "Ratio",
    "Report",
    "Result",
    "Settings",
    "Workload",
    "run",
    "table",
]
