# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test mounts with the calls that Hypothesis chooses, each of them compared with a model.

``EFUSE_MODEL_EXAMPLES`` is the number of examples of a case, ``EFUSE_MODEL_STEPS`` the number of
calls of an example, and ``EFUSE_MODEL_SEED`` the seed: the same seed repeats the same calls.

Hypothesis is imported when a test runs: under emulation it takes seconds, also in a guest that runs
other tests.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import efuse
from efuse.control import PATHS, Connection

if TYPE_CHECKING:
    from hypothesis.stateful import RuleBasedStateMachine

EXAMPLES = int(os.environ.get("EFUSE_MODEL_EXAMPLES", "5"))
STEPS = int(os.environ.get("EFUSE_MODEL_STEPS", "60"))
SEED = int(os.environ.get("EFUSE_MODEL_SEED", "20261128"))


def _run(machine: type[RuleBasedStateMachine]) -> None:
    import hypothesis
    from hypothesis import HealthCheck, Phase, settings
    from hypothesis.stateful import run_state_machine_as_test

    print(f"seed {SEED}: EFUSE_MODEL_SEED={SEED}")
    chosen = settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        # The kernel keeps state from one example to the next, so a shorter example proves little.
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(hypothesis.seed(SEED)(machine), settings=chosen)


def _hits(connection: Connection, *opcodes: str) -> dict[str, int]:
    return {opcode: connection.counts(f"stats/{opcode}")["hits"] for opcode in opcodes}


def _mount(stack: ExitStack, source: Path, point: Path, **options: object) -> Connection:
    operations = efuse.Passthrough(source, **options)
    stack.callback(operations.close)
    point.mkdir(parents=True)
    mounted = stack.enter_context(efuse.mount(operations, point, required=True))
    assert mounted.connection is not None
    return Connection(mounted.connection)


def test_exclusive_mount_does_what_the_lower_file_system_does(
    lower: Path, mountpoint: Path
) -> None:
    from tests.guest.support.exclusive_model import ExclusiveMount

    class Machine(ExclusiveMount):
        mount, reference = mountpoint / "m", lower / "reference"

    (lower / "source").mkdir()
    Machine.reference.mkdir()
    with ExitStack() as stack:
        timeouts = {"entry_timeout": 3600, "attr_timeout": 3600, "negative_timeout": 3600}
        connection = _mount(
            stack, lower / "source", Machine.mount, consistency="exclusive", **timeouts
        )
        _run(Machine)
        hits = _hits(connection, "getattr", "lookup", "open", "flush")
        paths = {p: connection.counts(f"paths/{p}")["requests"] for p in PATHS}
    print(f"{Machine.steps} calls, hits {hits}, paths {paths}")
    assert hits["open"] > 10 and hits["getattr"] > 10, hits
    assert paths["direct"] > 10, paths


@pytest.mark.parametrize("mode", ["cto", "ttl"])
def test_two_mounts_of_a_source_show_nothing_older_than_their_mode_allows(
    lower: Path, mountpoint: Path, mode: str
) -> None:
    from tests.guest.support.shared_model import TIMEOUT_S, SharedSource

    class Machine(SharedSource):
        mounts, source = (mountpoint / "1", mountpoint / "2"), lower / "source"

    Machine.mode = mode
    Machine.source.mkdir()
    timeouts = {"entry_timeout": TIMEOUT_S, "attr_timeout": TIMEOUT_S}
    with ExitStack() as stack:
        both = [
            _mount(stack, Machine.source, point, consistency=mode, **timeouts)
            for point in Machine.mounts
        ]
        _run(Machine)
        hits = [_hits(one, "getattr", "getxattr", "lookup", "open") for one in both]
    print(f"{Machine.steps} calls, hits {hits}")
    assert sum(sum(one.values()) for one in hits) > 0, hits
    assert not (mode == "cto" and any(one["open"] for one in hits)), hits
