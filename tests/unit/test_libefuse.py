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
from efuse.supervisor import daemon_environment, running


def test_the_library_has_the_package_version() -> None:
    makefile = (locations.data("libefuse") / "Makefile").read_text()
    assert re.findall(r"^VERSION := (.*)$", makefile, re.MULTILINE) == [efuse.__version__]


@pytest.mark.parametrize(("channels", "value"), [(True, "None"), (False, "0")])
def test_run_without_channels_sets_the_environment_variable(
    channels: bool, value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EFUSE_CHANNELS", raising=False)
    monkeypatch.setattr(daemon_environment, "preload_library", lambda: "")
    printed = tmp_path / "printed"
    words = f"import os; open({str(printed)!r}, 'w').write(str(os.environ.get('EFUSE_CHANNELS')))"
    with (
        pytest.raises(efuse.errors.MountError, match="mounted nothing"),
        running.started([sys.executable, "-c", words], channels=channels),
    ):
        pass
    assert printed.read_text() == value


@pytest.mark.parametrize(
    ("switch", "own", "value"),
    [("Y\n", None, "1"), ("N\n", None, None), (None, None, None), ("Y\n", "0", "0")],
    ids=["on", "off", "older kernel", "the user's own value"],
)
def test_libfuse_is_told_to_use_io_uring_where_the_module_has_it(
    switch: str | None,
    own: str | None,
    value: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "enable_uring"
    if switch is not None:
        file.write_text(switch)
    monkeypatch.setattr(daemon_environment, "_SWITCH", file)
    monkeypatch.delenv("FUSE_URING_ENABLE", raising=False)
    if own is not None:
        monkeypatch.setenv("FUSE_URING_ENABLE", own)
    for channels in (False, True):
        monkeypatch.setattr(daemon_environment, "preload_library", lambda: "shim")
        assert daemon_environment.environment(channels=channels).get("FUSE_URING_ENABLE") == value


def test_run_has_channels_unless_told_otherwise() -> None:
    text = CliRunner().invoke(cli, ["run", "--help"]).output
    assert "--channels / --no-channels" in text
    assert "[default: channels]" in re.sub(r"\s+", " ", text)
