# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test writers and readers that run at the same time: no reader sees an outdated value.

Each writer counts upwards. In shared memory it notes the number that it begins to write, and the
number that it has written. A reader notes the latter, asks, and then notes the former: the answer
is between the two.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guest.support.daemons import Call, Mount, force_stat, mounted
from tests.guest.support.progress import ROUNDS, Progress


def _append(path: str) -> None:
    with open(path, "ab", buffering=0) as file:
        file.write(b"x")


def _replace(m: Mount, number: int) -> None:
    Path(m / "fresh").write_bytes(b"x" * number)
    os.rename(m / "fresh", m / "replaced")


def _again(m: Mount, number: int) -> None:
    """Make another name in a directory. The number of its names tells the round."""
    os.mknod(m / f"names/{number}")


def _xattr(path: str) -> int:
    return int(os.getxattr(path, "user.number"))


def _mode(path: str) -> int:
    return os.stat(path).st_mode & 0o777


def _exists(path: str) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return False
    return True


WRITERS: dict[str, tuple[Callable[[Mount, int], object], Callable[[Mount], int]]] = {
    "truncate": (
        lambda m, n: os.truncate(m / "truncated", n),
        lambda m: os.stat(m / "truncated").st_size,
    ),
    "force": (
        lambda m, n: os.truncate(m / "forced", n),
        lambda m: force_stat(m / "forced").st_size,
    ),
    "append": (
        lambda m, n: _append(m / "appended"),
        lambda m: force_stat(m / "appended").st_size,
    ),
    "link": (
        lambda m, n: os.truncate(m / "one", n),
        lambda m: os.stat(m / "two").st_size,
    ),
    "nlink": (
        lambda m, n: os.link(m / "linked", m / f"names/l{n}"),
        lambda m: force_stat(m / "linked").st_nlink - 1,
    ),
    "utime": (
        lambda m, n: os.utime(m / "timed", ns=(n, n)),
        lambda m: os.stat(m / "timed").st_mtime_ns,
    ),
    "chmod": (
        lambda m, n: os.chmod(m / "moded", n),
        lambda m: _mode(m / "moded"),
    ),
    "setxattr": (
        lambda m, n: os.setxattr(m / "attributed", "user.number", b"%d" % n),
        lambda m: _xattr(m / "attributed"),
    ),
    "rename": (_replace, lambda m: os.stat(m / "replaced").st_size),
    "mknod": (_again, lambda m: len(os.listdir(m / "names"))),
}
FILES = ("truncated", "forced", "appended", "one", "linked", "timed", "moded", "attributed")


def _prepare(m: Mount) -> None:
    m.model.mkdir("names")
    for name in (*FILES, "replaced"):
        m.model.create(name)
    m.model.set_xattr("attributed", b"user.number", b"0")
    m.model.hard_link("one", "two")
    os.utime(m / "timed", ns=(0, 0))
    os.chmod(m / "moded", 0)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "by_caller"])
@pytest.mark.parametrize("what", WRITERS)
def test_reader_sees_no_state_older_than_its_request(
    mountpoint: Path, what: str, shared: bool
) -> None:
    change, ask = WRITERS[what]
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("nodeid_per_file",),
        default_permissions=shared,
    ) as m:
        _prepare(m)
        progress = Progress()
        readers = [Call(progress.read, lambda: ask(m)) for _ in range(2)]
        writer = Call(progress.write, lambda number: change(m, number))
        writer.result()
        assert all(reader.result() > 0 for reader in readers)
        force_stat(m / "one")
        with m.answered("getattr"):
            force_stat(m / "one")


def _come_and_go(m: Mount, progress: Progress) -> None:
    """The name exists in odd rounds."""

    def change(number: int) -> None:
        if number % 2:
            os.mknod(m / "name")
        else:
            os.unlink(m / "name")

    progress.write(change)


def test_readers_of_a_changing_name_see_its_current_state(mountpoint: Path) -> None:
    def look(m: Mount, progress: Progress) -> int:
        sure = 0
        while (done := progress.done) < ROUNDS:
            there = _exists(m / "name")
            if progress.begun == done:
                assert there == bool(done % 2), f"{there} in round {done}"
                sure += 1
        return sure

    with mounted(mountpoint, consistency="exclusive", negative_timeout=3600.0) as m:
        progress = Progress()
        readers = [Call(look, m, progress) for _ in range(2)]
        Call(_come_and_go, m, progress).result()
        for reader in readers:
            reader.result()
        assert not _exists(m / "name")


def test_concurrent_changes_leave_a_consistent_tree(mountpoint: Path) -> None:
    def churn(m: Mount, seed: int) -> None:
        for number in range(25):
            mine, shared = m / f"c{seed}", m / f"s{number % 4}"
            try:
                Path(mine).write_bytes(b"x" * number)
                assert os.stat(mine).st_size == number
                assert force_stat(mine).st_size == number
                os.rename(mine, shared)
                os.stat(shared)
                os.listdir(m.path)
                os.link(shared, mine)
                os.chmod(mine, 0o600 | seed)
                os.unlink(mine)
                os.truncate(shared, 3)
                os.unlink(shared)
            except OSError as error:
                assert error.errno in (errno.ENOENT, errno.EEXIST), error
                if os.path.exists(mine):
                    os.unlink(mine)

    with mounted(mountpoint, consistency="exclusive", reuse_nodeids=True) as m:
        calls = [Call(churn, m, seed) for seed in range(4)]
        for call in calls:
            call.result()
        truth = m.call("tree", "")
        assert sorted(os.listdir(m.path)) == sorted(truth)
        for name, inode in truth.items():
            seen = os.stat(m / name)
            assert (seen.st_size, seen.st_nlink) == (inode.size, inode.nlink)
