# SPDX-License-Identifier: LGPL-2.1-or-later
"""The BTF that a build has put into a module: whether it is there, and of use.

``python3 -m efuse.module.btf MODULE`` exits with 1 and says why if it is not.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

from efuse.btf import Btf
from efuse.errors import ModuleBuildError

__all__ = ["check", "has_btf", "section"]

# ELF64, little-endian: where its section headers are, how long each is, how many there are, and
# which has their names; of each, its name, and where its bytes are.
_ELF = struct.Struct("<16s24xQ10xHHH")
_SECTION = struct.Struct("<I20xQQ24x")
_IDENTITY = b"\x7fELF\x02\x01"


def section(elf: Path, name: str) -> bytes | None:
    """Return what is in the section *name* of an ELF file of 64 bits; None: it has none."""
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
    """Make sure that the kernel can find the types of a module.

    pahole looks at each of the module's objects and merges the types that are the same. With a
    libbpf before 1.7 it finds hardly any of Linux 7's to be: a struct is there once for each object
    then, and the kernel refuses a struct_ops whose type is not the one that its value has.

    :raises ModuleBuildError: it has no BTF, one that is damaged, or types that were not merged.
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
    """Check a module; exit with 1 if it is of no use."""
    try:
        check(module)
    except ModuleBuildError as error:
        print(f"efuse: {error}\ntry: {error.hint}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
