# SPDX-License-Identifier: LGPL-2.1-or-later
"""Refuse turns of phrase that readers stumble over, in the prose of all files but `EXCLUDED`.

Prose is the text of Markdown, the comments of C, the comments and docstrings of Python, and the
comments of shell, make and the like that have a line of their own. In TOML, the names of tables are
prose, too. In a patch, its head is prose and the comments in C that it adds. Outside of the tests,
a string literal of C or Python with a space in it is prose, too: it may be a message or a help
text. Code, quotations, generated tables and link targets are not prose.

The name of a function in the tests is a sentence with underscores, and is read as prose.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.repository import ROOT, files

# What is not read, and why.
EXCLUDED = {
    r"^LICENSES/": "texts by other authors",
    r"^tests/data/": "outputs that were recorded",
    r"\.json$": "data",
    r"\.(?:png|svg|typed)$": "no text",
}


class Rule(NamedTuple):
    """A refused turn of phrase.

    :ivar pattern: the regular expression that finds it; a space matches any white space.
    :ivar instead: the advice that the failure message gives.
    :ivar example: a sentence that the pattern finds.
    """

    pattern: str
    instead: str
    example: str


_PEOPLE = "name the caller, the thread, the process or the program"
_FIELD = r"(?:@\w+|:(?:param|ivar|var|cvar|returns?)\b[^:\n]*):"

RULES = (
    Rule(r"\banew\b", "again", "It is read anew."),
    Rule(r"\btime-outs?\b", "timeout", "The time-out is short."),
    Rule(r"\blikewise\b", "repeat what it is", "The second one likewise."),
    Rule(r"\bas above\b", "repeat what it is", "The other size, as above."),
    Rule(
        r"(?<!each\s)\bof (?:which|whom)\b",
        "whose, or a second sentence",
        "A file of which a part is gone.",
    ),
    Rule(r"\bas ever\b", "as before, or as on plain FUSE", "Writes go there as ever."),
    Rule(r"\bat once\b", "immediately, or at the same time", "It ends at once."),
    Rule(r"\bbeside\b", "next to, besides, in addition to", "It stands beside FUSE."),
    Rule(r"\bbut for\b", "except, or except for", "All is copied but for the head."),
    Rule(r"\bin the place of\b", "instead of", "A queue in the place of the list."),
    Rule(r"\bwhom?ever\b", _PEOPLE, "Whoever reads it waits."),
    Rule(r"\b(?:some|any|every|no)body\b", _PEOPLE, "Nobody holds the lock."),
    Rule(r"\b(?:ours|theirs)\b", "name the owner", "A path of ours is shorter."),
    Rule(r"\b(?:is|are|was|were|be|been|as) said\b", "documented, reported, set", "As was said."),
    Rule(r"\bsa(?:ys|id) so\b", "repeat what it reports", "The flag says so."),
    Rule(r"\bthat is(?: to say)?[,:]", "leave it out", "One word, that is, eight bytes."),
    Rule(r"\bha(?:s|ve|d) not(?=[.,;:)])", "repeat the verb", "It takes what the other has not."),
    Rule(
        r"\bbehind (?:an?|the|that|this|each|its) (?:barrier|call|change|fact|reply|request)\b",
        "after, since only places are behind something",
        "It looks behind the barrier.",
    ),
    Rule(
        r"\b(?:hereby|hitherto|thereby|therein|thereof|whereby|wherein|whereof)\b",
        "a plain second sentence",
        "The file and the blocks thereof.",
    ),
    # Questions and headings may begin so: they do not end with a full stop.
    Rule(
        r"(?-i:\b(?:Who|Those)\b)(?:[^.?!\n\0]|\n(?!\s*\n))*\.",
        "begin with the thing itself",
        "Who sends takes the lock.",
    ),
    Rule(
        _FIELD + r" (?:those|that|the same|as|such|it|who|whose|whom|ditto)\b",
        "name the thing, its unit and its owner",
        ":param pages: those of the file.",
    ),
)
_COMPILED = [(re.compile(rule.pattern.replace(" ", r"\s+"), re.I), rule) for rule in RULES]

# Characters that hide what is not prose. No pattern matches a word across them. A sentence ends at
# code but goes on after a quotation. White space stays, so that each hit has its line number.
_CODE = "\0"
_QUOTATION = "\1"


def _hide(text: str, mark: str = _CODE) -> str:
    return re.sub(r"\S", mark, text)


def _without(pattern: str, text: str, mark: str = _CODE) -> str:
    flags = re.DOTALL | re.MULTILINE
    return re.sub(pattern, lambda match: _hide(match[0], mark), text, flags=flags)


def _without_quotations(text: str) -> str:
    text = _without(r"``.+?``|`[^`]+`", text, _QUOTATION)
    return _without(r'"[^"\n]*"', text, _QUOTATION)


def _markdown(text: str) -> str:
    text = _without(r"^ *```.*?^ *```$", text)
    text = _without(r"^<!-- (?:bench|claims)\b.*?^<!-- /", text)
    text = _without(r"<!--.*?-->", text)
    text = _without(r"(?<=\])\([^)]*\)", text, _QUOTATION)
    return _without_quotations(text)


def _kept(text: str, passages: Iterator[tuple[int, int]], decoration: str) -> str:
    """Return *text* with all but the *passages* hidden, and without the marks of comments."""
    parts, end = [], 0
    for begin, stop in passages:
        plain = re.sub(
            decoration, lambda match: " " * len(match[0]), text[begin:stop], flags=re.MULTILINE
        )
        parts += [_hide(text[end:begin]), _without_quotations(plain)]
        end = stop
    return "".join([*parts, _hide(text[end:])])


def _c(text: str, *, has_messages: bool = False) -> str:
    tokens = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)

    def is_prose(token: str) -> bool:
        return token.startswith("/") or (has_messages and token.startswith('"') and " " in token)

    passages = (match.span() for match in tokens.finditer(text) if is_prose(match[0]))
    return _kept(text, passages, r'\A"|"\Z|/\*+|\*+/|//|^[ \t]*\*+')


def _hash(text: str) -> str:
    comments = (match.span() for match in re.finditer(r"^[ \t]*#(?!!).*$", text, re.MULTILINE))
    return _kept(text, comments, r"^[ \t]*#+")


def _toml(text: str) -> str:
    """Return the comments, and the names of the tables with a space for each hyphen."""
    comments_and_names = re.finditer(r"^[ \t]*#.*$|^\[.*\]$", text, re.MULTILINE)
    passages = (match.span() for match in comments_and_names)
    return _kept(text, passages, r"^[ \t]*#+|-(?=.*\]\Z)|[\[\]]")


def _literal(literal: str) -> Iterator[tuple[int, int]]:
    """Iterate over the parts of a literal that are text, and not expressions of an f-string."""
    if not re.match("[rR]?[fF]", literal):
        yield 0, len(literal)
        return
    for match in re.finditer(r"\{[^{}]*\}|([^{}]+)", literal):
        if match[1]:
            yield match.span()


def _python(text: str, *, has_messages: bool = False) -> str:
    docstrings = {
        (node.value.lineno, node.value.col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }
    begins = [0]
    for line in io.StringIO(text):
        begins.append(begins[-1] + len(line))

    def passages() -> Iterator[tuple[int, int]]:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            (line, column), (last, stop) = token.start, token.end
            begin, end = begins[line - 1] + column, begins[last - 1] + stop
            if token.type == tokenize.COMMENT or token.start in docstrings:
                yield begin, end
            elif has_messages and token.type == tokenize.STRING and " " in token.string:
                yield from ((begin + first, begin + last) for first, last in _literal(token.string))

    # The name in a field of a docstring is an identifier.
    text = _without(r"(?<=:ivar )\w+(?=:)|(?<=:param )\w+(?=:)|(?<=:cvar )\w+(?=:)", text)
    quotes = r"\"\"\"|\"|'"
    return _kept(text, passages(), rf"\A[a-zA-Z]{{0,2}}(?:{quotes})|(?:{quotes})\Z|^#+")


def _patch(text: str) -> str:
    """Return the head of a patch, and the comments in the lines that it adds."""
    begin = re.search(r"^(?:---|diff )", text, re.MULTILINE)
    head = text[: begin.start()] if begin else ""
    added = _without(r"^(?:[^+\n]|\+\+\+)[^\n]*$", text[len(head) :])
    return _without_quotations(head) + _c(re.sub(r"^\+", " ", added, flags=re.MULTILINE))


_READERS: dict[str, Callable[[str], str]] = {
    ".c": _c,
    ".config": _hash,
    ".css": _c,
    ".h": _c,
    ".in": _hash,
    ".map": _c,
    ".md": _markdown,
    ".mount": _hash,
    ".objs": _hash,
    ".patch": _patch,
    ".py": _python,
    ".service": _hash,
    ".sh": _hash,
    ".supp": _hash,
    ".toml": _toml,
    # Scripts, makefiles and other lists.
    "": _hash,
}
# Outside of the tests, string literals may be messages.
_MESSAGE_READERS: dict[str, Callable[[str], str]] = {
    ".c": partial(_c, has_messages=True),
    ".h": partial(_c, has_messages=True),
    ".py": partial(_python, has_messages=True),
}


def found(name: str, text: str) -> list[str]:
    """Return a message for each refused turn of phrase in the prose of the file *name*."""
    path = Path(name)
    readers = _READERS if path.parts[0] == "tests" else _READERS | _MESSAGE_READERS
    return _hits(name, readers[path.suffix](text))


def _hits(name: str, prose: str) -> list[str]:
    hits = [(match, rule) for pattern, rule in _COMPILED for match in pattern.finditer(prose)]
    return [
        f"{name}:{prose.count(chr(10), 0, match.start()) + 1}: "
        f"{' '.join(match[0].replace(_QUOTATION, '').split())!r} is refused; write: {rule.instead}"
        for match, rule in sorted(hits, key=lambda hit: hit[0].start())
    ]


def _read(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the files that are read, by directory."""
    areas: dict[str, list[str]] = {}
    for name in names:
        if not any(re.search(pattern, name) for pattern in EXCLUDED):
            directory, _, _ = name.rpartition("/")
            areas.setdefault(directory or ".", []).append(name)
    return areas


