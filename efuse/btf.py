# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read BTF, the types of the kernel and of its modules, with libbpf.

The BTF of a module is split BTF: its type ids and its names continue those of the kernel that it
was built for, so reading it takes that kernel's BTF too.
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
from efuse.errors import NotSupportedError

__all__ = ["FUNC", "STRUCT", "TYPEDEF", "UNION", "TypeMember", "Types", "libbpf", "reader_version"]

STRUCT = 4
"""Kind of a struct (``BTF_KIND_STRUCT``)."""
UNION = 5
"""Kind of a union (``BTF_KIND_UNION``)."""
TYPEDEF = 8
"""Kind of a typedef (``BTF_KIND_TYPEDEF``)."""
FUNC = 12
"""Kind of a function (``BTF_KIND_FUNC``)."""

_NO_ELF = 4001  # LIBBPF_ERRNO__FORMAT, which is no errno
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
    library.libbpf_version_string.argtypes = []
    library.libbpf_version_string.restype = ctypes.c_char_p
    return library


def reader_version() -> str:
    """Return the version of libbpf, such as ``v1.1``.

    :raises NotSupportedError: libbpf is not installed.
    """
    return (_library().libbpf_version_string() or b"").decode()


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
    :raises OSError: the file cannot be read; ENOENT or ENODATA if it has no BTF, EINVAL if its BTF
        is damaged, ENOEXEC if it is neither BTF nor a whole ELF file.
    :raises NotSupportedError: libbpf is not installed.
    """

    def __init__(self, path: Path, base: Types | None = None) -> None:
        self._btf: int | None = _library().btf__parse_split(
            os.fsencode(path), base._btf if base else None
        )
        if not self._btf:
            number = ctypes.get_errno() or errno.EINVAL
            if number == _NO_ELF:
                number = errno.ENOEXEC
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
        if kind in (STRUCT, UNION):
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
