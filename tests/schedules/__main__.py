# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run random schedules in a guest: calls that overlap in an order that a seed chooses.

Example: python -m tests.schedules --seed 7 --seeds 100
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from efuse.guest import kernel_log
from tests.guest.support.history import ViolationError
from tests.guest.support.running_kernel import KernelLog
from tests.guest.support.schedule_operations import PROFILES
from tests.guest.support.schedule_runs import Runner, profile_of


def _seeds(first: int, number: int | None, times: int, seconds: float | None) -> Iterator[int]:
    """Yield seeds from *first* on: *number* of them, or as many as begin within *seconds*.

    :param times: how often to yield each.
    """
    end = None if seconds is None else time.monotonic() + seconds
    for count in itertools.count():
        if count // times == number or (end is not None and time.monotonic() > end):
            return
        yield first + count // times


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def _duration(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise ValueError(text)
    return seconds


def _unused(runner: Runner) -> list[str]:
    """Return what no schedule on the present mount has used; a run of all profiles uses all."""
    used = {
        "answer of the kernel": bool(+runner.hits),
        "READ or WRITE of a backing file": bool(runner.paths["direct"]),
        "READ or WRITE of the data cache": bool(runner.paths["cache"]),
        "delay of a worker": bool(runner.delays),
    }
    return [what for what, is_used in used.items() if not is_used]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="schedules", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="the first seed; by default a random one")
    parser.add_argument(
        "--seeds", type=_positive, help="number of seeds; 1 if --seed is given alone"
    )
    parser.add_argument(
        "--times", type=_positive, default=1, help="how often each seed runs, also after a failure"
    )
    parser.add_argument("--seconds", type=_duration, help="begin no further seed after that time")
    chosen = parser.parse_args()
    first = random.randrange(10**6) if chosen.seed is None else chosen.seed
    number = chosen.seeds
    if number is None and chosen.seconds is None:
        number = 20 if chosen.seed is None else 1
    log = KernelLog()
    log.new_text()
    print(f"the first seed is {first}", flush=True)
    done = failed = 0
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as directory, Runner(Path(directory)) as runner:
        for seed in _seeds(first, number, chosen.times, chosen.seconds):
            done += 1
            try:
                runner.run(seed)
                if complaints := kernel_log.complaints(log.new_text()):
                    raise ViolationError("the kernel complained:\n" + "\n...\n".join(complaints))
            except ViolationError as violation:
                print(violation, flush=True)
                failed += 1
                if chosen.times == 1:
                    break
            else:
                at = time.monotonic() - begin
                print(f"{seed} {profile_of(seed).name}: right, at {at:.1f} s", flush=True)
        print(f"answers of the kernel: {dict(+runner.hits)}, paths: {dict(+runner.paths)}")
        print(f"{failed} of {done} schedules failed; workers were delayed {runner.delays} times")
        # After a failure the mount is another one, which has its own counters.
        unused = [] if failed or done < len(PROFILES) else _unused(runner)
    for what in unused:
        print(f"FAILED: there was no {what}")
    return int(failed > 0 or bool(unused))


if __name__ == "__main__":
    sys.exit(main())
