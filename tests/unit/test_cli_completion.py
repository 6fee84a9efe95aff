# SPDX-License-Identifier: LGPL-2.1-or-later
"""Completion, as the scripts of click request it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import CompletionItem, ShellComplete

from efuse.cli.main import cli
from efuse.cli.main import main as run

_SHELLS = ("bash", "fish", "zsh")
_HERE = [shell for shell in _SHELLS if shutil.which(shell)]


def _items(*words: str) -> list[CompletionItem]:
    completer = ShellComplete(cli, {}, "efuse", "_EFUSE_COMPLETE")
    return completer.get_completions(list(words[:-1]), words[-1])


def _script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        run(["completion", shell])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", _SHELLS)
def test_script_sets_the_variable_for_its_shell(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"_EFUSE_COMPLETE={shell}_complete" in _script(shell, capsys)


@pytest.mark.parametrize("shell", _HERE)
def test_script_is_its_shells_language(
    shell: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_text(_script(shell, capsys))
    done = subprocess.run([shell, "-n", str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_unknown_shell_fails(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(["completion", "csh"])
    assert ended.value.code == 2
    assert "'csh' is not one of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("shell", "words", "current"),
    [
        ("bash", "efuse module ins", "2"),
        ("zsh", "efuse module ins", "2"),
        # fish's script passes the incomplete word itself.
        ("fish", "efuse module ", "ins"),
    ],
)
def test_command_answers_each_shell(shell: str, words: str, current: str) -> None:
    asked = {"COMP_WORDS": words, "COMP_CWORD": current, "_EFUSE_COMPLETE": f"{shell}_complete"}
    output = subprocess.check_output(
        [sys.executable, "-c", "from efuse.cli.main import main; main()"],
        text=True,
        env={**os.environ, **asked},
    )
    assert re.fullmatch(r"plain[,\n]install\s(.*\n)?", output)


def test_bash_script_completes_an_option(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = tmp_path / "efuse"
    command.write_text(f"#!{sys.executable}\nfrom efuse.cli.main import main\nmain()\n")
    command.chmod(0o755)
    typed = f"COMP_WORDS=({command} mount passthrough --consi) COMP_CWORD=3"
    asked = (
        f'{_script("bash", capsys)}\n{typed}\n_efuse_completion {command}\necho "${{COMPREPLY[@]}}"'
    )
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    output = subprocess.check_output(["bash", "-c", asked], text=True, env=environment)
    assert output == "--consistency\n"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("mo",), ["module", "mount"]),
        (("completion", ""), list(_SHELLS)),
        (("mount", "p"), ["passthrough"]),
        (("mount", "x", "--consistency", "e"), ["exclusive"]),
        (("mount", "x", "-o", "ro,no_"), ["ro,no_channels", "ro,no_default_permissions"]),
        (("mount", "x", "-o", "max_r"), ["max_readdir=", "max_request="]),
        (("csd", "create", "x", "--profile", "fast"), ["fast-cores"]),
        (("ctl", "get", "/mnt", "exit"), ["exit_info"]),
        (("stat", "--int"), ["--interval"]),
        (("maps", "dump", "/mnt", "a"), ["attrs"]),
    ],
)
def test_words_are_completed(words: tuple[str, ...], found: list[str]) -> None:
    assert [item.value for item in _items(*words)] == found


def test_mountpoint_completes_directories() -> None:
    assert [(item.type, item.value) for item in _items("mount", "passthrough", "/s")] == [
        ("dir", "/s")
    ]
