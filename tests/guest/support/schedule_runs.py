# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run random schedules one after the other, and say how to repeat one that fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.guest.support.delays import Delays
from tests.guest.support.history import ViolationError
from tests.guest.support.schedule import Outcome, Schedule
from tests.guest.support.schedule_operations import PROFILES, Profile

_SHOWN = 400


def profile_of(seed: int) -> Profile:
    """Return the profile of a seed: the seeds go through all profiles in turn."""
    return PROFILES[seed % len(PROFILES)]


def command(seed: int) -> str:
    """Return the command that repeats a seed."""
    return f"scripts/schedules --seed {seed}"


def run(seed: int, directory: Path, delays: Delays) -> Outcome:
    """Run the schedule of a seed.

    :param directory: an existing directory, for the mount and for backing files.
    :raises ViolationError: a result is wrong; the message has the events and the command.
    """
    place = directory / f"{seed}"
    point, lower = place / "mnt", place / "lower"
    for path in (point, lower):
        path.mkdir(parents=True)
    schedule = Schedule(point, lower, profile_of(seed), seed, delays)
    try:
        return schedule.run()
    except ViolationError as violation:
        events = "\n".join(schedule.lines[-_SHOWN:])
        name = profile_of(seed).name
        raise ViolationError(
            f"{events}\nseed {seed} ({name}): {violation}\nto repeat it: {command(seed)}"
        ) from violation
    finally:
        schedule.close()


def runs(seeds: Iterable[int], directory: Path) -> Iterator[tuple[int, Outcome]]:
    """Run the schedules of *seeds*; yield each seed and what its schedule has shown."""
    with Delays() as delays:
        for seed in seeds:
            yield seed, run(seed, directory, delays)
