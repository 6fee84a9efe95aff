# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where eFuse keeps what it makes, and where the package's own data lies."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from efuse.errors import EfuseError, reason

__all__ = [
    "cache",
    "check_private",
    "data",
    "made_once",
    "make_directory",
    "make_private",
    "package",
    "why_not_private",
    "write",
]

_SYSTEM_CACHE = Path("/var/cache/efuse")

_DATA_NAMES = ("bpf_programs", "csd", "kernel_patches", "libefuse", "specs")


def package() -> Path:
    """Return the directory of the ``efuse`` package itself."""
    return Path(__file__).resolve().parent


def cache() -> Path:
    """Return the directory for whatever can be made again; it may not exist yet.

    It holds kernels, module builds, compiled specs and the guests' files: ``$XDG_CACHE_HOME/efuse``
    or ``~/.cache/efuse``. sudo may keep both variables. Root does not use a directory that
    another user can change: it uses ``/var/cache/efuse`` instead.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    place = (Path(base) if base.startswith("/") else Path.home() / ".cache") / "efuse"
    if os.geteuid() == 0 and why_not_private(place):
        return _SYSTEM_CACHE
    return place


def why_not_private(path: Path) -> str | None:
    """Return which user can change *path*, in words; None if no user can who is not trusted.

    Trusted are root, the effective user and the owner of this package, whose code runs anyway. All
    directories above *path* are looked at, and the targets of symbolic links, as far as they exist.
    Another user may make the rest first, in a sticky directory: look again once it is made, with
    :func:`check_private`. In a sticky directory only the owner of an entry can change that entry.
    """
    why, _ = _look(path)
    return why


def _look(path: Path) -> tuple[str | None, bool]:
    """Return which user can change *path*, as `why_not_private` does, and whether it is there."""
    trusted = {0, os.geteuid(), package().stat().st_uid}
    done = Path("/")
    parts = list(path.absolute().parts[1:])
    links = 40
    while parts:
        name = parts.pop(0)
        if name == "..":
            done = done.parent
            continue
        try:
            found = (done / name).lstat()
        except FileNotFoundError:
            return None, False
        except OSError as error:
            return f"{done / name} cannot be looked at: {reason(error)}", False
        why = _who_can_change(found, trusted) or _who_is_listed(done / name, found)
        if why:
            return f"{done / name} {why}", True
        if not stat.S_ISLNK(found.st_mode):
            done = done / name
            continue
        links -= 1
        if not links:
            return f"{path} has too many symbolic links (ELOOP)", False
        target = (done / name).readlink()
        if target.is_absolute():
            done = Path("/")
        parts = [part for part in target.parts if part != "/"] + parts
    return None, True


def _who_can_change(found: os.stat_result, trusted: set[int]) -> str:
    if found.st_uid not in trusted:
        return f"belongs to user {found.st_uid}"
    is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if is_sticky or stat.S_ISLNK(found.st_mode):
        return ""
    if found.st_mode & stat.S_IWOTH:
        return "can be written by all users"
    # A user's own group has the user alone, on most systems.
    own = os.geteuid() != 0 and found.st_gid == os.getegid()
    if found.st_mode & stat.S_IWGRP and found.st_gid != 0 and not own:
        return f"can be written by group {found.st_gid}"
    return ""


def _who_is_listed(path: Path, found: os.stat_result) -> str:
    # The group's bits are the list's mask then, whatever the group: a user of the list may write.
    is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if stat.S_ISLNK(found.st_mode) or is_sticky or not found.st_mode & stat.S_IWGRP:
        return ""
    try:
        os.getxattr(path, "system.posix_acl_access", follow_symlinks=False)
    except OSError:
        return ""  # it has no list, or its file system knows of none
    return "can be written by users of its access control list"


def check_private(path: Path) -> Path:
    """Return *path*, which is there, and is about to be loaded, executed or believed.

    From now on no other user can change it, or put something else in its place.

    :raises EfuseError: another user can change it, see :func:`why_not_private`; or it is not there.
    """
    why, is_there = _look(path)
    if why is None and not is_there:
        raise EfuseError(
            f"{path} is not used: it was removed meanwhile (ENOENT)", hint="run it again"
        )
    if why:
        raise EfuseError(
            f"{path} is not used: {why} (EPERM)",
            hint="remove it, or set XDG_CACHE_HOME to a directory that no other user can write",
        )
    return path


def made_once(kind: str, name: str, sources: Iterable[Path], make: Callable[[Path], None]) -> Path:
    """Return the file *name* in the cache, made now if it is not there for these very sources.

    :param kind: the directory below the cache.
    :param make: is called with the path of the file to make. It is seen by others once it is whole.
    :raises EfuseError: another user can change the file.
    """
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    directory = cache() / kind / digest.hexdigest()[:16]
    made = directory / name
    if not made.exists():
        make_directory(directory)
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            make(Path(scratch) / name)
            make_private(Path(scratch) / name)
            os.replace(Path(scratch) / name, made)  # noqa: PTH105 - atomic, for a second maker
    return check_private(made)


def make_directory(path: Path) -> Path:
    """Make the directory *path* and those above it that are missing; return *path*.

    Only this user can write them, whatever the umask: a file system's daemon has none.

    :raises EfuseError: another user can change one of them: that user may have made it first.
    """
    for directory in (*reversed(path.parents), path):
        if not directory.is_dir():
            directory.mkdir(mode=0o755, exist_ok=True)
    return check_private(path)


def make_private(path: Path) -> Path:
    """Take the permission to write the file *path* from all but its owner; return *path*."""
    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))
    return path


def write(path: Path, text: str) -> Path:
    """Write *text* to the file *path* in the cache; return *path*.

    Others see the old file or the whole new one, and cannot write it whatever the umask.

    :raises EfuseError: another user can change the directory.
    """
    make_directory(path.parent)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=".new-", delete=False) as new:
        try:
            new.write(text)
            new.flush()
            os.fchmod(new.fileno(), 0o644)
            os.replace(new.name, path)  # noqa: PTH105 - atomic
        except BaseException:
            os.unlink(new.name)  # noqa: PTH108
            raise
    return path


def data(name: str) -> Path:
    """Return the directory of the package's data called ``name``.

    An installed package carries it in ``efuse/_data``, a checkout at its root.

    :param name: one of ``bpf_programs``, ``csd``, ``kernel_patches``, ``libefuse``, ``specs``.
    :raises ValueError: there is no data of that name.
    :raises EfuseError: the installation lacks it.
    """
    if name not in _DATA_NAMES:
        raise ValueError(f"no package data is called {name!r}")
    for directory in (package() / "_data" / name, package().parent / name):
        if directory.is_dir():
            return directory
    raise EfuseError(
        f"the package's data {name!r} is missing: neither installed nor in a checkout",
        hint="install efuse again, or run it from a complete checkout",
    )
