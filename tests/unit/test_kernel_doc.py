# SPDX-License-Identifier: LGPL-2.1-or-later
"""Kernel-doc comments match the code after them, and the reference has the whole contract."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs.site.kernel_doc import Malformed, comments
from docs.site.kernel_pages import pages
from tests.documents import ROOT

_SOURCES = [
    path
    for directory in ("kernel_patches", "csd", "libefuse")
    for path in sorted((ROOT / directory).rglob("*.[ch]"))
    if "/**\n" in path.read_text()
]
_PAGES = dict(pages(ROOT))


@pytest.mark.parametrize("path", _SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_kernel_doc_comment_belongs_to_a_declaration(path: Path) -> None:
    text = path.read_text()
    assert len(list(comments(text, path.name))) == text.count("\n/**\n")


_RIGHT = """
/**
 * put - put something there
 * @where: to
 * @what: of it
 *
 * Return: 0
 */
int put(struct place *where, int (*what)(int x, int y));
"""


def test_a_comment_is_taken_apart() -> None:
    (comment,) = comments(_RIGHT, "a.h")
    assert (comment.kind, comment.name, comment.summary) == (
        "function",
        "put",
        "put something there",
    )
    assert comment.about == {"where": "to", "what": "of it"}
    assert comment.text == "Return: 0"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (" * put - put", " * put something", "instead of NAME - SUMMARY"),
        (" * put - put", " * get - put", "but is followed by"),
        (" * @what: of it\n", "", "does not describe what"),
        ("@what", "@whom", "has no whom"),
        ("@what", "@where", "describes where twice"),
    ],
)
def test_a_malformed_comment_is_an_error(old: str, new: str, why: str) -> None:
    with pytest.raises(Malformed, match=rf"^a\.h:2: .*{why}"):
        list(comments(_RIGHT.replace(old, new, 1), "a.h"))


def test_members_of_a_structure_are_those_that_are_declared() -> None:
    text = "/**\n * struct s - s\n * @a: a\n * @b: b\n */\nstruct s {\n\tint a, *b;\n};\n"
    (comment,) = comments(text, "s.h")
    assert list(comment.about) == ["a", "b"]
    with pytest.raises(Malformed, match="does not describe c"):
        list(comments(text.replace("*b;", "*b;\n\tu8 c[4];"), "s.h"))


@pytest.mark.parametrize("header", ["kernel_patches/src/kfuncs.h", "csd/src/kfuncs.h"])
def test_every_kfunc_is_in_the_reference(header: str) -> None:
    declared = re.findall(r"^\w[\w *]*?\b(\w+)\(struct", (ROOT / header).read_text(), re.MULTILINE)
    assert len(declared) > 5
    for name in declared:
        assert re.search(rf"[ *]{name}\(struct", _PAGES["kernel/kfuncs.md"]), name


@pytest.mark.parametrize(
    "header", ["kernel_patches/include/uapi/linux/efuse.h", "csd/include/uapi/linux/csd.h"]
)
def test_every_type_that_is_shared_is_in_the_reference(header: str) -> None:
    declared = re.findall(r"^(struct|enum) (\w+) \{", (ROOT / header).read_text(), re.MULTILINE)
    assert len(declared) > 5
    for kind, name in declared:
        assert f".. c:{kind}:: {name}\n" in _PAGES["kernel/uapi.md"]


def test_every_member_is_in_the_reference() -> None:
    text = (ROOT / "kernel_patches/src/efuse_ops.h").read_text()
    members = re.findall(r"\(\*(\w+)\)\(struct efuse_\w+ \*", text)
    assert len(members) > 30
    for name in members:
        assert f".. c:member:: int (*{name})(" in _PAGES["kernel/ops.md"]
