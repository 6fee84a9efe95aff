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
import sys
from pathlib import Path

from tests.soak.growth import growth
from tests.soak.run import soaked


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--hours", type=float, help="length by the guest's clock (default: 8)")
    length.add_argument("--seconds", type=float, help="the same in seconds")
    parser.add_argument("--rounds", type=int, default=120, help="rounds of load (default: 120)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all samples to FILE")
    given = parser.parse_args()
    seconds = given.seconds if given.seconds is not None else 3600 * (given.hours or 8.0)
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
    return int(bool(soak.grown))


if __name__ == "__main__":
    sys.exit(main())
