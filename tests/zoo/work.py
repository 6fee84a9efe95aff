# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is done with each file system of the zoo, and what is seen."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

__all__ = ["Seen", "make_tree", "steps"]

Seen = dict[str, tuple[int, int, str]]
"""Of each file, by its path: type and mode, size, and digest of its data or target of its link."""

_SIZES = (0, 1, 100, 4096, 5000, 70_000, 300_000)
# Longer than the timeout of libfuse's daemons.
_EXPIRED_S = 1.5
# The kernel keeps no data of a file whose newest time is less than three whole seconds ago.
_SETTLED_S = 3.1


def make_tree(root: Path, seed: int = 1) -> None:
    """Make directories, files and links below a new directory."""
    chosen = random.Random(seed)
    for number in range(6):
        directory = root / f"d{number % 3}" / f"e{number}"
        directory.mkdir(parents=True)
        for size in _SIZES:
            (directory / f"f{size}").write_bytes(chosen.randbytes(size))
        (directory / "link").symlink_to("f100")
    (root / "d0/e0/f100").chmod(0o755)


def look(root: Path, only: Sequence[str] = ()) -> Seen:
    """Walk a tree, and read all files, or look at some files only, whose sizes may be wrong."""
    if only:
        return {name: (0, 0, (root / name).read_text()) for name in only}
    return {str(path.relative_to(root)): _one_or_error(path) for path in sorted(_below(root))}


def _below(root: Path) -> Iterator[Path]:
    for entry in os.scandir(root):
        path = Path(entry.path)
        yield path
        if entry.is_dir(follow_symlinks=False):
            yield from _below(path)


def _one_or_error(path: Path) -> tuple[int, int, str]:
    try:
        return _one(path)
    except OSError as error:
        return 0, 0, errno.errorcode[error.errno or 0]


def _one(path: Path) -> tuple[int, int, str]:
    found = path.lstat()
    if path.is_symlink():
        return found.st_mode, 0, os.readlink(path)
    if path.is_dir():
        return found.st_mode, 0, ""
    data = path.read_bytes()
    seen = hashlib.sha256(data).hexdigest()
    if len(data) != found.st_size:  # a fault of the daemon, or what the zoo looks for
        seen = f"{len(data)} bytes: {seen}"
    return found.st_mode, found.st_size, seen


def _fill(root: Path, tree: Path) -> None:
    """Copy the tree, without links, which not all file systems have."""
    for path in sorted(_below(tree)):
        target = root / "copied" / path.relative_to(tree)
        if path.is_dir():
            target.mkdir(parents=True, exist_ok=True)
        elif not path.is_symlink():
            shutil.copyfile(path, target)


def _change(root: Path, tree: Path) -> Seen:
    """Write, append, cut, rename, replace and remove files.

    rclone cannot cut off a file of a remote store that is not open.
    """
    seen: Seen = {}
    top = root / "copied"
    with (top / "d0/e0/f5000").open("r+b") as file:
        file.seek(1000)
        file.write(b"changed")
    with (top / "d1/e1/f4096").open("ab") as file:
        file.write(b"appended" * 1000)
    _note(seen, "cut", lambda: os.truncate(top / "d2/e2/f70000", 12_345))
    (top / "d0/e3/f100").rename(top / "d0/e3/renamed")
    (top / "d1/e4/new").write_bytes(b"replaced" * 10_000)
    (top / "d1/e4/new").replace(top / "d1/e4/f300000")
    (top / "d2/e5/f70000").unlink()
    shutil.rmtree(top / "d2/e2")
    (top / "d2/another").mkdir()
    (top / "d2/another/file").write_bytes(b"file")
    return seen


def _expire(root: Path, tree: Path) -> None:
    time.sleep(_EXPIRED_S)


def _settle(root: Path, tree: Path) -> None:
    time.sleep(_SETTLED_S)


def _forget(root: Path, tree: Path) -> None:
    Path("/proc/sys/vm/drop_caches").write_text("3")


def _name(root: Path, tree: Path) -> Seen:
    """Change a file by one name, and look at it by another that may be of the same file.

    The other name is a hard link, or differs in case. Not every file system has such names, or
    extended attributes.
    """
    seen: Seen = {}
    for kind, other in (("link", "other"), ("case", "FIRST")):
        place = root / "copied" / kind
        place.mkdir()
        first, second = place / "first", place / other
        first.write_bytes(b"first")
        _note(seen, f"{kind}: xattr", lambda at=first: os.setxattr(at, "user.zoo", b"first"))
        if kind == "link":
            _note(seen, "link: made", lambda old=first, new=second: os.link(old, new))
        _see_both(seen, f"{kind}: before", first, second)
        _note(seen, f"{kind}: written", lambda at=second: _append(at))
        _note(seen, f"{kind}: xattr set", lambda at=second: os.setxattr(at, "user.zoo", b"other"))
        _note(seen, f"{kind}: mode set", lambda at=second: at.chmod(0o600))
        time.sleep(_EXPIRED_S)
        _see_both(seen, f"{kind}: changed", first, second)
        _note(seen, f"{kind}: removed", second.unlink)
        time.sleep(_EXPIRED_S)
        _see_both(seen, f"{kind}: after", first, second)
    return seen


def _append(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(b"appended")


def _see_both(seen: Seen, step: str, *names: Path) -> None:
    for path in names:
        seen[f"{step}: {path.name}"] = _one_or_error(path)
        _note(seen, f"{step}: xattr of {path.name}", lambda at=path: os.getxattr(at, "user.zoo"))


def _note(seen: Seen, step: str, take: Callable[[], object]) -> None:
    try:
        seen[step] = 0, 0, repr(take())
    except OSError as error:
        seen[step] = 0, 0, errno.errorcode[error.errno or 0]


def _change_behind(source: Path) -> None:
    """Change files by the back door; some keep their size and their time of modification."""
    for name in ("d0/e0/f5000", "d1/e1/f70000"):
        times = (source / name).stat()
        with (source / name).open("r+b") as file:
            file.write(b"behind")
        os.utime(source / name, ns=(times.st_atime_ns, times.st_mtime_ns))
    with (source / "d1/e1/f4096").open("ab") as file:
        file.write(b"behind" * 1000)
    os.truncate(source / "d2/e2/f300000", 1234)
    (source / "new").write_bytes(b"x" * 5000)
    (source / "new").replace(source / "d0/e3/f5000")
    (source / "d1/e4/f100").unlink()
    (source / "d2/e5/link").unlink()
    (source / "d2/e5/link").symlink_to("f4096")
    (source / "d2/e5/f1").chmod(0o600)


def steps(
    *, read_only: bool, only: Sequence[str] = (), source: Path | None = None
) -> list[tuple[str, Callable[[Path, Path], object]]]:
    """Return what is done, by name: functions of the file system's root and the tree.

    :param only: see `look`.
    :param source: the directory that the file system shows.
    """

    def see(root: Path, tree: Path) -> Seen:
        return look(root, only)

    again = [("wait", _expire), ("again", see), ("forget", _forget), ("afresh", see)]
    if read_only:
        return [("first", see), *again]
    written = [
        ("fill", _fill),
        ("settle", _settle),
        ("first", see),
        *again,
        ("change", _change),
        ("changed", see),
        ("names", _name),
    ]
    done = [*written, ("wait", _expire), ("last", see)]
    if source is None:
        return done
    behind = ("behind", lambda root, tree: _change_behind(source))
    return [*done, behind, ("wait", _expire), ("seen", see)]
