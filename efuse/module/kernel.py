# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find kernels: headers to build against, images to boot, and source packages.

A kernel that scripts/setup-kernel unpacked into the cache has a root directory of its own, with its
headers, its source and the compiler.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from efuse import locations
from efuse.errors import NotSupportedError

__all__ = [
    "FLAVOUR",
    "PATCHED",
    "SERIES",
    "Kernel",
    "find",
    "from_tree",
    "running",
    "source_archive",
    "unpacked",
    "version",
]

SERIES = "6.12"
"""Default kernel series: that of Debian 13, and of Debian 12 from bookworm-security."""

PATCHED = (SERIES, "7.3")
"""Kernel series that have patches and are tested. DKMS builds for no other series."""

FLAVOUR = "amd64"
"""Debian's kernel flavour. Other flavours lack features that the tests use, such as 9p."""

_HEADERS = f"linux-headers-{SERIES}-{FLAVOUR} (Debian 13: linux-headers-{FLAVOUR})"


def version(release: str) -> str:
    """Return the series of a kernel release, such as ``6.12``."""
    return ".".join(release.split(".")[:2])


@dataclass(frozen=True)
class Kernel:
    """A kernel that modules can be built for.

    :ivar release: release of the kernel, as printed by ``uname -r``.
    :ivar headers: the object tree to build against (``Module.symvers``, ``.config``).
    :ivar image: the bootable ``vmlinuz`` or ``bzImage``; None if only the headers are installed.
    :ivar modules: directory below ``lib/modules`` with the kernel's own modules; None if they are
        not installed.
    :ivar root: root directory in which the build tools run.
    """

    release: str
    headers: Path
    image: Path | None = None
    modules: Path | None = None
    root: Path = Path("/")

    @property
    def version(self) -> str:
        """The series of the kernel, such as ``6.12``."""
        return version(self.release)

    @property
    def archive(self) -> Path:
        """The archive of the kernel's source package; see :func:`source_archive`."""
        return source_archive(self.root, self.version)


def _version_key(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", release))


def find(root: Path = Path("/"), release: str | None = None) -> Kernel:
    """Return the newest kernel of the default series and flavour whose headers are installed.

    The image is looked for in eFuse's cache first, then below ``root``.

    :param root: root directory to look in.
    :param release: find this release instead. Among the kernels unpacked in the cache, a series is
        accepted too.
    :raises NotSupportedError: there is no such kernel.
    :raises EfuseError: another user can change the kernel in the cache.
    """
    if release and (whole := _newest_unpacked(release)):
        return whole
    candidates = [
        name
        for name in (path.name for path in (root / "lib/modules").glob("*"))
        if (_build_tree(root, name) / "Module.symvers").is_file()
        and (name == release if release else version(name) == SERIES and _of_flavour(name))
    ]
    if not candidates:
        wanted = release or f"a {SERIES} {FLAVOUR} kernel"
        raise NotSupportedError(
            f"no kernel headers were found: {root / 'lib/modules'} has none of {wanted}",
            hint=f"apt-get install {f'linux-headers-{release}' if release else _HEADERS}",
        )
    newest = max(candidates, key=_version_key)
    headers = _build_tree(root, newest)
    for place in (*_kept(root, newest), root):
        image = place / f"boot/vmlinuz-{newest}"
        modules = place / "lib/modules" / newest
        if image.is_file() and (modules / "modules.dep").is_file():
            if place != root:
                locations.check_private(place)
            return Kernel(newest, headers, image, modules, root)
    return Kernel(newest, headers, root=root)


def _build_tree(root: Path, release: str) -> Path:
    """Return the headers to build for a release, which a symbolic link names below ``root``."""
    build = root / "lib/modules" / release / "build"
    if root == Path("/") or not build.is_symlink():
        return build
    target = build.readlink()
    return root / target.relative_to("/") if target.is_absolute() else build.parent / target


def _kept(root: Path, release: str) -> list[Path]:
    """Return where scripts/setup, run here or below ``root`` by root, keeps the kernel's image."""
    caches = [root / "root/.cache/efuse", root / "var/cache/efuse"] if root != Path("/") else []
    return [cache / "kernels" / release for cache in (locations.cache(), *caches)]


def running() -> str | None:
    """Return the running kernel's release if it is a Debian kernel with patches, else None."""
    release = os.uname().release
    return release if version(release) in PATCHED and _of_flavour(release) else None


def _of_flavour(release: str) -> bool:
    # 6.12.117+deb12-amd64 or 6.12.9-1-amd64, but not ...-cloud-amd64.
    return bool(re.fullmatch(rf"[^-]*(-\d+)?-{FLAVOUR}", release))


def _unpacked() -> Path:
    return locations.cache() / "kernels"


def _whole(root: Path) -> Kernel | None:
    """Return the complete kernel below ``root``, or None if there is none.

    :raises EfuseError: another user can change it. Its makefiles will run and its image will boot.
    """
    release = root.name
    headers = root / "usr/src" / f"linux-headers-{release}"
    if not (headers / "Module.symvers").is_file():
        return None
    locations.check_private(headers)
    return Kernel(
        release,
        headers,
        root / f"boot/vmlinuz-{release}",
        root / "usr/lib/modules" / release,
        root,
    )


def _newest_unpacked(series: str) -> Kernel | None:
    roots = [path for path in _unpacked().glob("*") if f"{path.name}.".startswith(f"{series}.")]
    found = [target for root in roots if (target := _whole(root))]
    return max(found, key=lambda target: _version_key(target.release), default=None)


def unpacked(series: str) -> Kernel:
    """Return the newest kernel of a series that scripts/setup-kernel unpacked into the cache.

    :param series: a series such as ``7`` or ``7.3``, or a complete release.
    :raises NotSupportedError: there is no such kernel.
    :raises EfuseError: another user can change it.
    """
    found = _newest_unpacked(series)
    if found is None:
        raise NotSupportedError(
            f"no kernel {series} was found: {_unpacked()} has none with headers and source",
            hint=f"scripts/setup-kernel {series}",
        )
    return found


def from_tree(tree: Path) -> Kernel:
    """Return the kernel that was built in the source tree ``tree``.

    :raises NotSupportedError: the tree contains no bootable kernel.
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


def source_archive(root: Path = Path("/"), version: str = SERIES) -> Path:
    """Return the archive of Debian's kernel source package.

    :param root: root directory to look in.
    :param version: series of the kernel, such as ``6.12``.
    :raises NotSupportedError: the package is not installed.
    """
    archive = root / f"usr/src/linux-source-{version}.tar.xz"
    if not archive.is_file():
        raise NotSupportedError(
            f"the kernel's source package was not found: there is no {archive}",
            hint=f"apt-get install linux-source-{version}",
        )
    return archive