_AREAS = _read(files())


def _refuse(hits: list[str]) -> None:
    if hits:
        pytest.fail("\n".join([f"{len(hits)} refused turns of phrase:", *hits]), pytrace=False)


@pytest.mark.parametrize("area", _AREAS)
def test_prose_has_no_refused_words(area: str) -> None:
    _refuse([hit for name in _AREAS[area] for hit in found(name, (ROOT / name).read_text())])


def _found_in_names(name: str, text: str) -> list[str]:
    """Return a message for each refused turn of phrase in the names of a module's functions."""
    lines = [""] * text.count("\n")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines[node.lineno - 1] = f"{node.name.replace('_', ' ').strip()}."
    return _hits(name, "\n".join(lines))


@pytest.mark.parametrize(
    "area", [area for area in _AREAS if area.partition("/")[0] in ("tests", "docs")]
)
def test_names_of_functions_have_no_refused_words(area: str) -> None:
    modules = [name for name in _AREAS[area] if name.endswith(".py")]
    _refuse([hit for name in modules for hit in _found_in_names(name, (ROOT / name).read_text())])


def test_refused_words_in_the_name_of_a_function_are_found_at_its_line() -> None:
    text = "x = 1\n\ndef test_read_ends() -> None:\n    def at_once() -> None: ...\n"
    assert _found_in_names("a.py", text) == [
        "a.py:4: 'at once' is refused; write: immediately, or at the same time"
    ]


