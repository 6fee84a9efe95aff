# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read BTF: ids of functions and hooks, and offsets of members, in the kernel and its modules.

libbpf parses the BTF. The kernel's own has more than a hundred thousand types: libbpf reads them in
a few milliseconds. The BTF of a module is split BTF: its type ids and its names continue those of
the kernel that it was built for, so reading it takes that kernel's BTF too.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from efuse.closing import Closing
from efuse.errors import NotSupportedError, reason

__all__ = ["STRUCT", "KernelTypes", "Type", "TypeMember", "Types", "libbpf"]

STRUCT = 4
"""Kind of a struct (``BTF_KIND_STRUCT``)."""

_SYSFS = Path("/sys/kernel/btf")
_UNION, _TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _FUNC, _TAG = 5, 8, 9, 10, 11, 12, 18
_PASSED_OVER = (_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TAG)
_HEAD = struct.Struct("=III")  # struct btf_type, and struct btf_member


def libbpf() -> ctypes.CDLL:
    """Return libbpf as a new object, whose functions have no declarations yet.

    :raises NotSupportedError: libbpf is not installed.
    """
    try:
        return ctypes.CDLL("libbpf.so.1", use_errno=True)
    except OSError as error:
        raise NotSupportedError(
            f"cannot use BPF: libbpf is not installed ({error})", hint="apt-get install libbpf1"
        ) from error


@functools.cache
def _library() -> ctypes.CDLL:
    library = libbpf()
    library.libbpf_set_print.argtypes = [ctypes.c_void_p]
    library.libbpf_set_print.restype = ctypes.c_void_p
    library.libbpf_set_print(None)  # errors are raised: libbpf need not print them to stderr, too
    library.btf__parse.restype = ctypes.c_void_p
    library.btf__parse.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    library.btf__parse_split.restype = ctypes.c_void_p
    library.btf__parse_split.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
    library.btf__type_cnt.argtypes = [ctypes.c_void_p]
    library.btf__type_cnt.restype = ctypes.c_uint32
    library.btf__type_by_id.restype = ctypes.c_void_p
    library.btf__type_by_id.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    library.btf__name_by_offset.restype = ctypes.c_char_p
    library.btf__name_by_offset.argtypes = [ctypes.c_void_p, ctypes.c_uint32]
    library.btf__find_by_name_kind.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32]
    library.btf__free.argtypes = [ctypes.c_void_p]
    library.btf__free.restype = None
    return library


@dataclass(frozen=True)
class TypeMember:
    """A member of a struct or union: ``struct btf_member``. ``bits`` is its offset in bits."""

    name: str
    type_id: int
    bits: int


@dataclass(frozen=True)
class Type:
    """A type: ``struct btf_type``. ``size`` is a type id if the type refers to another one."""

    kind: int
    name: str
    size: int
    members: tuple[TypeMember, ...] = ()


class Types(Closing):
    """The types in a BTF or ELF file, by id: ``struct btf``. A context manager.

    :param path: path of the file.
    :param base: for split BTF, the types that it continues. Close it after this one.
    :ivar first: id of the first type that is not in *base*.
    :raises OSError: the file cannot be read, or has no BTF; EINVAL if its BTF is damaged.
    :raises NotSupportedError: libbpf is not installed.
    """

    def __init__(self, path: Path, base: Types | None = None) -> None:
        name = os.fsencode(path)
        self._btf: int | None = (
            _library().btf__parse_split(name, base._btf)
            if base
            else _library().btf__parse(name, None)
        )
        if not self._btf:
            number = ctypes.get_errno() or errno.EINVAL
            raise OSError(number, os.strerror(number))
        self.first = len(base) if base else 1

    def close(self) -> None:
        """Free the types. Further calls do nothing."""
        _library().btf__free(self._btf)
        self._btf = None

    def __len__(self) -> int:
        """Return the number of types, including ``void`` and those of the base."""
        return int(_library().btf__type_cnt(self._btf))

    def __getitem__(self, number: int) -> Type:
        address, name, info, size = self._head(number)
        kind = info >> 24 & 0x1F
        members: tuple[TypeMember, ...] = ()
        if kind in (STRUCT, _UNION):
            length = (info & 0xFFFF) * _HEAD.size
            raw = ctypes.string_at(address + _HEAD.size, length)
            mask = 0xFFFFFF if info >> 31 else 0xFFFFFFFF  # the top byte is a bit field's width
            members = tuple(
                TypeMember(self._name(name), type_id, offset & mask)
                for name, type_id, offset in _HEAD.iter_unpack(raw)
            )
        return Type(kind, self._name(name), size, members)

    def find(self, kind: int, name: str) -> int | None:
        """Return the id of the first type with this kind and name, or None."""
        result = _library().btf__find_by_name_kind(self._btf, name.encode(), kind)
        if result >= 0:
            return int(result)
        if result == -errno.ENOENT:
            return None
        raise OSError(-result, os.strerror(-result))

    def names(self) -> Iterator[tuple[int, int, str]]:
        """Yield (id, kind, name) of each type that has a name and is not in the base."""
        for number in range(self.first, len(self)):
            _, name, info, _ = self._head(number)
            if name:
                yield number, info >> 24 & 0x1F, self._name(name)

    def _head(self, number: int) -> tuple[int, int, int, int]:
        """Return the address of a type, and its name, info and size."""
        address = _library().btf__type_by_id(self._btf, number)
        if not address:
            raise IndexError(number)
        name, info, size = _HEAD.unpack(ctypes.string_at(address, _HEAD.size))
        return address, name, info, size

    def _name(self, offset: int) -> str:
        return (_library().btf__name_by_offset(self._btf, offset) or b"").decode()


