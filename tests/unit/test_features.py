# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from efuse import features
from efuse.cli import doctor
from efuse.features import Feature
from efuse.module.kernel import PATCHED


@pytest.fixture(autouse=True)
def _forget_features() -> Iterator[None]:
    features.forget()
    yield
    features.forget()


def _root(tmp_path: Path, release: str, *, modules: bool = True) -> Path:
    osrelease = tmp_path / "proc/sys/kernel/osrelease"
    osrelease.parent.mkdir(parents=True)
    osrelease.write_text(release + "\n")
    if modules:
        (tmp_path / "proc/modules").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("release", "modules", "ok"),
    [
        ("6.12.117+deb12-amd64", True, True),
        ("6.12.117+deb12-amd64", False, False),
        ("6.1.0-30-amd64", True, False),
        ("6.120.1", True, False),
        ("7.3.4+deb13-amd64", True, True),
        ("6.12", True, True),
        ("7.2.1", True, False),
        ("7.4.1", True, False),
        ("8.12.1", True, False),
    ],
)
def test_kernel_of_a_patched_series_with_loadable_modules_is_supported(
    tmp_path: Path, release: str, modules: bool, ok: bool
) -> None:
    found = features.feature("kernel", _root(tmp_path, release, modules=modules))
    assert found.ok is ok
    assert release in str(found.found)


def test_kernel_series_are_those_with_patches(tmp_path: Path) -> None:
    found = features.feature("kernel", _root(tmp_path, "6.12.1"))
    assert all(series in found.needed and series in found.fix for series in PATCHED)


def test_absent_btf_is_reported_with_a_fix(tmp_path: Path) -> None:
    found = features.feature("btf", tmp_path)
    assert (found.ok, found.found) == (False, None)
    assert "CONFIG_DEBUG_INFO_BTF" in found.fix


def test_module_version_is_read(tmp_path: Path) -> None:
    version = tmp_path / "sys/fs/efuse/version"
    version.parent.mkdir(parents=True)
    version.write_text("1.2.3\n")
    found = features.feature("module", tmp_path)
    assert (found.ok, found.found) == (True, "1.2.3")


def test_kvm_without_its_device_node_is_absent(tmp_path: Path) -> None:
    found = features.feature("kvm", tmp_path)
    assert (found.ok, found.required) == (False, False)


def test_kvm_node_that_is_no_device_is_reported_as_absent(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kvm").write_text("")
    assert not features.feature("kvm", tmp_path).ok


def test_probe_is_cached_until_forgotten(tmp_path: Path) -> None:
    assert not features.feature("btf", tmp_path).ok
    (tmp_path / "sys/kernel/btf").mkdir(parents=True)
    (tmp_path / "sys/kernel/btf/vmlinux").touch()
    assert not features.feature("btf", tmp_path).ok
    features.forget()
    assert features.feature("btf", tmp_path).ok


def test_every_feature_says_why_it_is_needed(tmp_path: Path) -> None:
    found = features.all_features(_root(tmp_path, "6.12.1"))
    assert [each.name for each in found] == list(features.names())
    assert all(each.needed and each.why for each in found)
    assert all(each.fix for each in found if each.required)


def _doctor(
    monkeypatch: pytest.MonkeyPatch, checks: list[Feature], *arguments: str
) -> tuple[int, str]:
    monkeypatch.setattr(doctor, "checks", lambda: checks)
    result = CliRunner().invoke(doctor.cli, arguments)
    return result.exit_code, result.output


_GOOD = Feature("kernel", "6.12.1", "6.12", True, "of a reason")
_BAD = Feature("btf", None, "BTF", False, "of its types", "another kernel")
_OPTIONAL = Feature("kvm", None, "API 12", False, "it is quick", required=False)


def test_doctor_succeeds_without_optional_features(monkeypatch: pytest.MonkeyPatch) -> None:
    status, output = _doctor(monkeypatch, [_GOOD, _OPTIONAL])
    assert status == 0
    assert "eFuse works here." in output


def test_doctor_missing_requirement_exits_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    status, output = _doctor(monkeypatch, [_GOOD, _BAD])
    assert status == 3
    assert "FAIL btf" in output
    assert "try: another kernel" in output


def test_doctor_json_has_each_check(monkeypatch: pytest.MonkeyPatch) -> None:
    status, output = _doctor(monkeypatch, [_GOOD, _BAD], "--json")
    fields = json.loads(output)
    assert (status, fields["works"]) == (3, False)
    assert [check["name"] for check in fields["checks"]] == ["kernel", "btf"]


def test_doctor_checks_sources_and_guest_too() -> None:
    names = [check.name for check in doctor.checks()]
    assert names == [*features.names(), "sources", "guest"]
