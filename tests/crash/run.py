# SPDX-License-Identifier: LGPL-2.1-or-later
"""Record a workload on an eFuse mount, and check what crashes leave of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import efuse
from tests.crash.disk import crashes, recorded
from tests.crash.history import History
from tests.crash.log import MARK, Entry
from tests.crash.workload import Workload
from tests.guest.support.forced import Forced, forced

_BELOW = "source"


@dataclass(frozen=True)
class Setting:
    """How the file system is mounted.

    :ivar consistency: mode of the mount.
    :ivar path: the path that READs and WRITEs are forced to.
    :ivar writeback: whether FUSE gathers writes.
    """

    consistency: str
    path: str
    writeback: bool

    def __str__(self) -> str:
        return f"{self.consistency}, {self.path}, write-back {'on' if self.writeback else 'off'}"


SETTINGS = (
    Setting("exclusive", "direct", True),
    Setting("exclusive", "direct", False),
    Setting("exclusive", "cache", False),
    Setting("cto", "cache", True),
    Setting("exclusive", "cache", True),
    Setting("cto", "direct", False),
    Setting("cto", "direct", True),
    Setting("cto", "cache", False),
)
SHORT = SETTINGS[:4]
"""What the guest tests replay: each mode, path, and write-back on and off."""


@dataclass
class Result:
    """What crashes of one recorded workload have left.

    :ivar acknowledged: number of marks, which each follow an acknowledgement.
    :ivar barriers: number of flushes and forced writes in the log.
    :ivar prefixes: number of crashes that were replayed.
    :ivar answered: requests that each path has answered.
    :ivar violations: what was lost or wrong, with the place in the log.
    """

    acknowledged: int = 0
    barriers: int = 0
    prefixes: int = 0
    answered: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)


def _moments(entries: Sequence[Entry], first: int, most: int) -> list[int]:
    """Return the lengths of the prefixes to replay.

    These are all that end at a mark, a flush or a forced write, and one between any two of them.
    If there are more than *most*, some are left out evenly.
    """
    ends = [n for n, e in enumerate(entries, 1) if n >= first and (e.flags & MARK or e.is_barrier)]
    between = {(a + b) // 2 for a, b in itertools.pairwise(ends)}
    every = sorted(between | set(ends))
    step = max(1.0, len(every) / most)
    return [every[int(n * step)] for n in range(int(len(every) / step))]


def _check(base: Path, kind: str, history: History, most: int, result: Result) -> None:
    with crashes(base, kind) as replay:
        entries = replay.entries
        # The target adds a mark of its own at its end.
        marks = [n for n, entry in enumerate(entries, 1) if entry.mark.isdecimal()]
        texts = [entries[n - 1].mark for n in marks]
        assert texts == [str(n) for n in range(history.marks + 1)], "the log lacks marks"
        result.barriers = sum(entry.is_barrier for entry in entries)
        for length in _moments(entries, marks[0], most):
            last = sum(at <= length for at in marks) - 1
            found = replay.files(length, _BELOW)
            wrong = history.violations(found, last, at_mark=length == marks[last])
            result.violations += [f"{length} of {len(entries)} entries: {why}" for why in wrong]
            result.prefixes += 1


def _fast_path_ran(mount: Forced) -> dict[str, int]:
    answered = mount.answered()
    assert answered[mount.path], f"the path {mount.path} did not run: {answered}"
    return answered


def replayed(
    base: Path,
    setting: Setting,
    *,
    steps: int,
    prefixes: int,
    seed: int = 1,
    kind: str = "ext4",
    make: Callable[..., efuse.Passthrough] = efuse.Passthrough,
) -> Result:
    """Record *steps* changes, and replay at most *prefixes* crashes.

    :param base: an empty directory in memory.
    :param seed: start of the random numbers that choose the changes.
    :param kind: the lower file system.
    :param make: the class of the served file system.
    """
    result = Result()
    with recorded(base, kind) as disk:
        source = disk.root / _BELOW
        source.mkdir()
        operations = make(source, consistency=setting.consistency, writeback=setting.writeback)
        with forced(source, base / "mount", setting.path, operations) as mount:
            workload = Workload(mount.point, disk.mark, seed)
            workload.begin()
            for _ in range(steps):
                workload.step()
            result.answered = _fast_path_ran(mount)
    result.acknowledged = workload.history.marks
    _check(base, kind, workload.history, prefixes, result)
    return result
