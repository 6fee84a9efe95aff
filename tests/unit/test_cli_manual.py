# SPDX-License-Identifier: LGPL-2.1-or-later
"""The help of each command, and the manual pages that are generated from it."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest

from efuse.cli import _commands, _manual
from efuse.cli.main import cli
from efuse.cli.main import main as run

_ROOT = Path(__file__).resolve().parents[2]
_CONTEXTS = {context.command_path: context for context in _commands.walk(cli, "efuse")}
_PAGES = dict(_manual.pages())


@pytest.fixture(params=_CONTEXTS)
def context(request: pytest.FixtureRequest) -> click.Context:
    return _CONTEXTS[request.param]


def _options(context: click.Context) -> dict[str, click.Option]:
    found = [p for p in context.command.get_params(context) if isinstance(p, click.Option)]
    return {name: option for option in found for name in (*option.opts, *option.secondary_opts)}


def test_every_option_says_what_it_does(context: click.Context) -> None:
    for parameter in context.command.get_params(context):
        assert not isinstance(parameter, click.Option) or parameter.help, parameter.name


def test_every_help_has_an_example(context: click.Context) -> None:
    assert _commands.text(context.command).examples
    assert all(line in context.get_help() for line in _commands.text(context.command).examples)


def _called(line: str) -> click.Context:
    """Return the context of the command in *line*, and check that its options exist."""
    words = shlex.split(line, comments=True)
    assert words[0] == "efuse", line
    called = _CONTEXTS["efuse"]
    known = _options(called)
    left = iter(words[1:])
    for word in left:
        if word == "--":
            break
        if word.startswith("-"):
            name, equals, _value = word.partition("=")
            assert name in known, line
            has_value = not known[name].is_flag and not known[name].count
            # The value of --restart is optional, and given with "=".
            if has_value and not equals and name != "--restart":
                next(left)
        elif isinstance(called.command, click.Group):
            below = called.command.get_command(called, word)
            assert below is not None, line
            called = _commands.context_of(below, word, called)
            known |= _options(called)
    return called


def test_examples_are_of_commands_and_options_that_exist(context: click.Context) -> None:
    for line in _commands.text(context.command).examples:
        assert _called(line).command_path.startswith(context.command_path), line


@pytest.mark.parametrize("document", ["README.md", "docs/install.md", "docs/quick-start.md"])
def test_commands_of_a_document_exist(document: str) -> None:
    text = (_ROOT / document).read_text()
    lines = re.findall(r"^(?:# )?(?:time )?(?:\.venv/bin/)?(efuse .*)$", text, re.MULTILINE)
    assert lines
    for line in lines:
        _called(line)


def test_every_command_and_option_is_in_its_page(context: click.Context) -> None:
    page = _PAGES[context.command_path.replace(" ", "-") + ".1"].replace(r"\-", "-")
    assert f"\\fB{context.command_path}\\fR" in page
    for option in _options(context):
        assert re.search(rf"{re.escape(option)}(?![\w-])", page), option
    for name in getattr(context.command, "commands", {}):
        assert f"\\fB{name}\\fR" in page


def test_pages_are_written_where_they_are_wanted(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["man", str(tmp_path)])
    assert ended.value.code == 0
    written = {path.name: path.read_text() for path in tmp_path.glob("man[18]/*")}
    assert written.keys() == _PAGES.keys()
    assert {"efuse.1", "efuse-mount.1", "efuse-csd-run-count.1", "mount.efuse.8"} <= written.keys()


def test_day_of_the_pages_may_be_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert all('"1970-01-02"' in text for _, text in _manual.pages())


def test_roff_text_escapes_leading_dots_quotes_and_backslashes() -> None:
    assert _manual._roff(".so it's a \\f-test") == r"\&.so it\(aqs a \ef\-test"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("man")
    for name, text in _PAGES.items():
        (directory / name).write_text(text)
    return sorted(directory.iterdir())


def test_mandoc_has_no_complaint(written: list[Path]) -> None:
    command = ["mandoc", "-Tlint", "-Wwarning", *map(str, written)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_man_has_no_complaint(written: list[Path]) -> None:
    command = ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", *map(str, written)]
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "MAN_KEEP_STDERR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_directory_with_control_characters_is_printed_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(["man", str(tmp_path / "x\x1b[31m\ny")])
    output = capsys.readouterr().out
    assert output.endswith("x\\x1b[31m\\ny\n")
