# SPDX-License-Identifier: LGPL-2.1-or-later
"""Turn measurements into the model's parameters, and describe the machines to simulate."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from docs.model.machine import Hardware
from docs.model.systems import SYSTEMS, Costs

MEASURED = json.loads(Path(__file__).with_name("measured.json").read_text())
"""The output of `docs.model.measure`, by the number of CPUs of the guest."""

# Instructions, counted in `objdump -d efuse.ko`: from spin_lock() to spin_unlock() in
# efuse_queue_send_req(); one pass of the loop in efuse_queue_search() for an empty queue; one pass
# of the loop in efuse_channels_wake() for a worker that does not sleep, with find_next_bit().
_HOLD, _LOOK, _LOOK_FOR_WORKER = 60, 21, 40

# The waker's share of the time of a switch, which was measured as a whole.
_WAKE_SHARE = 0.5

# The default of channels/spin_ns.
_SPIN_NS = 50_000.0


def costs(system: str, emulated: bool = False) -> Costs:
    """Return the costs of *system*, measured with one caller in the guest with one CPU.

    :param emulated: take the costs from the guest with two CPUs instead.
    """
    cpus = 2 if emulated else 1
    measured, unit = MEASURED[str(cpus)], guest(cpus).instruction_ns
    switch = measured["parts"]["switch"] / unit
    wake = switch * _WAKE_SHARE
    one = measured["systems"][system]["1"]
    # The model counts these separately: for each side, a switch and the work under locks; for the
    # daemon, waking the caller; for the caller, waking the daemon if it sleeps.
    sleeps = min(1.0, one["sleeps"])
    apart = switch - wake + 2 * _HOLD
    return Costs(
        caller=one["caller"] / unit - apart - wake * sleeps,
        daemon=one["daemon"] / unit - apart - wake,
        wake=wake,
        switch=switch - wake,
        hold=_HOLD,
        look=_LOOK,
        look_for_worker=_LOOK_FOR_WORKER,
        spin_ns=_SPIN_NS,
        hands_over=sleeps < 1 / 2,
    )


def guest(cpus: int) -> Hardware:
    """Return a guest: one CPU whose clock counts instructions, or two that software emulates."""
    if cpus == 1:
        return Hardware(1, 1, 1.0, 0.0, 0.0, 1.0, 0.0)
    parts = MEASURED["2"]["parts"]
    # The time of operations in which no thread waits, divided by their instructions.
    instruction_ns = statistics.median(
        parts[name] / MEASURED["1"]["parts"][name] for name in ("system_call", "status", "message")
    )
    idle_ns = parts["switch_away"] - parts["switch"]
    return Hardware(2, 2, instruction_ns, _NEAR_EMULATED_NS, 0.0, 1.0, idle_ns)


# Emulated CPUs share the host's caches, so fetching a cache line costs nothing compared with an
# emulated instruction.
_NEAR_EMULATED_NS = 0.0


def large(near_ns: float = 50.0, far_ns: float = 130.0, **other: float) -> Hardware:
    """Return a machine with 128 CPUs on 8 nodes. README.md explains the assumed values."""
    values = {"instruction_ns": 0.4, "overlap": 4.0, "idle_ns": 2000.0, **other}
    return Hardware(cpus=128, per_node=16, near_ns=near_ns, far_ns=far_ns, **values)


def ratio(cpus: int, callers: int, of: str, over: str) -> float:
    """Return the measured requests per second of *of*, divided by those of *over*."""
    systems = MEASURED[str(cpus)]["systems"]
    assert {of, over} <= set(SYSTEMS)
    return float(systems[of][str(callers)]["rate"] / systems[over][str(callers)]["rate"])
