# SPDX-License-Identifier: LGPL-2.1-or-later
"""The types of the running kernel and of one of its modules: ids of hooks, offsets of members.

libbpf parses the BTF: the kernel's own has more than a hundred thousand types, too many to walk in
Python. `efuse.btf` needs no libbpf, and is enough where only a module's own types matter.
"""

from __future__ import annotations

from pathlib import Path

from efuse.bpf import libbpf
from efuse.closing import Closing
from efuse.errors import NotSupportedError, reason

__all__ = ["KernelTypes"]

_SYSFS = Path("/sys/kernel/btf")
_STRUCT, _UNION, _TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _FUNC, _TAG = 4, 5, 8, 9, 10, 11, 12, 18
_PASSED_OVER = (_TYPEDEF, _VOLATILE, _CONST, _RESTRICT, _TAG)


class KernelTypes(Closing):
    """Types by name: the module's own first, then the kernel's. A context manager.

    :param module: name of the module. None, or a module that is built into the kernel and so has no
        BTF of its own: only the kernel's types.
    :param sysfs: directory with the BTF files.
    :ivar module: name of the module; None if only the kernel's types are used.
    :raises NotSupportedError: the kernel has no BTF, or its BTF cannot be read.
    """

    def __init__(self, module: str | None = None, *, sysfs: Path = _SYSFS) -> None:
        self.module = module if module and (sysfs / module).exists() else None
        self._own: dict[tuple[int, str], int] = {}
        self._open: list[libbpf.Types] = []
        try:
            self._types = libbpf.Types(sysfs / "vmlinux")
            self._open.append(self._types)
            if self.module:
                first = len(self._types)
                self._types = libbpf.Types(sysfs / self.module, self._types)
                self._open.append(self._types)
                self._own = {
                    (t.kind, t.name): number
                    for number in range(first, len(self._types))
                    if (t := self._types[number]).name
                }
        except OSError as error:
            self.close()
            raise NotSupportedError(
                f"cannot read the kernel's types: {reason(error)}",
                hint="boot a kernel with CONFIG_DEBUG_INFO_BTF=y",
            ) from error

    def close(self) -> None:
        """Free the types. Further calls do nothing."""
        while self._open:
            self._open.pop().close()

    def function(self, name: str) -> int:
        """Return the BTF id of a function.

        :raises KeyError: no function has that name.
        """
        return self._find(_FUNC, name)

    def typedef(self, name: str) -> int:
        """Return the BTF id of a typedef.

        :raises KeyError: no typedef has that name.
        """
        return self._find(_TYPEDEF, name)

    def is_own(self, type_id: int) -> bool:
        """Return whether a type is the module's own."""
        return type_id in self._own.values()

    def hides(self, name: str) -> bool:
        """Return whether a typedef of the module has the same name as one of the kernel."""
        return (_TYPEDEF, name) in self._own and self._open[0].find(_TYPEDEF, name) is not None

    def size(self, struct: str) -> int:
        """Return the size of a struct in bytes.

        :raises KeyError: no struct has that name.
        """
        return self._types[self._find(_STRUCT, struct)].size

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
        type_id, bits = self._find(_STRUCT, struct), 0
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
        if kind.kind not in (_STRUCT, _UNION):
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
