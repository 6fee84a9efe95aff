# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test ``efuse csd``: devices and functions by command, and the place where each run executes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from efuse import __version__, functions
from efuse.functions import Count, Place, Why
from efuse.functions.btree_file import build
from efuse.stats.devices import DEVICE_COUNTERS
from tests.commands import AS_NOBODY, EFUSE
from tests.guest.support import csd_device
from tests.guest.support.csd_device import Device
from tests.guest.support.forked import Beside, efuse, run_efuse
from tests.guest.support.manual_daemon import DEADLINE_S, until
from tests.guest.support.shell import run

pytestmark = pytest.mark.usefixtures("csd_is_loaded")

BLOCK = 4096
LOG = b"".join(b"line %d: some error\n" % n for n in range(3000))
FOUND = {"lines": 3000, "matches": 3000, "size": len(LOG)}
BLOCKS = -(-len(LOG) // BLOCK)

# A policy that sends all batches to one place.
SAYS = """
#include "policy.bpf.h"
int choose(struct csd_batch *batch)
{{
	return {};
}}
"""
# A function that emits the whole file.
COPY = """
#include "csd.bpf.h"
int step(struct csd_run *run)
{
	return csd_emit_block(run, 0, csd_len(run));
}
"""


def csd(*arguments: str | Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run ``efuse csd``."""
    return run_efuse("csd", *arguments, status=status)


def module(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Run ``efuse module`` on csd.ko."""
    return run_efuse("module", *arguments, "--csd", status=status)


def csd_json(*arguments: str | Path) -> Any:
    return json.loads(csd(*arguments, "--json").stdout)


def unprivileged(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run ``efuse csd`` as an unprivileged user."""
    return run(*AS_NOBODY, *EFUSE, "csd", *arguments, check=False)


def loaded() -> dict[str, bool]:
    """Return which functions are in the kernel, and whether each is pinned."""
    return {f["name"]: f["pinned"] for f in csd_json("functions") if f["loaded"]}


def files_of(child: subprocess.Popen[str]) -> list[str]:
    """Return the targets of a process's open descriptors."""
    found = []
    for fd in Path(f"/proc/{child.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # It was just closed.
            found.append(os.readlink(fd))
    return found


@pytest.fixture
def disk() -> Iterator[Device]:
    """Yield a device that was made by ``efuse csd create``."""
    made = csd("create", "one", "--size", "64M", "--profile", "slow-cores", "--set", "model=0")
    device = Device("one")
    assert made.stdout == f"{device.path}\n"
    yield device
    if device.directory.exists():
        csd("remove", "one")


@pytest.fixture
def files(disk: Device, mountpoint: Path) -> Iterator[Path]:
    """Yield the mount point of a file system on the device."""
    csd_device.make_quiet_ext4(disk)
    csd_device.mount_quiet_ext4(disk, mountpoint)
    yield mountpoint
    if os.path.ismount(mountpoint):
        run("umount", mountpoint)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Return a file that is on no csd device and that all users may read."""
    for directory in (tmp_path, *tmp_path.parents[:2]):
        directory.chmod(0o755)
    path = tmp_path / "log"
    path.write_bytes(LOG)
    path.chmod(0o644)
    return path


def test_run_reports_the_blocks_looked_at_by_the_device(disk: Device, files: Path) -> None:
    (files / "log").write_bytes(LOG)
    os.sync()
    before = disk.read("link_read_bytes")
    found = csd_json("run", "count", "--pattern", "error", files / "log")
    assert found["result"] == FOUND
    assert found["blocks"] == {"device": BLOCKS, "kernel": 0, "daemon": 0}
    assert (found["why"], found["loaded_for_this"]) == (None, True)
    # Only the result has crossed the link.
    assert disk.read("link_read_bytes") - before == len(Count().reference(b""))
    assert loaded() == {}


def test_run_prints_what_a_function_emits(disk: Device, files: Path) -> None:
    (files / "log").write_bytes(LOG)
    items = [(key, b"%08d" % key * 8) for key in range(5000)]
    (files / "tree").write_bytes(build(items))
    os.sync()
    printed = csd("run", "grep", "--pattern", "line 7", files / "log")
    assert printed.stdout == run("grep", "-aF", "line 7", files / "log").stdout
    assert printed.stderr == f"grep: {BLOCKS} blocks at the device\n"
    printed = csd("run", "btree_lookup", "--place", "device", "4711", files / "tree")
    assert printed.stdout == f"value  {dict(items)[4711].hex()}\n"
    # The header, the root and a leaf.
    assert printed.stderr == "btree_lookup: 3 blocks at the device\n"


def test_remove_and_power_off_of_a_mounted_device_fail(disk: Device, files: Path) -> None:
    for refused in (("remove", "one"), ("set", "one", "power=0")):
        error = csd(*refused, status=1).stderr
        assert f"it is mounted on {files} (EBUSY)" in error
        assert f"try: umount {files}" in error
    (found,) = csd_json("list")
    assert (found["name"], found["disk"], found["mounts"]) == ("one", str(disk.path), [str(files)])
    assert (files / "lost+found").is_dir()
    run("umount", files)
    csd("remove", "one")
    assert csd_json("list") == []


def test_list_shows_mount_points_of_any_bytes(disk: Device, files: Path, tmp_path: Path) -> None:
    odd = tmp_path / os.fsdecode(b"\xff \xc3\xbc")
    odd.mkdir()
    run("mount", "--bind", files, odd)
    try:
        assert set(disk.mounts()) == {str(files), str(odd)}
        (found,) = csd_json("list")
        assert set(found["mounts"]) == {str(files), str(odd)}
    finally:
        run("umount", odd)


def test_set_changes_attributes_or_reports_why_it_cannot(disk: Device) -> None:
    error = csd("set", "one", "cores=8", status=1).stderr
    assert "fixed while the device has power (EBUSY)" in error
    csd("set", "one", "power=0", "cores=8", "power=1", "link_mib_per_s=500")
    assert (disk.read("cores"), disk.read("link_mib_per_s"), disk.powered) == (8, 500, True)
    values = {each["name"]: each["value"] for each in csd_json("attributes", "one")}
    assert (values["cores"], values["core_percent"]) == (8, 600)
    assert "it takes 1 to 64 cores" in csd("set", "one", "cores=65", status=2).stderr


def test_run_over_a_file_on_no_device_reports_the_kernel(log: Path) -> None:
    printed = csd("run", "count", "--pattern", "error", log)
    assert printed.stdout == f"lines    3000\nmatches  3000\nsize     {len(LOG)}\n"
    assert printed.stderr == f"count: {BLOCKS} blocks in the kernel: {Why.NO_DEVICE.description}\n"


def test_run_without_the_module_uses_the_reference_implementation(log: Path) -> None:
    module("unload")
    try:
        assert not json.loads(module("status", "--json").stdout)["loaded"]
        found = csd_json("run", "count", "--pattern", "error", log)
        assert found["result"] == FOUND
        assert found["blocks"] == {"device": 0, "kernel": 0, "daemon": BLOCKS}
        assert found["why"] == "csd.ko is not loaded"
        error = csd("run", "count", "--place", "kernel", log, status=3).stderr
        assert "try: efuse module load --csd" in error
        csd("list", status=3)
    finally:
        module("load", os.environ["EFUSE_CSD_MODULE"])
    assert csd_json("list") == []


def test_unload_of_a_module_in_use_fails(disk: Device) -> None:
    error = module("unload", status=1).stderr
    assert "csd.ko could not be unloaded" in error
    assert "try: efuse csd remove" in error
    found = json.loads(module("status", "--json").stdout)
    assert (found["loaded"], found["version"]) == (True, __version__)
    assert found["users"] > 0


def test_loaded_function_is_used_by_every_user(log: Path) -> None:
    csd("load", "count")
    try:
        assert loaded() == {"count": True}
        found = csd_json("run", "count", "--pattern", "error", log)
        assert found["result"] == FOUND
        assert found["blocks"]["kernel"] == BLOCKS
        assert not found["loaded_for_this"]
        printed = unprivileged("run", "count", "--pattern", "error", log, "--json")
        assert json.loads(printed.stdout) == found
        assert "EEXIST" in csd("load", "count", status=1).stderr
    finally:
        csd("unload", "count")
    assert loaded() == {}
    assert "ENOENT" in csd("unload", "count", status=1).stderr


def test_run_by_an_unprivileged_user_uses_the_reference_implementation(log: Path) -> None:
    printed = unprivileged("run", "count", "--pattern", "error", log, "--json")
    found = json.loads(printed.stdout)
    assert found["result"] == FOUND
    assert found["blocks"]["daemon"] == BLOCKS
    assert found["why"].startswith("count is not loaded, and cannot be: ")
    assert found["why"].endswith("(EPERM)")
    assert {f["loaded"] for f in json.loads(unprivileged("functions", "--json").stdout)} == {None}
    refused = unprivileged("create", "two")
    assert refused.returncode == 1
    assert refused.stderr.splitlines() == [
        "efuse: cannot create the device two: Permission denied (EACCES)",
        "try: run as root",
    ]


def test_function_of_a_c_file_is_loaded_and_run(log: Path, tmp_path: Path) -> None:
    (tmp_path / "copy.c").write_text(COPY)
    csd("load", tmp_path / "copy.c")
    try:
        printed = csd("run", "copy", log)
        assert printed.stdout == LOG.decode()
        assert printed.stderr.startswith(f"copy: {BLOCKS} blocks in the kernel: ")
        assert csd_json("run", "copy", log)["result"] == {"output": LOG.hex()}
        assert "EMSGSIZE" in csd("run", "copy", "--args", "00", log, status=1).stderr
    finally:
        csd("unload", "copy")


def test_policy_load_replace_and_unload_change_the_place(
    disk: Device, files: Path, tmp_path: Path
) -> None:
    (files / "log").write_bytes(LOG)
    os.sync()

    def auto() -> Any:
        found = csd_json("run", "count", "--pattern", "error", files / "log")
        assert found["result"] == FOUND
        return found

    own = tmp_path / "own.c"
    own.write_text(SAYS.format("CSD_KERNEL"))
    assert "none is loaded (ENOENT)" in csd("policy", "load", "--replace", own, status=1).stderr
    assert csd("policy", "load", own).stdout == "loaded the policy 'own'\n"
    try:
        assert auto()["blocks"] == {"device": 0, "kernel": BLOCKS, "daemon": 0}
        assert "EBUSY" in csd("policy", "load", own, status=1).stderr
        own.write_text(SAYS.format("CSD_DEVICE"))
        csd("policy", "load", "--replace", own)
        decided = disk.read("chosen_policy")
        assert auto()["blocks"] == {"device": BLOCKS, "kernel": 0, "daemon": 0}
        assert disk.read("chosen_policy") > decided
        own.write_text("int chose(void) { return 0; }\n")
        assert "is not a member" in csd("policy", "load", "--replace", own, status=1).stderr
    finally:
        csd("policy", "unload")
    decided = disk.read("chosen_policy")
    auto()
    assert disk.read("chosen_policy") == decided
    assert "none is loaded (ENOENT)" in csd("policy", "unload", status=1).stderr


def test_stat_shows_the_counters_of_a_device(disk: Device, files: Path) -> None:
    (files / "log").write_bytes(LOG)
    os.sync()
    csd("run", "count", "--pattern", "error", files / "log")
    (found,) = json.loads(efuse("stat", "--json"))["devices"]
    assert (found["name"], found["disk"], found["cores"]) == ("one", str(disk.path), 4)
    assert found["mounts"] == [str(files)]
    counters = found["counters"]
    assert counters.keys() == set(DEVICE_COUNTERS)
    # Others may read and write meanwhile, such as the file system, but only this test runs
    # functions.
    for name in ("commands", "core_busy_ns", "chosen_device", "chosen_kernel", "chosen_policy"):
        assert counters[name] == disk.read(name), name
    assert (counters["commands"], counters["chosen_device"], counters["chosen_kernel"]) == (1, 1, 0)
    assert counters["link_write_bytes"] >= len(LOG)
    lines = efuse("stat").splitlines()
    row = next(line.split() for line in lines if line.startswith("one "))
    assert (row[:3], row[-1]) == (["one", disk.path.name, "1"], str(files))
    run("umount", files)
    csd("set", "one", "power=0")
    assert json.loads(efuse("stat", "--json"))["devices"] == []


def test_top_shows_the_rates_of_a_device(disk: Device, files: Path) -> None:
    log = files / "log"
    log.write_bytes(LOG)
    os.sync()

    def top(*options: str) -> str:
        """Run ``efuse top`` while the device runs functions."""
        command = Beside("top", "--once", "--interval", "1", *options)
        while command.running():
            for place in (Place.DEVICE, Place.AUTO):
                with functions.run("count", log, Count().encode(), place=place) as going:
                    going.result()
        status, out, err = command.ended()
        assert (status, err) == (0, "")
        return out

    with functions.load("count"):
        lines = top().splitlines()
        (found,) = json.loads(top("--json"))["devices"]
    start = next(i for i, line in enumerate(lines) if line.startswith("DEVICE "))
    row = dict(zip(lines[start].split(), lines[start + 1].split(), strict=True))
    assert (row["DEVICE"], row["DISK"]) == ("one", disk.path.name)
    assert row["CMD/s"] != "0"
    assert row["DEV"] != "0" or row["KERN"] != "0"
    counters, rate = found["counters"], found["per_second"]
    assert 0 < counters["commands"] <= disk.read("commands")
    assert counters["chosen_device"] + counters["chosen_kernel"] > 0
    assert rate["commands"] == pytest.approx(counters["commands"] * 1e9 / found["interval_ns"])
    assert 0 < found["core_busy_share"] <= 1
    assert 0 <= found["device_share"] <= 1


def test_interrupt_ends_a_run(disk: Device, files: Path) -> None:
    (files / "log").write_bytes(LOG)
    os.sync()
    disk.write("hold", 1)
    try:
        # A process that is started in the background ignores SIGINT otherwise.
        command = ["env", "--default-signal=INT", *EFUSE, "csd", "run", "count", files / "log"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
            until(lambda: "anon_inode:[csd-run]" in files_of(child))
            child.send_signal(signal.SIGINT)
            disk.write("hold", 0)
            _, error = child.communicate(timeout=DEADLINE_S)
    finally:
        disk.write("hold", 0)
    assert (child.returncode, error.strip()) == (130, "efuse: interrupted")
