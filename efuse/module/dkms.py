# SPDX-License-Identifier: LGPL-2.1-or-later
"""Install a module with DKMS, which builds it again for each new kernel of its series."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import efuse
from efuse import locations
from efuse.errors import ModuleBuildError, NotSupportedError
from efuse.module import kernel, source
from efuse.module.build import EFUSE, UNDISTILLED, Say, Source

__all__ = ["install", "write_source"]

# Directory in which DKMS looks for sources.
_SOURCES = Path("/usr/src")

# The files of `python3 -m efuse.module` and `efuse.module.check`. They need nothing but Python, and
# the latter libbpf.
_PYTHON = (
    *("__init__.py", "btf.py", "closing.py", "errors.py", "locations.py"),
    *(f"module/{name}.py" for name in ("__init__", "__main__", "check", "kernel", "source")),
)


def write_source(target: Path, version: str, of: Source = EFUSE) -> None:
    """Write a source tree for DKMS to ``target``, with dkms.conf.

    The tree of efuse.ko contains no kernel source. It has eFuse's own files, and the program that
    combines them at each build with the kernel's fs/fuse.

    :param version: replaces ``@VERSION@`` in dkms.conf. The supported kernels replace
        ``@KERNELS@``, and `UNDISTILLED` replaces ``@UNDISTILLED@``.
    :param of: the module.
    """
    data = locations.data(of.data)
    if of is EFUSE:
        ours = shutil.ignore_patterns("dkms.conf.in", "README.md")
        shutil.copytree(data, target / of.data, ignore=ours)
        for name in _PYTHON:
            (target / "efuse" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(locations.package() / name, target / "efuse" / name)
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
        lines = (result.stderr.strip() or result.stdout.strip()).splitlines()[-10:]
        raise ModuleBuildError(
            f"dkms {verb} failed:\n" + "\n".join(lines),
            hint=f"see /var/lib/dkms/{package}/*/build/make.log",
        )


def install(release: str | None = None, of: Source = EFUSE, *, say: Say = print) -> None:
    """Register a module's source with DKMS, build it, and install it.

    :param release: the kernel to build for; by default the running one.
    :param of: the module.
    :param say: function that is called with each progress message.
    :raises NotSupportedError: DKMS or the kernel's source package is not installed, this user is
        not root, or there are no patches for that kernel.
    :raises ModuleBuildError: the module does not build.
    """
    if shutil.which("dkms") is None:
        raise NotSupportedError(
            "the module cannot be installed: dkms not found", hint="apt-get install dkms"
        )
    if os.geteuid() != 0:
        raise NotSupportedError("the module cannot be installed: that needs root", hint="sudo")
    wanted = release or os.uname().release
    if of is EFUSE:
        source.series(locations.data(of.data), kernel.version(wanted))
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
