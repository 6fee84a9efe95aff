# SPDX-License-Identifier: LGPL-2.1-or-later
"""The directories of csd/src call each other in one direction, and no files call in a circle."""

from __future__ import annotations

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from efuse import locations

_SOURCE = locations.data("csd") / "src"
_MAY_CALL = {
    "": {"run", "program", "device"},
    "run": {"program", "device"},
    "program": set(),
    "device": set(),
}
"""The directories that the files of each directory may call; "" is csd/src itself."""

_FOR_ALL = {"compat.h", "function.h", "policy.h"}
"""Headers of csd/src that every file may include: kernel differences, and the programs' manuals."""

_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_DEFINITION = re.compile(r"^(?!static|#|\s)[\w *]*?\b(\w+)\([^;{}]*\)\n\{", re.MULTILINE)
_VARIABLE = re.compile(r"^(?!static|extern|typedef|#|\s)[\w ]+[ *](\w+);$", re.MULTILINE)


def _room(file: Path) -> str:
    """Return the directory of a file in csd/src."""
    parent = file.relative_to(_SOURCE).parent
    return "" if parent == Path() else str(parent)


def _files() -> dict[Path, str]:
    """Return the text of each C file, without comments and strings."""
    return {
        file: _STRING.sub("", _COMMENT.sub("", file.read_text()))
        for file in sorted(_SOURCE.rglob("*.c"))
        if _room(file) != "probes"
    }


def _calls() -> dict[Path, dict[Path, set[str]]]:
    """Return, by file, the files that it calls, with the names of what it uses there."""
    files = _files()
    defined: dict[str, Path] = {}
    for file, text in files.items():
        for name in (*_DEFINITION.findall(text), *_VARIABLE.findall(text)):
            assert defined.setdefault(name, file) == file, name
    found: dict[Path, dict[Path, set[str]]] = {file: {} for file in files}
    for file, text in files.items():
        for name in set(re.findall(r"\w+", text)) & defined.keys():
            if defined[name] != file:
                found[file].setdefault(defined[name], set()).add(name)
    return found


def test_calls_are_found() -> None:
    used = {name for below in _calls().values() for names in below.values() for name in names}
    assert {"csd_run_make", "csd_command_run", "csd_output_add", "csd_function_btf"} <= used
    assert {_room(file) for file in _files()} == set(_MAY_CALL)


def test_no_file_calls_functions_of_a_higher_directory() -> None:
    up = [
        f"{file.relative_to(_SOURCE)} calls {', '.join(sorted(names))} of {other.name}"
        for file, below in _calls().items()
        for other, names in below.items()
        if _room(other) not in {_room(file), *_MAY_CALL[_room(file)]}
    ]
    assert up == []


def test_calls_between_files_have_no_cycle() -> None:
    try:
        TopologicalSorter({file: set(below) for file, below in _calls().items()}).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(str(file.relative_to(_SOURCE)) for file in error.args[1]))


def test_no_file_includes_headers_of_a_higher_directory() -> None:
    wrong = []
    for file in (*_files(), *_SOURCE.rglob("*.h")):
        for name in re.findall(r'^#include "(.+)"', file.read_text(), re.MULTILINE):
            beside = file.parent / name
            included = beside if beside.is_file() else _SOURCE / name
            allowed = {_room(file), *_MAY_CALL[_room(file)]}
            if included.name not in _FOR_ALL and _room(included) not in allowed:
                wrong.append(f"{file.relative_to(_SOURCE)} includes {name}")
    assert wrong == []


def test_every_directory_has_one_header() -> None:
    for room in _MAY_CALL:
        headers = [path.name for path in (_SOURCE / room).glob("*_i.h")]
        assert headers == [f"{room or 'csd'}_i.h"]
