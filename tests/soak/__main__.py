# SPDX-License-Identifier: LGPL-2.1-or-later
"""Load eFuse for hours of a guest's time, and fail if something grows that should not.

The load is the same in each round: files are changed and compared on two mounts that last, their
programs are replaced, another mount comes and goes (each fourth daemon is killed), channels of
several sizes are opened, and in each eighth round memory is short. After each round the slab
caches, BPF objects, descriptors, memory of the processes, and more are sampled. What grows in the
second half by more than its bound (tests/soak/growth.py) is named, and the exit status is 1. The
guest's clock counts instructions, so that the pauses between rounds take no time.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path

from tests.soak.growth import growth
from tests.soak.run import soaked

_HOURS = 8.0
_LEAST_ROUNDS = 4
"""Growth is measured in the second half, between two samples or more."""


def _duration(text: str) -> float:
    length = float(text)
    if not 0 <= length < math.inf:
        raise ValueError(text)
    return length


def _rounds(text: str) -> int:
    number = int(text)
    if number < _LEAST_ROUNDS:
        raise ValueError(text)
    return number


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument(
        "--hours", type=_duration, help=f"length by the guest's clock (default: {_HOURS:g})"
    )
    length.add_argument("--seconds", type=_duration, help="length in seconds")
    parser.add_argument(
        "--rounds",
        type=_rounds,
        default=120,
        help=f"rounds of load, at least {_LEAST_ROUNDS} (default: 120)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples to FILE")
    given = parser.parse_args()
    if given.seconds is None and given.hours is None:
        given.hours = _HOURS
    seconds = given.seconds if given.hours is None else 3600 * given.hours
    soak = soaked(seconds, given.rounds, say=True)
    if given.json:
        given.json.write_text(json.dumps(soak.report(), separators=(",", ":")) + "\n")
    for name, samples in soak.series.items():
        print(f"{name:24} {samples[0]:12.0f} {samples[-1]:12.0f}  grew by {growth(samples):+.1f}")
    work = ", ".join(f"{number} {what}" for what, number in soak.done.items())
    print(f"soak: {soak.seconds / 3600:.2f} h, {work}, {soak.hits} hits")
    print(f"soak: {soak.compared_bytes} bytes compared")
    for line in soak.grown:
        print(f"GROWN: {line}")
    missing = soak.missing(given.rounds)
    for what in missing:
        print(f"MISSING: {what}")
    return int(bool(soak.grown or missing))


if __name__ == "__main__":
    sys.exit(main())
