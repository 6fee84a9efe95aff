# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make the directory that Sphinx reads: documents, pages generated from code, and pictures."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from docs.site import commands_page, kernel_pages, python_pages, report_page
from docs.site.links import page_of, rewritten, source_page, toctree

__all__ = ["ROOT", "assemble"]

ROOT = Path(__file__).resolve().parents[2]

_LANGUAGES = {".c": "c", ".h": "c", ".json": "json", ".py": "python", ".sh": "bash"}
_PICTURES = (".png", ".svg")

# The pages by purpose. The key is the caption.
_NAVIGATION = {
    "Learn": ["tutorial", "quick-start"],
    "How to": [
        "install",
        "writing-a-file-system",
        "writing-a-handler",
        "watching",
        "tracing",
        "monitoring",
        "recovery",
        "service",
        "troubleshooting",
    ],
    "Examples": [
        "examples/archive_fs/README",
        "examples/bpf_kv/README",
        "examples/fsspec_fs/README",
        "examples/git_fs/README",
        "examples/passthrough_backing/README",
    ],
    "Reference": ["commands", "python", "kernel-interface", "kernel", "sysfs"],
    "Explained": [
        "design",
        "glossary",
        "coherence",
        "limits",
        "security",
        "channels",
        "model/README",
        "storage-functions",
        "conformance",
    ],
    "Figures": ["benchmarks", "report"],
    "Develop": ["CONTRIBUTING", "verification"],
}


def assemble(directory: Path) -> None:
    """Fill *directory*, which must not exist, with all sources of the site."""
    for name, text in _pages():
        page = directory / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)
    report_page.write(ROOT, directory)
    for path in _files("docs"):
        if path.suffix in _PICTURES:
            copy = directory / page_of(str(path))
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / path, copy)


def _files(*below: str) -> list[Path]:
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files"]
    command += ["--cached", "--others", "--exclude-standard", "--", *below]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [Path(name) for name in listing.splitlines()]


def _pages() -> Iterator[tuple[str, str]]:
    shown: set[str] = set()
    documents = ["README.md", "CONTRIBUTING.md"]
    documents += [str(p) for p in _files("docs") if p.suffix == ".md"]

    def target_of(path: str) -> str:
        if path in documents or path.endswith(_PICTURES):
            return page_of(path)
        if (ROOT / path / "README.md").is_file():
            return target_of(f"{path}/README.md")
        shown.add(path)
        return source_page(path)

    for path in documents:
        text = rewritten((ROOT / path).read_text(), path, target_of)
        yield page_of(path), text + (_toctrees() if path == "README.md" else "")
    yield "commands.md", commands_page.text()
    yield from python_pages.pages()
    for page, text in kernel_pages.pages(ROOT):
        yield page, rewritten(text, f"docs/{page}", target_of)
    for path in sorted(shown):
        yield source_page(path), _source(path)


def _toctrees() -> str:
    return "".join(
        toctree(pages, ":hidden:", f":caption: {caption}") for caption, pages in _NAVIGATION.items()
    )


def _source(path: str) -> str:
    head = f"---\norphan: true\n---\n\n# `{path}`\n"
    if (ROOT / path).is_dir():
        return f"{head}\n" + "".join(f"* `{file.name}`\n" for file in _files(path))
    language = _LANGUAGES.get(Path(path).suffix, "none")
    content = (ROOT / path).read_text().expandtabs(8)
    return f"{head}\n``````{{code-block}} {language}\n{content}``````\n"
