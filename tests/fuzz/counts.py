# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a run has tried, and what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.fuzz import layouts

_OPCODES = """lookup getattr setattr readlink symlink mknod mkdir unlink rmdir rename link open read
write statfs release fsync setxattr getxattr listxattr removexattr flush init opendir readdir
releasedir fsyncdir getlk setlk setlkw access create bmap destroy ioctl poll fallocate
readdirplus rename2 lseek copy_file_range tmpfile statx"""
REPLIED = frozenset(_OPCODES.split())
"""The opcodes whose replies are mutated.

FORGET, BATCH_FORGET and NOTIFY_REPLY have no reply; that of INTERRUPT is mutated apart.
SETUPMAPPING, REMOVEMAPPING and SYNCFS are sent by virtiofs alone.
"""
NOTIFIED = frozenset(name for name, _ in layouts.NOTIFICATIONS.values())
"""The kinds of notifications."""


class FoundError(AssertionError):
    """The kernel did what it must never do."""


@dataclass
class Counts:
    """Counts of a run.

    :ivar mutated: mutated replies, by opcode and name of the mutation.
    :ivar requests: requests, by opcode.
    :ivar fields: changes of each field, by name of the message and of the field.
    :ivar notified: notifications of each kind.
    :ivar carried_out: notifications of each kind that the kernel carried out.
    :ivar ioctls: calls of each ioctl.
    :ivar succeeded: calls of each ioctl that returned no error.
    :ivar written: writes to each file in sysfs.
    :ivar accepted: writes to each file in sysfs that the kernel accepted.
    :ivar calls: rounds of calls that callers made.
    :ivar checked: bytes that callers compared.
    :ivar through: reads that returned bytes which only FUSE's passthrough has.
    :ivar hits: requests that the kernel answered without the daemon.
    :ivar mounts: mounts.
    """

    mutated: Counter[tuple[str, str]] = field(default_factory=Counter)
    requests: Counter[str] = field(default_factory=Counter)
    fields: Counter[tuple[str, str]] = field(default_factory=Counter)
    notified: Counter[str] = field(default_factory=Counter)
    carried_out: Counter[str] = field(default_factory=Counter)
    ioctls: Counter[str] = field(default_factory=Counter)
    succeeded: Counter[str] = field(default_factory=Counter)
    written: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    calls: int = 0
    checked: int = 0
    through: int = 0
    hits: int = 0
    mounts: int = 0

    def mutated_opcodes(self) -> set[str]:
        """Return the opcodes to which a mutated reply was sent."""
        return {opcode for opcode, _ in self.mutated}

    def add(self, other: Counts) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def missing(self, ioctls: Iterable[str] = ()) -> list[str]:
        """Return what was not tried of opcodes, kinds of notifications, and *ioctls*."""
        tried = self.mutated_opcodes() | {*self.notified} | {*self.ioctls}
        return sorted({*REPLIED, *NOTIFIED, *ioctls} - tried)

    def lines(self) -> list[str]:
        """Return a summary."""
        replies = Counter[str]()
        for (opcode, _), number in self.mutated.items():
            replies[opcode] += number
        named = {
            "mutated replies": replies,
            "notifications": self.notified,
            "carried out": self.carried_out,
            "ioctls": self.ioctls,
            "succeeded": self.succeeded,
            "written to sysfs": self.written,
            "accepted": self.accepted,
        }
        lines = [
            f"{self.mounts} mounts, {sum(self.requests.values())} requests, {self.hits} of others "
            f"answered in the kernel, {len(self.fields)} fields changed "
            f"{sum(self.fields.values())} times",
            f"{self.calls} rounds of calls, {self.checked} bytes compared, {self.through} reads "
            "by FUSE's passthrough",
        ]
        for name, counter in named.items():
            listed = " ".join(f"{what} {number}" for what, number in sorted(counter.items()))
            lines.append(f"{name}: {sum(counter.values())}: {listed}")
        return lines
