# SPDX-License-Identifier: LGPL-2.1-or-later
"""Install a module by DKMS, so that it is built again for each new kernel of its series."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import efuse
from efuse import paths
from efuse.errors import ModuleBuildError, NotSupportedError
from efuse.module import kernel, source
from efuse.module.build import EFUSE, UNDISTILLED, Say, Source

__all__ = ["install", "write_source"]

# Where DKMS looks.
_SOURCES = Path("/usr/src")

# What `python3 -m efuse.module` and `efuse.module.btf` consist of; they need nothing but Python.
_PYTHON = (
    *("__init__.py", "btf.py", "errors.py", "paths.py"),
    *(f"module/{name}.py" for name in ("__init__", "__main__", "btf", "kernel", "source")),
)


def write_source(target: Path, version: str, of: Source = EFUSE) -> None:
    """Write the source tree that DKMS takes to ``target``, and dkms.conf.

    Nothing of the kernel is in it: that of efuse.ko holds our files, and the program that puts them
    and the kernel's fs/fuse together at each build.

    :param version: goes where the configuration says ``@VERSION@``; the kernels for which it is
        built where it says ``@KERNELS@``, and what our own build gives make for the module's BTF
        where it says ``@UNDISTILLED@``.
    :param of: which.
    """
    data = paths.data(of.data)
    if of is EFUSE:
        ours = shutil.ignore_patterns("dkms.conf.in", "README.md")
        shutil.copytree(data, target / of.data, ignore=ours)
        for name in _PYTHON:
            (target / "efuse" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(paths.package() / name, target / "efuse" / name)
    else:
        source.write_csd_tree(target, data)
    kernels = "|".join(map(re.escape, kernel.PATCHED))
    text = (data / "dkms.conf.in").read_text()
    for name, value in (
        ("VERSION", version),
        ("KERNELS", kernels),
        ("UNDISTILLED", " ".join(UNDISTILLED)),
    ):
        text = text.replace(f"@{name}@", value)
    (target / "dkms.conf").write_text(text)


def _dkms(package: str, verb: str, *arguments: str) -> None:
    version = efuse.__version__
    result = subprocess.run(
        ["dkms", verb, f"{package}/{version}", *arguments],
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    if result.returncode != 0:
        said = (result.stderr.strip() or result.stdout.strip()).splitlines()[-10:]
        raise ModuleBuildError(
            f"dkms {verb} failed:\n" + "\n".join(said),
            hint=f"look at /var/lib/dkms/{package}/*/build/make.log",
        )


def install(release: str | None = None, of: Source = EFUSE, *, say: Say = print) -> None:
    """Register a module's source with DKMS, build it and install it.

    :param release: the kernel to build for; by default the running one.
    :param of: which.
    :raises NotSupportedError: DKMS is not installed, or the kernel's source package; or there are
        no patches for that kernel.
    :raises ModuleBuildError: it does not build.
    """
    if shutil.which("dkms") is None:
        raise NotSupportedError(
            "the module cannot be installed: dkms not found", hint="apt-get install dkms"
        )
    if os.geteuid() != 0:
        raise NotSupportedError("the module cannot be installed: that needs root", hint="sudo")
    wanted = release or os.uname().release
    if of is EFUSE:
        source.series(paths.data(of.data), kernel.version(wanted))
        kernel.source_archive(version=kernel.version(wanted))
    version = efuse.__version__
    target = _SOURCES / f"{of.package}-{version}"
    if target.exists():
        say(f"replacing {of.package} {version}")
        subprocess.run(
            ["dkms", "remove", f"{of.package}/{version}", "--all"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        shutil.rmtree(target)
    say(f"writing the source to {target}")
    write_source(target, version, of)
    say(f"building for {wanted}")
    _dkms(of.package, "add")
    _dkms(of.package, "build", "-k", wanted)
    _dkms(of.package, "install", "-k", wanted)
