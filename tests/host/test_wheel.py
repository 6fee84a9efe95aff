# SPDX-License-Identifier: LGPL-2.1-or-later
"""The wheel, installed and used without a checkout."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import efuse
from efuse import locations
from tests.commands import run_output

_ROOT = Path(__file__).resolve().parents[2]
_PROJECT = (_ROOT / "pyproject.toml").read_text()
_DATA = ("bpf_programs", "csd", "kernel_patches", "libefuse")
# Suffixes of the files that building leaves in a checkout.
_LEFT = {".ko", ".o", ".pyc", ".so"}

_TREE = {"empty": b"", "small": b"text\n", "folder/large": os.urandom(300_000)}


def _pip(*arguments: object, **environment: str) -> str:
    quiet = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    return run_output(
        *(sys.executable, "-m", "pip", *arguments), env={**os.environ, **quiet, **environment}
    )


@pytest.fixture(scope="module")
def offline() -> dict[str, str]:
    """Environment variables that make pip use only packages from the cache.

    The first run fills the cache from the network.
    """
    declared = tomllib.loads(_PROJECT)
    needed = [*declared["project"]["dependencies"], *declared["build-system"]["requires"]]
    key = hashlib.sha256(repr((needed, sys.version)).encode()).hexdigest()[:16]
    house = locations.cache() / "wheels" / key
    if not house.is_dir():
        house.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=house.parent, prefix=".new-") as work:
            fresh = Path(work) / "wheels"
            _pip("wheel", "--wheel-dir", fresh, *needed)
            fresh.rename(house)
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(house)}


@pytest.fixture(scope="module")
def wheel(offline: dict[str, str]) -> Iterator[Path]:
    """The wheel, built by the usual command."""
    with tempfile.TemporaryDirectory(prefix="efuse-test-") as name:
        _pip("wheel", "--no-deps", "--wheel-dir", name, _ROOT, **offline)
        (made,) = Path(name).iterdir()
        yield made


@pytest.fixture(scope="module")
def installed(wheel: Path, offline: dict[str, str]) -> Iterator[Path]:
    """The ``bin`` directory of an environment that has only the wheel and Debian's packages."""
    with tempfile.TemporaryDirectory(prefix="efuse-test-") as name:
        python = Path(sys.executable).resolve()
        run_output(python, "-m", "venv", "--system-site-packages", "--without-pip", name)
        _pip(
            "--python",
            f"{name}/bin/python",
            "install",
            "--no-warn-script-location",
            wheel,
            **offline,
        )
        yield Path(name) / "bin"


@pytest.fixture
def outside(place: Path) -> dict[str, Any]:
    """Arguments for running a command outside of the checkout, with an empty cache."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {"cwd": place, "env": {**environment, "XDG_CACHE_HOME": str(place / "cache")}}


def test_wheel_carries_the_data(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    for name in _DATA:
        files = [path for path in (_ROOT / name).rglob("*") if path.is_file()]
        missing = {str(path.relative_to(_ROOT)) for path in files if path.suffix not in _LEFT} - {
            entry.removeprefix("efuse/_data/") for entry in held
        }
        assert not missing
    assert "efuse/py.typed" in held


def test_wheel_carries_compiled_handlers_and_tracing_programs(wheel: Path) -> None:
    held = zipfile.ZipFile(wheel).namelist()
    texts = list((_ROOT / "bpf_programs" / "tracing").glob("*.c"))
    specs = [entry for entry in held if entry.startswith("efuse/_data/specs/")]
    assert len(specs) == 1 + len(texts)


def test_installed_command_prints_its_version(installed: Path, outside: dict[str, Any]) -> None:
    output = run_output(installed / "efuse", "--version", **outside)
    assert output.strip() == f"efuse, version {efuse.__version__}"
    where = run_output(installed / "python", "-c", "import efuse; print(efuse.__file__)", **outside)
    assert where.startswith(str(installed.parent))


def test_installed_doctor_names_what_is_missing(installed: Path, outside: dict[str, Any]) -> None:
    works = Path("/dev/efuse").exists()
    output = run_output(installed / "efuse", "doctor", status=0 if works else 3, **outside)
    assert output.splitlines()[-1].startswith("eFuse works" if works else "eFuse cannot work")


def test_installed_sources_compile(installed: Path, outside: dict[str, Any]) -> None:
    script = "from efuse.fs.preload import preload_library; print(preload_library())"
    assert Path(run_output(installed / "python", "-c", script, **outside).strip()).is_file()


def test_installed_command_writes_manual_pages(
    installed: Path, outside: dict[str, Any], place: Path
) -> None:
    run_output(installed / "efuse", "man", place / "man", **outside)
    assert (place / "man/man8/mount.efuse.8").is_file()


@pytest.mark.parametrize(
    "command",
    [
        "efuse mount passthrough {source} {mountpoint} --plain",
        "mount.efuse passthrough#{source} {mountpoint} -o plain,ro,nofail",
    ],
)
def test_installed_command_mounts(
    installed: Path, outside: dict[str, Any], place: Path, command: str
) -> None:
    source, mountpoint = place / "source", place / "mnt"
    mountpoint.mkdir()
    for name, content in _TREE.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    name, *words = command.format(source=source, mountpoint=mountpoint).split()
    run_output(installed / name, *words, **outside)
    try:
        found = [path for path in mountpoint.rglob("*") if path.is_file()]
        assert {str(path.relative_to(mountpoint)): path.read_bytes() for path in found} == _TREE
    finally:
        subprocess.run(["umount", mountpoint], check=True)
    assert not os.path.ismount(mountpoint)
