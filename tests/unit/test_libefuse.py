# SPDX-License-Identifier: LGPL-2.1-or-later
"""libefuse's makefile, and what ``efuse run`` reports about channels."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import efuse
from efuse import locations
from efuse.cli.main import cli
from efuse.supervisor import running


def test_the_library_has_the_package_version() -> None:
    makefile = (locations.data("libefuse") / "Makefile").read_text()
    assert re.findall(r"^VERSION := (.*)$", makefile, re.MULTILINE) == [efuse.__version__]


@pytest.mark.parametrize(("channels", "value"), [(True, "None"), (False, "0")])
def test_run_without_channels_sets_the_environment_variable(
    channels: bool, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EFUSE_CHANNELS", raising=False)
    monkeypatch.setattr(running, "preload_library", lambda: "")
    printed = tmp_path / "printed"
    words = f"import os; open({str(printed)!r}, 'w').write(str(os.environ.get('EFUSE_CHANNELS')))"
    with (
        pytest.raises(efuse.errors.MountError, match="mounted nothing"),
        running.started([sys.executable, "-c", words], channels=channels),
    ):
        pass
    assert printed.read_text() == value


def test_run_has_channels_unless_told_otherwise() -> None:
    text = CliRunner().invoke(cli, ["run", "--help"]).output
    assert "--channels / --no-channels" in text
    assert "[default: channels]" in re.sub(r"\s+", " ", text)
