# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import os
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
    ("release", "meant"),
    [
        ("6.12.9+deb12-amd64", True),
        ("7.3.4+deb13-amd64", True),
        ("6.12.9+deb12-cloud-amd64", False),
        ("6.12.9", False),
        ("6.1.0-30-amd64", False),
        ("7.2.1+deb14-amd64", False),
    ],
)
def test_running_kernel_without_patches_is_not_used(
    monkeypatch: pytest.MonkeyPatch, release: str, meant: bool
) -> None:
    names = os.uname()
    monkeypatch.setattr(os, "uname", lambda: os.uname_result((*names[:2], release, *names[3:])))
    assert kernel.running() == (release if meant else None)


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
    assert caught.value.hint == (
        "apt-get install linux-headers-6.12-amd64 (Debian 13: linux-headers-amd64)"
    )


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


def test_links_below_another_root_stay_in_it(tmp_path: Path) -> None:
    release = "6.12.118+deb13-amd64"
    headers = tmp_path / f"usr/src/linux-headers-{release}"
    headers.mkdir(parents=True)
    (headers / "Module.symvers").touch()
    _image(tmp_path, release)
    build = tmp_path / "lib/modules" / release / "build"
    build.symlink_to(f"/usr/src/linux-headers-{release}")
    found = kernel.find(tmp_path)
    assert (found.headers, found.root) == (headers, tmp_path)
    build.unlink()
    build.symlink_to(f"../../../usr/src/linux-headers-{release}")
    assert kernel.find(tmp_path).headers.resolve() == headers


@pytest.mark.parametrize("place", ["root/.cache", "var/cache"])
def test_image_that_was_set_up_below_another_root_is_found(tmp_path: Path, place: str) -> None:
    release = "6.12.118+deb13-amd64"
    _headers(tmp_path, release)
    kept = tmp_path / place / "efuse/kernels" / release
    _image(kept, release)
    found = kernel.find(tmp_path)
    assert found.image == kept / f"boot/vmlinuz-{release}"
    assert found.modules == kept / "lib/modules" / release


def _whole(cache: Path, release: str) -> Path:
    """Make a kernel in the form in which scripts/setup-kernel unpacks it."""
    root = cache / "kernels" / release
    headers = root / f"usr/src/linux-headers-{release}"
    headers.mkdir(parents=True)
    (headers / "Module.symvers").touch()
    return root


def test_newest_unpacked_kernel_of_a_series_is_found(cache: Path) -> None:
    for release in ("7.2.12+deb13-amd64", "7.3.4+deb13-amd64", "7.10.1+deb13-amd64", "70.1-amd64"):
        _whole(cache, release)
    assert kernel.unpacked("7").release == "7.10.1+deb13-amd64"
    found = kernel.unpacked("7.3")
    root = cache / "kernels" / found.release
    assert (found.version, found.root) == ("7.3", root)
    assert found.headers == root / "usr/src/linux-headers-7.3.4+deb13-amd64"
    assert found.image == root / "boot/vmlinuz-7.3.4+deb13-amd64"
    assert kernel.find(release=found.release) == found


def test_unpacked_kernel_has_its_own_source(cache: Path) -> None:
    root = _whole(cache, "7.3.4+deb13-amd64")
    with pytest.raises(NotSupportedError, match=r"no .*/usr/src/linux-source-7\.3\.tar\.xz"):
        _ = kernel.unpacked("7").archive
    archive = root / "usr/src/linux-source-7.3.tar.xz"
    archive.touch()
    assert kernel.unpacked("7").archive == archive


def test_kernel_that_was_not_unpacked_fails(cache: Path) -> None:
    (cache / "kernels/7.3.4+deb13-amd64").mkdir(parents=True)
    with pytest.raises(NotSupportedError, match="no kernel 7 was found") as caught:
        kernel.unpacked("7")
    assert caught.value.hint == "scripts/setup-kernel 7"


def test_built_tree_is_found_by_its_release(tmp_path: Path) -> None:
    (tmp_path / "arch/x86/boot").mkdir(parents=True)
    (tmp_path / "arch/x86/boot/bzImage").touch()
    (tmp_path / "include/config").mkdir(parents=True)
    (tmp_path / "include/config/kernel.release").write_text("6.12.1-debug\n")
    found = kernel.from_tree(tmp_path)
    assert (found.release, found.headers) == ("6.12.1-debug", tmp_path.resolve())


def test_tree_without_a_built_kernel_fails(tmp_path: Path) -> None:
    with pytest.raises(NotSupportedError, match="no built kernel"):
        kernel.from_tree(tmp_path)


def test_missing_source_archive_fails_with_an_install_hint(tmp_path: Path) -> None:
    with pytest.raises(NotSupportedError) as caught:
        kernel.source_archive(tmp_path)
    assert caught.value.hint == "apt-get install linux-source-6.12"
