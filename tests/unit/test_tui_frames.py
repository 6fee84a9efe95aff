# SPDX-License-Identifier: LGPL-2.1-or-later
"""Frames of ``efuse top`` equal the stored ones; ``python -m tests.pictures`` writes those."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from tests.pictures import PICTURES, TEXTS, pictures, texts

PICTURES_NOW, TEXTS_NOW = pictures(), texts()


@pytest.mark.parametrize("name", TEXTS_NOW)
def test_frame_equals_the_stored_text(name: str) -> None:
    assert TEXTS_NOW[name] == (TEXTS / name).read_text()


@pytest.mark.parametrize("name", TEXTS_NOW)
def test_frame_fills_the_terminal_and_no_more(name: str) -> None:
    width, height = map(int, name.rsplit("-", 1)[1].removesuffix(".txt").split("x"))
    lines = TEXTS_NOW[name].splitlines()
    assert len(lines) == height
    assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("name", PICTURES_NOW)
def test_picture_equals_the_stored_one(name: str) -> None:
    assert PICTURES_NOW[name] == (PICTURES / name).read_text()


def test_no_outdated_pictures_or_texts_are_kept() -> None:
    assert {path.name for path in PICTURES.glob("top-*")} == PICTURES_NOW.keys()
    assert {path.name for path in TEXTS.iterdir()} == TEXTS_NOW.keys()
