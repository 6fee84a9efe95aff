# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a person types for ``efuse mount``, and what it means."""

from __future__ import annotations

from pathlib import Path

import pytest

from efuse.cli._filesystem import Request, split_options
from efuse.errors import UsageError
from efuse.fs import Passthrough
from efuse.fs.preload import preload_library


def test_options_are_split_at_commas() -> None:
    assert split_options(["a,b=c", "d", ",,e"]) == ["a", "b=c", "d", "e"]


def test_options_of_fstab_are_dropped_and_efuse_s_own_are_taken() -> None:
    request = Request("passthrough")
    request.take(split_options(["rw,noauto,nofail,x-a=b,plain,consistency=cto,arg=source=/x,ro"]))
    assert request.options == {"default_permissions", "rw", "ro"}
    assert (request.plain, request.require, request.consistency) == (True, False, "cto")
    assert request.arguments == {"source": "/x"}


def test_permissions_may_be_left_to_the_daemon() -> None:
    request = Request("passthrough")
    request.take(["no_default_permissions"])
    assert request.options == set()


@pytest.mark.parametrize(
    ("text", "value"),
    [("a=1", 1), ("a=0.5", 0.5), ("a=None", None), ("a=x y", "x y"), ("a=", ""), ("a=b=c", "b=c")],
)
def test_argument_is_a_python_value_or_text(text: str, value: object) -> None:
    request = Request("x")
    request.add_argument(text)
    assert request.arguments == {"a": value}


@pytest.mark.parametrize("text", ["a", "=1", "1a=2"])
def test_argument_without_a_name_fails(text: str) -> None:
    with pytest.raises(UsageError, match="an argument cannot be"):
        Request("x").add_argument(text)


def test_consistency_reaches_the_file_system(tmp_path: Path) -> None:
    request = Request("passthrough", {"source": str(tmp_path)}, "exclusive")
    made = request.operations()()
    assert isinstance(made, Passthrough)
    assert made.efuse_options.consistency == "exclusive"
    assert made.efuse_options.handleless
    made.close()


def test_argument_that_the_class_does_not_take_fails(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be made") as caught:
        Request("passthrough", {"source": str(tmp_path), "colour": "red"}).operations()
    assert caught.value.hint is not None
    assert "entry_timeout" in caught.value.hint


def test_shim_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library = preload_library()
    built = library.stat().st_mtime_ns
    assert library.is_relative_to(tmp_path)
    assert preload_library() == library
    assert library.stat().st_mtime_ns == built
    assert sorted(p.name for p in library.parent.iterdir()) == [library.name]
