# SPDX-License-Identifier: LGPL-2.1-or-later
"""The list of broken builds fits the sources."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from efuse import locations
from tests.mutants.__main__ import Mutant, mutants


@pytest.mark.parametrize("mutant", mutants(), ids=lambda m: m.name)
def test_mutant_applies_and_names_its_tests(mutant: Mutant, tmp_path: Path) -> None:
    (tmp_path / mutant.file).parent.mkdir(parents=True)
    shutil.copy(locations.package().parent / mutant.file, tmp_path / mutant.file)
    mutant.apply(tmp_path)
    assert mutant.tests
    for test in mutant.tests:
        assert (Path(__file__).parents[1] / "guest" / test).is_file()
