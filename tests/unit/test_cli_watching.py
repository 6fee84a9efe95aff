# SPDX-License-Identifier: LGPL-2.1-or-later
import json
import os
from pathlib import Path

import pytest

from efuse.cli import ctl as ctl_command
from efuse.cli.main import main
from efuse.stats import MapUsage
from tests.unit.fake_sysfs import FakeSysfs


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSysfs:
    tree = FakeSysfs(tmp_path)
    tree.everywhere(monkeypatch)
    monkeypatch.setattr(
        "efuse.stats.maps.usage", lambda connection: (MapUsage("entries", connection, 100),)
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("NO_COLOR", "1")
    return tree


def efuse(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    out, err = capsys.readouterr()
    assert isinstance(caught.value.code, int)
    return caught.value.code, out, err


def test_stat_lists_the_mounts(sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]) -> None:
    sysfs.add(41, "/mnt/a")
    sysfs.count(41, "lookup", requests=4, hits=3, daemon=1)
    sysfs.count(41, "open", requests=1, daemon=1)
    code, out, _ = efuse(capsys, "stat")
    assert code == 0
    assert out.splitlines()[1].split() == ["41", "/mnt/a", "efuse", "ttl", "5", "60.0%", "2"]


def test_stat_of_a_mount_shows_its_opcodes(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]
) -> None:
    sysfs.add(41, "/mnt/a", exit_info="replace 0 by another")
    sysfs.count(41, "lookup", requests=4, hits=3, daemon=1, stale=1)
    code, out, _ = efuse(capsys, "stat", "/mnt/a/file")
    assert code == 0
    assert "EXIT: replace 0 by another" in out.splitlines()
    row = next(line for line in out.splitlines() if line.startswith("lookup"))
    assert row.split() == ["lookup", "4", "3", "75.0%", "0", "1", "0", "stale", "1"]


def test_stat_json_is_the_sample(sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]) -> None:
    sysfs.add(41, "/mnt/a")
    sysfs.count(41, "lookup", requests=4, hits=3, daemon=1, miss=1)
    code, out, _ = efuse(capsys, "stat", "41", "--json")
    assert code == 0
    (mount,) = json.loads(out)["mounts"]
    assert mount["mountpoint"] == "/mnt/a"
    assert mount["opcodes"].keys() == {"lookup"}
    assert mount["opcodes"]["lookup"]["miss"] == 1


def test_stat_without_mounts_says_so(sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]) -> None:
    assert efuse(capsys, "stat") == (0, "no eFuse file system is mounted\n", "")


