# SPDX-License-Identifier: LGPL-2.1-or-later
"""Names that other users chose, as commands print them."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from efuse.cli import _output
from efuse.cli._mount_helper import main as mount_efuse
from efuse.cli.main import cli, main
from efuse.display import json_text, shown, shown_lines
from tests.nasty_names import NASTY, is_safe
from tests.unit.fake_sysfs import FakeSysfs


def names() -> Iterator[str]:
    """Yield random names of bytes that are special to a terminal or in UTF-8."""
    chance = random.Random(25)
    pieces = [bytes([n]) for n in range(1, 256)] + [c.encode() for c in "\u202e\u2028\x9bäñ€𝄞"]
    for _ in range(500):
        yield os.fsdecode(b"".join(chance.choices(pieces, k=chance.randrange(12))))


def test_shown_name_escapes_control_characters() -> None:
    for name in names():
        assert shown(name).isprintable()
        assert is_safe(shown_lines(name))
        assert shown(shown(name)) == shown(name)
        assert shown(name) == name or not name.isprintable()


def test_json_is_utf8_and_gives_the_name_back() -> None:
    for name in names():
        text = json_text({name: [name]})
        assert is_safe(text)
        assert json.loads(text.encode()) == {name: [name]}


def test_byte_that_is_no_utf8_is_shown_as_in_python() -> None:
    assert shown(os.fsdecode(b"a\xff\x1b\n")) == r"a\xff\x1b\n"
    assert json_text(os.fsdecode(b"a\xff")) == r'"a\udcff"'


@pytest.mark.parametrize("name", NASTY)
@pytest.mark.parametrize("words", [["stat"], ["stat", "7"], ["ctl", "list", "7"]])
@pytest.mark.parametrize("as_json", [False, True])
def test_command_prints_the_name_of_a_mount_escaped(
    name: bytes,
    words: list[str],
    as_json: bool,
    memory_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = b"/tmp/" + name
    written = name.replace(b"\n", b"\\012")  # the kernel's escape
    sysfs = FakeSysfs(memory_path)
    sysfs.add(7)
    sysfs.mountinfo.write_bytes(
        b"107 1 0:7 / %s rw - efuse.x source rw\n109 1 0:9 / %s rw - fuse.x source rw\n"
        % (written, written)
    )
    (sysfs.fusectl / "9").mkdir(parents=True)
    (sysfs.fusectl / "9/waiting").write_text("0\n")
    sysfs.everywhere(monkeypatch)
    done = CliRunner().invoke(cli, [*words, *(["--json"] if as_json else [])])
    assert done.exit_code == 0, done.output
    assert is_safe(done.stdout_bytes.decode())
    if as_json and words[0] == "stat":
        found = json.loads(done.stdout_bytes)
        assert os.fsencode(found["mounts"][0]["mountpoint"]) == name


@pytest.mark.parametrize("name", NASTY)
def test_error_prints_a_name_escaped(name: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["stat", f"/nowhere/{os.fsdecode(name)}"])
    assert is_safe(capfd.readouterr().err)


@pytest.mark.parametrize("words", [["-X"], ["-o", "max_request=", "s/"], ["-t", "x", "s/"]])
@pytest.mark.parametrize("name", NASTY)
def test_error_of_mount_efuse_prints_an_argument_escaped(
    name: bytes, words: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    """Its arguments may come from a name that another user chose."""
    *first, last = words
    with pytest.raises(SystemExit) as caught:
        mount_efuse([*first, last + os.fsdecode(name)])
    assert caught.value.code != 0
    printed = capfd.readouterr().err
    assert printed
    assert is_safe(printed)


@pytest.mark.parametrize("name", NASTY)
def test_table_prints_a_name_escaped(name: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    _output.print_table(("NAME",), [(os.fsdecode(name),)])
    printed = capfd.readouterr().out
    assert is_safe(printed)
    assert len(printed.splitlines()) == 2
