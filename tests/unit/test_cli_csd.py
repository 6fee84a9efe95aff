# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse csd`` on a fake configfs, and functions in this process, as without csd.ko."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import CompletionItem, ShellComplete
from click.testing import CliRunner

from efuse.cli import main
from efuse.cli._csd_command import Command
from efuse.cli._csd_functions import COMMANDS
from efuse.csd import ATTRIBUTES, PROFILES
from efuse.functions import anywhere
from efuse.functions.btree_file import build
from tests.unit.fake_configfs import FakeConfigfs

ITEMS = [(key, b"%08d" % key * 8) for key in range(0, 5000, 5)]
TEXT = b"an error\nno error\nnone\n" * 500


@pytest.fixture
def configfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeConfigfs:
    monkeypatch.setenv("NO_COLOR", "1")
    return FakeConfigfs(tmp_path, monkeypatch)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file; csd.ko appears not to be loaded, whatever this machine has."""
    monkeypatch.setattr(anywhere, "CONTROL", str(tmp_path / "none"))
    path = tmp_path / "file"
    path.write_bytes(TEXT)
    return path


def efuse(
    capsys: pytest.CaptureFixture[str], *arguments: str | Path, status: int = 0
) -> tuple[str, str]:
    with pytest.raises(SystemExit) as caught:
        main.main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert caught.value.code == status, err
    return out, err


def completions(*words: str) -> list[CompletionItem]:
    """Return the completions that a shell gets for the last of *words*."""
    return ShellComplete(main.cli, {}, "efuse", "_EFUSE_COMPLETE").get_completions(
        list(words[:-1]), words[-1]
    )


def values(items: list[CompletionItem]) -> list[str]:
    return [item.value for item in items]


# Devices


def test_create_with_a_profile_and_settings_makes_a_device(
    configfs: FakeConfigfs, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--size", "64M", "--profile", "slow-link", "--set", "cores=8")
    assert efuse(capsys, "csd", "create", "one", *options) == ("/dev/csd0\n", "")
    configfs.busy["one"] = []
    (found,) = json.loads(efuse(capsys, "csd", "list", "--json")[0])
    assert (found["name"], found["disk"], found["mounts"]) == ("one", "/dev/csd0", [])
    wanted = {**PROFILES["slow-link"].values, "size_mib": 64, "cores": 8, "power": 1}
    assert {name: found["attributes"][name] for name in wanted} == wanted


def test_list_shows_each_device(configfs: FakeConfigfs, capsys: pytest.CaptureFixture[str]) -> None:
    assert efuse(capsys, "csd", "list") == ("there are no devices\n", "")
    efuse(capsys, "csd", "create", "one")
    efuse(capsys, "csd", "create", "two", "--set", "power=0")
    configfs.busy |= {"one": ["/mnt/a"], "two": []}
    rows = [line.split() for line in efuse(capsys, "csd", "list")[0].splitlines()]
    assert rows[1:] == [
        ["one", "/dev/csd0", "256", "1", "100%", "0", "0", "/mnt/a"],
        ["two", "-", "256", "1", "100%", "0", "0", "-"],
    ]


def test_set_and_remove_change_a_device_or_report_why_not(
    configfs: FakeConfigfs, capsys: pytest.CaptureFixture[str]
) -> None:
    efuse(capsys, "csd", "create", "one")
    assert efuse(capsys, "csd", "set", "one", "model=1", "depth=8", status=1)[1].splitlines() == [
        "efuse: cannot set depth of the device one: it is fixed while the device has power (EBUSY)",
        "try: efuse csd set one power=0 depth=8 power=1",
    ]
    assert efuse(capsys, "csd", "set", "one", "power=0", "depth=8", "power=1") == ("", "")
    listed = json.loads(efuse(capsys, "csd", "attributes", "one", "--json")[0])
    found = {each["name"]: each["value"] for each in listed}
    assert (found["model"], found["depth"], found["power"]) == (1, 8, 1)
    assert efuse(capsys, "csd", "remove", "one") == ("", "")
    assert "ENOENT" in efuse(capsys, "csd", "remove", "one", status=1)[1]


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (("create", "one", "--set", "cores=0"), "it takes 1 to 64 cores"),
        (("create", "one", "--set", "cores"), "write KEY=VALUE"),
        (("create", "one", "--set", "colour=1"), "a device has no attribute 'colour'"),
        (("create", "one", "--size", "1000"), "whole MiB"),
        (("create", "one", "--profile", "none"), "slow-cores"),
        (("create", "a/b"), "cannot have the name"),
        (("set", "one", "reads=0"), "it is a counter of the device"),
        (("set", "one"), "Missing argument"),
    ],
)
def test_invalid_arguments_of_csd_fail(
    configfs: FakeConfigfs,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    output: str,
) -> None:
    assert output in efuse(capsys, "csd", *arguments, status=2)[1]
    assert list(configfs.root.iterdir()) == []


def test_attributes_lists_all_attributes(capsys: pytest.CaptureFixture[str]) -> None:
    listed = json.loads(efuse(capsys, "csd", "attributes", "--json")[0])
    assert [each["name"] for each in listed] == list(ATTRIBUTES)
    assert "value" not in listed[0]


def test_names_and_attributes_are_completed(
    configfs: FakeConfigfs, capsys: pytest.CaptureFixture[str]
) -> None:
    efuse(capsys, "csd", "create", "one")
    assert values(completions("csd", "remove", "o")) == ["one"]
    assert values(completions("csd", "set", "one", "media_u")) == ["media_units="]
    assert values(completions("csd", "set", "one", "rea")) == []
    assert values(completions("csd", "create", "two", "--set", "cores")) == ["cores="]
    assert values(completions("csd", "create", "two", "--profile", "slow")) == [
        "slow-cores",
        "slow-link",
    ]
    assert values(completions("csd", "load", "c")) == [n for n in sorted(COMMANDS) if n[0] == "c"]
    assert set(values(completions("csd", "run", ""))) == set(COMMANDS)


# Functions


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_help_of_each_function_has_an_example_that_runs(
    command: Any, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = efuse(capsys, "csd", "run", command.name, "--help")
    file.write_bytes(build(ITEMS))  # some functions need a tree; the others take any file
    example = f"efuse csd run {command.name} {command.example}"
    assert example in " ".join(out.split())
    *options, _ = command.example.split()
    efuse(capsys, "csd", "run", command.name, *options, file)


@pytest.mark.parametrize("verb", ["create", "list", "set", "remove", "attributes", "functions"])
def test_help_of_each_verb_has_an_example(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"\n  efuse csd {verb}" in efuse(capsys, "csd", verb, "--help")[0]


def test_run_reports_where_the_function_ran(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = efuse(capsys, "csd", "run", "count", "--pattern", "error", file)
    assert out == f"lines    1500\nmatches  1000\nsize     {len(TEXT)}\n"
    assert err == "count: 3 blocks in this process: csd.ko is not loaded\n"
    _, err = efuse(capsys, "csd", "run", "count", "--place", "daemon", file)
    assert err == "count: 3 blocks in this process: it was requested\n"


def test_run_json_has_the_documented_fields(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = efuse(capsys, "csd", "run", "count", "--pattern", "error", file, "--json")
    assert err == ""
    assert json.loads(out) == {
        "function": "count",
        "file": str(file),
        "result": {"lines": 1500, "matches": 1000, "size": len(TEXT)},
        "blocks": {"device": 0, "kernel": 0, "daemon": 3},
        "why": "csd.ko is not loaded",
        "loaded_for_this": False,
    }


def test_aggregate_over_records_is_printed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_bytes(bytes(range(256)))
    options = ("--record", "8", "--field", "0:1u", "--where", "0:1u=8..")
    out, _ = efuse(capsys, "csd", "run", "aggregate", *options, file, "--json")
    assert json.loads(out)["result"] == {
        "count": 31,
        "sum": sum(range(8, 256, 8)),
        "least": 8,
        "most": 248,
        "mean": 128.0,
    }
    options = (
        "--record",
        "8",
        "--field",
        "0:1u",
        "--start",
        "8",
        "--width",
        "128",
        "--ranges",
        "1",
    )
    out, _ = efuse(capsys, "csd", "run", "histogram", *options, file)
    assert out == "below  1\n0      16\nabove  15\n"


def test_btree_functions_print_the_values_they_find(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(build(ITEMS))
    found = {str(key): value.hex() for key, value in ITEMS}
    out, err = efuse(capsys, "csd", "run", "btree_lookup", "4000", file)
    assert out == f"value  {found['4000']}\n"
    # The header, the root and a leaf are read, and nothing else.
    assert err.startswith("btree_lookup: 3 blocks in this process: ")
    out, _ = efuse(capsys, "csd", "run", "btree_lookup", "4001", file, "--json")
    assert json.loads(out)["result"] == {"value": None}
    keys = ("--first", "7", "--last", "2000")
    out, _ = efuse(capsys, "csd", "run", "btree_range", *keys, file)
    wanted = [f"{key} {found[key]}" for key in map(str, range(10, 2001, 5))]
    assert out.splitlines() == wanted
    out, _ = efuse(capsys, "csd", "run", "btree_range", *keys, file, "--json")
    assert [item["key"] for item in json.loads(out)["result"]["items"]] == [*range(10, 2001, 5)]
    out, _ = efuse(capsys, "csd", "run", "btree_aggregate", "--field", "0:1u", *keys, file)
    assert out.splitlines()[0] == "count  399"


def test_grep_prints_the_matching_lines(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = efuse(capsys, "csd", "run", "grep", "--pattern", "no error", file)
    assert out == "no error\n" * 500
    assert err == "grep: 3 blocks in this process: csd.ko is not loaded\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ("aggregate", "--record", "8", "--field", "1:3", "F"),
        ("aggregate", "--record", "8", "--field", "8", "F"),
        ("aggregate", "--record", "8", "--field", "0", "--where", "0:1=x..", "F"),
        ("count", "--pattern", "x" * 65, "F"),
        ("count", "none"),
        ("count", "--place", "moon", "F"),
        ("mine", "--args", "0", "F"),
        ("mine", "--place", "daemon", "F"),
    ],
)
def test_invalid_arguments_of_csd_run_fail(
    file: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    given = [str(file) if argument == "F" else argument for argument in arguments]
    assert efuse(capsys, "csd", "run", *given, status=2)[0] == ""


def test_output_of_a_streaming_function_is_printed_as_found(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Output is printed as it is found; JSON has all of it."""

    class Copy:
        """Emits the file."""

        name = "copy"

        def encode(self) -> bytes:
            return b""

        def reference(self, data: bytes) -> bytes:
            return data

        def stream(self) -> Copy:
            return self

        def step(self, data: bytes) -> bytes:
            return data

        def finish(self) -> bytes:
            return b""

        def decode(self, raw: bytes) -> bytes:
            return raw

    command = Command(
        Copy,
        example="file",
        fields=lambda raw: {"text": raw.decode()},
        found=lambda call, pieces: pieces,
    )
    monkeypatch.setitem(COMMANDS, "copy", command)
    output = CliRunner().invoke(main.cli, ["csd", "run", "copy", str(file)])
    assert output.stdout_bytes == TEXT
    assert output.stderr == "copy: 3 blocks in this process: csd.ko is not loaded\n"
    output = CliRunner().invoke(main.cli, ["csd", "run", "copy", str(file), "--json"])
    assert json.loads(output.stdout)["result"] == {"text": TEXT.decode()}


