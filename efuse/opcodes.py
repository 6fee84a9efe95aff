# SPDX-License-Identifier: LGPL-2.1-or-later
"""FUSE opcodes: numbers and lower-case names, as in <linux/fuse.h>."""

from collections.abc import Mapping
from types import MappingProxyType

__all__ = ["COUNTED", "NAMES", "NUMBERS", "name", "number"]

NUMBERS: Mapping[str, int] = MappingProxyType(
    {
        "lookup": 1,
        "forget": 2,
        "getattr": 3,
        "setattr": 4,
        "readlink": 5,
        "symlink": 6,
        "mknod": 8,
        "mkdir": 9,
        "unlink": 10,
        "rmdir": 11,
        "rename": 12,
        "link": 13,
        "open": 14,
        "read": 15,
        "write": 16,
        "statfs": 17,
        "release": 18,
        "fsync": 20,
        "setxattr": 21,
        "getxattr": 22,
        "listxattr": 23,
        "removexattr": 24,
        "flush": 25,
        "init": 26,
        "opendir": 27,
        "readdir": 28,
        "releasedir": 29,
        "fsyncdir": 30,
        "getlk": 31,
        "setlk": 32,
        "setlkw": 33,
        "access": 34,
        "create": 35,
        "interrupt": 36,
        "bmap": 37,
        "destroy": 38,
        "ioctl": 39,
        "poll": 40,
        "notify_reply": 41,
        "batch_forget": 42,
        "fallocate": 43,
        "readdirplus": 44,
        "rename2": 45,
        "lseek": 46,
        "copy_file_range": 47,
        "setupmapping": 48,
        "removemapping": 49,
        "syncfs": 50,
        "tmpfile": 51,
        "statx": 52,
        "copy_file_range_64": 53,
    }
)
"""Number of each opcode, by name."""

NAMES: Mapping[int, str] = MappingProxyType({number: name for name, number in NUMBERS.items()})
"""Name of each opcode, by number."""

COUNTED = tuple(
    name for name in NUMBERS if name not in ("forget", "interrupt", "notify_reply", "batch_forget")
)
"""The opcodes that sysfs counts: all those that the kernel waits for an answer to."""


def name(number: int) -> str:
    """Return the name of the opcode *number*, or ``opcode_<number>`` for an unknown one."""
    return NAMES.get(number, f"opcode_{number}")


def number(name: str) -> int:
    """Return the number of the opcode *name*, in any case, with or without a leading ``FUSE_``.

    :raises KeyError: there is no such opcode.
    """
    return NUMBERS[name.lower().removeprefix("fuse_")]
