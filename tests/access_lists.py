# SPDX-License-Identifier: LGPL-2.1-or-later
"""POSIX access control lists on a lower directory, and the access that a mount of it grants."""

from __future__ import annotations

import errno
import functools
import os
import random
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

ACCESS, DEFAULT = "system.posix_acl_access", "system.posix_acl_default"
ALICE, BOB, CAROL = 41001, 41002, 41003
STAFF, GUESTS = 41100, 41200
_NOBODY = 0xFFFFFFFF
_USER_OBJ, _USER, _GROUP_OBJ, _GROUP, _MASK, _OTHER = 1, 2, 4, 8, 16, 32

CALLERS = [
    (uid, gid, groups)
    for uid in (ALICE, BOB, CAROL)
    for gid, groups in ((uid, []), (STAFF, []), (uid, [GUESTS]), (uid, [STAFF, GUESTS]))
]


def encoded(
    owner: int,
    group: int,
    other: int,
    *,
    mask: int = 7,
    users: dict[int, int] | None = None,
    groups: dict[int, int] | None = None,
) -> bytes:
    """Return an access control list in the form of its extended attribute."""
    entries = [(_USER_OBJ, owner, _NOBODY)]
    entries += [(_USER, may, uid) for uid, may in sorted((users or {}).items())]
    entries += [(_GROUP_OBJ, group, _NOBODY)]
    entries += [(_GROUP, may, gid) for gid, may in sorted((groups or {}).items())]
    if users or groups:
        entries.append((_MASK, mask, _NOBODY))
    entries.append((_OTHER, other, _NOBODY))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def any_list(chance: random.Random) -> bytes:
    """Return a random list that names some of the users and groups."""

    def some(ids: tuple[int, ...]) -> dict[int, int]:
        return {one: chance.randrange(8) for one in ids if chance.random() < 0.6}

    return encoded(
        *(chance.randrange(8) for _ in range(3)),
        mask=chance.randrange(8),
        users=some((ALICE, BOB)),
        groups=some((STAFF, GUESTS)),
    )


def _acting(uid: int, gid: int, groups: list[int], act: Callable[[], T]) -> T:
    """Call *act* with the given ids, and return what it returns.

    Only the saved ids stay 0. They give no right to a file.
    """
    own = os.getgroups()
    os.setgroups(groups)
    os.setresgid(gid, gid, 0)
    os.setresuid(uid, uid, 0)
    try:
        return act()
    finally:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        os.setgroups(own)


def _errno(act: Callable[[], object]) -> int:
    try:
        act()
    except OSError as error:
        return error.errno or -1
    return 0


def opened_by(caller: tuple[int, int, list[int]], path: Path, how: int) -> int:
    """Return the errno of opening *path* as a caller (uid, gid, groups), or 0."""
    return _acting(*caller, lambda: _errno(lambda: os.close(os.open(path, how))))


def may(root: Path, names: list[str]) -> dict[str, list[list[int]]]:
    """Return for each caller the errnos of opening each file for reading and for writing."""

    def opened(name: str, how: int) -> int:
        return _errno(lambda: os.close(os.open(root / name, how)))

    def tries() -> list[list[int]]:
        return [[opened(name, how) for how in (os.O_RDONLY, os.O_WRONLY)] for name in names]

    return {f"{caller}": _acting(*caller, tries) for caller in CALLERS}


def lists(path: Path) -> tuple[int, bytes, bytes]:
    """Return the mode and both access control lists of *path*."""

    def one(name: str) -> bytes:
        try:
            return os.getxattr(path, name)
        except OSError:
            return b""

    return path.stat().st_mode, one(ACCESS), one(DEFAULT)


def random_lists_hold(mounted: Path, lower: Path, seed: int = 1) -> None:
    """Check that each caller can open through the mount exactly the files it can open below."""
    chance = random.Random(seed)
    names = []
    for number in range(8):
        inside = f"d{number % 4}"
        (lower / inside).mkdir(exist_ok=True)
        name = f"{inside}/f{number}"
        (lower / name).write_bytes(b"data")
        os.chown(lower / name, chance.choice((0, ALICE)), chance.choice((0, STAFF)))
        # Set half of the lists before the mount has seen the file, and half through the mount.
        where = (lower, mounted)[number % 2]
        os.setxattr(where / name, ACCESS, any_list(chance))
        names.append(name)
    for inside in ("d1", "d2"):
        os.setxattr(mounted / inside, ACCESS, any_list(chance))
    below = may(lower, names)
    assert {reading for tries in below.values() for reading, _ in tries} == {0, errno.EACCES}
    assert may(mounted, names) == below
    for name in names:  # chmod changes the mask in place of the group's bits
        (mounted / name).chmod(chance.randrange(0o1000))
        assert lists(mounted / name) == lists(lower / name)
    assert may(mounted, names) == may(lower, names)
    for name in names[::2]:
        os.setxattr(mounted / name, ACCESS, any_list(chance))
        assert lists(mounted / name) == lists(lower / name)
    for name in names[1::2]:
        if lists(lower / name)[1]:
            os.removexattr(mounted / name, ACCESS)
        assert lists(mounted / name) == lists(lower / name)
    assert may(mounted, names) == may(lower, names)


def default_lists_are_inherited(mounted: Path, lower: Path, seed: int = 1) -> None:
    """Check that files created through the mount get the same mode and lists as files below."""
    chance = random.Random(seed)
    for number in range(3):
        twins = [mounted / f"here{number}", mounted / f"twin{number}"]
        given = any_list(chance) if number else None
        for twin in twins:
            twin.mkdir()
            if given:
                os.setxattr(twin, DEFAULT, given)
        for mask in (0o022, 0o077, 0):
            before = os.umask(mask)
            try:
                for root in (twins[0], lower / twins[1].name):
                    for mode in (0o666, 0o600, 0o777):
                        name = f"{mode:o}.{mask:o}"
                        os.close(os.open(root / f"f{name}", os.O_CREAT | os.O_WRONLY, mode))
                        (root / f"d{name}").mkdir(mode)
                        os.mknod(root / f"n{name}", mode | stat.S_IFIFO)
            finally:
                os.umask(before)
        names = sorted(os.listdir(twins[0]))
        assert names == sorted(os.listdir(lower / twins[1].name))
        for name in names:
            expected = lists(lower / twins[1].name / name)
            assert lists(lower / twins[0].name / name) == expected, name
            assert lists(twins[0] / name) == expected, name


def set_gid_is_lost(mounted: Path, lower: Path) -> None:
    """Check that set-gid is lost if an owner outside the file's group sets a list."""
    for root, name in ((mounted, "above"), (lower, "below")):
        (lower / name).write_bytes(b"")
        os.chown(lower / name, ALICE, STAFF)
        (lower / name).chmod(0o2755)
        give = functools.partial(os.setxattr, root / name, ACCESS, encoded(7, 5, 5, users={BOB: 7}))
        assert _acting(ALICE, ALICE, [], functools.partial(_errno, give)) == 0
    assert lists(lower / "above") == lists(lower / "below")
    assert not (lower / "above").stat().st_mode & stat.S_ISGID
