# SPDX-License-Identifier: LGPL-2.1-or-later
"""Turn links between files of the repository into links between pages of the site."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from pathlib import PurePosixPath

__all__ = ["page_of", "rewritten", "source_page", "toctree"]

_FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_ELSEWHERE = re.compile(r"^[a-z]+:|^#")


def page_of(path: str) -> str:
    """Return the name of the page for a document of the repository."""
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def source_page(path: str) -> str:
    """Return the name of the page that shows a file that is not a document."""
    return f"sources/{path}.md"


def toctree(pages: Iterable[str], *options: str) -> str:
    """Return a directive that puts *pages* below the page that contains it."""
    return "\n".join(["", "```{toctree}", *options, "", *pages, "```", ""])


def rewritten(text: str, path: str, target_of: Callable[[str], str]) -> str:
    """Return the *text* of a document with its links replaced by links to pages.

    :param path: the path of the document in the repository.
    :param target_of: a function from a path in the repository to the file of the site for it.
    """
    here = PurePosixPath(path).parent
    page = PurePosixPath(page_of(path)).parent

    def link(match: re.Match[str]) -> str:
        if _ELSEWHERE.match(match[2]):
            return match[0]
        name, mark, anchor = match[2].partition("#")
        target = target_of(os.path.normpath(here / name))
        return f"{match[1]}{os.path.relpath(target, page)}{mark}{anchor}{match[3]}"

    return "".join(
        part if part.lstrip().startswith("```") else _LINK.sub(link, part) for part in _split(text)
    )


def _split(text: str) -> list[str]:
    """Return the fenced blocks and the text between them, in order."""
    parts, end = [], 0
    for match in _FENCE.finditer(text):
        parts += [text[end : match.start()], match[0]]
        end = match.end()
    return [*parts, text[end:]]
