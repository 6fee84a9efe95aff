# SPDX-License-Identifier: LGPL-2.1-or-later
"""Another user asks for what one user learned.

The daemon refuses by owner and mode itself, as a file system without default_permissions does.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.guest.daemons import Call, Mount, as_user, fails, mounted

ALICE, BOB = 1000, 1001


@contextmanager
def _private(mountpoint: Path, *declare: str, default_permissions: bool = False) -> Iterator[Mount]:
    """Mount a directory and a file of Alice's, which nobody else may use."""
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("handleless", *declare),
        default_permissions=default_permissions,
        check_modes=True,
        readdirplus=False,
    ) as m:
        m.truth.mkdir("d")
        m.truth.create("d/f", b"data")
        m.truth.set_xattr("d/f", b"user.x", b"1")
        for path, mode in (("d", 0o700), ("d/f", 0o600)):
            os.chmod(m / path, mode)
            os.chown(m / path, ALICE, ALICE)
        yield m


def _open(path: str) -> str:
    os.close(os.open(path, os.O_RDONLY))
    return "opened"


def _allowed(path: str) -> str:
    if not os.access(path, os.R_OK):
        raise PermissionError(errno.EACCES, path)
    return "allowed"


@pytest.fixture(autouse=True)
def _reachable(mountpoint: Path) -> None:
    """Let every user come as far as the mount."""
    for above in mountpoint.parents:
        above.chmod(above.stat().st_mode | 0o111)


ASKS: dict[str, Callable[[str], object]] = {
    "lookup": lambda path: os.stat(path).st_size,
    "getxattr": lambda path: os.getxattr(path, "user.x"),
    "open": _open,
    "access": _allowed,
}


@pytest.mark.parametrize("opcode", ASKS)
@pytest.mark.parametrize("how", ["named", "held"])
def test_answer_of_one_user_not_given_to_another(mountpoint: Path, opcode: str, how: str) -> None:
    ask = ASKS[opcode]
    with _private(mountpoint) as m:
        fd = os.open(m / "d/f", os.O_RDONLY)
        path = m / "d/f" if how == "named" or opcode == "lookup" else f"/proc/self/fd/{fd}"
        for _ in range(2):
            expected = Call(ask, path, uid=ALICE, gid=ALICE).result()
        hits = m.count(opcode, "hits")
        assert Call(ask, path, uid=ALICE, gid=ALICE).result() == expected
        assert m.count(opcode, "hits") > hits, "Alice was not answered in the kernel"
        for _ in range(2):
            fails(errno.EACCES, Call(ask, path, uid=BOB, gid=BOB).result)
            assert Call(ask, path, uid=ALICE, gid=ALICE).result() == expected
            assert ask(path) == expected
            fails(errno.EACCES, Call(ask, path, uid=BOB, gid=BOB).result)
        os.close(fd)


def test_another_users_lookup_counted_as_such(mountpoint: Path) -> None:
    with _private(mountpoint) as m:
        os.stat(m / "d")
        os.stat(m / "d")
        with m.passed("lookup", "other_uid"):
            as_user(ALICE, os.stat, m / "d")


def test_group_alone_makes_another_caller(mountpoint: Path) -> None:
    with _private(mountpoint) as m:
        os.stat(m / "d")
        os.stat(m / "d")
        with m.passed("lookup", "other_uid"):
            Call(os.stat, m / "d", gid=BOB).result()


@pytest.mark.parametrize("by", ["default_permissions", "caller_independent"])
def test_answers_shared_where_callers_do_not_matter(mountpoint: Path, by: str) -> None:
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("stable_nodeids", *(() if by == "default_permissions" else (by,))),
        default_permissions=by == "default_permissions",
    ) as m:
        m.truth.mkdir("d")
        m.truth.create("d/f", b"data")
        m.truth.set_xattr("d/f", b"user.x", b"1")
        os.getxattr(m / "d/f", "user.x")
        m.drop()
        with m.answered("lookup", 2):
            assert as_user(BOB, os.stat, m / "d/f").st_size == 4
        with m.answered("getxattr"):
            assert as_user(BOB, os.getxattr, m / "d/f", "user.x") == b"1"
        os.chmod(m / "d", 0o700)
        if by == "default_permissions":
            fails(errno.EACCES, as_user, BOB, os.stat, m / "d/f")
            m.drop()
            fails(errno.EACCES, as_user, BOB, os.stat, m / "d/f")


@pytest.mark.parametrize("change", ["chmod", "chown"])
def test_directory_closed_to_a_user_who_knew_its_names(mountpoint: Path, change: str) -> None:
    with _private(mountpoint) as m:
        for _ in range(2):
            assert as_user(ALICE, os.stat, m / "d/f").st_size == 4
        with m.answered("lookup", 2):
            as_user(ALICE, os.stat, m / "d/f")
        if change == "chmod":
            os.chmod(m / "d", 0)
        else:
            os.chown(m / "d", BOB, BOB)
        fails(errno.EACCES, as_user, ALICE, os.stat, m / "d/f")
        fails(errno.EACCES, as_user, ALICE, os.stat, m / "d/f")
        os.chmod(m / "d", 0o755)
        assert as_user(ALICE, os.stat, m / "d/f").st_size == 4


@pytest.mark.parametrize("opcode", ["open", "access"])
@pytest.mark.parametrize("change", ["chmod", "chown", "setxattr"])
def test_grant_void_once_the_rights_change(mountpoint: Path, opcode: str, change: str) -> None:
    ask = ASKS[opcode]
    with _private(mountpoint) as m:
        fd = os.open(m / "d/f", os.O_RDONLY)
        path = f"/proc/self/fd/{fd}"
        Call(ask, path, uid=ALICE, gid=ALICE).result()
        with m.answered(opcode):
            Call(ask, path, uid=ALICE, gid=ALICE).result()
        if change == "chmod":
            os.chmod(m / "d/f", 0)
        elif change == "chown":
            os.chown(m / "d/f", BOB, BOB)
        else:
            os.setxattr(m / "d/f", "user.acl", b"as good as any")
        if change == "setxattr":
            with m.passed(opcode, "stale"):
                Call(ask, path, uid=ALICE, gid=ALICE).result()
        else:
            fails(errno.EACCES, Call(ask, path, uid=ALICE, gid=ALICE).result)
        os.close(fd)


@pytest.mark.parametrize("opcode", ["open", "access"])
def test_grant_outlives_what_leaves_the_rights(mountpoint: Path, opcode: str) -> None:
    with _private(mountpoint) as m:
        fd = os.open(m / "d/f", os.O_RDWR)
        path = f"/proc/self/fd/{fd}"
        Call(ASKS[opcode], path, uid=ALICE, gid=ALICE).result()
        os.pwrite(fd, b"more", 100)
        os.ftruncate(fd, 7)
        os.utime(fd, ns=(1000, 1000))
        with m.answered(opcode):
            Call(ASKS[opcode], path, uid=ALICE, gid=ALICE).result()
        os.close(fd)


def test_refusal_of_lookup_not_learned(mountpoint: Path) -> None:
    with _private(mountpoint) as m:
        fails(errno.EACCES, as_user, BOB, os.stat, m / "d/f")
        m.log()
        fails(errno.EACCES, as_user, BOB, os.stat, m / "d/f")
        assert (b"f", BOB) in [(name, uid) for _, _, name, uid in m.log()]
        os.chmod(m / "d", 0o755)
        assert as_user(BOB, os.stat, m / "d/f").st_size == 4
