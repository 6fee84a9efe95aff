# SPDX-License-Identifier: LGPL-2.1-or-later
"""Check that a module was built with BTF that the kernel can use.

``python3 -m efuse.module.btf MODULE`` exits with status 1, and gives the reason, if it was not.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from efuse.btf import Btf
from efuse.errors import ModuleBuildError

__all__ = ["check", "has_btf", "section"]

# ELF64, little-endian. Of the header: the offset of the section headers, the size and the number of
# section headers, and which section has the names. Of each section header: name, offset and size.
_ELF = struct.Struct("<16s24xQ10xHHH")
_SECTION = struct.Struct("<I20xQQ24x")
_IDENTITY = b"\x7fELF\x02\x01"


def section(elf: Path, name: str) -> bytes | None:
    """Return the content of section *name* of a 64-bit ELF file, or None if there is none."""
    with elf.open("rb") as file:
        header = file.read(_ELF.size)
        if not header.startswith(_IDENTITY) or len(header) < _ELF.size:
            return None
        _identity, start, length, count, named = _ELF.unpack(header)
        file.seek(start)
        table = file.read(length * count)
        found = [_SECTION.unpack_from(table, length * number) for number in range(count)]

        def content(number: int) -> bytes:
            _name, offset, size = found[number]
            file.seek(offset)
            return file.read(size)

        names = content(named)
        for number in range(count):
            if names[found[number][0] :].startswith(name.encode() + b"\0"):
                return content(number)
    return None


def has_btf(elf: Path) -> bool:
    """Return whether the ELF file ``elf`` has a ``.BTF`` section."""
    return section(elf, ".BTF") is not None


def check(module: Path) -> None:
    """Check that the kernel can use the types of a built module.

    pahole collects the types of all objects of a module and merges equal ones. With a libbpf older
    than 1.7 it merges hardly any types of Linux 7. Each struct then appears once per object, and
    the kernel refuses a struct_ops whose struct is not the same type as in its value type.

    :raises ModuleBuildError: the module has no BTF, damaged BTF, or types that were not merged.
    """
    blob = section(module, ".BTF")
    if blob is None:
        raise ModuleBuildError(
            f"{module.name} was built without BTF: struct_ops and kfuncs cannot register",
            hint="apt-get install dwarves (pahole), then efuse module build --force",
        )
    try:
        repeated = Btf(blob).repeated_structs
    except ValueError as error:
        raise ModuleBuildError(
            f"the types of {module.name} cannot be read: {error}",
            hint="another pahole (of the package dwarves) may make better ones; build again",
        ) from error
    if repeated:
        raise ModuleBuildError(
            f"{module.name} cannot be used: pahole has left {repeated} of its structs unmerged",
            hint="give pahole libbpf 1.7 or newer, such as Debian sid's libbpf1, and build again",
        )


def main(module: Path) -> None:
    """Check a module. Exit with status 1 if the kernel cannot use it."""
    try:
        check(module)
    except ModuleBuildError as error:
        print(f"efuse: {error}\ntry: {error.hint}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
