# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run a command in another root of the file system: that of a kernel's own tools."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

__all__ = ["THERE", "in_root"]

THERE = "/build"
"""Where such a root shows the directory that a command works in."""

# In a mount namespace of its own, which begins with a mount of each file system that this machine
# has mounted, and while it has those they stay in use: who unmounts one finds its device busy, or
# its daemon does not hear of it. So the root becomes the namespace's own, and the old one is let go
# with all that is mounted there.
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
    """Return the command that runs *words* in *root*. It needs root's rights.

    :param root: has ``build``, ``dev``, ``proc``, ``run``, and chroot(8) and env(1).
    :param work: is seen as :data:`THERE`.
    :param words: a command; of the environment it gets nothing.
    """
    return ["unshare", "--mount", "sh", "-ec", _ENTER, "sh", str(root), str(work), *words]
