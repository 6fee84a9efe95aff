# SPDX-License-Identifier: LGPL-2.1-or-later
"""The test suites of other projects on eFuse: the short form of ``make conformance``.

``tests/conformance/differences.toml`` has the tests whose result is known to differ from that on
ext4.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.compare import reasons
from tests.conformance.outcome import FAILED, PASSED, SHORT
from tests.conformance.suites import carried_out, system
from tests.conformance.systems import lower_file_system

LEAST = {
    "pjdfstest": 396,
    "fsx": 3,
    "stress-ng": len(SHORT.stressors),
    "fs_mark": len(SHORT.sync_methods),
    "dbench": 3,
    "sqlite": 2,
}
"""How many tests of a suite have to pass. A suite that does not run passes none."""


@pytest.fixture(scope="module")
def ext4() -> Iterator[Path]:
    with lower_file_system() as lower:
        yield lower


@pytest.mark.parametrize("suite", LEAST)
def test_suite_finds_no_unknown_difference_in_exclusive(ext4: Path, suite: str) -> None:
    name = "Passthrough exclusive"
    with system(name, ext4) as one:
        result = carried_out(suite, name, one, SHORT)
    print(f"{suite} on {name}: {result.counts()}, {result.answers} answers of the kernel")
    known = {r.test for r in reasons() if r.suite == suite and name in r.systems}
    failed = {o.name: o.detail for o in result.outcomes if o.status == FAILED}
    assert not failed.keys() - known, failed
    assert result.count(PASSED) >= LEAST[suite]
    assert result.answers > 0, "the kernel has answered nothing"
