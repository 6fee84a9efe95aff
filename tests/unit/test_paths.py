# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

from pathlib import Path

import pytest

from efuse import paths
from efuse.errors import EfuseError


def test_cache_is_below_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert paths.cache() == tmp_path / ".cache/efuse"


def test_cache_obeys_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert paths.cache() == tmp_path / "efuse"


def test_cache_ignores_a_relative_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert paths.cache() == tmp_path / ".cache/efuse"


def test_data_in_a_checkout() -> None:
    assert (paths.data("kernel_patches") / "6.12/series").is_file()


def test_data_of_an_installed_package_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "efuse"
    for directory in (package / "_data/libefuse", tmp_path / "libefuse"):
        directory.mkdir(parents=True)
    monkeypatch.setattr(paths, "package", lambda: package)
    assert paths.data("libefuse") == package / "_data/libefuse"


def test_data_missing_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(paths, "package", lambda: tmp_path / "efuse")
    with pytest.raises(EfuseError, match="'specs' is missing"):
        paths.data("specs")


def test_data_of_unknown_name_fails() -> None:
    with pytest.raises(ValueError, match="passwords"):
        paths.data("passwords")
