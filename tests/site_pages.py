# SPDX-License-Identifier: LGPL-2.1-or-later
"""The links, assets and anchors of the pages of the built site."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["Page", "dangling", "foreign", "read"]

# Elements with targets that a browser fetches by itself.
_FETCHED = {
    "link": "href",
    "script": "src",
    "img": "src",
    "source": "src",
    "iframe": "src",
    "object": "data",
    "embed": "src",
    "video": "src",
    "audio": "src",
    "use": "href",
    "image": "href",
}
_CSS_URL = re.compile(r"""(?:url\(|@import)\s*["']?([^"')\s]+)""")


@dataclass
class Page:
    """The links to follow, the assets that a browser fetches, and the anchors of a file."""

    links: list[str] = field(default_factory=list)
    assets: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)


class _Reader(HTMLParser):
    def __init__(self, page: Page) -> None:
        super().__init__()
        self._page = page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value is not None}
        if "id" in found:
            self._page.anchors.add(found["id"])
        if tag == "a" and "name" in found:
            self._page.anchors.add(found["name"])
        if tag == "a" and "href" in found:
            self._page.links.append(found["href"])
        target = found.get(_FETCHED.get(tag, ""))
        if target is not None:
            self._page.assets.append(target)
        self._page.assets += _CSS_URL.findall(found.get("style", ""))


def read(site: Path) -> dict[Path, Page]:
    """Return the references of each page, style sheet and picture of *site*."""
    pages = {}
    for path in site.rglob("*"):
        if path.suffix in (".html", ".svg"):
            pages[path] = page = Page()
            _Reader(page).feed(path.read_text())
        elif path.suffix == ".css":
            pages[path] = Page(assets=_CSS_URL.findall(path.read_text()))
    return pages


def foreign(pages: dict[Path, Page]) -> Iterator[tuple[str, str]]:
    """Iterate over (page, asset) for assets that a browser would fetch from another site."""
    for path, page in pages.items():
        for target in page.assets:
            parts = urlsplit(target)
            if parts.netloc or parts.scheme not in ("", "data"):
                yield path.name, target


def dangling(pages: dict[Path, Page]) -> Iterator[tuple[str, str]]:
    """Iterate over (page, target) for references within the site whose target does not exist."""
    for path, page in pages.items():
        for target in [*page.links, *page.assets]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            named = path
            if parts.path:
                named = Path(os.path.normpath(path.parent / unquote(parts.path)))
            anchor = unquote(parts.fragment)
            if not named.is_file() or (
                anchor and named in pages and anchor not in pages[named].anchors
            ):
                yield path.name, target
