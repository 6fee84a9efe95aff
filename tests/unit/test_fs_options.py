# SPDX-License-Identifier: LGPL-2.1-or-later
"""The promises of a file system, and its mount options."""

from __future__ import annotations

from typing import Any

import click
import pytest

from efuse.cli.run import cli as run
from efuse.control import CONSISTENCY
from efuse.errors import UsageError
from efuse.fs.mountpoint import (
    MountOptions,
    for_plain_fuse,
    needs_libfuse,
    with_stack_depth,
)
from efuse.fs.options import CAPACITY_MAPS, Options


def test_options_promise_nothing_by_default() -> None:
    options = Options()
    assert options.consistency == "ttl"
    assert not any(getattr(options, name) for name in Options.declarations())
    assert Options.declarations() == (
        "stable_nodeids",
        "nodeid_per_file",
        "caller_independent",
        "no_open",
        "no_flush",
        "lazy_atime",
        "lazy_open",
    )


@pytest.mark.parametrize("consistency", CONSISTENCY)
def test_options_take_every_consistency(consistency: str) -> None:
    assert Options(consistency=consistency).consistency == consistency


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ({"consistency": "eventual"}, "consistency cannot be 'eventual'"),
        ({"no_open": 1}, "no_open cannot be 1"),
        ({"capacity": {"names": 5}}, "no map 'names' whose capacity"),
        ({"capacity": {"entries": 0}}, "capacity of entries cannot be 0"),
        ({"capacity": {"entries": True}}, "capacity of entries cannot be True"),
        ({"capacity": {"entries": 1 << 40}}, "capacity of entries"),
        ({"capacity": {"blocks": -1}}, "capacity of blocks cannot be -1"),
        ({"max_request": 1}, "max_request cannot be 1"),
        ({"max_request": -4096}, "max_request cannot be -4096"),
        ({"max_request": 16 << 20}, "max_request cannot be 16777216"),
        ({"max_request": "8M"}, "max_request cannot be '8M'"),
        ({"max_request": True}, "max_request cannot be True"),
        ({"max_readdir": 0}, "max_readdir cannot be 0"),
        ({"max_readdir": 256 << 10}, "max_readdir cannot be 262144"),
    ],
)
def test_invalid_options_fail(arguments: dict[str, Any], output: str) -> None:
    with pytest.raises(UsageError, match=output) as caught:
        Options(**arguments)
    assert caught.value.hint


@pytest.mark.parametrize("size", [0, 4096, 1 << 20, 8 << 20])
def test_options_take_request_sizes(size: int) -> None:
    assert Options(max_request=size).max_request == size
    assert Options(max_readdir=min(size, 128 << 10) or 4096).max_readdir <= 128 << 10


def test_options_keep_a_copy_of_the_capacity() -> None:
    capacity = dict.fromkeys(CAPACITY_MAPS, 10)
    options = Options(capacity=capacity)
    capacity.clear()
    assert options.capacity == dict.fromkeys(CAPACITY_MAPS, 10)
    with pytest.raises(TypeError):
        options.capacity["entries"] = 1  # type: ignore[index]


def test_mount_options_are_divided_between_kernel_and_libfuse() -> None:
    parsed = MountOptions.parse(
        [
            "ro",
            "nosuid",
            "allow_other",
            "default_permissions",
            "max_read=4096",
            "fsname=x,y",
            "subtype=p",
            "debug",
        ]
    )
    assert parsed.flags == 1 | 2 | 4
    assert parsed.kernel == ("allow_other", "default_permissions", "max_read=4096")
    assert parsed.library == ("default_permissions", "max_read=4096", "debug")
    assert (parsed.source, parsed.subtype) == ("x,y", "p")


def test_later_mount_option_undoes_an_earlier_one() -> None:
    assert MountOptions.parse(["ro", "noexec", "rw"]).flags == 2 + 4 + 8
    assert MountOptions.parse([]).flags == 2 + 4
    assert MountOptions.parse(["suid", "lazytime", "nolazytime", "dev"]).flags == 0


def test_options_of_access_times_are_kept_from_libfuse() -> None:
    assert for_plain_fuse(["ro", "relatime", "lazytime", "subtype=x"]) == {"ro", "subtype=x"}


def test_given_stack_depth_overrides_the_default() -> None:
    assert with_stack_depth(["ro"], 1) == ["ro"]
    assert with_stack_depth(["ro"], 2) == ["ro", "stack_depth=2"]
    assert with_stack_depth(["stack_depth=1"], 2) == ["stack_depth=1"]


def test_plain_fuse_is_told_of_no_stack_depth() -> None:
    parsed = MountOptions.parse(for_plain_fuse(["ro", "stack_depth=2", "allow_other"]))
    assert parsed.kernel == ("allow_other",)


@pytest.mark.parametrize(
    ("option", "needed"),
    [
        ("auto_unmount", True),
        ("context=x", True),
        ("allow_other", False),
        ("fsname=context", False),
    ],
)
def test_options_that_libfuse_mounts_with_need_it(option: str, needed: bool) -> None:
    assert needs_libfuse(["ro", option]) == needed


def test_efuse_run_takes_every_promise() -> None:
    (option,) = (each for each in run.params if each.name == "promises")
    assert isinstance(option.type, click.Choice)
    assert sorted(option.type.choices) == sorted(Options.declarations())
