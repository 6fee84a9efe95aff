# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run a command in another root directory, such as that of a kernel's own tools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["THERE", "in_root"]

THERE = "/tmp"
"""Path of the work directory inside that root."""

# The command runs in a new mount namespace. A new namespace begins with a copy of each mount of
# this machine, and a copy keeps its file system in use: unmounting would find the device busy, or
# the daemon would not learn of the unmount. So make the other root the namespace's root, and
# unmount the old root with everything below it.
_ENTER = f"""\
root=$1
mount --rbind "$root" "$root"
mount --bind "$2" "$root{THERE}"
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
shift 2
cd "$root"
pivot_root . run
chroot run umount --lazy /
exec env -i PATH=/usr/sbin:/usr/bin HOME=/ LC_ALL=C "$@"
"""


def in_root(root: Path, work: Path, words: Sequence[str]) -> list[str]:
    """Return a command that runs *words* in *root*. The command needs root privileges.

    :param root: the root directory. It has the directories ``dev``, ``proc``, ``run`` and
        ``tmp``, and the programs chroot(8) and env(1).
    :param work: the work directory, which appears as :data:`THERE`.
    :param words: the command to run. It gets nothing of the environment.
    """
    return ["unshare", "--mount", "sh", "-ec", _ENTER, "sh", str(root), str(work), *words]