class KernelTypes(Closing):
    """Types of the running kernel by name: a module's own first, then the kernel's.

    A context manager.

    :param module: name of the module. None, or a module that is built into the kernel and so has no
        BTF of its own: only the kernel's types.
    :param load: command that loads the module, if its own types are necessary.
    :param sysfs: directory with the BTF files.
    :ivar module: name of the module; None if only the kernel's types are used.
    :raises NotSupportedError: the kernel has no BTF, or BTF cannot be read. With *load*: the module
        is not loaded.
    """

    def __init__(
        self, module: str | None = None, *, load: str | None = None, sysfs: Path | None = None
    ) -> None:
        sysfs = _SYSFS if sysfs is None else sysfs
        self.module = module if module and (sysfs / module).exists() else None
        if load and not self.module:
            raise NotSupportedError(f"the kernel module {module} is not loaded", hint=load)
        self._own: dict[tuple[int, str], int] = {}
        self._open: list[Types] = []
        try:
            self._types = self._parse(sysfs / "vmlinux")
            if self.module:
                self._types = self._parse(sysfs / self.module)
                self._own = {(kind, name): number for number, kind, name in self._types.names()}
        except BaseException:
            self.close()
            raise

    def _parse(self, path: Path) -> Types:
        try:
            self._open.append(Types(path, self._open[0] if self._open else None))
        except OSError as error:
            if self._open:
                raise NotSupportedError(
                    f"cannot read the types of module {path.name}: {reason(error)}",
                    hint="run as root",
                ) from error
            raise NotSupportedError(
                f"cannot read the kernel's types: {reason(error)}",
                hint="boot a kernel with CONFIG_DEBUG_INFO_BTF=y",
            ) from error
        return self._open[-1]

    def close(self) -> None:
        """Free the types. Further calls do nothing."""
        while self._open:
            self._open.pop().close()

    def function(self, name: str) -> int:
        """Return the BTF id of a function.

        :raises KeyError: no function has that name.
        """
        return self._find(_FUNC, name)

    def own_function(self, name: str) -> int:
        """Return the BTF id of a function of the module.

        :raises KeyError: no function of the module has that name.
        """
        return self._own[_FUNC, name]

    def own_struct(self, name: str) -> int:
        """Return the BTF id of a struct of the module.

        :raises KeyError: no struct of the module has that name.
        """
        return self._own[STRUCT, name]

    def typedef(self, name: str) -> int:
        """Return the BTF id of a typedef.

        :raises KeyError: no typedef has that name.
        """
        return self._find(_TYPEDEF, name)

    def is_own(self, type_id: int) -> bool:
        """Return whether a type is the module's own."""
        return self.module is not None and type_id >= self._types.first

    def hides(self, name: str) -> bool:
        """Return whether a typedef of the module has the same name as one of the kernel."""
        return (_TYPEDEF, name) in self._own and self._open[0].find(_TYPEDEF, name) is not None

    def size(self, struct: str) -> int:
        """Return the size of a struct in bytes.

        :raises KeyError: no struct has that name.
        """
        return self._types[self._find(STRUCT, struct)].size

    def members(self, struct: str) -> tuple[TypeMember, ...]:
        """Return the members of a struct, in order.

        :raises KeyError: no struct has that name.
        """
        return self._types[self._find(STRUCT, struct)].members

    def offset(self, struct: str, path: str) -> int:
        """Return the offset of a member in a struct, in bytes.

        :param path: name of the member, or names joined by dots: ``in.h.nodeid``.
        :raises KeyError: the struct or the member does not exist.
        :raises ValueError: the member does not begin at a byte.
        """
        bits = self.bit_offset(struct, path)
        if bits % 8:
            raise ValueError(f"struct {struct}: {path} does not begin at a byte")
        return bits // 8

    def bit_offset(self, struct: str, path: str) -> int:
        """Return the offset of a member in a struct, in bits; see `offset`."""
        type_id, bits = self._find(STRUCT, struct), 0
        for name in path.split("."):
            found = self._member(type_id, name)
            if found is None:
                raise KeyError(f"struct {struct} has no member {path}")
            more, type_id = found
            bits += more
        return bits

    def _member(self, type_id: int, name: str) -> tuple[int, int] | None:
        """Return (offset in bits, type id) of a member. Members of anonymous structs count."""
        kind = self._types[type_id]
        while kind.kind in _PASSED_OVER:
            kind = self._types[kind.size]
        if kind.kind not in (STRUCT, _UNION):
            return None
        for member in kind.members:
            if member.name == name:
                return member.bits, member.type_id
            if not member.name and (inner := self._member(member.type_id, name)):
                return member.bits + inner[0], inner[1]
        return None

    def _find(self, kind: int, name: str) -> int:
        if (kind, name) in self._own:
            return self._own[kind, name]
        found = self._open[0].find(kind, name)
        if found is None:
            raise KeyError(name)
        return found
