# SPDX-License-Identifier: LGPL-2.1-or-later
"""Benchmarks: run workloads on several systems that mount the same files, and compare them."""

from efuse.bench.environment import Settings
from efuse.bench.lower import LOWER
from efuse.bench.registry import DATA, DEFAULT, METADATA, WORKLOADS
from efuse.bench.report import (
    Ratio,
    Report,
    Result,
    RoundCounters,
    Series,
    measure_tables,
    table,
)
from efuse.bench.requests import REQUESTS, SCALE, expanded
from efuse.bench.run import check, run, steps
from efuse.bench.state import finished
from efuse.bench.storage import (
    PLACES,
    STORAGE,
    check_storage,
    is_storage,
    run_storage,
    storage_steps,
)
from efuse.bench.storage_report import plot, storage_table
from efuse.bench.systems import DAEMONS, ON_REQUEST, SYSTEMS
from efuse.bench.transport import BALANCED, DAEMON, KNOWN
from efuse.bench.workload import Workload

__all__ = [
    "BALANCED",
    "DAEMON",
    "DAEMONS",
    "DATA",
    "DEFAULT",
    "KNOWN",
    "LOWER",
    "METADATA",
    "ON_REQUEST",
    "PLACES",
    "REQUESTS",
    "SCALE",
    "STORAGE",
    "SYSTEMS",
    "WORKLOADS",
    "Ratio",
    "Report",
    "Result",
    "RoundCounters",
    "Series",
    "Settings",
    "Workload",
    "check",
    "check_storage",
    "expanded",
    "finished",
    "is_storage",
    "measure_tables",
    "plot",
    "run",
    "run_storage",
    "steps",
    "storage_steps",
    "storage_table",
    "table",
]
