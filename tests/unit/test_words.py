# SPDX-License-Identifier: LGPL-2.1-or-later
"""Refuse turns of phrase that readers stumble over, in the prose of the areas in `REWRITTEN`.

Prose is the text of Markdown, the comments of C, the comments and docstrings of Python, and the
comments of shell and make that have a line of their own. Outside of the tests, a string literal of
C or Python with a space in it is prose, too: it may be a message or a help text. Code, quotations,
generated tables and link targets are not prose.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.documents import ROOT

# Files and directories. A directory stands for every file below it that `_READERS` knows.
REWRITTEN = (
    "CONTRIBUTING.md",
    "README.md",
    "bpf_programs",
    "csd",
    "docs/benchmarks.md",
    "docs/channels.md",
    "docs/coherence.md",
    "docs/conformance.md",
    "docs/design.md",
    "docs/examples",
    "docs/glossary.md",
    "docs/install.md",
    "docs/kernel-interface.md",
    "docs/limits.md",
    "docs/model",
    "docs/quick-start.md",
    "docs/security.md",
    "docs/site",
    "docs/storage-functions.md",
    "docs/tracing.md",
    "docs/troubleshooting.md",
    "docs/tutorial.md",
    "docs/verification.md",
    "docs/watching.md",
    "docs/writing-a-file-system.md",
    "docs/writing-a-handler.md",
    "efuse/__init__.py",
    "efuse/bench",
    "efuse/bpf",
    "efuse/btf.py",
    "efuse/cli",
    "efuse/closing.py",
    "efuse/control",
    "efuse/csd",
    "efuse/demo.py",
    "efuse/display.py",
    "efuse/errors.py",
    "efuse/exporter",
    "efuse/features.py",
    "efuse/fs",
    "efuse/functions",
    "efuse/guest",
    "efuse/kernel_fs.py",
    "efuse/libefuse.py",
    "efuse/locations.py",
    "efuse/module",
    "efuse/opcodes.py",
    "efuse/stats",
    "efuse/tables",
    "efuse/tracing",
    "efuse/tui",
    "efuse/units.py",
    "hatch_build.py",
    "kernel_patches/README.md",
    "kernel_patches/include",
    "kernel_patches/src",
    "libefuse",
    "scripts",
    "tests/access_lists.py",
    "tests/blocking_file_system.py",
    "tests/commands.py",
    "tests/conformance",
    "tests/conftest.py",
    "tests/crash",
    "tests/debug",
    "tests/documents.py",
    "tests/examples.py",
    "tests/figures.py",
    "tests/guest",
    "tests/host",
    "tests/libefuse",
    "tests/messages.py",
    "tests/mutants",
    "tests/passthrough_operations.py",
    "tests/perf",
    "tests/pictures.py",
    "tests/site_pages.py",
    "tests/soak",
    "tests/sysfs_document.py",
    "tests/transcripts.py",
    "tests/tree_workloads.py",
    "tests/unit",
    "tests/watched_remote.py",
)


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

    quotes = r"\"\"\"|\"|'"
    return _kept(text, passages(), rf"\A[a-zA-Z]{{0,2}}(?:{quotes})|(?:{quotes})\Z|^#+")


_READERS: dict[str, Callable[[str], str]] = {
    ".c": _c,
    ".h": _c,
    ".md": _markdown,
    ".py": _python,
    ".sh": _hash,
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
    prose = readers[path.suffix](text)
    hits = [(match, rule) for pattern, rule in _COMPILED for match in pattern.finditer(prose)]
    return [
        f"{name}:{prose.count(chr(10), 0, match.start()) + 1}: "
        f"{' '.join(match[0].replace(_QUOTATION, '').split())!r} is refused; write: {rule.instead}"
        for match, rule in sorted(hits, key=lambda hit: hit[0].start())
    ]


def _files(area: str) -> list[Path]:
    path = ROOT / area
    below = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [file for file in below if file.is_file() and _has_prose(file)]


def _has_prose(file: Path) -> bool:
    if file.suffix:
        return file.suffix in _READERS
    # A script or a makefile, not a program that was built.
    return file.read_bytes()[:2] in (b"#!", b"# ")


@pytest.mark.parametrize("area", REWRITTEN)
def test_prose_has_no_refused_words(area: str) -> None:
    files = _files(area)
    assert files, f"{area} has no prose"
    hits = [hit for file in files for hit in found(str(file.relative_to(ROOT)), file.read_text())]
    if hits:
        pytest.fail("\n".join([f"{len(hits)} refused turns of phrase:", *hits]), pytrace=False)


def test_area_with_a_refused_word_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "area").mkdir()
    (tmp_path / "area/good.md").write_text("It is read again.\n")
    (tmp_path / "area/built").write_bytes(b"\x7fELF anew")
    (tmp_path / "area/data.json").write_text('"anew"')
    (tmp_path / "area/bad.md").write_text("Good.\n\nIt is read anew.\n")
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    message = r"^1 refused turns of phrase:\narea/bad\.md:3: 'anew' is refused; write: again$"
    with pytest.raises(pytest.fail.Exception, match=message):
        test_prose_has_no_refused_words("area")


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
        ("a.sh", "anew='# anew'\necho anew\n"),
    ],
)
def test_words_outside_prose_are_not_refused(name: str, text: str) -> None:
    assert found(name, text) == []
