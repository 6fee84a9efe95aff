# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run workloads on several systems and assemble the report."""

from __future__ import annotations

import platform
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, replace
from pathlib import Path

from efuse.bench.environment import Settings, machine, versions
from efuse.bench.lower import lower
from efuse.bench.programs import SID, URING, libfuse
from efuse.bench.registry import WORKLOADS
from efuse.bench.report import COPIED, Report, Result, RoundCounters, Series
from efuse.bench.requests import expanded
from efuse.bench.ring import OWN, RINGS
from efuse.bench.rounds import Measured, Round, run_workload
from efuse.bench.state import keep, resumed
from efuse.bench.systems import ON_REQUEST, SYSTEMS, System, is_efuse, mounted
from efuse.bench.transport import DAEMON, KNOWN, SERVED_BY, transported
from efuse.bench.workload import Measure, Workload
from efuse.errors import UsageError

__all__ = ["check", "run", "steps"]


def run(settings: Settings, say: Callable[[str], None], state: Path | None = None) -> Report:
    """Run all workloads and return the report.

    :param say: is called with each line about the progress.
    :param state: file that keeps the finished workloads; those that it has are not run again.
    :raises UsageError: the file belongs to a different run.
    :raises EfuseError: a system cannot be mounted, a daemon ended, or requests did not take the
        way that was to be measured.
    """
    settings = replace(settings, workloads=expanded(settings.workloads))
    words = {**asdict(settings), "kernel_counters": {}}
    others = {system: URING for system in settings.systems or () if system in OWN}
    if others:  # the systems that the chosen daemon does not serve
        words["daemons"] = others
    used = {**versions(), **libfuse(settings.daemon)}
    report = resumed(state, Report(machine(), platform.release(), used, words, ()))
    counters = report.settings["kernel_counters"]
    left = [name for name in settings.workloads if name not in report.workloads]
    if not left:
        return report
    with ExitStack() as stack:
        source = stack.enter_context(lower(settings.lower, _lower_mib(settings), say))
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="efuse-mounts-")))
        for names in _together(left):
            for name, measured in _run_batch(names, source, base, settings, say):
                results = [
                    _result(WORKLOADS[name], system, settings, each)
                    for system, each in measured.items()
                ]
                kernel = {
                    f"{name} {system}": _kernel_counters(each.rounds)
                    for system, each in measured.items()
                }
                counters.update({which: counted for which, counted in kernel.items() if counted})
                systems = dict.fromkeys(r.system for r in (*report.results, *results))
                report = report.extended(results, filter(is_efuse, systems))
                keep(state, report)
    return report


def steps(settings: Settings) -> dict[str, int]:
    """Return how many rounds a run reports as done, for each workload.

    This includes the warm-up round and the round that counts copied bytes. The names of the
    workloads must be :func:`~efuse.bench.requests.expanded`.
    """
    return {
        name: (settings.rounds + 2) * len(_systems(settings, WORKLOADS[name]))
        for name in settings.workloads
    }


def _systems(settings: Settings, workload: Workload) -> tuple[str, ...]:
    return settings.systems or workload.transports or SYSTEMS


def _daemon(settings: Settings, workload: Workload) -> str:
    return settings.daemon or (DAEMON if workload.transports else "passthrough")


def check(settings: Settings) -> None:
    """Check that each workload can be measured with these settings.

    :raises UsageError: one cannot.
    """
    for name in expanded(settings.workloads):
        _check(settings, WORKLOADS[name])


def _check(settings: Settings, workload: Workload) -> None:
    known = KNOWN if workload.transports else (*SYSTEMS, *ON_REQUEST)
    daemon = _daemon(settings, workload)
    for system in _systems(settings, workload):
        if system not in known:
            raise UsageError(
                f"{workload.name} is not measured on {system}",
                hint=f"use {', '.join(known)}",
            )
        if system in RINGS and daemon != SID:
            raise UsageError(
                f"{system} is not measured through {daemon}", hint=f"give --daemon {SID}"
            )
    if workload.transports and daemon not in SERVED_BY:
        raise UsageError(
            f"{workload.name} is not measured through {daemon}",
            hint=f"use {', '.join(SERVED_BY)}",
        )


def _together(names: Sequence[str]) -> list[tuple[str, ...]]:
    """Group workloads that share mounts; each data workload has its own mounts and space."""
    groups: dict[object, tuple[str, ...]] = {}
    for name in sorted(names, key=lambda name: not WORKLOADS[name].has_reference):
        workload = WORKLOADS[name]
        # Callers that only send requests leave no files behind.
        group = workload.has_reference or workload.transports or name
        groups[group] = (*groups.get(group, ()), name)
    return list(groups.values())


