# SPDX-License-Identifier: LGPL-2.1-or-later
"""The arguments that a person types for ``efuse mount``, and what they mean."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from efuse.cli._filesystem import Request, data_cache_capacity, split_options
from efuse.cli._sizes import parse_size
from efuse.cli.main import cli
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


@pytest.mark.parametrize(
    "option",
    ["defaults", "_netdev", "users", "user=me", "comment=x", "x-systemd.device-timeout=5"],
)
def test_option_for_mount_alone_is_dropped(option: str) -> None:
    request = Request("passthrough")
    request.take([option])
    assert request.options == {"default_permissions"}


@pytest.mark.parametrize(
    ("option", "output"),
    [
        ("bogus", "bogus cannot be used: there is no such mount option"),
        ("bogus=1", "bogus cannot be used: there is no such mount option"),
        ("ro=1", "ro=1 cannot be used: ro has no value"),
        ("subtype", "subtype cannot be used: it takes a value"),
        ("max_read=4096", "max_read cannot be used"),
    ],
)
def test_unknown_mount_option_fails_unless_sloppy(option: str, output: str) -> None:
    request = Request("passthrough")
    with pytest.raises(UsageError, match=output):
        request.take([option])
    request.take([option, "ro"], is_sloppy=True)
    assert request.options == {"default_permissions", "ro"}


def test_channels_are_wanted_unless_an_option_says_otherwise() -> None:
    request = Request("passthrough")
    assert request.channels
    request.take(["no_channels", "ro"])
    assert not request.channels
    assert request.options == {"default_permissions", "ro"}


def test_recovery_is_a_number_of_seconds() -> None:
    request = Request("passthrough")
    request.take(["recovery=90", "ro"])
    assert request.recovery == 90
    assert request.options == {"default_permissions", "ro"}
    for value in ("", "1m", "-1", "1.5"):
        with pytest.raises(UsageError, match="recovery cannot be"):
            request.take([f"recovery={value}"])


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
    with pytest.raises(UsageError, match="is not an argument"):
        Request("x").add_argument(text)


def test_consistency_reaches_the_file_system(tmp_path: Path) -> None:
    request = Request("passthrough", {"source": str(tmp_path)}, "exclusive")
    made = request.operations()()
    assert isinstance(made, Passthrough)
    assert made.efuse_options.consistency == "exclusive"
    assert made.efuse_options.no_open
    made.close()


def test_sizes_reach_the_file_system(tmp_path: Path) -> None:
    request = Request("passthrough", {"source": str(tmp_path)}, "exclusive")
    request.take(split_options(["data_cache=64M,max_request=8M", "max_readdir=128k"]))
    assert request.options == {"default_permissions"}
    made = request.operations()()
    assert isinstance(made, Passthrough)
    options = made.efuse_options
    assert options.capacity == {"blocks": 16384}
    assert (options.max_request, options.max_readdir) == (8 << 20, 128 << 10)
    assert (options.consistency, options.no_open) == ("exclusive", True)
    made.close()


def test_file_system_without_sizes_keeps_its_own(tmp_path: Path) -> None:
    made = Request("passthrough", {"source": str(tmp_path)}).operations()()
    assert isinstance(made, Passthrough)
    assert made.efuse_options.capacity == {}
    assert (made.efuse_options.max_request, made.efuse_options.max_readdir) == (0, 32 << 10)
    made.close()


@pytest.mark.parametrize(
    ("option", "output"),
    [
        ("max_request=much", "max_request cannot be used: 'much' is not a size"),
        ("max_request=16M", "max_request cannot be 16777216"),
        ("max_request=5000", "max_request cannot be 5000"),
        ("max_readdir=0", "max_readdir cannot be 0"),
        ("data_cache=-1", "'-1' is not a size"),
        ("data_cache=1000000G", "capacity of blocks"),
        ("consistency=eventual", "consistency cannot be 'eventual'"),
    ],
)
def test_invalid_sizes_fail_before_the_mount(tmp_path: Path, option: str, output: str) -> None:
    request = Request("passthrough", {"source": str(tmp_path)})
    with pytest.raises(UsageError, match=output) as caught:
        request.take([option])
        request.operations()
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("64K", 1 << 16),
        ("64kb", 1 << 16),
        ("8MiB", 8 << 20),
        ("2G", 2 << 30),
    ],
)
def test_size_is_a_number_with_a_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "K", "1.5M", "8 M", "1T", "-1", "8Mi8"])
def test_malformed_size_fails(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


def test_data_cache_has_whole_blocks() -> None:
    assert data_cache_capacity(0) == {"blocks": 0}
    assert data_cache_capacity(4097) == {"blocks": 2}


@pytest.mark.parametrize("command", ["mount", "run"])
def test_sizes_are_in_the_help_and_complete(command: str) -> None:
    found = cli.get_command(click.Context(cli), command)
    assert found is not None
    context = click.Context(found)
    parameters = {p.name: p for p in found.params}
    for name in ("data_cache", "max_request", "max_readdir"):
        assert f"--{name.replace('_', '-')} SIZE" in found.get_help(context)
        assert [i.value for i in parameters[name].shell_complete(context, "6")] == ["64M"]


def test_argument_that_the_class_does_not_take_fails(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be created") as caught:
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
