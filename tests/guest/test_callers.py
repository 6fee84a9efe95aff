# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test that a user does not get answers that the kernel learned for another user.

The daemon checks owner and mode itself, like a file system without default_permissions.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from efuse import bpf
from tests.guest.support.daemons import Call, Mount, as_user, fails, force_stat, mounted
from tests.guest.support.publishing import published

pytestmark = pytest.mark.usefixtures("reachable")

ALICE, BOB = 1000, 1001
GROUP, OTHER_GROUP = 50, 51
_KEEP_CAPABILITIES = 8
_NEW_USER_NAMESPACE = 0x10000000
_DAC_READ_SEARCH, _FOWNER, _LEASE = 2, 3, 28
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def _private(mountpoint: Path, *declare: str, default_permissions: bool = False) -> Iterator[Mount]:
    """Mount a directory and a file of Alice's that no other user may access."""
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("no_open", *declare),
        default_permissions=default_permissions,
        check_modes=True,
        readdirplus=False,
    ) as m:
        m.model.mkdir("d")
        m.model.create("d/f", b"data")
        m.model.set_xattr("d/f", b"user.x", b"1")
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


ASKS: dict[str, Callable[[str], object]] = {
    "lookup": lambda path: os.stat(path).st_size,
    "getxattr": lambda path: os.getxattr(path, "user.x"),
    "open": _open,
    "access": _allowed,
}


@pytest.mark.parametrize("opcode", ASKS)
@pytest.mark.parametrize("how", ["named", "held"])
def test_answer_learned_for_one_user_is_not_given_to_another(
    mountpoint: Path, opcode: str, how: str
) -> None:
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


def test_lookup_by_another_user_is_counted_as_other_uid(mountpoint: Path) -> None:
    with _private(mountpoint) as m:
        os.stat(m / "d")
        os.stat(m / "d")
        with m.passed("lookup", "other_uid"):
            as_user(ALICE, os.stat, m / "d")


def test_caller_with_another_group_alone_is_another_caller(mountpoint: Path) -> None:
    with _private(mountpoint) as m:
        os.stat(m / "d")
        os.stat(m / "d")
        with m.passed("lookup", "other_uid"):
            Call(os.stat, m / "d", gid=BOB).result()


@pytest.mark.parametrize("by", ["default_permissions", "caller_independent"])
def test_caller_independent_mount_shares_answers_between_users(mountpoint: Path, by: str) -> None:
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("stable_nodeids", *(() if by == "default_permissions" else (by,))),
        default_permissions=by == "default_permissions",
    ) as m:
        m.model.mkdir("d")
        m.model.create("d/f", b"data")
        m.model.set_xattr("d/f", b"user.x", b"1")
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
def test_user_who_lost_search_permission_cannot_use_learned_names(
    mountpoint: Path, change: str
) -> None:
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
def test_grant_is_void_after_the_rights_change(mountpoint: Path, opcode: str, change: str) -> None:
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
def test_grant_stays_valid_after_a_change_that_keeps_the_rights(
    mountpoint: Path, opcode: str
) -> None:
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


def test_refused_lookup_is_not_learned(mountpoint: Path) -> None:
    with _private(mountpoint) as m:
        fails(errno.EACCES, as_user, BOB, os.stat, m / "d/f")
        m.log()
        fails(errno.EACCES, as_user, BOB, os.stat, m / "d/f")
        assert (b"f", BOB) in [(name, uid) for _, _, name, uid in m.log()]
        os.chmod(m / "d", 0o755)
        assert as_user(BOB, os.stat, m / "d/f").st_size == 4


# Which callers are told apart


