# SPDX-License-Identifier: LGPL-2.1-or-later
"""Locate eFuse's cache and the data files of the package, and keep the cache private."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from efuse.errors import EfuseError, reason

__all__ = [
    "SYMLINKS_MAX",
    "cache",
    "candidates",
    "check_private",
    "data",
    "made_once",
    "make_directory",
    "make_private",
    "package",
    "read_private",
    "remove_oldest",
    "why_not_private",
    "write",
]

SYMLINKS_MAX = 40
"""Number of symbolic links that the kernel follows in one path (MAXSYMLINKS)."""

_SYSTEM_CACHE = Path("/var/cache/efuse")

_DATA_NAMES = ("bpf_programs", "csd", "kernel_patches", "libefuse", "specs")


def package() -> Path:
    """Return the directory of the ``efuse`` package."""
    return Path(__file__).resolve().parent


def cache() -> Path:
    """Return the directory for files that eFuse can make again. It may not exist yet.

    It holds kernels, module builds, compiled specs and the files of guests. It is
    ``$XDG_CACHE_HOME/efuse``, or else ``~/.cache/efuse``. sudo may keep both variables, so root
    uses ``/var/cache/efuse`` if another user can change that directory.
    """
    place, *others = candidates()
    return others[0] if others and why_not_private(place) else place


def candidates() -> tuple[Path, ...]:
    """Return the directories that :func:`cache` chooses from, without accessing them."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    place = (Path(base) if base.startswith("/") else Path.home() / ".cache") / "efuse"
    return (place, _SYSTEM_CACHE) if os.geteuid() == 0 else (place,)


def why_not_private(path: Path) -> str | None:
    """Return in words which untrusted user can change *path*, or None if there is no such user.

    Trusted users are root, the effective user, and the owner of this package, whose code runs
    anyway. The check covers *path*, all directories above it and all targets of symbolic links, as
    far as they exist. In a sticky directory only the owner of an entry can change that entry, but
    another user may create a missing one first: after creating *path*, call :func:`check_private`.
    """
    why, _ = _look(path)
    return why


def _look(path: Path) -> tuple[str | None, bool]:
    """Return the result of `why_not_private`, and whether *path* exists."""
    trusted = _trusted()
    done = Path("/")
    parts = list(path.absolute().parts[1:])
    links = SYMLINKS_MAX
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
            return f"{done / name} cannot be checked: {reason(error)}", False
        why = _who_can_change(found, trusted) or _who_is_listed(done / name, found)
        if why:
            return f"{done / name} {why}", True
        if not stat.S_ISLNK(found.st_mode):
            done = done / name
            continue
        if not links:
            return f"{path} has too many symbolic links (ELOOP)", False
        links -= 1
        target = (done / name).readlink()
        if target.is_absolute():
            done = Path("/")
        parts = [part for part in target.parts if part != "/"] + parts
    return None, True


def _trusted() -> set[int]:
    return {0, os.geteuid(), package().stat().st_uid}


def _who_can_change(found: os.stat_result, trusted: set[int]) -> str:
    if found.st_uid not in trusted:
        return f"belongs to user {found.st_uid}"
    is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if is_sticky or stat.S_ISLNK(found.st_mode):
        return ""
    if found.st_mode & stat.S_IWOTH:
        return "can be written by all users"
    # On most systems a user's own group has no other member.
    own = os.geteuid() != 0 and found.st_gid == os.getegid()
    if found.st_mode & stat.S_IWGRP and found.st_gid != 0 and not own:
        return f"can be written by group {found.st_gid}"
    return ""


def _who_is_listed(file: Path | int, found: os.stat_result) -> str:
    # With an ACL, the group bits are the ACL's mask: they can let any listed user write.
    is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if stat.S_ISLNK(found.st_mode) or is_sticky or not found.st_mode & stat.S_IWGRP:
        return ""
    try:
        # *found* is of no symbolic link, so that it makes no difference whether one is followed.
        os.getxattr(file, "system.posix_acl_access")
    except OSError:
        return ""  # no ACL, or the file system has none at all
    return "can be written by users of its access control list"


def check_private(path: Path) -> Path:
    """Return *path* if only trusted users can change it, before it is loaded, executed or believed.

    After this, no untrusted user can change *path* or put another file in its place.

    :raises EfuseError: another user can change it (see :func:`why_not_private`), or it does not
        exist.
    """
    why, is_there = _look(path)
    if why is None and not is_there:
        raise EfuseError(
            f"{path} is not used: it was removed meanwhile (ENOENT)", hint="run it again"
        )
    if why:
        raise _not_private(path, why)
    return path


