# SPDX-License-Identifier: LGPL-2.1-or-later
"""Probe this machine for everything that eFuse needs. Probes are cached and change nothing.

Each probe reports what it found, the minimum that eFuse needs, and why.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import fcntl
import functools
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from efuse.module.kernel import PATCHED

__all__ = ["Feature", "all_features", "feature", "forget", "names"]


@dataclass(frozen=True)
class Feature:
    """One thing that eFuse needs or can use.

    :ivar name: stable identifier of the feature.
    :ivar found: description of what this machine has, or None if it has nothing.
    :ivar needed: the minimum that eFuse needs.
    :ivar ok: whether this machine meets the minimum.
    :ivar why: what eFuse needs it for.
    :ivar fix: how to get it; empty if there is no way on this machine.
    :ivar required: whether eFuse cannot run on this machine's own kernel without it.
    """

    name: str
    found: str | None
    needed: str
    ok: bool
    why: str
    fix: str = ""
    required: bool = True


def _version(text: str) -> tuple[int, ...]:
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(number) for number in match[0].split(".")) if match else ()


def _at_least(found: str | None, minimum: str) -> bool:
    return found is not None and _version(found) >= _version(minimum)


def _kernel(root: Path) -> Feature:
    release = (root / "proc/sys/kernel/osrelease").read_text().strip()
    modules = (root / "proc/modules").exists()
    version = _version(release)
    ok = ".".join(map(str, version[:2])) in PATCHED and modules
    series = " or ".join(PATCHED)
    return Feature(
        "kernel",
        release if modules else f"{release}, built without modules",
        f"{series} with loadable modules",
        ok,
        "efuse.ko is built from the fs/fuse of these series",
        f"boot Debian's {series} kernel, or use: efuse guest run",
    )


def _btf(root: Path) -> Feature:
    path = root / "sys/kernel/btf/vmlinux"
    return Feature(
        "btf",
        "/sys/kernel/btf/vmlinux" if path.is_file() else None,
        "BTF of the running kernel",
        path.is_file(),
        "struct_ops and kfuncs are found by their BTF types",
        "boot a kernel with CONFIG_DEBUG_INFO_BTF=y",
    )


def _module(root: Path) -> Feature:
    version = root / "sys/fs/efuse/version"
    found = version.read_text().strip() if version.is_file() else None
    return Feature(
        "module",
        found,
        "efuse.ko loaded",
        found is not None,
        "the module calls the handlers; without it, file systems mount as plain FUSE",
        "efuse module load",
        required=False,
    )


def _bcc(_root: Path) -> Feature:
    # Read the package's metadata: importing bcc would load LLVM.
    present = importlib.util.find_spec("bcc") is not None
    found = None
    if present:
        try:
            found = importlib.metadata.version("bcc")
        except importlib.metadata.PackageNotFoundError:
            found = "of unknown version"
    return Feature(
        "bcc",
        found,
        "0.26",
        present,
        "BCC compiles new handlers; the shipped handlers do not need it",
        "apt-get install python3-bpfcc, and a venv with --system-site-packages",
        required=False,
    )


def _libbpf(_root: Path) -> Feature:
    found = None
    try:
        library = ctypes.CDLL("libbpf.so.1")
        library.libbpf_version_string.restype = ctypes.c_char_p
        found = library.libbpf_version_string().decode().lstrip("v")
    except OSError:
        pass
    return Feature(
        "libbpf",
        found,
        "1.1",
        _at_least(found, "1.1"),
        "libbpf loads the programs",
        "apt-get install libbpf1",
    )


_LIBFUSES = ("libfuse3.so.4", "libfuse3.so.3")
"""Names of libfuse, the newest first: since 3.17 it is that of Debian 13, before that of 12."""


def _libfuse_version(name: str) -> str | None:
    try:
        library = ctypes.CDLL(name)
    except OSError:
        return None
    library.fuse_pkgversion.restype = ctypes.c_char_p
    return str(library.fuse_pkgversion().decode())


def _libfuse(_root: Path) -> Feature:
    versions = map(_libfuse_version, _LIBFUSES)
    found = next((version for version in versions if version is not None), None)
    return Feature(
        "libfuse",
        found,
        "3.14",
        _at_least(found, "3.14"),
        "libfuse implements the FUSE protocol and accepts a mounted descriptor",
        "apt-get install fuse3",
    )


def _pyfuse3(_root: Path) -> Feature:
    try:
        found = importlib.metadata.version("pyfuse3")
    except importlib.metadata.PackageNotFoundError:
        found = None
    return Feature(
        "pyfuse3",
        found,
        "3.3",
        _at_least(found, "3.3"),
        "Python file systems are pyfuse3 file systems",
        "pip install pyfuse3 (it needs libfuse3-dev, pkg-config, gcc, python3-dev)",
    )


def _kvm(root: Path) -> Feature:
    kvm_get_api_version, kvm_api = 0xAE00, 12
    found = None
    try:
        descriptor = os.open(root / "dev/kvm", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        pass
    else:
        try:
            found = f"API {fcntl.ioctl(descriptor, kvm_get_api_version)}"
        except OSError:
            pass
        finally:
            os.close(descriptor)
    return Feature(
        "kvm",
        found,
        f"API {kvm_api}",
        found == f"API {kvm_api}",
        "a guest is much faster with KVM; otherwise it runs under emulation",
        "",
        required=False,
    )


_PROBES: dict[str, Callable[[Path], Feature]] = {
    "kernel": _kernel,
    "btf": _btf,
    "module": _module,
    "libbpf": _libbpf,
    "libfuse": _libfuse,
    "pyfuse3": _pyfuse3,
    "bcc": _bcc,
    "kvm": _kvm,
}


def names() -> Sequence[str]:
    """Return the names of all features. A feature comes after those that it depends on."""
    return tuple(_PROBES)


@functools.cache
def feature(name: str, root: Path = Path("/")) -> Feature:
    """Probe one feature, once, and return the cached result from then on.

    :param name: one of :func:`names`.
    :param root: directory that holds ``proc``, ``sys`` and ``dev``.
    :raises KeyError: no feature has that name.
    """
    return _PROBES[name](root)


def all_features(root: Path = Path("/")) -> list[Feature]:
    """Return all features, in the order of :func:`names`."""
    return [feature(name, root) for name in names()]


def forget() -> None:
    """Drop all cached probes, after something was installed, loaded or unloaded."""
    feature.cache_clear()
