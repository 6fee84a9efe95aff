# SPDX-License-Identifier: LGPL-2.1-or-later
"""Access control lists through the pass-through agree with the lower file system in each mode."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import efuse
from efuse.control import Connection
from tests import access_lists
from tests.access_lists import ACCESS, ALICE, BOB, STAFF, encoded, opened_by
from tests.guest.support.daemons import eventually

MODES = ("strict", "ttl", "cto", "exclusive")
_COARSE = 6  # CLOCK_MONOTONIC_COARSE, which advances with each jiffy.
CHECKED = ("default_permissions", "allow_other")


class Shown:
    """A mounted pass-through of the ext4 directory ``lower``, which every user may enter."""

    def __init__(self, path: Path, connection: Connection) -> None:
        self.path = path
        self.connection = connection

    def count(self, opcode: str, what: str) -> int:
        return self.connection.counts(f"stats/{opcode}")[what]


@contextlib.contextmanager
def shown(lower: Path, consistency: str, options: tuple[str, ...] = CHECKED) -> Iterator[Shown]:
    operations = efuse.Passthrough(
        lower, consistency=consistency, attr_timeout=3600, entry_timeout=3600
    )
    with tempfile.TemporaryDirectory(dir="/run") as name:  # Every user can reach it.
        Path(name).chmod(0o755)
        with efuse.mount(operations, name, options, required=True) as one:
            assert one.accelerated
            yield Shown(Path(name), Connection(one.connection or 0))
    operations.close()


@pytest.fixture
def open_lower(lower: Path) -> Path:
    """Let every user enter ``lower`` itself, too, and return it."""
    for directory in lower.parents:
        if directory == Path("/"):
            break
        directory.chmod(directory.stat().st_mode | 0o055)
    return lower


@pytest.mark.parametrize("consistency", MODES)
def test_access_through_the_mount_equals_access_to_the_lower_files(
    open_lower: Path, consistency: str
) -> None:
    with shown(open_lower, consistency) as s:
        access_lists.random_lists_hold(s.path, open_lower)
        access_lists.default_lists_are_inherited(s.path, open_lower)
        access_lists.set_gid_is_lost(s.path, open_lower)
        # The maps keep lists only if nothing else changes the files.
        assert (s.count("getxattr", "hits") > 0) == (consistency == "exclusive")


def _file(lower: Path, mode: int, access: bytes | None = None) -> Path:
    """Make the file ``f`` of the group STAFF, with a second name ``g``."""
    path = lower / "f"
    path.write_bytes(b"data")
    os.link(path, lower / "g")
    os.chown(path, 0, STAFF)
    path.chmod(mode)
    if access is not None:
        os.setxattr(path, ACCESS, access)
    return path


def _bob(path: Path, how: int) -> int:
    return opened_by((BOB, BOB, [STAFF]), path, how)


def _alice(path: Path, how: int) -> int:
    return opened_by((ALICE, ALICE, []), path, how)


def _let_time_pass() -> None:
    """Wait until the attributes that have arrived are older than the current jiffy."""
    for _ in range(4):
        before = time.clock_gettime_ns(_COARSE)
        while time.clock_gettime_ns(_COARSE) == before:
            pass


STAFF_MAY_NOT = encoded(6, 0, 0, mask=6, users={ALICE: 6})
"""A list with which the mode's bits for the group are rw-, while the group has no rights."""


@pytest.mark.parametrize("consistency", MODES[:3])
def test_acl_removed_behind_the_mount_leaves_no_mask_as_group_rights(
    lower: Path, consistency: str
) -> None:
    """The known mode shows the list's mask instead of the group's rights."""
    path = _file(lower, 0o600, STAFF_MAY_NOT)
    with shown(lower, consistency) as s:
        assert (s.path / "f").stat().st_mode & 0o777 == 0o660
        os.setxattr(path, ACCESS, encoded(6, 0, 0))  # Like setfacl -b, it removes the list.
        assert path.stat().st_mode & 0o777 == 0o600
        _let_time_pass()
        assert _bob(s.path / "f", os.O_RDONLY) == errno.EACCES


@pytest.mark.parametrize("consistency", MODES[:3])
def test_acl_added_behind_the_mount_is_requested_with_its_mode(
    lower: Path, consistency: str
) -> None:
    path = _file(lower, 0o640)
    with shown(lower, consistency) as s:
        assert _bob(s.path / "f", os.O_RDONLY) == 0
        assert _bob(s.path / "f", os.O_WRONLY) == errno.EACCES
        os.setxattr(path, ACCESS, STAFF_MAY_NOT)
        # A lookup of the other name brings the new mode.
        assert (s.path / "g").stat().st_mode & 0o777 == 0o660
        for how in (os.O_RDONLY, os.O_WRONLY):
            assert _bob(s.path / "f", how) == errno.EACCES
            assert _alice(s.path / "f", how) == 0


@pytest.mark.parametrize("consistency", MODES[:3])
def test_cached_acl_is_dropped_when_new_attributes_arrive(lower: Path, consistency: str) -> None:
    path = _file(lower, 0o600, STAFF_MAY_NOT)
    with shown(lower, consistency) as s:
        assert _alice(s.path / "f", os.O_RDWR) == 0
        os.setxattr(path, ACCESS, encoded(6, 0, 0, mask=6, users={BOB: 6}))
        (s.path / "g").stat()
        assert _alice(s.path / "f", os.O_RDONLY) == errno.EACCES
        assert _bob(s.path / "f", os.O_RDWR) == 0


def _open_again(s: Shown) -> None:
    os.close(os.open(s.path / "f", os.O_RDONLY))


def _invalidate(s: Shown) -> None:
    s.connection.invalidate()


def _nothing(s: Shown) -> None:
    pass


@pytest.mark.parametrize(
    ("consistency", "options", "act"),
    [
        ("strict", CHECKED, _nothing),
        ("strict", ("allow_other",), _nothing),
        ("cto", CHECKED, _open_again),
        ("exclusive", CHECKED, _invalidate),
    ],
)
def test_void_acl_of_an_open_file_is_requested_again(
    lower: Path, consistency: str, options: tuple[str, ...], act: Callable[[Shown], None]
) -> None:
    """No name is looked up, because FUSE would then drop the list."""
    path = _file(lower, 0o600, STAFF_MAY_NOT)
    with shown(lower, consistency, options) as s:
        fd = os.open(s.path / "f", os.O_RDONLY)
        for users in ({BOB: 4}, {BOB: 6}, {ALICE: 2}):
            expected = encoded(6, 0, 0, mask=6, users=users)
            os.getxattr(fd, ACCESS)
            os.setxattr(path, ACCESS, expected)
            act(s)
            assert os.getxattr(fd, ACCESS) == expected
        os.close(fd)


@pytest.mark.parametrize("consistency", ["ttl", "exclusive"])
def test_valid_acl_is_requested_once(lower: Path, consistency: str) -> None:
    _file(lower, 0o600, STAFF_MAY_NOT)
    with shown(lower, consistency) as s:

        def asked(times: int) -> bool:
            before = [s.count(opcode, "requests") for opcode in ("getxattr", "getattr")]
            for _ in range(times):
                assert _alice(s.path / "f", os.O_RDWR) == 0
            return before != [s.count(opcode, "requests") for opcode in ("getxattr", "getattr")]

        assert asked(1)
        # For the first open the daemon maps the file. Its RELEASE, which comes late, voids the
        # attributes.
        eventually(lambda: not asked(1))
        assert not asked(5)
