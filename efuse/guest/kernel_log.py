# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find a kernel's complaints in its log, and decode its taint word."""

from __future__ import annotations

import re

__all__ = ["MODULE_TAINTS", "complaints", "emulators_fault", "taint_names"]

# Messages about errors in the kernel. All have level "warning" or above, except for the text of an
# oops. Reports of kmemleak are not in the log: see tests/debug.
_COMPLAINT = re.compile(
    r"""
      WARNING:\ (CPU|possible|suspicious|inconsistent|bad|held|Nested|lock|\S+\ at\ )
    | WARNING:\ \S+/\S+\ is\ (leaving|returning|trying|exiting)
    | \bBUG:\ | \bkernel\ BUG\ at | \bOops\b | general\ protection\ fault | double\ fault
    | Unable\ to\ handle\ kernel | unable\ to\ handle\ (page\ fault|kernel)
    | \bKASAN:\ | \bUBSAN:\ | \bKCSAN:\ | \bKFENCE:
    | INFO:\ task\ .*\ blocked\ for\ more\ than | INFO:\ (possible|trying\ to\ register)
    | INFO:\ rcu\S*\ .*stall | rcu:\ INFO:\ .*stall | (soft|hard)\ (lockup|LOCKUP)
    | refcount_t:\ | list_(add|del)\ corruption | usercopy:\ | Kernel\ panic
    | DEBUG_LOCKS_WARN_ON | sleeping\ function\ called | Bad\ page\ state
    | \bBUG\ \S+\ \((T|Not\ t)ainted | percpu\ ref\ .*<=\ 0 | cannot\ create\ duplicate\ filename
    # Damage to a file system below. What a failing disk causes is none.
    | EXT4-fs\ error\ (?!.*(I/?O\ |[Jj]ournal|reading\ directory|(unable\ to|[Cc]annot)\ read))
    | XFS\ \(\S+\):\ .*[Cc]orrupt
    | VFS:\ Busy\ inodes | Objects\ remaining\ in\ \S+\ on | still\ has\ objects
    """,
    re.VERBOSE,
)

# An unhandled breakpoint, with the byte before the address where the kernel stopped.
_BREAKPOINT = re.compile(
    r"\bOops: int3: .*?\bCode: [0-9a-f ]*?\b([0-9a-f]{2}) <[0-9a-f]{2}>", re.DOTALL
)

# Bits of EFLAGS that are 0 on every processor: 3, 5, 15, 22 to 31 (Intel's Software Developer's
# Manual, volume 1, 3.4.3). And bits that Linux never sets: IOPL (12 and 13; iopl(2) has been
# emulated since 5.5) and NT (14).
_EFLAGS = re.compile(r"\bEFLAGS: ([0-9a-f]{8})\b")
_EFLAGS_ZERO = 0xFFC0_8028 | 0x7000

MODULE_TAINTS = (1 << 12) | (1 << 13)
"""Bits that loading eFuse's module sets in the taint word: out of tree, unsigned."""

_TAINTS = {
    0: "proprietary module",
    1: "forced module",
    2: "out of specification",
    3: "forced unload",
    4: "machine check",
    5: "bad page",
    6: "user request",
    7: "died (oops or BUG)",
    8: "overridden ACPI table",
    9: "warning",
    10: "staging driver",
    11: "firmware workaround",
    12: "out-of-tree module",
    13: "unsigned module",
    14: "soft lockup",
    15: "live patch",
    16: "auxiliary",
    17: "struct randomization",
    18: "in-kernel test",
}


def complaints(text: str, context: int = 20) -> list[str]:
    """Return the kernel's complaints in ``text``, each with up to ``context`` lines in all.

    A line within those lines of a complaint does not start another complaint.
    """
    lines = text.splitlines()
    found: list[str] = []
    covered = 0
    for number, line in enumerate(lines):
        if number >= covered and _COMPLAINT.search(line):
            covered = number + context
            found.append("\n".join(lines[number:covered]))
    return found


def emulators_fault(text: str) -> str | None:
    """Return which impossible state killed the kernel, or None if there is no sign of one.

    Such a state cannot occur on a real processor, so it is a fault of the emulator. Two are known:

    * A breakpoint (``int3``) that is not in memory. While the kernel patches its own code, a
      breakpoint stands there for a moment. QEMU before 8.1 may keep running its translation of that
      moment on another processor, because software emulation did not lock a page against writers
      before translating it (fixed by QEMU's commit deba78709ae8;
      https://github.com/ClangBuiltLinux/boot-utils/issues/111).
    * Flags that are 0 on every processor, or that the kernel never sets. Seen with QEMU 7.2: once
      the direction flag was set too, and the next string instruction ran backwards over the stack;
      once the kernel trapped while booting, and then called address 0.
    """
    if any(match[1] != "cc" for match in _BREAKPOINT.finditer(text)):
        return "a breakpoint that is not in memory"
    if any(int(match[1], 16) & _EFLAGS_ZERO for match in _EFLAGS.finditer(text)):
        return "flags that cannot be set"
    return None


def taint_names(word: int) -> list[str]:
    """Return the meaning of each bit that is set in the taint word."""
    return [_TAINTS.get(bit, f"bit {bit}") for bit in range(word.bit_length()) if word >> bit & 1]
