# SPDX-License-Identifier: LGPL-2.1-or-later
"""Look up types of the running kernel by name: BTF ids of functions and structs, and offsets."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from efuse.bpf.type_index import TypeIndex
from efuse.btf import FUNC, STRUCT, TYPEDEF, UNION, TypeMember, Types
from efuse.closing import Closing
from efuse.errors import NotSupportedError, reason

__all__ = ["KernelTypes"]

_SYSFS = Path("/sys/kernel")
_VOLATILE, _CONST, _RESTRICT, _TAG = 9, 10, 11, 18
_PASSED_OVER = (TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TAG)


class KernelTypes(Closing):
    """Types of the running kernel by name: a module's own first, then the kernel's.

    A context manager. What was asked once for this kernel and this build of the module is answered
    from a file in the cache (`efuse.bpf.type_index`). Only another question makes libbpf parse the
    BTF.

    :param module: name of the module. None, or a module that is built into the kernel and so has no
        BTF of its own: only the kernel's types.
    :param load: command that loads the module, if its own types are necessary.
    :param sysfs: directory with ``btf/`` and ``notes``.
    :ivar module: name of the module; None if only the kernel's types are used.
    :raises NotSupportedError: the kernel has no BTF, or BTF cannot be read. With *load*: the module
        is not loaded.
    """

    def __init__(
        self, module: str | None = None, *, load: str | None = None, sysfs: Path | None = None
    ) -> None:
        sysfs = _SYSFS if sysfs is None else sysfs
        self._btf = sysfs / "btf"
        self.module = module if module and (self._btf / module).exists() else None
        if load and not self.module:
            raise NotSupportedError(f"the kernel module {module} is not loaded", hint=load)
        self._parsed: _Parsed | None = None
        self._content: bytes | None = None
        if self.module:
            try:
                self._content = (self._btf / self.module).read_bytes()
            except OSError as error:
                raise _unreadable(self.module, error) from error
        self._index = TypeIndex.read(sysfs, self._content)
        if not self._index:
            self._parse()

    def _parse(self) -> _Parsed:
        if self._parsed is None:
            # The content that the index's key is made of, because the module may be another by now.
            self._parsed = _Parsed(self._btf / "vmlinux", self.module, self._content)
        return self._parsed

    def close(self) -> None:
        """Free the types, and store new answers in the cache. Further calls do nothing."""
        if self._parsed is not None:
            self._parsed.close()
            self._parsed = None
        self._index.write()

    def function(self, name: str) -> int:
        """Return the BTF id of a function.

        :raises KeyError: no function has that name.
        """
        return self._id(FUNC, name)

    def own_function(self, name: str) -> int:
        """Return the BTF id of a function of the module.

        :raises KeyError: no function of the module has that name.
        """
        return self._own_id(FUNC, name)

    def own_struct(self, name: str) -> int:
        """Return the BTF id of a struct of the module.

        :raises KeyError: no struct of the module has that name.
        """
        return self._own_id(STRUCT, name)

    def typedef(self, name: str) -> int:
        """Return the BTF id of a typedef.

        :raises KeyError: no typedef has that name.
        """
        return self._id(TYPEDEF, name)

    def is_own(self, type_id: int) -> bool:
        """Return whether a type is the module's own."""
        if self.module is None:
            return False
        first = self._number("first", lambda parsed: parsed.types.first)
        return first is not None and type_id >= first

    def hides(self, name: str) -> bool:
        """Return whether a typedef of the module has the same name as one of the kernel."""
        own = self._number(f"own {TYPEDEF} {name}", lambda p: p.own.get((TYPEDEF, name)))
        if own is None:
            return False
        kernels = self._number(f"kernel {TYPEDEF} {name}", lambda p: p.kernel.find(TYPEDEF, name))
        return kernels is not None

    def size(self, struct: str) -> int:
        """Return the size of a struct in bytes.

        :raises KeyError: no struct has that name.
        """
        type_id = self._id(STRUCT, struct)
        size = self._number(f"size {struct}", lambda parsed: parsed.types[type_id].size)
        return _known(size, struct)

    def members(self, struct: str) -> tuple[TypeMember, ...]:
        """Return the members of a struct, in order.

        :raises KeyError: no struct has that name.
        """
        type_id = self._id(STRUCT, struct)
        return self._index.members(struct, lambda: self._parse().types[type_id].members)

    def offset(self, struct: str, path: str) -> int:
        """Return the offset of a member in a struct, in bytes.

        :param path: name of the member, or names joined by dots: ``in.h.nodeid``.
        :raises KeyError: the struct or the member does not exist.
        :raises ValueError: the member does not begin at a byte.
        """
        bits = self.bit_offset(struct, path)
        if bits % 8:
            raise ValueError(f"struct {struct}: {path} does not begin at a byte boundary")
        return bits // 8

    def bit_offset(self, struct: str, path: str) -> int:
        """Return the offset of a member in a struct, in bits; see `offset`."""
        type_id = self._id(STRUCT, struct)
        bits = self._number(
            f"bits {struct} {path}", lambda parsed: parsed.bit_offset(type_id, path)
        )
        return _known(bits, f"struct {struct} has no member {path}")

    def _id(self, kind: int, name: str) -> int:
        return _known(self._number(f"id {kind} {name}", lambda p: p.find(kind, name)), name)

    def _own_id(self, kind: int, name: str) -> int:
        found = self._number(f"own {kind} {name}", lambda parsed: parsed.own.get((kind, name)))
        return _known(found, name)

    def _number(self, question: str, answer: Callable[[_Parsed], int | None]) -> int | None:
        return self._index.number(question, lambda: answer(self._parse()))


