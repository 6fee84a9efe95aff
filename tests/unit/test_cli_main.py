# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import subprocess
import sys
import types

import click
import pytest

import efuse
from efuse.cli import main
from efuse.errors import EfuseError, NotSupportedError


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from efuse.cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


def test_help_lists_every_noun() -> None:
    result = _run("--help")
    assert result.returncode == 0
    for noun in ("doctor", "guest", "module"):
        assert f"\n  {noun} " in result.stdout


def test_version_option_prints_the_version() -> None:
    assert _run("--version").stdout.strip() == f"efuse, version {efuse.__version__}"


def test_unknown_noun_is_a_usage_error() -> None:
    result = _run("nonsense")
    assert result.returncode == 2
    assert "No such command" in result.stderr


def test_main_as_a_noun_is_a_usage_error() -> None:
    assert _run("main").returncode == 2


def test_nouns_are_imported_when_asked_for() -> None:
    code = "import sys, efuse.cli.main; print([m for m in sys.modules if 'efuse' in m])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "efuse.cli.guest" not in result.stdout
    assert "efuse.guest" not in result.stdout


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (EfuseError("it failed: (EIO)", hint="again"), 1, "efuse: it failed: (EIO)\ntry: again\n"),
        (NotSupportedError("not here"), 3, "efuse: not here\n"),
        (KeyboardInterrupt(), 130, "efuse: interrupted\n"),
    ],
)
def test_errors_become_text_and_status(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    status: int,
    text: str,
) -> None:
    @click.command()
    def failing() -> None:
        raise error

    monkeypatch.setattr(main, "cli", failing)
    with pytest.raises(SystemExit) as caught:
        main.main([])
    assert caught.value.code == status
    assert capsys.readouterr().err.strip() == text.strip()


def test_status_of_a_command_is_the_exit_status(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    @click.pass_context
    def ending(context: click.Context) -> None:
        context.exit(5)

    monkeypatch.setattr(main, "cli", ending)
    with pytest.raises(SystemExit) as caught:
        main.main([])
    assert caught.value.code == 5


def test_package_exports_are_loaded_on_use() -> None:
    assert efuse.EfuseError is EfuseError
    assert isinstance(efuse, types.ModuleType)
    assert "EfuseError" in dir(efuse)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = efuse.nonsense