def _lower_mib(settings: Settings) -> int:
    """Return the size that the lower file system needs for the largest group, in MiB."""
    needs = []
    for names in _together(settings.workloads):
        chosen = [WORKLOADS[name] for name in names]
        copies = len(_systems(settings, chosen[0])) + chosen[0].has_reference
        needs.append(sum(w.size_mib(w.scaled(settings.scale)) for w in chosen) * copies)
    return max(512, *needs) + 64


def _run_batch(
    names: Sequence[str],
    lower: Path,
    base: Path,
    settings: Settings,
    say: Callable[[str], None],
) -> Iterator[tuple[str, dict[str, Measured]]]:
    """Run the workloads *names* on mounts of their own; remove their files afterwards."""
    wanted = _systems(settings, WORKLOADS[names[0]])
    places = list(wanted)
    if WORKLOADS[names[0]].has_reference:
        places.append("reference")
    with ExitStack() as stack:
        stack.callback(_remove, [lower / place for place in places])
        for place in places:
            for name in names:
                (lower / place / name).mkdir(parents=True)
                say(f"{name}: preparing the files for {place}")
                chosen = WORKLOADS[name]
                chosen.prepare(lower / place / name, chosen.scaled(settings.scale))
        systems = [
            stack.enter_context(_mounted(system, lower, base, settings, WORKLOADS[names[0]]))
            for system in wanted
        ]
        for name in names:
            yield name, run_workload(WORKLOADS[name], systems, lower, settings, say)


def _mounted(
    name: str, lower: Path, base: Path, settings: Settings, workload: Workload
) -> AbstractContextManager[System]:
    mount = transported if workload.transports else mounted
    return mount(name, lower / name, base / name, _daemon(settings, workload))


def _remove(directories: Sequence[Path]) -> None:
    for directory in directories:
        shutil.rmtree(directory, ignore_errors=True)


def _result(workload: Workload, system: str, settings: Settings, measured: Measured) -> Result:
    rounds = measured.rounds
    values = tuple(r.value for r in rounds)
    return Result(
        workload=workload.name,
        system=system,
        daemon=_daemon(settings, workload),
        value=statistics.median(values),
        unit=workload.unit,
        better=workload.better,
        rounds=values,
        daemon_requests=round(statistics.median(r.requests for r in rounds)),
        context_switches=round(statistics.median(r.switches for r in rounds)),
        verified=all(r.verified for r in rounds),
        paths=_path_counts(rounds),
        channels=_channel_counts(rounds),
        measures={**_series([r.measures for r in rounds]), **_copied(measured)},
        rounds_counters=_rounds_counters(rounds),
    )


def _series(rounds: Sequence[Mapping[str, Measure]]) -> dict[str, Series]:
    """Combine the further measures of the rounds."""
    found = {}
    for name, measure in rounds[0].items():
        values = tuple(each[name].value for each in rounds)
        found[name] = Series(statistics.median(values), measure.unit, values, measure.compared)
    return found


def _copied(measured: Measured) -> dict[str, Series]:
    one = measured.copied
    return {COPIED: Series(one.value, one.unit, (one.value,), one.compared)} if one else {}


def _path_counts(rounds: list[Round]) -> dict[str, int]:
    """Return the number of READs and WRITEs in all measured rounds by the path that answered."""
    first, last = rounds[0].before.paths, rounds[-1].after.paths
    return {path: last[path] - first[path] for path in last}


def _rounds_counters(rounds: list[Round]) -> tuple[RoundCounters, ...]:
    """Return the kernel's counters for each measured round; empty without eFuse."""
    found = []
    for r in rounds:
        if r.before.sample is None or r.after.sample is None:
            return ()
        change = r.after.sample.total - r.before.sample.total
        paths = {path: n - r.before.paths[path] for path, n in r.after.paths.items()}
        found.append(RoundCounters(change.requests, change.hits, change.daemon, paths))
    return tuple(found)


def _channel_counts(rounds: list[Round]) -> tuple[dict[str, int], ...]:
    """Return the kernel's counters for each CPU over all measured rounds."""
    cpus = zip(rounds[0].before.channels, rounds[-1].after.channels, strict=True)
    return tuple({name: last[name] - first[name] for name in last} for first, last in cpus)


def _kernel_counters(rounds: list[Round]) -> dict[str, int]:
    """Return the kernel's counters over all measured rounds, and the daemon's own count."""
    first, last = rounds[0].before, rounds[-1].after
    if first.sample is None or last.sample is None:
        return {}
    change = last.sample.total - first.sample.total
    return {
        "requests": change.requests,
        "hits": change.hits,
        "daemon": change.daemon,
        "daemon_by_handlers": last.total - first.total,
    }
