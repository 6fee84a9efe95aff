# SPDX-License-Identifier: LGPL-2.1-or-later
"""The least number of tests that each suite has on every system.

A suite that does not run, or runs only a part of its tests, has no failed test.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.conformance.outcome import LONG, PASSED, SHORT, Amount
from tests.conformance.results import Result


class Least(NamedTuple):
    """The least numbers for a suite.

    :ivar tests: number of its tests.
    :ivar passed: number of its tests that pass on every system.
    """

    tests: int
    passed: int


_ALWAYS = {
    # passthrough_ll creates files as root, which fails four tests.
    "pjdfstest": Least(398, 393),
    # One of the cases punches holes, which not every daemon can.
    "fsx": Least(4, 3),
    "dbench": Least(3, 3),
    "sqlite": Least(2, 2),
}
LEAST: dict[Amount, dict[str, Least]] = {
    SHORT: _ALWAYS
    | {
        "stress-ng": Least(len(SHORT.stressors), len(SHORT.stressors)),
        "fs_mark": Least(len(SHORT.sync_methods), len(SHORT.sync_methods)),
    },
    # Some stressors need what FUSE does not pass on, and are skipped.
    LONG: _ALWAYS
    | {
        "stress-ng": Least(44, 30),
        "fs_mark": Least(len(LONG.sync_methods), len(LONG.sync_methods)),
    },
}
"""The least numbers of each suite, by the amount of the run."""


def too_few(result: Result, amount: Amount) -> str:
    """Return what is wrong if a result has too few tests; empty: nothing."""
    least = LEAST[amount][result.suite]
    found = Least(len(result.outcomes), result.count(PASSED))
    if found.tests >= least.tests and found.passed >= least.passed:
        return ""
    return (
        f"{result.suite} on {result.system}: {found.tests} tests, {found.passed} passed; "
        f"at least {least.tests} and {least.passed} are expected"
    )
