# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run some random schedules: no call returns what no order of the changes allows.

``EFUSE_SCHEDULE_SEEDS`` is the number of seeds of each profile, and ``EFUSE_SCHEDULE_SEED`` the
first one. ``scripts/schedules`` runs more of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.guest.support.schedule_operations import PROFILES
from tests.guest.support.schedule_runs import Runner, profile_of

SEEDS = int(os.environ.get("EFUSE_SCHEDULE_SEEDS", "3"))
SEED = int(os.environ.get("EFUSE_SCHEDULE_SEED", "20261128"))
_ANSWERED = {"names": "lookup", "calls": "getxattr", "maps": "read", "extents": "write"}
_TAKEN = {"names": "daemon", "calls": "cache", "maps": "cache"}


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with Runner(tmp_path_factory.mktemp("schedules")) as runner:
        yield runner


@pytest.mark.parametrize("profile", [profile.name for profile in PROFILES])
def test_calls_return_only_what_some_order_of_the_changes_allows(
    runner: Runner, profile: str
) -> None:
    hits, paths, delays = runner.hits, runner.paths, runner.delays
    seeds = range(SEED, SEED + SEEDS * len(PROFILES))
    for seed in [seed for seed in seeds if profile_of(seed).name == profile]:
        print(f"seed {seed}")
        runner.run(seed)
    hits, paths = runner.hits - hits, runner.paths - paths
    print(f"answers of the kernel: {dict(hits)}, paths: {dict(paths)}")
    assert hits[_ANSWERED.get(profile, "read")], hits
    assert paths[_TAKEN.get(profile, "direct")], paths
    assert runner.delays > delays, "no worker was delayed in the kernel"
