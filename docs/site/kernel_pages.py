# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make the pages of the kernel interface from its headers."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from docs.site.kernel_doc import Comment, Malformed, comments
from docs.site.links import toctree

__all__ = ["pages"]

_HEAD = """\
# The kernel's headers

Declarations and their documentation, from the comments in the headers. Read
[the kernel interface](kernel-interface.md) first.
"""

# The title of each page, and the headers from which it is made.
_PAGES = {
    "ops": (
        "Members that a program implements",
        ("kernel_patches/src/efuse_ops.h", "csd/src/function.h", "csd/src/policy.h"),
    ),
    "kfuncs": (
        "Functions that a program may call",
        ("kernel_patches/src/kfuncs.h", "csd/src/kfuncs.h"),
    ),
    "uapi": (
        "Definitions shared by the kernel, programs and user space",
        ("kernel_patches/include/uapi/linux/efuse.h", "csd/include/uapi/linux/csd.h"),
    ),
}


_DECLARED = re.compile(
    r"^(struct|enum) (\w+) \{|^#define\s+(\w+)|^[\w *]*?\b(\w+)\((?:.*?)\);",
    re.MULTILINE | re.DOTALL,
)


def pages(root: Path) -> Iterator[tuple[str, str]]:
    """Iterate over the names and texts of the pages.

    :param root: the root of the repository.
    """
    yield "kernel.md", _HEAD + toctree(f"kernel/{name}" for name in _PAGES)
    for name, (title, headers) in _PAGES.items():
        parts = [f"# {title}\n"]
        for header in headers:
            text = (root / header).read_text().expandtabs(8)
            parts.append(f"\n## `{Path(header).name}`\n\nIn full: [{header}](../../{header})\n")
            structs = list(comments(text, header))
            directives = map(_struct, structs) if structs else _plain(text, header)
            # A function and a structure may have the same name, as in C.
            space = f".. c:namespace:: {name}\n\n"
            parts += [f"\n```{{eval-rst}}\n{space}{one}\n```\n" for one in directives]
        yield f"kernel/{name}.md", "".join(parts)


def _marked(text: str) -> str:
    """Return the text of a comment with its identifiers marked up as code."""
    return re.sub(r"@(\w+)|(?<!`)\b(\w+\(\))|&(\w+)", r"``\1\2\3``", text)


def _struct(comment: Comment) -> str:
    lines = [f".. c:{comment.kind}:: {comment.name}", ""]
    lines += [f"   {comment.summary[0].upper()}{comment.summary[1:]}.", ""]
    lines += [textwrap.indent(_marked(comment.text), "   "), ""]
    declared = re.sub(r"\s+", " ", comment.body)
    for name, prose in comment.about.items():
        member = re.search(rf"[^;]*\b{name}\b[^;]*(?=;)", declared)
        assert member is not None
        lines += [f"   .. c:member:: {member[0].strip()}", "", f"      {_marked(prose)}", ""]
    return "\n".join(lines)


def _plain(text: str, header: str) -> Iterator[str]:
    """Iterate over the declarations of a header, each with the comment before it."""
    inside = text[text.index("#define _") :].partition("\n")[2].rpartition("#endif")[0]
    for chunk in re.split(r"\n\s*\n(?![^{}]*\n\})", inside):
        yield from _declarations(chunk.strip("\n"), header)


def _declarations(chunk: str, header: str) -> Iterator[str]:
    groups: list[tuple[str, list[str]]] = []
    at = 0
    while at < len(chunk):
        comment = re.compile(r"/\*(.*?)\*/[ \t]*\n", re.DOTALL).match(chunk, at)
        if comment is not None:
            prose = re.sub(r"^[ \t]*\*[ ]?", "", comment[1], flags=re.MULTILINE)
            groups.append((textwrap.dedent(prose).strip(), []))
            at = comment.end()
            continue
        line = re.compile(r"[^\n]*\n?").match(chunk, at)
        assert line is not None
        groups = groups or [("", [])]
        groups[-1][1].append(line[0].rstrip("\n"))
        at = line.end()
    for prose, lines in groups:
        code = "\n".join(lines).strip("\n")
        if not code or code.startswith("#include") or re.fullmatch(r"(struct \w+;\s*)+", code):
            continue
        yield _declaration(prose, code, header)


def _declaration(prose: str, code: str, header: str) -> str:
    found = list(_DECLARED.finditer(code))
    types = [f".. c:{match[1]}:: {match[2]}" for match in found if match[1]]
    macros = [match[3] for match in found if match[3]]
    functions = [" ".join(match[0].rstrip(";").split()) for match in found if match[4]]
    if types:
        head = types[0]
    elif macros:
        head = f".. c:macro:: {_below(macros)}"
    elif functions:
        head = f".. c:function:: {_below(functions)}"
    else:
        raise Malformed(f"{header}: what does {code!r} declare?")
    parts = [_paragraphs(prose)]
    if functions and not types and not macros:
        parts += _trailing(code)
    else:
        parts.append(f".. code-block:: c\n\n{textwrap.indent(code, '   ')}")
    body = "\n\n".join(parts)
    return f"{head}\n\n{textwrap.indent(body, '   ')}\n"


def _below(signatures: list[str]) -> str:
    return "\n   ".join(signatures)


def _trailing(code: str) -> Iterator[str]:
    """Iterate over the comments that stand behind declarations of functions."""
    for name, prose in re.findall(r"(\w+)\([^;]*;[ \t]*/\* (.*?) \*/", code):
        yield f"``{name}()``: {_marked(prose)}"


def _paragraphs(prose: str) -> str:
    """Return a comment as reStructuredText, with indented paragraphs as literal blocks."""
    parts = []
    for part in re.split(r"\n\s*\n", prose):
        if part.startswith(" "):
            parts.append(f"::\n\n{textwrap.indent(textwrap.dedent(part), '   ')}")
        else:
            parts.append(_marked(re.sub(r"([*|])", r"\\\1", part)))
    return "\n\n".join(parts)