@dataclass(frozen=True)
class Caller:
    """The properties of a process that a daemon may know."""

    uids: tuple[int, int, int] = (ALICE, ALICE, ALICE)
    gids: tuple[int, int, int] = (ALICE, ALICE, ALICE)
    groups: tuple[int, ...] = (GROUP,)
    capabilities: tuple[int, ...] = ()
    own_user_namespace: bool = False

    def ask(self, ask: Callable[[str], object], path: str) -> object:
        """Become this caller, and ask."""
        assert not _libc.prctl(_KEEP_CAPABILITIES, 1, 0, 0, 0)
        os.setgroups(self.groups)
        os.setresgid(*self.gids)
        os.setresuid(*self.uids)
        if self.own_user_namespace:
            assert not _libc.unshare(_NEW_USER_NAMESPACE), os.strerror(ctypes.get_errno())
        effective = sum(1 << number for number in self.capabilities)
        sets = struct.pack("=6I", *[effective & 0xFFFFFFFF] * 2, 0, *[effective >> 32] * 2, 0)
        assert not _libc.capset(struct.pack("=II", 0x20080522, 0), sets)
        return ask(path)


MEMBER = Caller()

OTHERS = {
    "uid": replace(MEMBER, uids=(BOB, BOB, BOB)),
    "real-uid": replace(MEMBER, uids=(BOB, ALICE, ALICE)),
    "saved-uid": replace(MEMBER, uids=(ALICE, ALICE, BOB)),
    "gid": replace(MEMBER, gids=(BOB, BOB, BOB)),
    "real-gid": replace(MEMBER, gids=(BOB, ALICE, ALICE)),
    "saved-gid": replace(MEMBER, gids=(ALICE, ALICE, BOB)),
    "no-group": replace(MEMBER, groups=()),
    "another-group": replace(MEMBER, groups=(OTHER_GROUP,)),
    "one-group-more": replace(MEMBER, groups=(GROUP, OTHER_GROUP)),
    "dac_read_search": replace(MEMBER, capabilities=(_DAC_READ_SEARCH,)),
    "fowner": replace(MEMBER, capabilities=(_FOWNER,)),
    "lease": replace(MEMBER, capabilities=(_LEASE,)),
    "user-namespace": replace(MEMBER, own_user_namespace=True),
}


def _open_to_write(path: str) -> str:
    os.close(os.open(path, os.O_WRONLY))
    return "opened"


def _absent(ask: Callable[[], object]) -> str:
    with suppress(FileNotFoundError):
        ask()
        return "there"
    return "absent"


def _no_xattr(path: str) -> str:
    try:
        os.getxattr(path, "user.y")
    except OSError as error:
        assert error.errno == errno.ENODATA
    return "absent"


# The questions whose answer depends on the caller: opcode, path and function.
QUESTIONS: dict[str, tuple[str, str, Callable[[str], object]]] = {
    "lookup": ("lookup", "d/f", ASKS["lookup"]),
    "lookup-absent": ("lookup", "d/none", lambda path: _absent(lambda: os.stat(path))),
    "getxattr": ("getxattr", "d/f", ASKS["getxattr"]),
    "getxattr-absent": ("getxattr", "d/f", _no_xattr),
    "listxattr": ("listxattr", "d/f", lambda path: sorted(os.listxattr(path))),
    "readlink": ("readlink", "d/link", os.readlink),
    "open": ("open", "d/f", ASKS["open"]),
    "open-to-write": ("open", "d/f", _open_to_write),
    "opendir": ("opendir", "d", lambda path: sorted(os.listdir(path))),
    "access": ("access", "d/f", ASKS["access"]),
}


@contextmanager
def _open_to_all(mountpoint: Path, consistency: str = "exclusive") -> Iterator[Mount]:
    """Mount files that every user may access, so only the kernel tells callers apart."""
    with mounted(
        mountpoint,
        consistency=consistency,
        declare=("no_open",),
        default_permissions=False,
        entry_timeout=600.0,
        attr_timeout=600.0,
        negative_timeout=600.0,
    ) as m:
        m.model.mkdir("d")
        m.model.create("d/f", b"data")
        m.model.symlink("d/link", b"f")
        m.model.set_xattr("d/f", b"user.x", b"1")
        for path, mode in (("d", stat.S_IFDIR | 0o777), ("d/f", stat.S_IFREG | 0o666)):
            m.model.set_mode(path, mode)
        yield m


