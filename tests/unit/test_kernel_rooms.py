# SPDX-License-Identifier: LGPL-2.1-or-later
"""The rooms of the kernel module: which file of ``kernel_patches/src`` may call which."""

import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.documents import ROOT

SRC = ROOT / "kernel_patches/src"

ORDER = ("core", "cache", "transport", "io", "")
"""The rooms from the bottom to the top. A room calls only itself and those before it."""

_NOT_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_FUNCTION = re.compile(r"^(?!#)[A-Za-z_][^;{}#=]*?\b(efuse_\w+)\([^;{}]*\)\s*\n\{", re.MULTILINE)
_VARIABLE = re.compile(r"^(?:DEFINE_MUTEX\(|const )[^;={(]*?(\w+)[\[) ]", re.MULTILINE)
# Not the tag of a structure, and not a member of one.
_USE = re.compile(r"(?<!struct )(?<!enum )(?<!->)(?<!\.)\befuse_\w+")
# A comment, or the declaration of a function.
_DECLARED = re.compile(
    r"/\*(?P<head>.*?)\*/"
    r"|^\w[\w *]*?\b(?P<name>efuse_\w+)\([^;{}()]*(?:\([^()]*\)[^;{}()]*)*\);",
    re.DOTALL | re.MULTILINE,
)


def _sources() -> dict[str, str]:
    """Return the text of each file without comments and strings."""
    return {
        str(path.relative_to(SRC)): _NOT_CODE.sub(" ", path.read_text())
        for path in sorted(SRC.rglob("*.[ch]"))
        if path.parent.name != "probes"
    }


def _room(name: str) -> str:
    return name.rpartition("/")[0]


def _calls(sources: dict[str, str]) -> Iterator[tuple[str, str, str]]:
    """Yield each use of a function or variable that another file defines.

    :returns: (file that uses it, file that defines it, its name).
    """
    owners: dict[str, set[str]] = {}
    own: dict[str, set[str]] = {}
    for file, text in sources.items():
        defined = list(_FUNCTION.finditer(text)) + list(_VARIABLE.finditer(text))
        own[file] = {found[1] for found in defined}
        for found in defined:
            if file.endswith(".h") or not found[0].startswith("static "):
                owners.setdefault(found[1], set()).add(file)
    for file, text in sources.items():
        # A header declares functions of other files; only its inline functions call any.
        code = text if file.endswith(".c") else "".join(_bodies(text))
        for name in sorted(set(_USE.findall(code)) - own[file]):
            for owner in owners.get(name, ()):
                yield file, owner, name


def _bodies(header: str) -> Iterator[str]:
    for found in _FUNCTION.finditer(header):
        yield header[found.end() : header.index("\n}", found.end())]


def test_no_file_calls_functions_of_a_higher_room() -> None:
    up = [
        f"{file} calls {name}() of {owner}"
        for file, owner, name in _calls(_sources())
        if ORDER.index(_room(file)) < ORDER.index(_room(owner))
    ]
    assert not up


def test_calls_between_files_have_no_cycle() -> None:
    callees: dict[str, set[str]] = {}
    for file, owner, _ in _calls(_sources()):
        # The inline functions of a header belong to its room as a whole.
        if file.endswith(".c") and owner.endswith(".c"):
            callees.setdefault(file, set()).add(owner)
    try:
        order = list(TopologicalSorter(callees).static_order())
    except CycleError as error:
        raise AssertionError(f"a cycle of files: {error.args[1]}") from None
    assert len(order) > 40


def test_calls_are_found() -> None:
    """The two tests above would pass if the expressions found nothing."""
    calls = {(file, owner) for file, owner, _ in _calls(_sources())}
    assert ("transport/send.c", "cache/learn.c") in calls
    assert ("ops.c", "core/conn.c") in calls
    assert ("dispatch.c", "core/core_i.h") in calls
    assert ("cache/cache_i.h", "cache/epochs.c") in calls


def test_headers_and_files_include_only_rooms_below() -> None:
    for path in sorted(SRC.rglob("*.[ch]")):
        room = path.parent.relative_to(SRC).name
        if room == "probes":
            continue
        for name in re.findall(r'^#include "(.*)"', path.read_text(), re.MULTILINE):
            included = (path.parent / name).resolve()
            if included.is_relative_to(SRC) and included.name.endswith("_i.h"):
                below = included.parent.relative_to(SRC).name
                assert ORDER.index(below) <= ORDER.index(room), f"{path} includes {name}"


def test_every_source_is_built() -> None:
    text = (SRC / "Makefile.objs").read_text().replace("\\\n", " ")
    built = set()
    for listed in re.findall(r"^efuse-objs-y \+?:?= *(.*)$", text, re.MULTILINE):
        group = re.fullmatch(r"\$\(addprefix (\w+/),(.*)\)", listed)
        prefix, names = (group[1], group[2]) if group else ("", listed)
        built |= {prefix + Path(name).stem + ".c" for name in names.split()}
    assert built == {str(p.relative_to(SRC)) for p in SRC.rglob("*.c") if p.parent.name != "probes"}


def test_sections_of_a_header_name_the_files_of_their_functions() -> None:
    """A comment that names files begins a section, which has only functions of these files."""
    owners = {
        found[1]: Path(file).name
        for file, text in _sources().items()
        for found in _FUNCTION.finditer(text)
        if file.endswith(".c") and not found[0].startswith("static ")
    }
    wrong, declared = [], 0
    for header in SRC.rglob("*.h"):
        named: list[str] = []
        for found in _DECLARED.finditer(header.read_text()):
            if found["head"] is None:
                owner = owners.get(found["name"])
                declared += bool(owner and named)
                if owner and named and owner not in named:
                    wrong.append(f"{header.name}: {found['name']}() is in {owner}, not {named}")
            elif not found["head"].startswith("*"):  # not a kernel-doc comment
                named = re.findall(r"\b(\w+\.c)\b", found["head"]) or named
    assert not wrong
    assert declared > 200
