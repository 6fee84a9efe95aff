# SPDX-License-Identifier: LGPL-2.1-or-later
"""Devices in configfs: the attributes equal the kernel's, and refusals are reported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from efuse import csd, locations
from efuse.csd import ATTRIBUTES, PROFILES, Kind
from efuse.errors import ControlError, NotSupportedError, UsageError
from efuse.functions import Place
from tests.unit.fake_configfs import FakeConfigfs

NUMBERS = {
    "SZ_1M": 1 << 20,
    "SZ_16M": 1 << 24,
    "U32_MAX": (1 << 32) - 1,
    "(60 * NSEC_PER_SEC)": 60 * 10**9,
    "CSD_KERNEL": int(Place.KERNEL),
}


@pytest.fixture
def configfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeConfigfs:
    return FakeConfigfs(tmp_path, monkeypatch)


class Kernel:
    """The attributes that config.c defines."""

    def __init__(self) -> None:
        source = locations.data("csd") / "src"
        self.text = (source / "config.c").read_text()
        header = (source / "device/device_i.h").read_text()
        defines = re.findall(
            r"^#define\s+(CSD_\w+)\s+(\([^)]*\)|\w+)", header + self.text, re.MULTILINE
        )
        self._defines = dict(defines)

    def names(self) -> list[str]:
        return re.findall(r"&csd_attr_(\w+),", self.text)

    def settings(self) -> dict[str, dict[str, str]]:
        found = re.findall(r"^CSD_NUMBER\((\w+), [\w.]+, (.*)\);", self.text, re.MULTILINE)
        return {name: dict(re.findall(r"\.(\w+) = ([^,]+)", fields)) for name, fields in found}

    def counters(self) -> list[str]:
        return re.findall(r"^CSD_COUNTER\((\w+), ", self.text, re.MULTILINE)

    def number(self, text: str) -> int:
        text = self._defines.get(text, text)
        return NUMBERS[text] if text in NUMBERS else int(text)


def test_attributes_equal_those_of_the_kernel() -> None:
    kernel = Kernel()
    assert list(ATTRIBUTES) == kernel.names()
    counters = [a.name for a in ATTRIBUTES.values() if a.kind is Kind.COUNTER]
    assert counters == kernel.counters()


def test_limits_equal_those_of_the_kernel() -> None:
    kernel = Kernel()
    settings = kernel.settings()
    # These two have functions of their own in the kernel.
    assert {a.name for a in ATTRIBUTES.values() if a.writable} == {
        *settings,
        "logical_block_size",
        "power",
    }
    for name, fields in settings.items():
        found = ATTRIBUTES[name]
        assert found.least == kernel.number(fields.get("least", "0")), name
        assert found.most == kernel.number(fields["most"]), name
        assert (found.kind is Kind.FIXED) == (fields.get("fixed") == "true"), name


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_profile_values_are_valid_for_their_attributes(profile: csd.Profile) -> None:
    for name, value in profile.values.items():
        assert ATTRIBUTES[name].parse(str(value)) == value
    assert profile.values["model"] == 1


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cores", "0"),
        ("cores", "65"),
        ("cores", "-1"),
        ("cores", "2.5"),
        ("cores", ""),
        ("logical_block_size", "1024"),
        ("core_percent", "99"),
        ("reads", "0"),
        ("held", "0"),
    ],
)
def test_parse_of_an_invalid_value_fails(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=r"E(INVAL|ACCES)"):
        ATTRIBUTES[name].parse(text)


def test_device_is_created_changed_and_removed(configfs: FakeConfigfs) -> None:
    made = csd.create("one", {"size_mib": 64, "cores": 2})
    assert made.path == Path("/dev/csd0")
    assert (made.read("size_mib"), made.read("cores"), made.powered) == (64, 2, True)
    other = csd.create("other", {"power": 0})
    assert not other.powered
    assert [device.name for device in csd.devices()] == ["one", "other"]
    made.set("model", 1)
    assert made.values()["model"] == 1
    made.power_off()
    made.set("cores", 4)
    made.remove()
    assert [device.name for device in csd.devices()] == ["other"]


def test_change_of_a_fixed_attribute_while_the_device_has_power_fails(
    configfs: FakeConfigfs,
) -> None:
    made = csd.create("one", {})
    with pytest.raises(ControlError, match=r"fixed while the device has power \(EBUSY\)") as caught:
        made.set("cores", 4)
    assert caught.value.hint == "efuse csd set one power=0 cores=4 power=1"


@pytest.mark.parametrize("act", [csd.Device.remove, csd.Device.power_off])
def test_mounted_device_cannot_be_removed_or_powered_off(
    configfs: FakeConfigfs, act: object
) -> None:
    made = csd.create("one", {})
    configfs.busy["one"] = ["/mnt/a"]
    assert callable(act)
    with pytest.raises(ControlError, match=r"mounted on /mnt/a \(EBUSY\)") as caught:
        act(made)
    assert caught.value.hint == "umount /mnt/a"
    assert made.powered


def test_create_with_invalid_arguments_fails(configfs: FakeConfigfs) -> None:
    csd.create("one", {})
    with pytest.raises(ControlError, match="EEXIST"):
        csd.create("one", {})
    for name in ("", ".", "..", "a/b", "a b"):
        with pytest.raises(UsageError, match="EINVAL"):
            csd.create(name, {})
    with pytest.raises(UsageError, match="ENOENT"):
        csd.create("two", {"colour": 1})
    with pytest.raises(UsageError, match="EINVAL"):
        csd.create("two", {"cores": 1000})
    assert [device.name for device in csd.devices()] == ["one"]


def test_devices_without_the_module_fails(configfs: FakeConfigfs) -> None:
    configfs.root.rmdir()
    with pytest.raises(NotSupportedError, match=r"csd\.ko is not loaded") as caught:
        csd.devices()
    assert caught.value.hint == "efuse module load --csd"
