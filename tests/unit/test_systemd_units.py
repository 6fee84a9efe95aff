# SPDX-License-Identifier: LGPL-2.1-or-later
"""The example units: systemd's opinion of them, and the effect of their commands."""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

import pytest

from efuse.cli._filesystem import Request, split_options
from efuse.cli.mount import cli
from efuse.cli.service import cli as service

_UNITS = Path(__file__).resolve().parents[2] / "docs/examples/systemd"
_INSTALLED = "/usr/local/bin/efuse"


def _read(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((_UNITS / name).read_text())
    return parser


@pytest.mark.parametrize("name", ["efuse.service", "efuse-mount@.service", "mnt-data.mount"])
def test_unit_has_a_description_and_is_started_at_boot(name: str) -> None:
    unit = _read(name)
    assert unit["Unit"]["Description"]
    assert unit["Install"]["WantedBy"] == "multi-user.target"


@pytest.mark.parametrize(
    "name", ["efuse.service", "efuse-mount@mnt-data.service", "mnt-data.mount"]
)
def test_systemd_analyze_verifies_the_units(name: str, tmp_path: Path) -> None:
    template = _UNITS / name.replace("@mnt-data", "@")
    # The units name another place of installation.
    text = template.read_text().replace(_INSTALLED, sys.executable)
    (tmp_path / name).write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / name)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_command_of_the_service_is_a_valid_mount_command() -> None:
    service = _read("efuse-mount@.service")["Service"]
    text = (_UNITS / "efuse-mount@.service").read_text()
    values = dict(
        line[4:].split("=", 1)
        for line in text.splitlines()
        if line.startswith("#   ") and "=" in line
    )
    command = service["ExecStart"].replace("%f", "/mnt/data")
    for name, value in values.items():
        command = command.replace(f"${name}", value)
    program, noun, *words = command.split()
    assert (program, noun) == (_INSTALLED, "mount")
    given = cli.make_context("mount", words).params
    assert (given["what"], given["places"]) == ("passthrough", ("/srv/data", "/mnt/data"))
    assert given["consistency"] == "exclusive"


def test_commands_of_the_service_for_all_mounts_exist() -> None:
    unit = _read("efuse.service")["Service"]
    assert unit["ExecStart"] == f"{_INSTALLED} service"
    program, noun, word = unit["ExecReload"].split()
    assert (program, noun, word in service.commands) == (_INSTALLED, "service", True)
    assert unit["KillMode"] == "process", "systemd would end the daemons"


def test_options_of_the_mount_unit_are_known() -> None:
    mount = _read("mnt-data.mount")["Mount"]
    assert mount["Type"] == "efuse"
    Request("passthrough").take(split_options([mount["Options"]]))
