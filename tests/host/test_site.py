# SPDX-License-Identifier: LGPL-2.1-or-later
"""The site that ``make docs`` builds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import efuse.bench
import efuse.bpf
import efuse.control
import efuse.fs
import efuse.stats
from tests import site_pages

_ROOT = Path(__file__).resolve().parents[2]


def _build(output: Path) -> subprocess.CompletedProcess[str]:
    """Build the site in a namespace without a network."""
    command = ["unshare", "--net", sys.executable, "-m", "docs.site", str(output)]
    return subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("docs") / "site"
    done = _build(output)
    assert done.returncode == 0, done.stderr
    return output


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, site_pages.Page]:
    return site_pages.read(site)


def test_every_internal_link_of_the_site_has_a_target(pages: dict[Path, site_pages.Page]) -> None:
    assert sum(len(page.links) for page in pages.values()) > 1000
    assert list(site_pages.dangling(pages)) == []


def test_pages_fetch_nothing_from_other_servers(pages: dict[Path, site_pages.Page]) -> None:
    assert any(page.assets for page in pages.values())
    assert list(site_pages.foreign(pages)) == []


def test_every_document_is_a_page(site: Path) -> None:
    for document in (_ROOT / "docs").rglob("*.md"):
        page = document.relative_to(_ROOT / "docs").with_suffix(".html")
        assert (site / page).is_file()
    for name in ("index", "CONTRIBUTING"):
        assert (site / name).with_suffix(".html").is_file()


def test_pages_of_the_package_have_all_public_names(site: Path) -> None:
    for module in (efuse.bench, efuse.bpf, efuse.control, efuse.errors, efuse.fs, efuse.stats):
        page = (site / "python" / f"{module.__name__}.html").read_text()
        assert "Built-in " not in page, f"a constant of {module.__name__} has no docstring"
        for name in module.__all__:
            assert f'.{name}"><span class="sig' in page or f'.{name}">\n' in page, name


def test_dangling_and_foreign_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="b.html#x"></a><a href="a.html#y"></a><a href="c.html"></a><p id="z">'
        '<img src="https://example.org/p.png"><div style="background: url(//example.org/q)">'
    )
    (tmp_path / "b.html").write_text('<p id="x"><a href="a.html#z"></a><a href="#none"></a>')
    (tmp_path / "c.css").write_text('@import "https://example.org/font.css"; a { src: url(d) }')
    pages = site_pages.read(tmp_path)
    assert sorted(site_pages.dangling(pages)) == [
        ("a.html", "a.html#y"),
        ("a.html", "c.html"),
        ("b.html", "#none"),
        ("c.css", "d"),
    ]
    assert sorted(site_pages.foreign(pages)) == [
        ("a.html", "//example.org/q"),
        ("a.html", "https://example.org/p.png"),
        ("c.css", "https://example.org/font.css"),
    ]
