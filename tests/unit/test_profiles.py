# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test the profiles of FUSE daemons, and which one applies to a command."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from efuse.cli._sizes import parse_size
from efuse.cli.main import cli
from efuse.errors import UsageError
from efuse.fs.options import Options
from efuse.profiles import Profile, all_profiles, matching, named

_GENERAL = Profile(name="a", reason="r", tried=("1",), programs=("arch",))
_READ_ONLY = Profile(name="b", reason="r", tried=("1",), programs=("arch",), mount_options=("ro",))
_FEW_OPTIONS = Profile(name="c", reason="r", tried=("1",), programs=("arch",), known_options=("a",))


@pytest.mark.parametrize("name", all_profiles())
def test_profile_says_only_what_a_mount_can_be_told(name: str) -> None:
    profile = named(name)
    options = Options(
        consistency=profile.consistency,
        revalidate=profile.revalidate,
        **dict.fromkeys(profile.promises, True),
    )
    assert all(getattr(options, promise) for promise in profile.promises)
    assert parse_size(profile.data_cache) >= 0
    assert profile.programs
    assert profile.tried
    assert profile.reason[0].islower()
    assert not profile.reason.endswith(".")


_NOTHING = "nothing changes"


@pytest.mark.parametrize("name", all_profiles())
def test_profile_says_why_a_mount_may_be_exclusive(name: str) -> None:
    """Otherwise a newcomer's mount is wrong for ever where plain FUSE is for a second."""
    profile = named(name)
    assert bool(profile.names) == bool(profile.nodeids) == (profile.consistency == "exclusive")
    if profile.consistency == "exclusive" and (profile.names, profile.nodeids) != (_NOTHING,) * 2:
        assert profile.known_options, "an option may make it wrong"


@pytest.mark.parametrize(
    "command",
    [
        "mount.exfat-fuse /dev/x /m",
        "archivemount a.tar /m",
        "archivemount -o nobackup a.tar /m",
        "lowntfs-3g -o ignore_case /dev/x /m",
        "lowntfs-3g /dev/x /m",
        "ntfs-3g -o ignore_case /dev/x /m",
        "ntfs-3g -o streams_interface=windows /dev/x /m",
        "ntfs-3g --options ro /dev/x /m",
        "ntfs-3g --options=ro /dev/x /m",
        "ntfs-3g -no ro /dev/x /m",
        "ntfs-3g -nro rw /dev/x /m",
        "ntfs-3g -nr /dev/x /m",
        "ntfs-3g -o rw,ro /dev/x /m",
        "ntfs-3g --unknown /dev/x /m",
        "ntfs-3g -z /dev/x /m",
        "fuse2fs -o norecovery image /m",
        "fuse2fs -oro image /m",
    ],
)
def test_timeouts_decide_where_a_change_may_come_by_another_name(command: str) -> None:
    found = matching(command.split())
    assert found is None or found.consistency == "ttl"


@pytest.mark.parametrize(
    "command",
    [
        "archivemount -o readonly a.tar /m",
        "archivemount -f -o nobackup,readonly a.tar /m",
        "ntfs-3g -o no_detach,uid=0 /dev/x /m",
        "ntfs-3g -nv --options allow_other -- /dev/x -odd",
        "fuse2fs -f image /m",
        "fuse-zip -r a.zip /m",
        "squashfuse -o offset=5 image /m",
        "borg mount --first 3 repo /m",
    ],
)
def test_mount_is_exclusive_where_it_is_known_to_be_true(command: str) -> None:
    found = matching(command.split())
    assert found is not None
    assert found.consistency == "exclusive"


@pytest.mark.parametrize(
    ("profile", "command", "applies"),
    [
        (_GENERAL, ["arch", "x", "/mnt"], True),
        (_GENERAL, ["/usr/bin/arch"], True),
        (_GENERAL, ["archive"], False),
        (_GENERAL, ["python3", "/usr/bin/arch", "x"], True),
        (_GENERAL, ["/usr/bin/python3.11", "-m", "arch"], True),
        (_GENERAL, ["python3", "-W", "ignore", "-X", "dev", "/usr/bin/arch"], True),
        (_GENERAL, ["python3", "-m"], False),
        (_GENERAL, ["python3", "-c", "arch"], False),
        (_READ_ONLY, ["arch", "x", "/mnt"], False),
        (_READ_ONLY, ["arch", "-o", "allow_other,ro", "x", "/mnt"], True),
        (_READ_ONLY, ["arch", "-oro", "x", "/mnt"], True),
        (_READ_ONLY, ["arch", "-r", "x", "/mnt"], True),
        (_READ_ONLY, ["arch", "-nro", "rw", "x", "/mnt"], True),
        (_READ_ONLY, ["arch", "-no", "ro", "x", "/mnt"], True),
        (_READ_ONLY, ["arch", "--options", "ro", "x", "/mnt"], True),
        (_READ_ONLY, ["arch", "--options=rw,ro", "x", "/mnt"], True),
        (_READ_ONLY, ["arch", "--", "-r", "/mnt"], False),
        (_FEW_OPTIONS, ["arch", "x", "/mnt"], True),
        (_FEW_OPTIONS, ["arch", "-f", "-o", "allow_other,a=5", "x", "/mnt"], True),
        (_FEW_OPTIONS, ["arch", "-o", "other", "x", "/mnt"], False),
        (_FEW_OPTIONS, ["arch", "--other", "x", "/mnt"], False),
        (_READ_ONLY, ["arch", "x", "ro", "-o"], False),
    ],
)
def test_profile_applies_to_its_programs_and_options(
    profile: Profile, command: list[str], applies: bool
) -> None:
    assert profile.applies(command) == applies


def test_profile_with_more_options_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("efuse.profiles.all_profiles", lambda: {"b": _READ_ONLY, "a": _GENERAL})
    assert matching(["arch", "-o", "ro"]) is _READ_ONLY
    assert matching(["arch"]) is _GENERAL
    assert matching(["other"]) is None


def test_squashfuse_that_unmounts_when_no_file_is_open_hears_of_each_open() -> None:
    found = matching(["squashfuse_ll", "-o", "timeout=3", "image", "/mnt"])
    assert found is None or "lazy_open" not in found.promises


def test_unknown_profile_is_an_error() -> None:
    with pytest.raises(UsageError, match="there is no profile 'x'"):
        named("x")


def test_list_and_show_name_each_profile() -> None:
    printed = CliRunner().invoke(cli, ["profiles", "list"], catch_exceptions=False).output
    listed = json.loads(CliRunner().invoke(cli, ["profiles", "list", "--json"]).output)
    assert [each["name"] for each in listed] == list(all_profiles())
    for name, profile in all_profiles().items():
        assert profile.reason in printed
        shown = CliRunner().invoke(cli, ["profiles", "show", name], catch_exceptions=False).output
        assert profile.reason in shown
        one = CliRunner().invoke(cli, ["profiles", "show", name, "--json"]).output
        assert json.loads(one) in listed
