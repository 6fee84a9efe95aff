# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

from pathlib import Path

import pytest

from efuse.errors import NotSupportedError
from efuse.module import kernel


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/efuse"


def _headers(root: Path, release: str) -> None:
    build = root / "lib/modules" / release / "build"
    build.mkdir(parents=True)
    (build / "Module.symvers").touch()


def _image(root: Path, release: str) -> None:
    (root / "boot").mkdir(parents=True, exist_ok=True)
    (root / "boot" / f"vmlinuz-{release}").touch()
    (root / "lib/modules" / release).mkdir(parents=True, exist_ok=True)
    (root / "lib/modules" / release / "modules.dep").touch()


def test_newest_patch_level_wins(tmp_path: Path) -> None:
    for release in ("6.12.9+deb12-amd64", "6.12.117+deb12-amd64", "6.12.12+deb12-amd64"):
        _headers(tmp_path, release)
    assert kernel.find(tmp_path).release == "6.12.117+deb12-amd64"


@pytest.mark.parametrize(
    "release",
    [
        "6.1.0-30-amd64",
        "6.12.9+deb12-cloud-amd64",
        "6.12.9+deb12-rt-amd64",
        "6.13.1+deb12-amd64",
        "6.12.9+deb12-arm64",
    ],
)
def test_other_series_and_flavours_fail(tmp_path: Path, release: str) -> None:
    _headers(tmp_path, release)
    with pytest.raises(NotSupportedError) as caught:
        kernel.find(tmp_path)
    assert caught.value.hint == "apt-get install linux-headers-6.12-amd64"


def test_release_without_suffix_is_found(tmp_path: Path) -> None:
    _headers(tmp_path, "6.12.5-amd64")
    assert kernel.find(tmp_path).release == "6.12.5-amd64"


def test_named_release_may_be_of_any_series(tmp_path: Path) -> None:
    _headers(tmp_path, "7.1.2-custom")
    assert kernel.find(tmp_path, "7.1.2-custom").release == "7.1.2-custom"
    with pytest.raises(NotSupportedError, match=r"7\.1\.3"):
        kernel.find(tmp_path, "7.1.3")


def test_image_of_the_cache_comes_before_an_installed_one(tmp_path: Path, cache: Path) -> None:
    release = "6.12.5-amd64"
    _headers(tmp_path, release)
    assert kernel.find(tmp_path).image is None
    _image(tmp_path, release)
    assert kernel.find(tmp_path).image == tmp_path / f"boot/vmlinuz-{release}"
    _image(cache / "kernels" / release, release)
    found = kernel.find(tmp_path)
    assert found.image == cache / "kernels" / release / f"boot/vmlinuz-{release}"
    assert found.modules == cache / "kernels" / release / "lib/modules" / release


def test_tree_that_was_built(tmp_path: Path) -> None:
    (tmp_path / "arch/x86/boot").mkdir(parents=True)
    (tmp_path / "arch/x86/boot/bzImage").touch()
    (tmp_path / "include/config").mkdir(parents=True)
    (tmp_path / "include/config/kernel.release").write_text("6.12.1-debug\n")
    found = kernel.from_tree(tmp_path)
    assert (found.release, found.headers) == ("6.12.1-debug", tmp_path.resolve())


def test_tree_that_was_not_built_fails(tmp_path: Path) -> None:
    with pytest.raises(NotSupportedError, match="no built kernel"):
        kernel.from_tree(tmp_path)


def test_source_archive_missing_fails(tmp_path: Path) -> None:
    with pytest.raises(NotSupportedError) as caught:
        kernel.source_archive(tmp_path)
    assert caught.value.hint == "apt-get install linux-source-6.12"
