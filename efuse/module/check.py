# SPDX-License-Identifier: LGPL-2.1-or-later
"""Check that a module was built with BTF that the kernel can use.

``python3 -m efuse.module.check MODULE VMLINUX`` exits with status 1, and gives the reason, if it
was not.
"""

from __future__ import annotations

import errno
import sys
from collections import Counter
from pathlib import Path

from efuse.btf import STRUCT, Types
from efuse.errors import EfuseError, ModuleBuildError, NotSupportedError, reason

__all__ = ["check", "has_btf"]

_NO_BTF = (errno.ENOENT, errno.ENODATA)


def has_btf(elf: Path) -> bool:
    """Return whether the ELF file ``elf`` has BTF, which is not split BTF."""
    try:
        Types(elf).close()
    except OSError:
        return False
    return True


def check(module: Path, vmlinux: Path) -> None:
    """Check that the kernel can use the types of a built module.

    pahole collects the types of all objects of a module and merges equal ones. With a libbpf older
    than 1.7 it merges hardly any types of Linux 7. Each struct then appears once per object, and
    the kernel refuses a struct_ops whose struct is not the same type as in its value type.

    :param module: the module.
    :param vmlinux: ELF or BTF file with the types of the kernel that it was built for.
    :raises ModuleBuildError: the module has no BTF, damaged BTF, or types that were not merged.
    :raises NotSupportedError: the kernel has no BTF, or libbpf is not installed.
    """
    repeated = _repeated_structs(module, vmlinux)
    if repeated:
        raise ModuleBuildError(
            f"{module.name} cannot be used: pahole left {repeated} of its structs unmerged",
            hint="use pahole with libbpf 1.7, for example Debian sid's libbpf1, and build again",
        )


def _repeated_structs(module: Path, vmlinux: Path) -> int:
    """Return the number of names that more than one struct of the module has."""
    try:
        kernel = Types(vmlinux)
    except OSError as error:
        if error.errno not in _NO_BTF or not vmlinux.is_file():
            raise NotSupportedError(
                f"the types of {vmlinux} cannot be read: {reason(error)}",
                hint="install the kernel's headers again",
            ) from error
        raise NotSupportedError(
            f"the kernel's BTF was not found: {vmlinux} has none",
            hint="use a kernel with CONFIG_DEBUG_INFO_BTF=y",
        ) from error
    with kernel:
        try:
            with Types(module, kernel) as types:
                names = Counter(name for _, kind, name in types.names() if kind == STRUCT)
        except OSError as error:
            if error.errno in _NO_BTF and module.is_file():
                raise ModuleBuildError(
                    f"{module.name} was built without BTF: struct_ops and kfuncs cannot register",
                    hint="apt-get install dwarves (pahole), then efuse module build --force",
                ) from error
            raise ModuleBuildError(
                f"the types of {module.name} cannot be read: {reason(error)}",
                hint="install another version of pahole (package dwarves), and build again"
                if error.errno == errno.EINVAL
                else "efuse module build --force",
            ) from error
    return sum(times > 1 for times in names.values())


def main(module: Path, vmlinux: Path) -> None:
    """Check a module. Exit with status 1 if the kernel cannot use it."""
    try:
        check(module, vmlinux)
    except EfuseError as error:
        print(f"efuse: {error}\ntry: {error.hint}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
