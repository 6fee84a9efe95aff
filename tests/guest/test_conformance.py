# SPDX-License-Identifier: LGPL-2.1-or-later
"""The test suites of other projects on eFuse: the short form of ``make conformance``.

``tests/conformance/differences.toml`` has the tests whose result is known to differ from that on
ext4.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.compare import details, reasons, unexplained
from tests.conformance.least import LEAST, too_few
from tests.conformance.outcome import PASSED, SHORT
from tests.conformance.suites import carried_out, system
from tests.conformance.systems import lower_file_system


@pytest.fixture(scope="module")
def ext4() -> Iterator[Path]:
    with lower_file_system() as lower:
        yield lower


@pytest.mark.parametrize("suite", LEAST[SHORT])
def test_suite_finds_no_unknown_difference_in_exclusive(ext4: Path, suite: str) -> None:
    name = "Passthrough exclusive"
    with system(name, ext4) as one:
        result = carried_out(suite, name, one, SHORT)
    print(f"{suite} on {name}: {result.counts()}, {result.answers} answers of the kernel")
    detail = details([result])
    # All of these tests pass on ext4 (docs/conformance.md).
    different = [one for one in detail if one.status != PASSED]
    unknown = unexplained(different, reasons(), detail)
    assert not unknown, [detail[one] for one in unknown]
    assert not too_few(result, SHORT)
    assert result.answers > 0, "the kernel has answered nothing"
