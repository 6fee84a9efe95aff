# SPDX-License-Identifier: LGPL-2.1-or-later
"""Load reports that were written with ``--json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from efuse.errors import UsageError, reason

__all__ = ["load", "of_json"]

_OPTIONAL = {"machine": dict, "kernel": str, "versions": dict, "settings": dict, "ratios": list}
"""The parts that a report of an older version may lack; they are then empty."""

_PARTS = {**_OPTIONAL, "results": list}
_RESULT = {
    "workload": str,
    "system": str,
    "daemon": str,
    "value": (int, float),
    "unit": str,
    "better": str,
    "rounds": list,
    "daemon_requests": int,
    "context_switches": int,
    "verified": bool,
}
_RATIO = {
    "workload": str,
    "daemon": str,
    "of": str,
    "over": str,
    "median": (int, float),
    "min": (int, float),
    "max": (int, float),
}


def load(path: Path) -> dict[str, Any]:
    """Load the report in a file.

    :raises UsageError: the file cannot be read, or is not a report.
    """
    try:
        return of_json(json.loads(path.read_text()))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {reason(error)}") from error
    except ValueError as error:
        raise UsageError(
            f"{path} is not a report of a benchmark: {error}",
            hint="give a file that efuse bench --json has written",
        ) from error


def of_json(value: Any) -> dict[str, Any]:
    """Return a report with all its parts; those that an older version did not write are empty.

    :raises ValueError: *value* is not a report.
    """
    if not isinstance(value, dict):
        raise ValueError("not an object")
    parts: dict[str, Any] = {**{name: kind() for name, kind in _OPTIONAL.items()}, **value}
    _check(parts, _PARTS, "it")
    results, ratios = parts["results"], parts["ratios"]
    for number, result in enumerate(results):
        _check(result, _RESULT, f"result {number}")
        if not result["rounds"] or not all(isinstance(r, int | float) for r in result["rounds"]):
            raise ValueError(f"result {number} has no rounds")
    for number, ratio in enumerate(ratios):
        _check(ratio, _RATIO, f"ratio {number}")
    late: dict[str, Any] = {"paths": {}, "channels": [], "measures": {}, "rounds_counters": []}
    return {
        **{name: parts[name] for name in _OPTIONAL},
        "results": [{**late, **result} for result in results],
        "ratios": [{"measure": "value", **ratio} for ratio in ratios],
    }


def _check(value: Any, kinds: dict[str, Any], what: str) -> None:
    for name, kind in kinds.items():
        if not isinstance(value, dict) or not isinstance(value.get(name), kind):
            raise ValueError(f"{what} has no {name}")
