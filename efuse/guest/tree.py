# SPDX-License-Identifier: LGPL-2.1-or-later
"""The root file system of a guest: this machine's own, or another directory with a Debian."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from efuse.errors import UsageError

__all__ = ["HOST", "Tree", "at"]

_RUN = Path("/run/efuse-guest")
"""Directory of another tree, in the guest, below which the directories of a run appear."""

_NEEDED = ("bin/bash", "dev", "proc", "run", "sys", "tmp")

# The command runs in a mount namespace of its own, so that this machine does not see the mounts,
# and /run of the tree stays as it is. Unmounts of this machine reach the namespace: otherwise its
# copies of the mounts would keep the file systems in use.
_ENTER = """\
root=$1
shift
mount -t tmpfs -o mode=755 run "$root/run"
while [ "$1" != -- ]; do
	mkdir -p "$root$2"
	mount --bind "$1" "$root$2"
	shift 2
done
shift
exec "$@"
"""


@dataclass(frozen=True)
class Tree:
    """The root file system of a guest.

    :ivar root: the directory of this machine that is the guest's root.
    :ivar shown: pairs of a directory of this machine outside of *root*, and its path in the guest.
    """

    root: Path = Path("/")
    shown: tuple[tuple[Path, Path], ...] = field(default=())

    def inside(self, path: Path) -> Path:
        """Return the path in the guest of a file of this machine.

        :param path: an absolute path of this machine, in *root* or in one of the directories that
            are shown.
        :raises ValueError: the guest does not see the file.
        """
        for place, point in self.shown:
            if path.is_relative_to(place):
                return point / path.relative_to(place)
        return Path("/") / path.relative_to(self.root)

    def with_run(self, **directories: Path | None) -> Tree:
        """Return this tree with the given directories of this machine for one run.

        :param directories: each directory by the name under which another tree shows it; None
            stands for no directory. A directory that the guest sees anyway is not shown again.
        """
        new = []
        for name, path in directories.items():
            if path is not None and not path.is_relative_to(self.root):
                new.append((path, _RUN / name))
        return Tree(self.root, (*self.shown, *new))

    def entering(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs *command* where *root* has all that is shown."""
        if self.root == Path("/"):
            return list(command)
        binds = [str(path) for pair in self.shown for path in pair]
        enter = ["unshare", "--mount", "--propagation", "slave", "sh", "-ec", _ENTER, "sh"]
        return [*enter, str(self.root), *binds, "--", *command]


HOST = Tree()
"""The root file system of this machine."""


def at(root: Path) -> Tree:
    """Return the tree with the given root directory, in which the working directory is shown.

    :raises UsageError: a guest cannot have this root, or it cannot show the working directory.
    """
    root = root.resolve()
    if root == Path("/"):
        return HOST
    if not root.is_dir():
        why = "it is not a directory" if root.exists() else "it does not exist"
        raise UsageError(f"{root} cannot be the root of a guest: {why}", hint=_MAKE.format(root))
    lacking = [name for name in _NEEDED if not (root / name).exists()]
    if lacking:
        raise UsageError(
            f"{root} cannot be the root of a guest: it has no {', '.join(lacking)}",
            hint=_MAKE.format(root),
        )
    return Tree(root, _working_directory(root, Path.cwd()))


_MAKE = "debootstrap trixie {}"


def _working_directory(root: Path, cwd: Path) -> tuple[tuple[Path, Path], ...]:
    """Return what has to be shown so that the guest sees the working directory by its own path.

    :raises UsageError: the tree has other files at this path.
    """
    if cwd == Path("/") or cwd.is_relative_to(root):
        return ()
    point = root / cwd.relative_to("/")
    taken = point.is_dir() and any(point.iterdir())
    # A symbolic link in the tree may lead out of it.
    if taken or point.resolve() != point:
        raise UsageError(
            f"the guest cannot show the working directory {cwd}: {root} has files of its own there",
            hint=f"cd to another directory, or to one below {root}",
        )
    return ((cwd, cwd),)