def test_stat_elsewhere_fails(sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = efuse(capsys, "stat", "/")
    assert (code, out) == (1, "")
    assert err.splitlines()[0] == (
        "efuse: / is not on eFuse: it lies on no mount that is visible here"
    )
    assert err.splitlines()[1].startswith("try: ")


def test_stat_with_an_interval_prints_rates(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sysfs.add(41, "/mnt/a")
    rounds = iter(range(1, 4))

    def pause(seconds: float) -> None:
        n = next(rounds)
        sysfs.count(41, "lookup", requests=100 * n, hits=90 * n, daemon=10 * n)

    monkeypatch.setattr("efuse.cli.stat.pause", pause)
    code, out, _ = efuse(capsys, "stat", "--interval", "0.1", "--count", "3", "--json")
    assert code == 0
    lines = [json.loads(line)["mounts"][0] for line in out.splitlines()]
    assert [m["opcodes"][0]["counters"]["hits"] for m in lines] == [90, 90, 90]
    assert [m["opcodes"][0]["hit_ratio"] for m in lines] == [0.9, 0.9, 0.9]


def test_top_once_prints_a_frame(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sysfs.add(41, "/mnt/a")
    monkeypatch.setattr(
        "efuse.cli.top.pause",
        lambda seconds: sysfs.count(41, "lookup", requests=100, hits=90, daemon=10),
    )
    code, out, _ = efuse(capsys, "top", "--once")
    assert code == 0
    assert out.splitlines()[0] == "/mnt/a  #41  efuse attached  ttl  0 waiting"
    assert any(line.startswith("lookup") and "90.0%" in line for line in out.splitlines())


def test_top_json_has_the_fields_of_the_frame(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sysfs.add(41, "/mnt/a")
    monkeypatch.setattr(
        "efuse.cli.top.pause",
        lambda seconds: sysfs.count(41, "open", requests=10, daemon=10, no_handler=10),
    )
    code, out, _ = efuse(capsys, "top", "--once", "--json")
    assert code == 0
    (mount,) = json.loads(out)["mounts"]
    (row,) = mount["opcodes"]
    assert row["passed"] == {"no_handler": 10}
    assert row["hit_ratio"] == 0
    assert row["per_second"] > 0
    assert mount["after"]["maps"] == [{"name": "entries", "used": 41, "capacity": 100}]


def test_ctl_get_and_set(sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]) -> None:
    path = sysfs.add(41, "/mnt/a")
    assert efuse(capsys, "ctl", "get", "/mnt/a", "consistency") == (0, "ttl\n", "")
    assert efuse(capsys, "ctl", "set", "/mnt/a", "consistency", "strict") == (0, "", "")
    assert (path / "consistency").read_text().startswith("strict")
    assert efuse(capsys, "ctl", "set", "41", "invalidate", "1") == (0, "", "")
    assert (path / "invalidate").read_text() == "1"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("get", "41", "nothing"), 2, "no attribute is called 'nothing'"),
        (("set", "41", "handleless", "yes"), 1, "handleless cannot be 'yes'"),
        (("set", "41", "state", "plain"), 1, "state can only be read"),
        (("get", "41", "abort"), 1, "abort can only be written"),
        (("get", "42", "state"), 1, "there is no eFuse connection 42"),
    ],
)
def test_ctl_says_what_is_wrong(
    sysfs: FakeSysfs,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    sysfs.add(41, "/mnt/a")
    status, out, err = efuse(capsys, "ctl", *arguments)
    assert (status, out) == (code, "")
    assert err.startswith(f"efuse: {message}")


def test_ctl_list_shows_values(sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]) -> None:
    sysfs.add(41, "/mnt/a", map_full="17")
    code, out, _ = efuse(capsys, "ctl", "list", "41", "--json")
    assert code == 0
    values = {entry["name"]: entry.get("value") for entry in json.loads(out)}
    assert values["map_full"] == "17"
    assert values["invalidate"] == ""
    code, out, _ = efuse(capsys, "ctl", "list")
    assert code == 0
    assert any(
        line.startswith("consistency") and "strict or ttl or cto or exclusive" in line
        for line in out.splitlines()
    )


def test_ctl_completes_names_and_values(
    sysfs: FakeSysfs, capsys: pytest.CaptureFixture[str]
) -> None:
    context = ctl_command.cli.make_context("ctl", ["get", "x", "y"], resilient_parsing=True)
    set_command = ctl_command.cli.commands["set"]
    name = next(p for p in set_command.params if p.name == "name")
    assert [i.value for i in name.shell_complete(context, "c")] == [
        "consistency",
        "caller_independent",
        "channels/policy",
        "channels/threshold",
        "channels/spread",
        "channels/spin_ns",
    ]
    assert [i.value for i in name.shell_complete(context, "st")] == ["stable_nodeids"]
    value = next(p for p in set_command.params if p.name == "value")
    context.params["name"] = "consistency"
    assert [i.value for i in value.shell_complete(context, "ex")] == ["exclusive"]


def test_mounts_are_completed(sysfs: FakeSysfs) -> None:
    sysfs.add(41, "/mnt/a")
    context = ctl_command.cli.make_context("ctl", [], resilient_parsing=True)
    param = ctl_command.cli.commands["get"].params[0]
    assert [i.value for i in param.shell_complete(context, "/m")] == ["/mnt/a"]
    assert param.shell_complete(context, "/x") == []
