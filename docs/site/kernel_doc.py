# SPDX-License-Identifier: LGPL-2.1-or-later
"""Parse kernel-doc comments, and check that each one matches the declaration that follows it.

linuxdoc reads more forms of such comments. Here only one form is allowed: any other is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Comment", "Malformed", "comments"]

_COMMENT = re.compile(r"^/\*\*\n(.*?)^ \*/\n(.*?)(?=[;{]|\n\n)", re.MULTILINE | re.DOTALL)
_HEAD = re.compile(r"(struct |enum |typedef )?(\w+)(\(\))? - (.+)")
_ABOUT = re.compile(r"@(\w+|\.\.\.):[ \t]*(.*)")


class Malformed(Exception):
    """A comment is not in the form of kernel-doc, or does not match the declaration after it."""


@dataclass(frozen=True)
class Comment:
    """A kernel-doc comment.

    :ivar kind: ``struct``, ``enum``, ``typedef`` or ``function``.
    :ivar name: the name of the function or type.
    :ivar summary: the text behind the dash in the first line.
    :ivar about: the description of each member or parameter, by name.
    :ivar text: the long description, in which ``@NAME`` refers to a member or parameter.
    :ivar body: the text between the braces of a struct or enum; empty for other kinds.
    """

    kind: str
    name: str
    summary: str
    about: dict[str, str]
    text: str
    body: str


def comments(text: str, path: str) -> Iterator[Comment]:
    """Iterate over the comments of a C file.

    :param text: the text of the file.
    :param path: the path of the file, for error messages.
    :raises Malformed: a comment is not in the form of kernel-doc, or does not match the declaration
        after it.
    """
    for match in _COMMENT.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        try:
            yield _parsed(match[1], match[2], text[match.end() :])
        except Malformed as error:
            raise Malformed(f"{path}:{line}: {error}") from None


def _parsed(comment: str, declaration: str, rest: str) -> Comment:
    lines = [re.sub(r"^ \*[ ]?", "", line) for line in comment.splitlines()]
    head = _HEAD.fullmatch(lines[0].strip())
    if head is None:
        raise Malformed(f"begins with {lines[0]!r} instead of NAME - SUMMARY")
    about, text = _sections(lines[1:])
    summary = head[4].strip()
    kind = (head[1] or "function").strip()
    name = head[2]
    body = ""
    declaration = re.sub(r"__attribute__\(\(.*?\)\)\s*", "", declaration)
    if kind == "typedef":
        declaration = re.sub(r"\(\*(\w+)\)", r"\1", declaration)
    if kind in ("function", "typedef"):
        named = re.search(r"(\w+)\s*\(", declaration)
        there = _parameters(declaration)
        if named is None or named[1] != name:
            raise Malformed(f"is for {name}(), but is followed by {declaration.strip()!r}")
    else:
        if not re.search(rf"\b{kind} {name}\b", declaration):
            raise Malformed(f"is for {kind} {name}, but is followed by {declaration.strip()!r}")
        body = rest[: rest.index("\n}")].lstrip("{")
        there = _members(body) if kind == "struct" else list(about)
    unknown = [one for one in about if one not in there]
    if unknown:
        raise Malformed(f"{name} has no {', '.join(unknown)}")
    silent = [one for one in there if one not in about]
    if about and silent:
        raise Malformed(f"{name} does not describe {', '.join(silent)}")
    return Comment(kind, name, summary, about, text, body)


def _sections(lines: list[str]) -> tuple[dict[str, str], str]:
    """Return the descriptions of the members or parameters, and the rest of a comment."""
    about: dict[str, list[str]] = {}
    text: list[str] = []
    into = text
    for line in lines:
        match = _ABOUT.match(line)
        if match is not None:
            if match[1] in about:
                raise Malformed(f"describes {match[1]} twice")
            into = about[match[1]] = [match[2]]
        elif not line.strip():
            into = text
            into.append("")
        else:
            into.append(line.strip() if into is not text else line)
    return {name: " ".join(parts).strip() for name, parts in about.items()}, "\n".join(text).strip()


def _parameters(declaration: str) -> list[str]:
    inside = re.sub(r"\s+", " ", declaration.partition("(")[2].rpartition(")")[0])
    found, depth, start = [], 0, 0
    for at, letter in enumerate(f"{inside},"):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and depth == 0:
            found.append(inside[start:at].strip())
            start = at + 1
    return [_name(one) for one in found if one not in ("", "void")]


def _name(declared: str) -> str:
    """Return the name in the declaration of a parameter or member."""
    special = re.search(r"\(\*(\w+)\)|DECLARE_BITMAP\((\w+)", declared)
    if special is not None:
        return str(special[1] or special[2])
    words = re.findall(r"\w+|\.\.\.", re.sub(r"\[[^]]*\]|:\s*\d+", "", declared))
    return str(words[-1])


def _members(body: str) -> list[str]:
    plain = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    # Of a nested struct or union, take its name, or its members if it has no name.
    within = r"\b(?:struct|union)\s*\w*\s*\{([^{}]*)\}"
    plain = re.sub(rf"{within}\s*;", r"\1", plain)
    plain = re.sub(within, "", plain)
    found = []
    for one in plain.split(";"):
        if one.strip():
            # `a, *b` declares two members.
            first, *others = re.split(r",(?![^(]*\))", one)
            found += [_name(first), *(_name(other) for other in others)]
    return found
