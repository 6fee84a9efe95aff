# SPDX-License-Identifier: LGPL-2.1-or-later
"""The finished workloads of a run, kept in a file so that an interrupted run can be resumed.

The file is a report of the finished workloads.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from efuse.bench.report import Report, Result, ratios
from efuse.bench.stored import of_json
from efuse.errors import EfuseError, UsageError, reason

__all__ = ["MACHINE", "finished", "keep", "resumed"]

_COUNTED = "kernel_counters"
"""An entry of the settings that is not a setting."""

MACHINE = ("architecture", "cpu", "cpus", "guest")
"""What must be equal. The memory of guests is left out: it may differ by a few pages."""


def keep(path: Path | None, report: Report) -> None:
    """Write the finished workloads to the file atomically.

    :raises EfuseError: the file cannot be written.
    """
    if path is None:
        return
    new = path.with_name(f"{path.name}.new")
    try:
        with new.open("w") as file:
            json.dump(report.json(), file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise EfuseError(f"{path} cannot be written: {reason(error)}") from error


def resumed(path: Path | None, fresh: Report) -> Report:
    """Return *fresh* with the results of the file, if the file exists.

    :raises UsageError: the file is of a run with other settings, kernel, versions or machine, or
        is not the file of a run.
    """
    kept = _read(path)
    if path is None or kept is None:
        return fresh
    plain = json.loads(json.dumps(fresh.json()))
    _refuse(path, _differences(kept, plain))
    try:
        results = tuple(Result.of_json(result) for result in kept["results"])
        of = dict.fromkeys(ratio["of"] for ratio in kept["ratios"])
        settings = {**fresh.settings}
        if _COUNTED in settings:
            settings[_COUNTED] = dict(kept["settings"][_COUNTED])
    except (AttributeError, KeyError, TypeError) as error:
        raise _no_state(path) from error
    every = tuple(ratio for system in of for ratio in ratios(results, system))
    return replace(fresh, settings=settings, results=results, ratios=every)


def finished(path: Path | None, settings: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the workloads in the file; none if there is no file.

    :raises UsageError: the file is of a run with other settings, or is not the file of a run.
    """
    kept = _read(path)
    if path is None or kept is None:
        return frozenset()
    plain = json.loads(json.dumps(settings))
    _refuse(path, list(_among("settings", kept["settings"], plain, plain)))
    return frozenset(result["workload"] for result in kept["results"])


def _read(path: Path | None) -> dict[str, Any] | None:
    if path is None or not path.exists():
        return None
    try:
        return of_json(json.loads(path.read_text()))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {reason(error)}") from error
    except ValueError as error:
        raise _no_state(path) from error


def _no_state(path: Path) -> UsageError:
    return UsageError(f"{path} does not contain the state of a run", hint="give another file")


def _differences(kept: dict[str, Any], fresh: dict[str, Any]) -> list[str]:
    settings = {*kept["settings"], *fresh["settings"]} - {_COUNTED}
    versions = {*kept["versions"], *fresh["versions"]}
    return [
        *_among("settings", kept["settings"], fresh["settings"], settings),
        *_among("", kept, fresh, ["kernel"]),
        *_among("versions", kept["versions"], fresh["versions"], versions),
        *_among("machine", kept["machine"], fresh["machine"], MACHINE),
    ]


def _among(
    part: str, kept: Mapping[str, Any], fresh: Mapping[str, Any], names: Any
) -> Iterator[str]:
    for name in sorted(names):
        there, here = kept.get(name), fresh.get(name)
        if there != here:
            yield f"{part} {name} ({there} there, {here} here)".lstrip()


def _refuse(path: Path, differences: list[str]) -> None:
    if differences:
        raise UsageError(
            f"the run in {path} differs in {'; '.join(differences)}",
            hint="use the options of the first run, or give a file that does not exist yet",
        )