def test_progress_is_shown_on_a_terminal(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for terminal in ("1", ""):
        monkeypatch.setenv("FORCE_COLOR", terminal)  # by which rich decides
        for option in ("--progress", "--no-progress"):
            _, err = efuse(capsys, "csd", "run", "crc32c", option, file)
            assert ("11.2/11.2 KiB" in err) == (terminal == "1" and option == "--progress")
            assert err.endswith("crc32c: 3 blocks in this process: csd.ko is not loaded\n")


def test_interrupted_run_exits_with_130(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(anywhere.Execution, "step", interrupted)
    out, err = efuse(capsys, "csd", "run", "count", file, status=130)
    assert (out, err.strip()) == ("", "efuse: interrupted")


def test_functions_lists_all_shipped_functions(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("efuse.cli.csd.CONTROL", anywhere.CONTROL)
    found = json.loads(efuse(capsys, "csd", "functions", "--json")[0])
    assert [each["name"] for each in found] == sorted(COMMANDS)
    count = next(each for each in found if each["name"] == "count")
    assert (count["shipped"], count["loaded"], count["pinned"]) == (True, False, None)
    assert [each["usage"] for each in count["arguments"]] == ["[--pattern TEXT]"]


def test_options_of_functions_do_not_clash_with_those_of_run() -> None:
    for command in COMMANDS.values():
        assert not {option.name for option in command.options} & {
            "file",
            "place",
            "as_json",
            "progress",
        }
        assert all(isinstance(option, click.Parameter) for option in command.options)


def test_load_of_an_unreadable_policy_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = efuse(capsys, "csd", "policy", "load", tmp_path / "none.c", status=2)[1]
    assert "cannot read the policy in" in error
