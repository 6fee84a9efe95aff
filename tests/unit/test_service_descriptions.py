# SPDX-License-Identifier: LGPL-2.1-or-later
"""The descriptions of `efuse service`: what they mean, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from efuse.cli._filesystem import Request
from efuse.cli.mount import cli as mount
from efuse.cli.run import cli as run
from efuse.cli.takeover import cli as takeover
from efuse.errors import EfuseError, UsageError
from efuse.service.commands import mounting, taking_over
from efuse.service.description import Description
from efuse.service.parsing import described, parsed, read

COMMAND = """\
mountpoint = "/mnt/a/"
command = ["mydaemon", "-f", "/mnt/a"]
profile = "none"
promises = ["stable_nodeids", "no_flush"]
consistency = "exclusive"
data_cache = "64M"
channels = false
recovery = 30
restart = "on-failure"
"""
TYPE = """\
mountpoint = "/mnt/b"
type = "passthrough"
source = "/srv/b"
options = ["allow_other", "ro"]
require = true
"""
CLASS = """\
mountpoint = "/mnt/c"
type = "mypackage.myfs:MyFs"
arguments = { size = 10, name = "x y" }
restart = "never"
"""


def parse(text: str, name: str = "name") -> Description:
    return parsed(Path(f"/etc/efuse/mounts.d/{name}.toml"), text)


def params(command: click.Command, name: str, words: list[str]) -> dict[str, object]:
    """Return what the command line in *words* means to a command of `efuse`."""
    begin = words.index("efuse.cli.main") + 2
    assert words[begin - 1] == name
    return command.make_context(name, words[begin:]).params


def test_command_is_run_with_what_is_declared() -> None:
    given = parse(COMMAND)
    assert (given.name, given.mountpoint, given.what) == ("name", "/mnt/a", "mydaemon")
    for found in (
        params(run, "run", mounting(given)),
        params(takeover, "takeover", taking_over(given, 33, 1033, force=True)),
    ):
        assert found["command"] == ("mydaemon", "-f", "/mnt/a")
        assert found["promises"] == ("stable_nodeids", "no_flush")
        assert (found["restart"], found["within_s"]) == ("on-failure", 30)
        assert (found["profile"], found["consistency"]) == ("none", "exclusive")
        assert (found["data_cache"], found["channels"]) == (64 << 20, False)
    assert (found["mount"], found["number"], found["force"]) == ("33", 1033, True)


def test_mountpoint_has_no_superfluous_slashes() -> None:
    assert parse(COMMAND.replace('"/mnt/a/"', '"//mnt//a/"')).mountpoint == "/mnt/a"


def test_daemon_that_is_never_restarted_has_no_restart() -> None:
    given = parse(COMMAND.replace("on-failure", "never"))
    assert params(run, "run", mounting(given))["restart"] is None


def test_type_is_mounted_with_its_options() -> None:
    found = params(mount, "mount", mounting(parse(TYPE)))
    assert (found["what"], found["places"]) == ("passthrough", ("/srv/b", "/mnt/b"))
    assert found["options"] == ("allow_other,ro,recovery=60",)
    assert found["require"] is True
    assert found["foreground"] is True, "the process that is started is the daemon"
    never = parse(TYPE + 'restart = "never"\n')
    assert params(mount, "mount", mounting(never))["options"] == ("allow_other,ro,recovery=0",)
    # A mount that waits is only taken over with recovery.
    found = params(mount, "mount", mounting(never, succeeds=True))
    assert found["options"] == ("allow_other,ro,recovery=60",)
    found = params(mount, "mount", mounting(parse(CLASS)))
    assert (found["what"], found["places"]) == ("mypackage.myfs:MyFs", ("/mnt/c",))
    assert found["arguments"] == ("size=10", "name='x y'")
    assert found["options"] == ("recovery=0",)


def test_digest_differs_when_a_value_differs_and_identity_when_the_mount_does() -> None:
    before, after = parse(COMMAND), parse(COMMAND.replace("64M", "128M"))
    assert before.digest != after.digest
    assert before.identity == after.identity
    assert before.digest == parse("# a comment\n" + COMMAND).digest
    assert parse(TYPE).identity != parse(TYPE.replace("/srv/b", "/srv/c")).identity
    assert parse(TYPE).identity != parse(TYPE.replace("/mnt/b", "/mnt/c")).identity
    assert parse(TYPE).identity == parse(TYPE + 'consistency = "cto"\n').identity


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('mountpoint = "/mnt\n', "is not valid TOML: Illegal character '\\n' (at line 1"),
        (COMMAND + "recovry = 3\n", "line 10: recovry cannot be used: there is no such key"),
        (COMMAND.replace("30", "0"), "line 8: recovery cannot be used: 0 is not a number of sec"),
        (COMMAND.replace("30", "true"), "line 8: recovery cannot be used: True is not a number"),
        (COMMAND.replace("64M", "64X"), "line 6: data_cache cannot be used: '64X' is not a size"),
        (COMMAND.replace("no_flush", "no"), "line 4: promises cannot be used: "),
        (COMMAND.replace('"none"', '"nothing"'), "line 3: profile cannot be used: 'nothing' is"),
        (COMMAND.replace('"none"', '["none"]'), "line 3: profile cannot be used: ['none'] is not"),
        (COMMAND.replace("30", "3" * 5000), "is not valid TOML: "),
        (COMMAND + "a = " + "[" * 5000 + "]" * 5000, "is not valid TOML: "),
        (COMMAND.replace("exclusive", "x"), "line 5: consistency cannot be used: 'x' is not one"),
        (COMMAND.replace("on-failure", "x"), "line 9: restart cannot be used: 'x' is not one of"),
        (COMMAND.replace("/mnt/a/", "mnt"), "line 1: mountpoint cannot be used: 'mnt' is not an"),
        (COMMAND.replace("false", "0"), "line 7: channels cannot be used: 0 is not true or false"),
        (COMMAND.replace("mountpoint", "# m"), "name.toml cannot be used: mountpoint is missing"),
        (COMMAND + 'source = "/a"\n', "line 10: source cannot be used: it belongs to type"),
        (COMMAND + 'type = "passthrough"\n', "it needs either command or type"),
        ('mountpoint = "/mnt"\n', "it needs either command or type"),
        (TYPE.replace("source", "# s"), "name.toml cannot be used: source is missing"),
        (TYPE + 'profile = "none"\n', "line 6: profile cannot be used: it belongs to command"),
        (TYPE.replace('"ro"', '"recovery=3"'), "line 4: options cannot be used: "),
        (TYPE.replace("\n", "\r"), "is not valid TOML: "),
        (CLASS.replace("10", "1979-05-27"), "line 3: arguments cannot be used: "),
        (CLASS.replace("10", "inf"), "line 3: arguments cannot be used: "),
        (CLASS.replace("10", "[nan]"), "line 3: arguments cannot be used: "),
        ("# \x85 \u2028\n" + COMMAND.replace("30", "0"), "line 9: recovery cannot be used"),
        (
            'mountpoint = """/mnt\nrecovery = 7"""\ncommand = ["x"]\nrecovery = 0\n',
            "line 4: recovery cannot be used",
        ),
        (CLASS + 'source = "/a"\n', "line 5: source cannot be used: only passthrough has it"),
        (CLASS.replace("{ size = 10, ", "[{ ").replace('y" }', 'y" }]'), "line 3: arguments cann"),
    ],
)
def test_error_names_the_file_and_the_line_or_the_key(text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse(text)
    assert message in str(raised.value)
    assert str(raised.value).startswith("/etc/efuse/mounts.d/name.toml")
    assert raised.value.hint


def test_name_that_is_no_name_is_refused() -> None:
    for name in (" x", "x" * 201):
        with pytest.raises(UsageError, match=rf"'{name}' is no name for a mount \(EINVAL\)"):
            parse(TYPE, name)
    assert parse(TYPE, "x" * 200).name == "x" * 200


def test_invalid_description_does_not_hide_the_others(tmp_path: Path) -> None:
    for name, text in (("a", COMMAND), ("b", "x"), ("c", TYPE), ("d", TYPE), ("e", CLASS)):
        (tmp_path / f"{name}.toml").write_text(text)
    (tmp_path / "e.toml").chmod(0o666)
    (tmp_path / "f.toml").write_bytes(b'mountpoint = "\xff"\n')
    (tmp_path / "other").write_text("x")
    found = described(tmp_path)
    assert [*found.mounts] == ["a", "c"]
    messages = {name: str(error) for name, error in found.errors.items()}
    assert messages.keys() == {"b", "d", "e", "f"}
    assert "is not valid TOML" in messages["b"]
    assert "c.toml has the same mountpoint (EEXIST)" in messages["d"]
    assert "can be written by all users (EPERM)" in messages["e"]
    assert "it is not UTF-8 (EILSEQ)" in messages["f"]


def test_ends_of_lines_are_read_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(TYPE.replace("\n", "\r\n").encode())
    assert read(tmp_path / "a.toml").source == "/srv/b"
    (tmp_path / "a.toml").write_bytes(TYPE.replace("\n", "\r").encode())
    with pytest.raises(UsageError, match="is not valid TOML"):
        read(tmp_path / "a.toml")


def test_arguments_reach_the_class_as_they_are() -> None:
    given = {"whole": 1, "part": 1.5, "yes": True, "text": "inf", "some": [1, "a"], "t": {"x": -2}}
    words = "whole = 1, part = 1.5, yes = true, text = 'inf', some = [1, 'a'], t = { x = -2 }"
    request = Request("x", plain=False, require=False)
    for argument in parse(CLASS.replace('size = 10, name = "x y"', words)).arguments:
        request.add_argument(argument)
    assert request.arguments == given


def test_directory_or_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(EfuseError, match="none cannot be read: No such file or directory"):
        described(tmp_path / "none")
    with pytest.raises(EfuseError, match=r"x.toml cannot be read: there is no such file"):
        read(tmp_path / "x.toml")
