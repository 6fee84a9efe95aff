# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run some random schedules: no call returns what no order of the changes allows.

``EFUSE_SCHEDULE_SEEDS`` is the number of seeds, and ``EFUSE_SCHEDULE_SEED`` the first one.
``scripts/schedules`` runs more of them.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from tests.guest.support.schedule_operations import PROFILES
from tests.guest.support.schedule_runs import Runner, profile_of

SEEDS = int(os.environ.get("EFUSE_SCHEDULE_SEEDS", str(2 * len(PROFILES))))
SEED = int(os.environ.get("EFUSE_SCHEDULE_SEED", "20261128"))
_LEAST = {"calls": "getxattr", "names": "getxattr", "maps": "read", "extents": "read"}


def test_calls_return_only_what_some_order_of_the_changes_allows(tmp_path: Path) -> None:
    hits: dict[str, Counter[str]] = {}
    paths: dict[str, Counter[str]] = {}
    print(f"the first seed is {SEED}")
    with Runner(tmp_path) as runner:
        for seed in range(SEED, SEED + SEEDS):
            name, outcome = profile_of(seed).name, runner.run(seed)
            hits.setdefault(name, Counter()).update(outcome.hits)
            paths.setdefault(name, Counter()).update(outcome.paths)
            print(f"{seed} {name}: {dict(outcome.hits)}, {dict(outcome.paths)}")
            assert outcome.delayed, "no worker was delayed in the kernel"
    for name, opcode in _LEAST.items():
        assert hits[name][opcode], f"the kernel has answered no {opcode} in {name}: {hits[name]}"
    assert all(paths[name]["direct"] for name in ("extents", "direct")), paths
    assert all(paths[name]["cache"] for name in ("calls", "maps", "extents")), paths
