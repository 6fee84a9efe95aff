# SPDX-License-Identifier: LGPL-2.1-or-later
"""The fenced blocks of the documents, and how each is tested.

A comment on the line before a block, ``<!-- KIND: ARGUMENT -->``, tells how. Readers do not see it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["KINDS", "ROOT", "Block", "blocks", "documents", "named", "runs"]

ROOT = Path(__file__).resolve().parents[1]

KINDS = {
    "file": "the block is verbatim in that file, which tests run",
    "run": "a test runs it as it stands: on the host, or in the guest",
    "python": "a test in the guest runs it, most within a file system of their own",
    "test": "that test is of what the block shows",
    "make": "each line is `make` and targets that there are",
    "commands": "each line is a command with arguments that it takes",
    "usage": "a command with all options that it has",
    "figures": "a table as that command prints it",
}

_FENCE = re.compile(r"^( *)```(\S*)$")
_DIRECTIVE = re.compile(r"^ *<!-- (\w+): (.+) -->$")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    :ivar document: path of the document in the repository.
    :ivar line: line number of the opening fence.
    :ivar language: language after the fence.
    :ivar text: text between the fences.
    :ivar kind: how the block is tested, one of `KINDS`; empty if it has no comment.
    :ivar argument: argument of the comment.
    """

    document: str
    line: int
    language: str
    text: str
    kind: str
    argument: str

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def documents() -> Iterator[str]:
    """Iterate over the paths of all documents."""
    yield from ("README.md", "CONTRIBUTING.md")
    for path in sorted((ROOT / "docs").rglob("*.md")):
        yield str(path.relative_to(ROOT))


def blocks(document: str | None = None) -> list[Block]:
    """Return the blocks of a document, or of all documents."""
    chosen = documents() if document is None else [document]
    return [block for name in chosen for block in _blocks(name)]


def runs(where: str) -> dict[str, list[Block]]:
    """Return the blocks to run *where*, ``host`` or ``guest``, by document."""
    found: dict[str, list[Block]] = {}
    for block in blocks():
        if block.kind == "run" and block.argument == where:
            found.setdefault(block.document, []).append(block)
    return found


def named(kind: str, argument: str) -> list[Block]:
    """Return the blocks with this comment; there must be at least one."""
    found = [b for b in blocks() if (b.kind, b.argument) == (kind, argument)]
    assert found, f"no block is <!-- {kind}: {argument} -->"
    return found


def _blocks(document: str) -> Iterator[Block]:
    lines = (ROOT / document).read_text().splitlines()
    begin, head = None, None
    for number, line in enumerate(lines):
        fence = _FENCE.match(line)
        if fence is None:
            continue
        if head is None:
            begin, head = number, fence
            continue
        assert begin is not None
        directive = _DIRECTIVE.match(lines[begin - 1])
        kind, argument = (directive[1], directive[2]) if directive else ("", "")
        body = [one.removeprefix(head[1]) for one in lines[begin + 1 : number]]
        yield Block(
            document, begin + 1, head[2], "".join(f"{one}\n" for one in body), kind, argument
        )
        head = None
    assert head is None, f"{document} ends within a block"
