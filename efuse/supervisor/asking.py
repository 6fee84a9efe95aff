# SPDX-License-Identifier: LGPL-2.1-or-later
"""The options with which a daemon asks for a mount.

A successor must ask for the same: FUSE has them in the mount, which stays.
"""

from __future__ import annotations

from dataclasses import dataclass

from efuse.control import Mount

__all__ = ["Asked"]

# Flags of mount(2), by the names that mountinfo has for them.
_FLAGS = {
    1: "ro",
    2: "nosuid",
    4: "nodev",
    8: "noexec",
    16: "sync",
    128: "dirsync",
    256: "nosymfollow",
    1024: "noatime",
    2048: "nodiratime",
}
# Options of FUSE that mountinfo shows.
_OPTIONS = {"allow_other", "default_permissions"}
_WITH_VALUE = {"group_id", "max_read", "user_id"}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a daemon asks for.

    :ivar kind: type of the mount, ``fuse`` or ``fuseblk``.
    :ivar options: flags and options that FUSE and the VFS have in the mount, by name.
    """

    kind: str
    options: frozenset[str]

    @classmethod
    def by_call(cls, fstype: str, flags: int, options: str) -> Asked:
        """Return what the arguments of mount(2) ask for.

        :param fstype: type, with or without a subtype.
        """
        named = {name for bit, name in _FLAGS.items() if flags & bit}
        return cls(fstype.partition(".")[0], frozenset(named | _known(options)))

    @classmethod
    def of_mount(cls, mount: Mount) -> Asked:
        """Return what an eFuse mount has been asked for, as far as mountinfo shows it."""
        words = {*mount.options.split(",")} & {*_FLAGS.values()}
        kind = mount.fstype.partition(".")[0].removeprefix("e")
        return cls(kind, frozenset(words | _known(mount.options)))

    def change(self, now: Asked) -> str:
        """Return in a few words how *now* differs; empty if it does not."""
        parts = []
        if self.kind != now.kind:
            parts.append(f"the type is {now.kind} instead of {self.kind}")
        if new := now.options - self.options:
            parts.append(f"{', '.join(sorted(new))} is new")
        if missing := self.options - now.options:
            parts.append(f"{', '.join(sorted(missing))} is missing")
        return ", ".join(parts)


def _known(options: str) -> set[str]:
    return {
        option
        for option in options.split(",")
        if option in _OPTIONS or option.partition("=")[0] in _WITH_VALUE
    }
