# SPDX-License-Identifier: LGPL-2.1-or-later
"""Install the module by DKMS, so that it is built again for each new kernel of the series."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import efuse
from efuse import paths
from efuse.errors import ModuleBuildError, NotSupportedError
from efuse.module import source
from efuse.module.build import Say

__all__ = ["install", "write_source"]


def write_source(target: Path, version: str) -> None:
    """Write the source tree that DKMS takes to ``target``: the patched fs/fuse and dkms.conf.

    :param version: goes where the configuration says ``@VERSION@``.
    """
    kernel_patches = paths.data("kernel_patches")
    source.write_tree(target, kernel_patches)
    text = (kernel_patches / "dkms.conf.in").read_text()
    (target / "dkms.conf").write_text(text.replace("@VERSION@", version))


def _dkms(*arguments: str) -> None:
    result = subprocess.run(
        ["dkms", *arguments], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if result.returncode != 0:
        said = (result.stderr.strip() or result.stdout.strip()).splitlines()[-10:]
        raise ModuleBuildError(
            f"dkms {arguments[0]} failed:\n" + "\n".join(said),
            hint="look at /var/lib/dkms/efuse/*/build/make.log",
        )


def install(release: str | None = None, *, say: Say = print) -> None:
    """Register the module's source with DKMS, build it and install it.

    :param release: the kernel to build for; by default the running one.
    :raises NotSupportedError: DKMS is not installed, or the kernel's source package.
    :raises ModuleBuildError: it does not build.
    """
    if shutil.which("dkms") is None:
        raise NotSupportedError(
            "the module cannot be installed: dkms not found", hint="apt-get install dkms"
        )
    if os.geteuid() != 0:
        raise NotSupportedError("the module cannot be installed: that needs root", hint="sudo")
    version = efuse.__version__
    target = Path("/usr/src") / f"efuse-{version}"
    if target.exists():
        say(f"replacing efuse {version}")
        subprocess.run(
            ["dkms", "remove", f"efuse/{version}", "--all"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        shutil.rmtree(target)
    say(f"writing the source to {target}")
    write_source(target, version)
    kernel = release or os.uname().release
    say(f"building for {kernel}")
    _dkms("add", f"efuse/{version}")
    _dkms("build", f"efuse/{version}", "-k", kernel)
    _dkms("install", f"efuse/{version}", "-k", kernel)
