# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse module build`` builds for the kernel that its option names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from efuse.cli import module
from efuse.cli._kernels import chosen
from efuse.errors import NotSupportedError
from efuse.module import build, kernel
from efuse.module.kernel import Kernel


def _tree(directory: Path) -> Path:
    (directory / "arch/x86/boot").mkdir(parents=True)
    (directory / "arch/x86/boot/bzImage").touch()
    (directory / "include/config").mkdir(parents=True)
    (directory / "include/config/kernel.release").write_text("6.12.1-debug\n")
    return directory


@pytest.fixture
def built_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Kernel]:
    """Function that returns the kernel for which the command, with the given words, builds."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    targets: list[Kernel] = []

    def built(target: Kernel, *_: Any, **__: Any) -> Path:
        targets.append(target)
        return Path("efuse.ko")

    monkeypatch.setattr(build, "build", built)

    def run(*words: str) -> Kernel:
        CliRunner().invoke(module.cli, ["build", *words], catch_exceptions=False)
        return targets.pop()

    return run


@pytest.mark.parametrize("name", ["69ea09182b0c7611", "linux"])
def test_module_is_built_for_the_tree_that_a_guest_boots(
    built_for: Callable[..., Kernel], tmp_path: Path, name: str
) -> None:
    tree = _tree(tmp_path / name)
    target = built_for("--kernel", str(tree))
    assert (target.release, target.headers) == ("6.12.1-debug", tree.resolve())
    assert target == chosen(str(tree))


def test_module_is_built_for_a_tree_below_the_current_directory(
    built_for: Callable[..., Kernel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _tree(tmp_path / "linux")
    _tree(tmp_path / "6.12")
    assert built_for("--kernel", "linux").headers == tmp_path.resolve() / "linux"
    assert built_for("--kernel", "./6.12").headers == tmp_path.resolve() / "6.12"


def test_module_is_built_for_a_series_or_release_of_that_name(
    built_for: Callable[..., Kernel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "find", lambda release: Kernel(release, Path("/headers")))
    for name in ("7", "6.12.9+deb12-amd64"):
        assert built_for("--kernel", name).release == name


def test_tree_without_a_built_kernel_fails(
    built_for: Callable[..., Kernel], tmp_path: Path
) -> None:
    with pytest.raises(NotSupportedError, match="holds no built kernel"):
        built_for("--kernel", str(tmp_path))