class _Parsed(Closing):
    """The types of the kernel and of one module, as libbpf parses them.

    :param vmlinux: BTF file of the kernel.
    :param module: name of the module, for error messages.
    :param content: content of the module's BTF file; None for the kernel alone.
    :ivar kernel: types of the kernel.
    :ivar types: types of the module and the kernel.
    :ivar own: id of each named type of the module, by (kind, name).
    """

    def __init__(self, vmlinux: Path, module: str | None, content: bytes | None) -> None:
        try:
            self.kernel = self.types = Types(vmlinux)
        except OSError as error:
            raise NotSupportedError(
                f"cannot read the kernel's types: {reason(error)}",
                hint="boot a kernel with CONFIG_DEBUG_INFO_BTF=y",
            ) from error
        self.own: dict[tuple[int, str], int] = {}
        if content is None:
            return
        try:
            self.types = _parse_bytes(content, self.kernel)
            self.own = {(kind, name): number for number, kind, name in self.types.names()}
        except OSError as error:
            self.close()
            raise _unreadable(module or "", error) from error

    def close(self) -> None:
        """Free the types."""
        if self.types is not self.kernel:
            self.types.close()
        self.kernel.close()

    def find(self, kind: int, name: str) -> int | None:
        """Return the id of a type, the module's own first; None if there is none."""
        own = self.own.get((kind, name))
        return self.kernel.find(kind, name) if own is None else own

    def bit_offset(self, type_id: int, path: str) -> int | None:
        """Return the offset of a member in a struct, in bits; None if there is no such member."""
        bits = 0
        for name in path.split("."):
            found = self._member(type_id, name)
            if found is None:
                return None
            more, type_id = found
            bits += more
        return bits

    def _member(self, type_id: int, name: str) -> tuple[int, int] | None:
        """Return (offset in bits, type id) of a member. Members of anonymous structs count."""
        kind = self.types[type_id]
        while kind.kind in _PASSED_OVER:
            kind = self.types[kind.size]
        if kind.kind not in (STRUCT, UNION):
            return None
        for member in kind.members:
            if member.name == name:
                return member.bits, member.type_id
            if not member.name and (inner := self._member(member.type_id, name)):
                return member.bits + inner[0], inner[1]
        return None


def _parse_bytes(content: bytes, base: Types) -> Types:
    # libbpf 1.1 parses split BTF only from a file.
    fd = os.memfd_create("btf", os.MFD_CLOEXEC)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        return Types(Path(f"/proc/self/fd/{fd}"), base)


def _unreadable(module: str, error: OSError) -> NotSupportedError:
    return NotSupportedError(
        f"cannot read the types of module {module}: {reason(error)}", hint="run as root"
    )


def _known(number: int | None, what: str) -> int:
    if number is None:
        raise KeyError(what)
    return number