def _not_private(path: Path, why: str) -> EfuseError:
    return EfuseError(
        f"{path} is not used: {why} (EPERM)",
        hint="remove it, or set XDG_CACHE_HOME to a directory that no other user can write",
    )


def read_private(path: Path) -> str:
    """Return the content of the file *path*, which only trusted users could have written.

    The ends of its lines stay as they are.

    :raises FileNotFoundError: it does not exist.
    :raises EfuseError: another user can change it (see :func:`why_not_private`), it is a symbolic
        link or no regular file, or it cannot be read.
    :raises UnicodeDecodeError: the content is not valid UTF-8.
    """
    try:
        # O_NONBLOCK: opening a FIFO does not wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _check_opened(path, fd)
            with os.fdopen(fd, encoding="utf-8", newline="", closefd=False) as file:
                return file.read()
        finally:
            os.close(fd)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise EfuseError(f"{path} is not used: {reason(error)}", hint="remove it") from error


def _check_opened(path: Path, fd: int) -> None:
    """Check the file that was opened at *path*, and that only trusted users can replace it.

    :raises FileNotFoundError: it was removed meanwhile.
    :raises EfuseError: see :func:`read_private`.
    """
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode):
        raise EfuseError(f"{path} is not used: it is not a regular file (EINVAL)", hint="remove it")
    why, is_there = _look(path)
    if why is None and not is_there:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    # In a sticky directory the path may have led to another user's file before.
    opened = _who_can_change(found, _trusted()) or _who_is_listed(fd, found)
    if why or opened:
        raise _not_private(path, why or f"{path} {opened}")


def made_once(kind: str, name: str, sources: Iterable[Path], make: Callable[[Path], None]) -> Path:
    """Return the cached file *name* for these *sources*. Make it if it is not in the cache.

    :param kind: subdirectory of the cache.
    :param sources: files whose content identifies the result.
    :param make: makes the file at the path that it is given. The file appears in the cache only
        when it is complete.
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
    """Create the directory *path* and all missing directories above it. Return *path*.

    New directories are writable by this user only, whatever the umask is: a file system's daemon
    runs with umask 0.

    :raises EfuseError: another user can change one of the directories, perhaps because that user
        created it first.
    """
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(mode=0o755, exist_ok=True)
    return check_private(path)


def make_private(path: Path) -> Path:
    """Remove group and other write permission from the file *path*. Return *path*."""
    path.chmod(stat.S_IMODE(path.stat().st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))
    return path


def write(path: Path, text: str) -> Path:
    """Write *text* to the file *path* in the cache. Return *path*.

    Other processes see either the old file or the complete new one. Only this user can write it,
    whatever the umask is.

    :raises EfuseError: another user can change the directory.
    """
    make_directory(path.parent)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=path.parent, prefix=".new-", delete=False
    ) as new:
        try:
            new.write(text)
            new.flush()
            os.fchmod(new.fileno(), 0o644)
            os.replace(new.name, path)  # noqa: PTH105 - atomic
        except BaseException:
            os.unlink(new.name)  # noqa: PTH108
            raise
    return path


def remove_oldest(directory: Path, pattern: str, keep: int) -> None:
    """Remove files of *directory*, except the *keep* ones that were written last.

    Other processes may read the files, and may remove them at the same time.

    :param pattern: names of the files, as for :meth:`pathlib.Path.glob`.
    """
    written = []
    for path in directory.glob(pattern):
        with contextlib.suppress(FileNotFoundError):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode):
                written.append((found.st_mtime_ns, path))
    for _, path in sorted(written)[:-keep]:
        path.unlink(missing_ok=True)


def data(name: str) -> Path:
    """Return the directory of the package data called ``name``.

    It is in ``efuse/_data`` of an installed package, and at the root of a checkout.

    :param name: one of ``bpf_programs``, ``csd``, ``kernel_patches``, ``libefuse``, ``specs``.
    :raises ValueError: no package data has that name.
    :raises EfuseError: the installation lacks that data.
    """
    if name not in _DATA_NAMES:
        raise ValueError(f"there is no package data {name!r}")
    for directory in (package() / "_data" / name, package().parent / name):
        if directory.is_dir():
            return directory
    raise EfuseError(
        f"the package's data {name!r} is missing: neither installed nor in a checkout",
        hint="install efuse again, or run it from a complete checkout",
    )
