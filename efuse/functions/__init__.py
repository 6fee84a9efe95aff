# SPDX-License-Identifier: LGPL-2.1-or-later
"""Storage functions: BPF programs that run over a file where its data lies.

::

    wanted = functions.Count(b"error")
    with functions.load("count"), functions.run("count", path, wanted.encode()) as run:
        print(wanted.decode(run.result()))
"""

from efuse.functions.anywhere import Execution, Outcome, begin, begin_loaded
from efuse.functions.btree import BtreeAggregate, BtreeLookup, BtreeRange
from efuse.functions.count import Count, Counted
from efuse.functions.crc32c import Crc32c
from efuse.functions.grep import Grep
from efuse.functions.loaded import InKernel, loaded, unload
from efuse.functions.loading import Loaded, compile_function, load
from efuse.functions.policy import Policy, load_policy, replace_policy, unload_policy
from efuse.functions.records import (
    Aggregate,
    Aggregated,
    Field,
    Filter,
    Histogram,
    Histogrammed,
    Records,
)
from efuse.functions.running import Place, Run, Status, Unchained, Why, run
from efuse.functions.shipped import SHIPPED, Shipped

__all__ = [
    "SHIPPED",
    "Aggregate",
    "Aggregated",
    "BtreeAggregate",
    "BtreeLookup",
    "BtreeRange",
    "Count",
    "Counted",
    "Crc32c",
    "Execution",
    "Field",
    "Filter",
    "Grep",
    "Histogram",
    "Histogrammed",
    "InKernel",
    "Loaded",
    "Outcome",
    "Place",
    "Policy",
    "Records",
    "Run",
    "Shipped",
    "Status",
    "Unchained",
    "Why",
    "begin",
    "begin_loaded",
    "compile_function",
    "load",
    "load_policy",
    "loaded",
    "replace_policy",
    "run",
    "unload",
    "unload_policy",
]
