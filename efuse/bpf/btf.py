# SPDX-License-Identifier: LGPL-2.1-or-later
"""The BTF of a loaded module.

Module BTF is split BTF: type ids and string offsets continue those of the kernel's own BTF. Reading
it takes the number of the kernel's types, but none of the types themselves.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from efuse import paths
from efuse.bpf import libbpf
from efuse.btf import HEADER, Btf
from efuse.errors import EfuseError, NotSupportedError, reason

__all__ = ["module_btf"]

_SYSFS = Path("/sys/kernel/btf")


@contextmanager
def module_btf(name: str, hint: str = "efuse module load") -> Iterator[Btf]:
    """Yield the BTF of the loaded module *name*.

    :param hint: command that loads the module, for the error.
    :raises NotSupportedError: the module is not loaded, or has no BTF that this user can read.
    """
    with ExitStack() as stack:
        try:
            blob = (_SYSFS / name).read_bytes()
            kernel = stack.enter_context((_SYSFS / "vmlinux").open("rb", buffering=0))
            base = _KernelStrings(kernel.fileno())
            btf = Btf(
                blob,
                first_id=_kernel_types(base) + 1,
                base_strings_bytes=base.strings_bytes,
                base_string=base.string,
            )
        except FileNotFoundError as error:
            raise NotSupportedError(f"the kernel module {name} is not loaded", hint=hint) from error
        except OSError as error:
            raise NotSupportedError(
                f"cannot read the types of module {name}: {reason(error)}", hint="run as root"
            ) from error
        except ValueError as error:
            raise NotSupportedError(f"cannot read the types of module {name}: {error}") from error
        yield btf


class _KernelStrings:
    """The string section of the kernel's BTF. Only the strings that are asked for are read.

    :param fd: descriptor of the kernel's BTF file. The caller closes it.
    """

    _PIECE_BYTES = 256

    def __init__(self, fd: int) -> None:
        self._fd = fd
        _magic, _version, _flags, length, _types, self.types_bytes, strings, self.strings_bytes = (
            HEADER.unpack(os.pread(fd, HEADER.size, 0))
        )
        self._start = length + strings

    def string(self, offset: int) -> bytes:
        """Return the string at *offset* of the section, cut at 256 bytes."""
        return os.pread(self._fd, self._PIECE_BYTES, self._start + offset).partition(b"\0")[0]


def _kernel_types(base: _KernelStrings) -> int:
    """Return the number of types in the kernel's own BTF.

    Counting them takes a walk over all types, so the number is cached for each kernel build.
    """
    kernel = os.uname()
    key = f"{kernel.release} {kernel.version} {base.types_bytes} {base.strings_bytes}"
    path = paths.cache() / "kernel-types"
    try:
        cached_key, _, number = paths.check_private(path).read_text().strip().rpartition(" = ")
        if cached_key == key:
            return int(number)
    except (OSError, ValueError, EfuseError):
        pass  # not cached yet, truncated, or writable by another user
    number_of_types = libbpf.count_types(_SYSFS / "vmlinux")
    with contextlib.suppress(OSError, EfuseError):  # the next attach counts again
        paths.write(path, f"{key} = {number_of_types}\n")
    return number_of_types
