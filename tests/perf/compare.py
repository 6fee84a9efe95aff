# SPDX-License-Identifier: LGPL-2.1-or-later
"""``make test-perf``: measure instruction counts in a guest and compare them with the baseline.

``scripts/test-perf --update`` writes a new baseline. ``open_flush`` is an OPEN and the FLUSH of its
close. ``passed`` is a GETATTR that the daemon answers with no program attached, and
``passed_by_program`` the same with a program whose members all return 0. FUSE itself answers
``passthrough_*`` from a backing file; eFuse's paths answer ``direct_*`` and ``cache_*``.
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

from efuse import locations
from efuse.errors import EfuseError
from efuse.guest.run import Options, run

BASELINE = Path(__file__).parent.parent / "data" / "instructions.json"
BOUND = 0.03
PROGRAM_BOUND = 0.03
"""The most that an attached program may add to a request that it passes, as a fraction."""
PASSTHROUGH_BOUND = 0.05
"""The most that READ and WRITE may cost more than FUSE's own passthrough, as a fraction."""
PASSTHROUGH_BOUND_FOR = {"read_128k", "write_4k"}
"""The calls with that bound. A warm READ of 4 KiB is not among them: the fixed costs of a request,
such as counters, weigh more there."""


def compare(baseline: dict[str, int], found: dict[str, int]) -> list[str]:
    """Return the problems: figures that grew, or fell so far that the baseline is out of date."""
    wrong = []
    for name in sorted(baseline.keys() | found.keys()):
        old, new = baseline.get(name), found.get(name)
        if old is None or new is None:
            wrong.append(f"{name} is {'not in the baseline' if old is None else 'not measured'}")
        elif abs(new / old - 1) > BOUND:
            wrong.append(f"{name} went from {old} to {new} instructions ({new / old - 1:+.1%})")
    cost = found["passed_by_program"] / found["passed"] - 1
    if cost > PROGRAM_BOUND:
        wrong.append(f"an attached program adds {cost:.1%} to a request that it passes")
    for name in PASSTHROUGH_BOUND_FOR & {full.removeprefix("direct_") for full in found}:
        more = found[f"direct_{name}"] / found[f"passthrough_{name}"] - 1
        if more > PASSTHROUGH_BOUND:
            wrong.append(f"{name} takes {more:.1%} more than through FUSE's own passthrough")
    return wrong


def measured() -> dict[str, object]:
    """Measure in a guest whose clock counts instructions; return the results."""
    locations.cache().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=locations.cache()) as directory:
        out = Path(directory) / "found.json"
        words = [sys.executable, "-m", "tests.perf.measure", str(out)]
        result = run(words, Options(cpus=1, icount=True))
        if result.status or not out.exists():
            raise EfuseError(f"measuring failed in the guest: exit status {result.status}")
        value: dict[str, object] = json.loads(out.read_text())
        return value


def main() -> int:
    parser = argparse.ArgumentParser(prog="test-perf", description=__doc__)
    parser.add_argument("--update", action="store_true", help="write the baseline")
    update = parser.parse_args().update
    try:
        value = measured()
    except EfuseError as error:
        print(f"test-perf: {error}", file=sys.stderr)
        return 1
    found = value["instructions"]
    assert isinstance(found, dict)
    if update:
        BASELINE.write_text(json.dumps(value, indent=2) + "\n")
    baseline = json.loads(BASELINE.read_text())
    print(f"{'':<20}{'baseline':>12}{'now':>12}   ({baseline['kernel']} and {value['kernel']})")
    for name, instructions in found.items():
        old = baseline["instructions"].get(name, "-")
        print(f"{name:<20}{old:>12}{instructions:>12}")
    wrong = compare(baseline["instructions"], found)
    for line in wrong:
        print(f"test-perf: {line}", file=sys.stderr)
    if wrong:
        print("try: scripts/test-perf --update, if that is as it should be", file=sys.stderr)
    if json_file := os.environ.get("JSON"):
        Path(json_file).write_text(json.dumps(value, indent=2) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