def test_file_with_a_refused_word_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "area").mkdir()
    (tmp_path / "area/good.md").write_text("It is read again.\n")
    (tmp_path / "area/bad.md").write_text("Good.\n\nIt is read anew.\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    monkeypatch.setitem(
        globals(), "_AREAS", _read(["area/good.md", "area/bad.md", "area/data.json"])
    )
    message = r"^1 refused turns of phrase:\narea/bad\.md:3: 'anew' is refused; write: again$"
    with pytest.raises(pytest.fail.Exception, match=message):
        test_prose_has_no_refused_words("area")


@pytest.mark.parametrize("pattern", EXCLUDED)
def test_exclusion_is_of_files_that_exist(pattern: str) -> None:
    assert any(re.search(pattern, name) for name in files())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.example)
def test_example_of_a_rule_is_refused_by_that_rule_alone(rule: Rule) -> None:
    (hit,) = found("example.md", f"Good prose.\n\n{rule.example}\n")
    assert hit.startswith("example.md:3: ")
    assert hit.endswith(f"write: {rule.instead}")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "Good.\n\n* It is read\n  anew.\n"),
        ("a.c", "int x;\n\n/*\n * It is read anew.\n */\n"),
        ("a.h", "int x;\n\n\nint anew; // It is read anew.\n"),
        ("a.py", "x = 'anew'\n\n\ny = x  # It is read anew.\n"),
        ("a.py", 'x = 1\n"""Good.\n\nIt is read anew."""\n'),
        ("a.py", "x = 1\n\n\ny = f'It is read {x} times anew'\n"),
        ("a.py", 'x = 1\n\n\ny = "It\\"s read anew"\n'),
        ("a.c", 'int x;\n\n\nchar *s = "It is read anew";\n'),
        ("a.sh", "#!/bin/sh\n\n\n\t# It is read anew.\n"),
        ("Makefile", "a:\n\ttrue\n\n# It is read anew.\n"),
        ("a.toml", "[a]\nb = 1\n\n# It is read anew.\n"),
        ("a.toml", "[a]\nb = 1\n\n[a-file-is-read-anew]\n"),
        ("a.patch", "Subject: [PATCH] fuse: call-outs\n\nGood.\nIt is read anew.\n---\n"),
        ("a.patch", "--- a/x.c\n+++ b/x.c\n@@ -1 +1 @@\n+\t/* It is read anew. */\n"),
    ],
)
def test_refused_word_is_found_at_its_line(name: str, text: str) -> None:
    assert found(name, text) == [f"{name}:4: 'anew' is refused; write: again"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "\n* Writes go there as\n  ever, and it ends at\n  once.\n"),
        ("a.c", "/*\n * Writes go there as\n * ever, and it ends at\n * once.\n */\n"),
        (
            "a.py",
            "if x:\n    # Writes go there as\n    # ever, and it ends at\n    # once.\n    f()\n",
        ),
        ("a.sh", "true\n\t# Writes go there as\n\t# ever, and it ends at\n\t# once.\n"),
    ],
)
def test_refused_words_are_found_across_a_line_break(name: str, text: str) -> None:
    refused = [hit.partition(" is refused")[0] for hit in found(name, text)]
    assert refused == [f"{name}:2: 'as ever'", f"{name}:3: 'at once'"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "```c\nint anew; /* anew */\n```\n"),
        ("a.md", "| `read anew` | The file is read again. |\n"),
        ("a.md", 'See [the page](docs/anew.md) and the message "nobody\'s".\n'),
        ("a.md", "<!-- bench: x -->\n| anew |\n<!-- /bench -->\n"),
        ("a.md", "## Who asks\n\nWho may ask? The caller.\n"),
        (
            "tests/a.c",
            'int anew(void); const char *s = "/* anew */"; /* Calls anew_once() and `anew`. */\n',
        ),
        ("a.c", "/* One is at */ int once; /* once */ it(has, not);\n"),
        ("a.c", 'const char *anew = "anew"; /* Calls `anew`. */\n'),
        ("a.py", "x = f'{anew(1, 2)} is read'; anew = 'anew'\n"),
        ("tests/a.py", 'anew = f("anew # anew")\n"""Return ``anew``, or `anew`."""\n'),
        ("a.py", 'x = 1\n"""Good.\n\n:ivar ours: a path.\n"""\n'),
        ("a.sh", "anew='# anew'\necho anew\n"),
        ("a.patch", "--- a/anew.c\n+++ b/anew.c\n-\t/* anew */\n \t/* anew */\n+\tanew();\n"),
    ],
)
def test_words_outside_prose_are_not_refused(name: str, text: str) -> None:
    assert found(name, text) == []