@pytest.mark.parametrize("other", OTHERS)
def test_caller_that_differs_in_one_credential_gets_no_answer_of_another(
    mountpoint: Path, other: str
) -> None:
    with _open_to_all(mountpoint) as m:
        for what, (opcode, name, question) in QUESTIONS.items():
            path = m / name
            for _ in range(2):
                expected = Call(MEMBER.ask, question, path).result()
            hits = m.count(opcode, "hits")
            assert Call(MEMBER.ask, question, path).result() == expected
            assert m.count(opcode, "hits") > hits, f"{what} was not answered in the kernel"
            with m.passed(opcode):
                assert Call(OTHERS[other].ask, question, path).result() == expected, what


def test_callers_with_equal_ids_groups_and_capabilities_share_answers(mountpoint: Path) -> None:
    """Groups are a set: neither their order nor the process matters."""
    first = replace(MEMBER, groups=(GROUP, OTHER_GROUP), capabilities=(_FOWNER,))
    second = replace(first, groups=(OTHER_GROUP, GROUP))
    with _open_to_all(mountpoint) as m:
        for opcode, name, question in QUESTIONS.values():
            for _ in range(2):
                expected = Call(first.ask, question, m / name).result()
            hits = m.count(opcode, "hits")
            assert Call(second.ask, question, m / name).result() == expected
            assert m.count(opcode, "hits") > hits, f"{opcode} was not answered in the kernel"


@pytest.mark.parametrize("consistency", ["ttl", "exclusive"])
@pytest.mark.parametrize("shown_by", ["lookup", "readdirplus"])
@pytest.mark.parametrize("attach", [True, False])
def test_name_learned_for_one_caller_is_not_resolved_for_another(
    mountpoint: Path, consistency: str, shown_by: str, attach: bool
) -> None:
    with mounted(
        mountpoint,
        consistency=consistency,
        default_permissions=False,
        check_modes=True,
        entry_timeout=600.0,
        attr_timeout=600.0,
        attach=attach,
    ) as m:
        m.model.mkdir("d")
        m.model.create("d/f", b"data")
        m.model.set_mode("d", stat.S_IFDIR | 0o700)
        for _ in range(2):
            if shown_by == "lookup":
                assert os.stat(m / "d/f").st_size == 4
            else:
                assert [entry.name for entry in os.scandir(m / "d")] == ["f"]
            fails(errno.EACCES, as_user, BOB, os.stat, m / "d/f")
        assert os.stat(m / "d/f").st_size == 4


def test_names_of_a_directory_without_search_permission_are_not_resolved(mountpoint: Path) -> None:
    with mounted(
        mountpoint,
        consistency="exclusive",
        default_permissions=False,
        check_modes=True,
        entry_timeout=600.0,
        attr_timeout=600.0,
    ) as m:
        m.model.mkdir("d")
        m.model.create("d/f", b"data")
        m.model.set_mode("d", stat.S_IFDIR | 0o704)
        for _ in range(2):
            assert as_user(BOB, os.listdir, m / "d") == ["f"]
            fails(errno.EACCES, as_user, BOB, os.stat, m / "d/f")


def test_listing_read_by_one_caller_is_not_returned_to_another(mountpoint: Path) -> None:
    with _open_to_all(mountpoint) as m:
        for _ in range(2):
            assert len(Call(MEMBER.ask, os.listdir, m / "d").result()) == 2
        m.log()
        Call(OTHERS["no-group"].ask, os.listdir, m / "d").result()
        assert {"readdir", "readdirplus"} & set(m.asked())


def test_names_published_for_a_uid_and_gid_are_answered_for_all_callers_with_them(
    mountpoint: Path,
) -> None:
    with _open_to_all(mountpoint) as m:
        assert m.attachment is not None
        truth = force_stat(m / "d")
        nodeid = m.call("nodeid", "d")
        held = os.open(m / "d", os.O_PATH)
        entry = published(b"d", nodeid, st_mode=truth.st_mode, st_nlink=truth.st_nlink)
        epoch = m.connection.epoch
        bpf.publish(m.attachment.maps, [entry], epoch=epoch, uid=ALICE, gid=ALICE)
        for caller in (MEMBER, OTHERS["no-group"], OTHERS["fowner"]):
            with m.answered("lookup"):
                Call(caller.ask, os.stat, m / "d").result()
        with m.passed("lookup", "other_uid"):
            Call(OTHERS["uid"].ask, os.stat, m / "d").result()
        os.close(held)
