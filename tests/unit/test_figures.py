# SPDX-License-Identifier: LGPL-2.1-or-later
"""The documents' tables are those of ``efuse bench``; ``python -m tests.figures`` writes them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.figures import CLAIMS, DOCUMENTS, REPORTS, filled, named, picture, report

WITH_TABLES = [path for path in DOCUMENTS if any(named(path.read_text()))]
NAMES = sorted(path.stem for path in REPORTS.glob("*.json"))


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_tables_are_those_of_their_reports(path: Path) -> None:
    assert filled(path.read_text()) == path.read_text(), "python -m tests.figures"


def test_readme_figures_equal_the_reports() -> None:
    text = DOCUMENTS[0].read_text()
    shown = text.partition("<!-- claims -->\n")[2].partition("<!-- /claims -->")[0]
    assert len(shown.splitlines()) == 2 + len(CLAIMS)
    mended = text.replace(shown, re.sub(r"\| [\d.]+ \|", "| 0.1 |", shown, count=1))
    assert mended != text and filled(mended) == text


def test_every_report_is_in_a_document() -> None:
    assert sorted(name for path in WITH_TABLES for name in named(path.read_text())) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_results_of_every_report_are_verified(name: str) -> None:
    results = report(name)["results"]
    assert results and all(result["verified"] for result in results)


@pytest.mark.parametrize("name", NAMES)
def test_a_report_has_its_picture(name: str) -> None:
    file = REPORTS / f"{name}-{picture(name).name}.png"
    assert file.read_bytes().startswith(b"\x89PNG")
