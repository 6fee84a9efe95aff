# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find kernels: headers to build against, images to boot, the source package to build from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from efuse import paths
from efuse.errors import NotSupportedError

__all__ = ["FLAVOUR", "SERIES", "Kernel", "find", "from_tree", "source_archive"]

SERIES = "6.12"
"""The kernel series that the patches are for: Debian 12's from bookworm-security."""

FLAVOUR = "amd64"
"""Debian's kernel flavour: the others lack 9p and more that the tests use."""


@dataclass(frozen=True)
class Kernel:
    """A kernel that a module can be built for.

    :ivar release: what ``uname -r`` says in it.
    :ivar headers: the object tree to build against (``Module.symvers``, ``.config``).
    :ivar image: the bootable ``vmlinuz`` or ``bzImage``; absent if only the headers are here.
    :ivar modules: its directory below ``lib/modules`` with the modules themselves.
    """

    release: str
    headers: Path
    image: Path | None = None
    modules: Path | None = None


def _version_key(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", release))


def find(root: Path = Path("/"), release: str | None = None) -> Kernel:
    """Return the newest kernel of the series and flavour that has headers.

    Its image is looked for in eFuse's cache, then below ``root``.

    :param root: the root of the file system to look in.
    :param release: insist on this release, of whatever series.
    :raises NotSupportedError: there is none.
    """
    pattern = re.compile(rf"{re.escape(SERIES)}\.\d+\+?[^-]*(-\d+)?-{FLAVOUR}")
    candidates = [
        build.parent.name
        for build in (root / "lib/modules").glob("*/build")
        if (build / "Module.symvers").is_file()
        and (build.parent.name == release if release else pattern.fullmatch(build.parent.name))
    ]
    if not candidates:
        wanted = release or f"a {SERIES} {FLAVOUR} kernel"
        raise NotSupportedError(
            f"no kernel headers were found: {root / 'lib/modules'} has none of {wanted}",
            hint=f"apt-get install linux-headers-{release or f'{SERIES}-{FLAVOUR}'}",
        )
    newest = max(candidates, key=_version_key)
    headers = root / "lib/modules" / newest / "build"
    for place in (paths.cache() / "kernels" / newest, root):
        image = place / f"boot/vmlinuz-{newest}"
        modules = place / "lib/modules" / newest
        if image.is_file() and (modules / "modules.dep").is_file():
            return Kernel(newest, headers, image, modules)
    return Kernel(newest, headers)


def from_tree(tree: Path) -> Kernel:
    """Return the kernel that was built in the source tree ``tree``.

    :raises NotSupportedError: nothing bootable was built there.
    """
    tree = tree.resolve()
    image = tree / "arch/x86/boot/bzImage"
    release_file = tree / "include/config/kernel.release"
    if not image.is_file() or not release_file.is_file():
        raise NotSupportedError(
            f"{tree} holds no built kernel: there is no arch/x86/boot/bzImage",
            hint=f"make -C {tree} bzImage vmlinux modules_prepare",
        )
    return Kernel(release_file.read_text().strip(), tree, image)


def source_archive(root: Path = Path("/")) -> Path:
    """Return the archive of the distribution's kernel source package.

    :raises NotSupportedError: the package is not installed.
    """
    archive = root / f"usr/src/linux-source-{SERIES}.tar.xz"
    if not archive.is_file():
        raise NotSupportedError(
            f"the kernel's source package was not found: there is no {archive}",
            hint=f"apt-get install linux-source-{SERIES}",
        )
    return archive
