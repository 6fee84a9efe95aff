# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run random schedules in a guest: calls that overlap in an order that a seed chooses.

Example: python -m tests.schedules --seed 7 --seeds 100
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from efuse.guest import kernel_log
from tests.guest.support.history import ViolationError
from tests.guest.support.running_kernel import KernelLog
from tests.guest.support.schedule_runs import profile_of, runs


def _seeds(first: int, number: int | None, seconds: float | None) -> Iterator[int]:
    """Yield seeds from *first* on: *number* of them, or as many as begin within *seconds*."""
    end = None if seconds is None else time.monotonic() + seconds
    for count in itertools.count():
        if count == number or (end is not None and time.monotonic() > end):
            return
        yield first + count


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="schedules", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="the first seed; by default a random one")
    parser.add_argument("--seeds", type=int, help="number of seeds; 1 if --seed is given alone")
    parser.add_argument("--seconds", type=float, help="begin no further seed after that time")
    chosen = parser.parse_args()
    first = random.randrange(10**6) if chosen.seed is None else chosen.seed
    number = chosen.seeds
    if number is None and chosen.seconds is None:
        number = 20 if chosen.seed is None else 1
    log = KernelLog()
    log.new_text()
    hits: Counter[str] = Counter()
    done, begin = 0, time.monotonic()
    print(f"the first seed is {first}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        try:
            for seed, outcome in runs(_seeds(first, number, chosen.seconds), Path(directory)):
                done += 1
                hits += outcome.hits
                shown = f"{outcome.hits.total()} hits, paths {dict(outcome.paths)}"
                took = time.monotonic() - begin
                begin += took
                shown += f", {outcome.delayed} delays, {took:.1f} s"
                print(f"{seed} {profile_of(seed).name}: {shown}", flush=True)
                if complaints := kernel_log.complaints(log.new_text()):
                    raise ViolationError("the kernel complained:\n" + "\n...\n".join(complaints))
        except ViolationError as violation:
            print(violation, flush=True)
            return 1
    print(f"{done} seeds, nothing wrong; answers of the kernel: {dict(hits)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
