# SPDX-License-Identifier: LGPL-2.1-or-later
"""The Debian package with the modules' sources."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import efuse
from efuse.module import build, kernel

_ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("deb")
    command = [_ROOT / "scripts/build-deb", directory]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.strip())


@pytest.fixture(scope="module")
def unpacked(package: Path) -> Path:
    """Return a directory with the package's files, and its control files in DEBIAN."""
    subprocess.run(["dpkg-deb", "-R", package, package.parent / "files"], check=True)
    return package.parent / "files"


def _field(package: Path, name: str) -> str:
    return subprocess.check_output(["dpkg-deb", "-f", package, name], text=True).strip()


def test_package_is_called_after_the_version(package: Path) -> None:
    assert package.name == f"efuse-dkms_{efuse.__version__}_all.deb"
    assert _field(package, "Version") == efuse.__version__


def test_package_depends_on_a_kernels_source(package: Path) -> None:
    depends = re.split(r",\s*", _field(package, "Depends"))
    sources = " | ".join(f"linux-source-{series}" for series in kernel.PATCHED)
    assert {"dkms", "dwarves", sources} <= set(depends)


def test_maintainer_is_taken_from_debfullname_and_debemail(tmp_path: Path, package: Path) -> None:
    assert re.fullmatch(r"\S.* <\S+@\S+>", _field(package, "Maintainer"))
    who = {"DEBFULLNAME": "R & D", "DEBEMAIL": "r+d@example.org"}
    command = [_ROOT / "scripts/build-deb", tmp_path]
    built = subprocess.check_output(command, env=os.environ | who, text=True).strip()
    assert _field(Path(built), "Maintainer") == "R & D <r+d@example.org>"


@pytest.mark.parametrize("of", [build.EFUSE, build.CSD], ids=lambda of: of.name)
def test_package_has_what_dkms_takes(unpacked: Path, of: build.Source) -> None:
    tree = unpacked / f"usr/src/{of.package}-{efuse.__version__}"
    configuration = (tree / "dkms.conf").read_text()
    assert f'PACKAGE_VERSION="{efuse.__version__}"' in configuration
    assert "@" not in configuration


def test_package_has_nothing_of_the_kernel(unpacked: Path) -> None:
    files = [path for path in unpacked.rglob("*") if path.is_file()]
    ours = {"csd/src", "kernel_patches/src", "kernel_patches/include", "csd/include"}
    for path in files:
        if path.suffix in (".c", ".h"):
            assert any(f"/{directory}/" in str(path) for directory in ours), path
    assert not [path for path in files if path.suffix in (".pyc", ".o", ".ko")]


def test_files_belong_to_root_and_are_readable_by_all(package: Path) -> None:
    listing = subprocess.check_output(["dpkg-deb", "-c", package], text=True).splitlines()
    assert listing
    for line in listing:
        mode, owner, *_ = line.split()
        assert mode in ("drwxr-xr-x", "-rw-r--r--"), line
        assert owner == "root/root", line


@pytest.mark.parametrize("name", ["postinst", "prerm"])
def test_maintainer_script_is_valid_shell(unpacked: Path, name: str) -> None:
    script = unpacked / "DEBIAN" / name
    assert "@" not in script.read_text()
    done = subprocess.run(["sh", "-n", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
