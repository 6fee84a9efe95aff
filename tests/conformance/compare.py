# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compare results with those of ext4, and the differences with the reasons for them.

``differences.toml`` has a table for each test whose result differs: ``suite``, ``test``,
``systems``, the ``status`` there, and the ``reason``. ``detail`` is a regular expression that the
detail of the outcome has to contain: a test may also fail for another reason. ``sometimes`` is true
if not every run shows the difference. A failure on ext4 itself is a difference, too.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.conformance.outcome import FAILED
from tests.conformance.results import Result
from tests.conformance.systems import BASE

_REASONS = Path(__file__).with_name("differences.toml")

MISSING = "missing"
"""Status of a test that ran on ext4 and not on the other system, or the other way round."""


class Difference(NamedTuple):
    """A test whose result on a system is not that on ext4, and its status there."""

    suite: str
    test: str
    system: str
    status: str

    def __str__(self) -> str:
        return f"{self.suite}, {self.test}: {self.status} on {self.system}"


class Reason(NamedTuple):
    """The reason for a difference, which several systems may have."""

    suite: str
    test: str
    systems: tuple[str, ...]
    status: str
    reason: str
    sometimes: bool = False
    detail: str = ""

    def explains(self) -> Iterable[Difference]:
        """Return the differences that it is the reason for."""
        return (Difference(self.suite, self.test, name, self.status) for name in self.systems)

    def fits(self, detail: str) -> bool:
        """Return whether the detail of an outcome is that of this reason."""
        return re.search(self.detail, detail) is not None


def reasons(path: Path = _REASONS) -> list[Reason]:
    """Return the reasons in ``differences.toml``."""
    tables = tomllib.loads(path.read_text()).get("difference", [])
    return [Reason(**{**table, "systems": tuple(table["systems"])}) for table in tables]


def differences(results: Iterable[Result]) -> list[Difference]:
    """Return each difference between a result and that of ext4, which must be among the results."""
    found = {(result.suite, result.system): result for result in results}
    different = []
    for (suite, system), result in found.items():
        here = {outcome.name: outcome.status for outcome in result.outcomes}
        if system == BASE:
            wrong = [name for name, status in here.items() if status == FAILED]
        else:
            base = {o.name: o.status for o in found[suite, BASE].outcomes}
            names = [*here, *(name for name in base if name not in here)]
            wrong = [name for name in names if here.get(name) != base.get(name)]
        different += [Difference(suite, name, system, here.get(name, MISSING)) for name in wrong]
    return different


def details(results: Iterable[Result]) -> dict[Difference, str]:
    """Return the details of all outcomes, by suite, test, system and status."""
    return {
        Difference(r.suite, o.name, r.system, o.status): o.detail
        for r in results
        for o in r.outcomes
    }


def unexplained(
    found: Iterable[Difference],
    known: Iterable[Reason],
    detail: Mapping[Difference, str] | None = None,
) -> list[Difference]:
    """Return the differences that have no reason.

    :param detail: details of the outcomes. Without them, the status alone is compared.
    """
    by_difference = {difference: reason for reason in known for difference in reason.explains()}

    def explained(one: Difference) -> bool:
        reason = by_difference.get(one)
        return reason is not None and (detail is None or reason.fits(detail.get(one, "")))

    return [difference for difference in found if not explained(difference)]


def outdated(
    found: Iterable[Difference], known: Iterable[Reason], ran: Iterable[tuple[str, str]]
) -> list[Difference]:
    """Return the explained differences that are gone, although suite and system *ran*.

    A difference that only some runs show is never gone.
    """
    there, done = set(found), set(ran)
    return [
        difference
        for reason in known
        if not reason.sometimes
        for difference in reason.explains()
        if difference not in there and (difference.suite, difference.system) in done
    ]
