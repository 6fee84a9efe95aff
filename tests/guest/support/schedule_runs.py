# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run random schedules one after the other, and say how to repeat one that fails."""

from __future__ import annotations

import itertools
import tempfile
import traceback
from collections import Counter
from pathlib import Path

from efuse.closing import Closing
from tests.guest.support.delays import Delays
from tests.guest.support.history import ViolationError
from tests.guest.support.schedule import Schedule
from tests.guest.support.schedule_mount import ScheduleMount
from tests.guest.support.schedule_operations import PROFILES, Profile

_SHOWN = 400


def profile_of(seed: int) -> Profile:
    """Return the profile of a seed: the seeds go through all profiles in turn."""
    return PROFILES[seed % len(PROFILES)]


def _described(error: Exception) -> str:
    """Return what a schedule failed with. An error of the test itself has a traceback."""
    if isinstance(error, ViolationError):
        return str(error)
    return "".join(traceback.format_exception(error))


class Runner(Closing):
    """Runs schedules on a mount of its own. After a failure the next schedule gets a new mount.

    :param directory: an existing directory, for mount points and backing files.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._numbers = itertools.count()
        self._mount: ScheduleMount | None = None
        self._delays = Delays()

    def run(self, seed: int) -> None:
        """Run the schedule of a seed.

        :raises ViolationError: a result is wrong, or the schedule could not go on; the message has
            all events and a command.
        """
        if self._mount is None:
            self._mount = ScheduleMount(Path(tempfile.mkdtemp(dir=self._directory)))
        profile, top = profile_of(seed), f"{next(self._numbers)}"
        schedule = Schedule(self._mount, top, self._directory, profile, seed, self._delays)
        try:
            schedule.run()
        except Exception as error:
            self._mount.close()
            self._mount = None
            raise ViolationError(
                "\n".join(schedule.lines[-_SHOWN:])
                + f"\nseed {seed} ({profile.name}): {_described(error)}"
                + f"\nto run it again: scripts/schedules --seed {seed} --times 10"
            ) from error
        finally:
            schedule.close()

    @property
    def delays(self) -> int:
        """How often a worker was delayed in the kernel."""
        return self._delays.count

    @property
    def hits(self) -> Counter[str]:
        """How many requests the kernel answered on the present mount, by opcode."""
        return self._mount.hits() if self._mount else Counter()

    @property
    def paths(self) -> Counter[str]:
        """How many READs and WRITEs each path carried out on the present mount."""
        return self._mount.paths() if self._mount else Counter()

    def close(self) -> None:
        if self._mount is not None:
            self._mount.close()
            self._mount = None
        self._delays.close()
