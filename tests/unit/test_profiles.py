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


@pytest.mark.parametrize(
    ("profile", "command", "applies"),
    [
        (_GENERAL, ["arch", "x", "/mnt"], True),
        (_GENERAL, ["/usr/bin/arch"], True),
        (_GENERAL, ["archive"], False),
        (_GENERAL, ["python3", "/usr/bin/arch", "x"], True),
        (_GENERAL, ["/usr/bin/python3.11", "-m", "arch"], True),
        (_GENERAL, ["python3", "-m"], False),
        (_GENERAL, ["python3", "-c", "arch"], False),
        (_READ_ONLY, ["arch", "x", "/mnt"], False),
        (_READ_ONLY, ["arch", "-o", "allow_other,ro", "x", "/mnt"], True),
        (_READ_ONLY, ["arch", "-oro", "x", "/mnt"], True),
        (_READ_ONLY, ["arch", "-r", "x", "/mnt"], True),
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
