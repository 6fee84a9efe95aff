# SPDX-License-Identifier: LGPL-2.1-or-later
"""Print what the model predicts for 128 CPUs on 8 nodes: ``python -m docs.model``.

Prints tables and writes the plot ``docs/model/scale.svg``. It takes some minutes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from multiprocessing.pool import Pool
from pathlib import Path

from docs.model.machine import Hardware
from docs.model.measurements import costs, guest, large, ratio
from docs.model.plot import plot
from docs.model.systems import SYSTEMS, Load, Result, Simulation

CPUS = (1, 2, 4, 8, 16, 32, 64, 96, 128)
THINK_NS = 20_000.0
_RUN_NS = 2e6
_SEED = 1

_Asked = tuple[str, Hardware, Load]


def _ask(asked: _Asked) -> Result:
    system, hardware, load = asked
    return Simulation(system, hardware, costs(system), load, _SEED).run(_RUN_NS)


def _all(pool: Pool, asked: Iterable[_Asked]) -> list[Result]:
    return pool.map(_ask, asked, chunksize=1)


def _share(result: Result) -> str:
    """Return the largest part of a request's CPU time, except the work of caller and daemon."""
    others = {k: v for k, v in result.spent.items() if k not in ("caller", "daemon")}
    what, ns = max(others.items(), key=lambda item: item[1])
    return f"{what} {ns / 1000:.1f} us"


def _scale(pool: Pool, load: Load) -> dict[str, list[Result]]:
    asked = [(s, large(), replace(load, cpus=n)) for s in SYSTEMS for n in CPUS]
    results = _all(pool, asked)
    return {s: results[i * len(CPUS) : (i + 1) * len(CPUS)] for i, s in enumerate(SYSTEMS)}


def _print_scale(title: str, found: dict[str, list[Result]]) -> None:
    print(
        f"\n{title}\nCPUS"
        + "".join(f"{s:>10}/s    p99 us" for s in SYSTEMS)
        + "  LARGEST COST OF CHANNELS"
    )
    for i, cpus in enumerate(CPUS):
        row = "".join(f"{found[s][i].rate:12.0f}{found[s][i].p99 / 1000:10.1f}" for s in SYSTEMS)
        print(f"{cpus:4}{row}  {_share(found['channels'][i])}")


def print_checks() -> None:
    """Print the ratios that were measured in the guests, and the ratios that the model predicts."""
    print("AGAINST THE GUESTS           measured    model")
    for cpus in (1, 2):
        for callers in (1, 2):
            for of, over in (("queues", "fuse"), ("channels", "fuse")):
                predicted = modelled(cpus, callers, of) / modelled(cpus, callers, over)
                name = f"{of}/{over}, {cpus} CPU, {callers} callers"
                print(f"{name:30}{ratio(cpus, callers, of, over):7.2f}  {predicted:7.2f}")


@cache
def modelled(cpus: int, callers: int, system: str) -> float:
    """Return the requests per second that the model predicts for the guest with *cpus* CPUs."""
    load = Load(cpus, callers=-(-callers // cpus), idle=max(0, cpus - callers))
    hardware = guest(cpus)
    return Simulation(system, hardware, costs(system, cpus > 1), load, _SEED).run(1e9).rate


def _breaks(pool: Pool) -> None:
    """Print the requests per second of 128 CPUs, with one parameter changed in each line."""
    load, free = Load(128), Load(128, think_ns=THINK_NS)
    cases = {
        "as it is": (large(), load),
        "num_waiting costs nothing": (large(), replace(load, without=frozenset({"num_waiting"}))),
        "the queues' locks cost nothing": (large(), replace(load, without=frozenset({"queue"}))),
        "cache lines cost nothing": (large(0.0, 0.0), load),
        "cache lines twice as slow": (large(100.0, 260.0), load),
        "misses of one poll in sequence": (large(overlap=1.0), load),
        "code half as fast": (large(instruction_ns=0.8), load),
        "two callers on each CPU": (large(), replace(load, callers=2)),
        "every request in the background": (large(), replace(load, background=True)),
        "every reply by another descriptor": (large(), replace(load, migrated=True)),
        "callers that think": (large(), free),
        "the same, waitq costs nothing": (large(), replace(free, without=frozenset({"waitq"}))),
        "the same, polling threads keep the CPU": (large(), replace(free, considerate=False)),
        "the same, idle CPUs 10 us away": (large(idle_ns=10_000.0), free),
    }
    found = _all(pool, [(s, hw, ld) for hw, ld in cases.values() for s in SYSTEMS])
    print(
        "\n128 CPUS"
        + " " * 34
        + "".join(f"{s:>10}/s" for s in SYSTEMS)
        + "  LARGEST COST OF CHANNELS"
    )
    for i, name in enumerate(cases):
        row = found[i * len(SYSTEMS) : (i + 1) * len(SYSTEMS)]
        print(f"{name:42}" + "".join(f"{r.rate:12.0f}" for r in row) + f"  {_share(row[2])}")


def main() -> None:
    print_checks()
    with Pool() as pool:
        busy, thinking = _scale(pool, Load(1)), _scale(pool, Load(1, think_ns=THINK_NS))
        not_considerate = _scale(pool, Load(1, think_ns=THINK_NS, considerate=False))
        _print_scale("A CALLER ON EACH CPU, WITHOUT A PAUSE", busy)
        _print_scale(f"A CALLER ON EACH CPU THAT PAUSES FOR {THINK_NS / 1000:.0f} us", thinking)
        _print_scale("THE SAME, POLLING THREADS KEEP THE CPU", not_considerate)
        _breaks(pool)
    panels = {"callers without a pause": busy, "callers that think": thinking}
    Path(__file__).with_name("scale.svg").write_text(plot(CPUS, panels))


if __name__ == "__main__":
    main()
