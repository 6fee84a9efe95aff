# SPDX-License-Identifier: LGPL-2.1-or-later
"""From what was measured to the model's parameters, and the machines that it is asked about."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from docs.model.machine import Hardware
from docs.model.systems import SYSTEMS, Costs

MEASURED = json.loads(Path(__file__).with_name("measured.json").read_text())
"""What `docs.model.measure` wrote: by CPUs of the guest."""

# Counted in `objdump -d efuse.ko`: between spin_lock() and spin_unlock() of efuse_queue_send_req();
# a turn of the loop in efuse_queue_search() where the queue is empty; one in efuse_channels_wake()
# where nobody sleeps, find_next_bit() included.
_HOLD, _LOOK, _LOOK_FOR_WORKER = 60, 21, 40

# Of a switch measured as a whole, what the one who wakes pays.
_WAKE_SHARE = 0.5

# channels/spin_ns
_SPIN_NS = 50_000.0


def costs(system: str, emulated: bool = False) -> Costs:
    """Return what *system* costs, of one caller in the guest with one CPU.

    :param emulated: in that with two.
    """
    cpus = 2 if emulated else 1
    measured, unit = MEASURED[str(cpus)], guest(cpus).instruction_ns
    switch = measured["parts"]["switch"] / unit
    wake = switch * _WAKE_SHARE
    one = measured["systems"][system]["1"]
    # Counted by themselves: of each side a switch and what is under a lock, of who replies a
    # wake-up, and one of who asks if the daemon sleeps.
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
    """The guest: one CPU whose clock counts instructions, or two that software emulates."""
    if cpus == 1:
        return Hardware(1, 1, 1.0, 0.0, 0.0, 1.0, 0.0)
    parts = MEASURED["2"]["parts"]
    # The time of what nobody waits in, over its instructions.
    instruction_ns = statistics.median(
        parts[name] / MEASURED["1"]["parts"][name] for name in ("system_call", "status", "message")
    )
    idle_ns = parts["switch_away"] - parts["switch"]
    return Hardware(2, 2, instruction_ns, _NEAR_EMULATED_NS, 0.0, 1.0, idle_ns)


# Emulated CPUs share the host's caches: beside an emulated instruction a line costs nothing.
_NEAR_EMULATED_NS = 0.0


def large(near_ns: float = 50.0, far_ns: float = 130.0, **other: float) -> Hardware:
    """128 CPUs on 8 nodes. All that is given here is assumed: see README.md."""
    values = {"instruction_ns": 0.4, "overlap": 4.0, "idle_ns": 2000.0, **other}
    return Hardware(cpus=128, per_node=16, near_ns=near_ns, far_ns=far_ns, **values)


def ratio(cpus: int, callers: int, of: str, over: str) -> float:
    """Return a measured ratio of requests per second."""
    systems = MEASURED[str(cpus)]["systems"]
    assert {of, over} <= set(SYSTEMS)
    return float(systems[of][str(callers)]["rate"] / systems[over][str(callers)]["rate"])
