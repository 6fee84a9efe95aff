# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pictures of docs/design.md are up to date, and the document shows all of them."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from docs.site.diagrams import PICTURES, diagrams
from tests.documents import ROOT

_DRAWN = diagrams()


@pytest.mark.parametrize("name", _DRAWN)
def test_stored_picture_equals_the_drawn_one(name: str) -> None:
    assert (PICTURES / name).read_text() == _DRAWN[name], "make pictures"


@pytest.mark.parametrize("name", _DRAWN)
def test_all_text_of_a_picture_lies_within_it(name: str) -> None:
    root = ElementTree.fromstring(_DRAWN[name])
    _, _, width, height = (float(word) for word in root.attrib["viewBox"].split())
    texts = [element for element in root.iter() if element.tag.endswith("}text")]
    assert texts
    for text in texts:
        assert 0 < float(text.attrib["x"]) < width and 0 < float(text.attrib["y"]) < height


def test_document_shows_every_picture() -> None:
    shown = re.findall(r"!\[.+\]\(pictures/(.*)\)", (ROOT / "docs/design.md").read_text())
    assert sorted(shown) == sorted(_DRAWN)
