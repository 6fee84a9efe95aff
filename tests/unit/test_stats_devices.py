# SPDX-License-Identifier: LGPL-2.1-or-later
"""Devices in samples and rates: shares, and devices that are removed or made again meanwhile."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from efuse import csd
from efuse.csd import ATTRIBUTES, Device, Kind
from efuse.errors import ControlError
from efuse.stats import DeviceCounters, DeviceSample, read_devices
from efuse.stats.devices import DEVICE_COUNTERS, device_rates, devices_between
from tests.unit.fake_configfs import FakeConfigfs

KERNEL_MOUNTS = Device.mounts

BEFORE = DeviceSample("one", 0, "/dev/csd0", cores=2, counters=DeviceCounters(commands=100))
AFTER = replace(
    BEFORE,
    taken_ns=2_000_000_000,
    counters=DeviceCounters(
        link_read_bytes=4096,
        core_busy_ns=3_000_000_000,
        commands=400,
        chosen_device=30,
        chosen_kernel=10,
        chosen_policy=4,
        predicted_ns=700,
        actual_ns=1000,
        error_ns=400,
    ),
)


@pytest.fixture
def configfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeConfigfs:
    return FakeConfigfs(tmp_path, monkeypatch)


def test_counters_are_those_of_the_devices() -> None:
    counters = [a.name for a in ATTRIBUTES.values() if a.kind is Kind.COUNTER]
    assert list(DEVICE_COUNTERS) == counters


def test_rates_are_differences_per_second() -> None:
    found = device_rates(BEFORE, AFTER)
    assert found.counters.commands == 300
    assert (found.per_second["commands"], found.per_second["link_read_bytes"]) == (150, 2048)
    assert (found.device_share, found.error_ratio) == (0.75, 0.4)
    assert found.core_busy_share == 0.75


def test_rates_of_an_idle_device_have_no_shares() -> None:
    found = device_rates(BEFORE, replace(BEFORE, taken_ns=1))
    assert (found.device_share, found.error_ratio, found.core_busy_share) == (None, None, 0)


def test_cores_are_busy_for_no_more_than_the_time() -> None:
    ahead = replace(AFTER, counters=DeviceCounters(commands=100, core_busy_ns=10**12))
    assert device_rates(BEFORE, ahead).core_busy_share == 1


def test_counters_of_a_recreated_device_begin_at_zero() -> None:
    found = device_rates(AFTER, replace(BEFORE, taken_ns=3_000_000_000))
    assert found.counters == BEFORE.counters
    assert found.per_second["commands"] == 100


def test_rates_of_other_samples_fail() -> None:
    with pytest.raises(ValueError, match="one and two"):
        device_rates(BEFORE, replace(AFTER, name="two"))
    with pytest.raises(ValueError):
        device_rates(AFTER, BEFORE)


def test_between_leaves_out_devices_that_came_or_went() -> None:
    others = [replace(BEFORE, name="went")], [replace(AFTER, name="came")]
    found = devices_between([BEFORE, *others[0]], [*others[1], AFTER])
    assert [row.after.name for row in found] == ["one"]


def test_json_has_the_fields_of_the_rates() -> None:
    found = json.loads(json.dumps(device_rates(BEFORE, AFTER).json()))
    assert found["per_second"]["commands"] == 150
    assert found["after"]["counters"]["chosen_policy"] == 4
    assert json.loads(json.dumps(AFTER.json()))["counters"]["predicted_ns"] == 700


def test_counters_of_devices_with_power_are_read(configfs: FakeConfigfs) -> None:
    csd.create("two", {"cores": 3})
    csd.create("off", {"power": 0})
    csd.create("one", {})
    numbers = {name: 100 + i for i, name in enumerate(DEVICE_COUNTERS)}
    configfs.count("two", **numbers)
    configfs.busy["two"] = ["/mnt/a"]
    one, two = read_devices()
    assert (one.name, one.disk, one.mounts, one.cores) == ("one", "/dev/csd1", (), 1)
    assert (two.name, two.disk, two.mounts, two.cores) == ("two", "/dev/csd0", ("/mnt/a",), 3)
    assert one.counters == DeviceCounters()
    assert two.counters == DeviceCounters(**numbers)


def test_read_devices_without_the_module_is_empty(configfs: FakeConfigfs) -> None:
    assert read_devices() == ()
    configfs.root.rmdir()
    assert read_devices() == ()
    configfs.root.parent.rmdir()
    assert read_devices() == ()


@pytest.mark.parametrize("attribute", ["power", "index", "reads"])
def test_a_device_that_goes_meanwhile_is_left_out(
    configfs: FakeConfigfs, monkeypatch: pytest.MonkeyPatch, attribute: str
) -> None:
    for name in ("one", "two", "three"):
        csd.create(name, {})
    read = Device.read

    def removing(device: Device, name: str) -> int:
        if (device.name, name) == ("two", attribute):
            device.directory.rmdir()
        return read(device, name)

    monkeypatch.setattr(Device, "read", removing)
    assert [device.name for device in read_devices()] == ["one", "three"]


def test_module_unloaded_meanwhile_has_no_devices(
    configfs: FakeConfigfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[Device.__module__], "_need_module", configfs.root.rmdir)
    assert read_devices() == ()


def test_a_device_that_cannot_be_read_fails(configfs: FakeConfigfs) -> None:
    made = csd.create("one", {})
    (made.directory / "reads").unlink()
    with pytest.raises(ControlError, match=r"cannot read reads of the device one: .*ENOENT"):
        read_devices()


def test_removed_disk_has_no_mounts(configfs: FakeConfigfs) -> None:
    made = csd.create("one", {})
    (made.directory / "index").write_text("999999\n")
    assert KERNEL_MOUNTS(made) == []
