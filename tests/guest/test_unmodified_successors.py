# SPDX-License-Identifier: LGPL-2.1-or-later
"""Daemons that number inodes and open files for themselves are killed and replaced."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import select
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.guest.support.channel_daemon import passthrough_fh, passthrough_ll
from tests.guest.support.daemons import eventually, fails, running
from tests.guest.support.unmodified_successor import UnmodifiedDaemon, unmodified

BIG = bytes((i * 7 + i // 4093) & 0xFF for i in range(3 << 20))


def low_level(source: Path) -> list[str]:
    return passthrough_ll(source, "flock")


def high_level(source: Path) -> list[str]:
    return passthrough_fh(source)


def own_numbers(source: Path) -> list[str]:
    return passthrough_fh(source, own_numbers=True)


@pytest.fixture(params=[low_level, high_level, own_numbers])
def command(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    make: Callable[[Path], list[str]] = request.param
    source = tmp_path / "source"
    (source / "a/b/c").mkdir(parents=True)
    (source / "a/b/c/file").write_bytes(b"deep")
    (source / "big").write_bytes(BIG)
    return make(source)


@pytest.fixture
def d(mountpoint: Path, command: list[str]) -> Iterator[UnmodifiedDaemon]:
    with unmodified(mountpoint, command) as daemon:
        yield daemon


def names(path: Path) -> list[str]:
    return sorted(os.listdir(path))


def test_names_and_attributes_are_found_again(d: UnmodifiedDaemon) -> None:
    before = {path: os.stat(path) for path in d.path.rglob("*")}
    d.replace()
    for path, old in before.items():
        new = os.stat(path)
        assert (new.st_ino, new.st_size, new.st_mode) == (old.st_ino, old.st_size, old.st_mode)
    assert (d.path / "a/b/c/file").read_bytes() == b"deep"
    assert (d.path / "big").read_bytes() == BIG
    assert d.connection.incarnation == 1


def test_open_file_is_read_and_written_on(d: UnmodifiedDaemon) -> None:
    path = d.path / "a/b/c/file"
    with path.open("r+b", buffering=0) as f:
        assert f.read(2) == b"de"
        d.replace()
        assert f.read() == b"ep"
        f.write(b" and more")
        os.fsync(f.fileno())
        d.replace()
        f.seek(0)
        assert f.read() == b"deep and more"
        os.ftruncate(f.fileno(), 3)
    assert path.read_bytes() == b"dee"


def test_working_directory_and_open_directory_are_found_again(d: UnmodifiedDaemon) -> None:
    directory = os.open(d.path / "a/b", os.O_RDONLY | os.O_DIRECTORY)
    try:
        d.replace()
        assert os.listdir(directory) == ["c"]
        fd = os.open("c/file", os.O_RDONLY, dir_fd=directory)
        try:
            assert os.pread(fd, 10, 0) == b"deep"
        finally:
            os.close(fd)
        os.mkdir("new", dir_fd=directory)
    finally:
        os.close(directory)
    assert names(d.path / "a/b") == ["c", "new"]


def test_renamed_file_is_found_under_its_new_name(d: UnmodifiedDaemon) -> None:
    with (d.path / "a/b/c/file").open("rb", buffering=0) as f:
        os.rename(d.path / "a/b", d.path / "moved")
        os.rename(d.path / "moved/c/file", d.path / "there")
        d.replace()
        assert f.read() == b"deep"
    assert names(d.path) == ["a", "big", "moved", "there"]
    assert names(d.path / "moved/c") == []


def test_file_without_a_name_is_not_another_file(d: UnmodifiedDaemon) -> None:
    path = d.path / "a/b/c/file"
    with path.open("rb", buffering=0) as f:
        path.unlink()
        path.write_bytes(b"other")
        d.replace()
        with pytest.raises(OSError):
            f.read()
    assert path.read_bytes() == b"other"


def test_file_that_another_client_has_replaced_is_not_taken_for_the_old_one(
    mountpoint: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_bytes(b"old")
    with (
        unmodified(mountpoint, low_level(source), consistency="ttl") as d,
        (mountpoint / "file").open("rb", 0) as f,
    ):
        assert os.pread(f.fileno(), 10, 0) == b"old"
        d.dies()
        (source / "new").write_bytes(b"new")
        (source / "new").rename(source / "file")
        d.follow()
        with pytest.raises(OSError):
            os.pread(f.fileno(), 10, 0)
        assert (mountpoint / "file").read_bytes() == b"new"


def test_lookups_are_forgotten_at_the_daemon_that_has_answered_them(d: UnmodifiedDaemon) -> None:
    """passthrough_ll and libfuse end with an assertion if they are told to forget more."""
    with (d.path / "a/b/c/file").open("rb", 0) as f:
        for _ in range(3):
            d.replace()
            assert os.pread(f.fileno(), 4, 0) == b"deep"
            (d.path / "big").stat()
    Path("/proc/sys/vm/drop_caches").write_text("3")
    # The FORGETs have been read when the daemon has answered what was sent after them.
    assert (d.path / "a/b/c/file").read_bytes() == b"deep"
    assert (d.path / "big").read_bytes() == BIG


def test_both_names_of_a_file_have_one_inode_after_the_daemons_end(d: UnmodifiedDaemon) -> None:
    one, two = d.path / "a/one", d.path / "two"
    one.write_bytes(b"first")
    os.link(one, two)
    same = one.samefile(two)
    d.replace()
    with one.open("r+b", buffering=0) as f:
        f.write(b"FIRST")
        assert two.read_bytes() == b"FIRST"
    assert one.samefile(two) is same
    assert one.stat().st_nlink == 2


def test_mapped_file_is_read_and_written_on(d: UnmodifiedDaemon, tmp_path: Path) -> None:
    with (d.path / "big").open("r+b") as f, mmap.mmap(f.fileno(), 0) as m:
        m[5:9] = b"MARK"
        d.dies()
        with running(os.fsync, f.fileno()) as call:
            d.follow()
            call.result()
        m[100:104] = b"more"
        m.flush()
        assert m[2 << 20 : 3 << 20] == BIG[2 << 20 :]
    data = (tmp_path / "source/big").read_bytes()
    assert data == BIG[:5] + b"MARK" + BIG[9:100] + b"more" + BIG[104:]


def test_requests_of_the_gap_are_carried_out_by_the_successor(
    d: UnmodifiedDaemon, tmp_path: Path
) -> None:
    path = d.path / "a/b/c/file"
    d.dies()
    with running(path.write_bytes, b"in the gap") as call:
        assert not call.done()
        d.follow()
        call.result()
    assert (tmp_path / "source/a/b/c/file").read_bytes() == b"in the gap"


def test_names_are_made_moved_and_removed_by_successors(d: UnmodifiedDaemon) -> None:
    for number in range(5):
        (d.path / f"d{number}").mkdir()
        (d.path / f"d{number}/f").write_bytes(bytes([number]) * 5000)
        d.replace()
        os.rename(d.path / f"d{number}/f", d.path / f"f{number}")
        os.link(d.path / f"f{number}", d.path / f"d{number}/g")
        os.symlink("g", d.path / f"d{number}/s")
    for number in range(5):
        assert (d.path / f"d{number}/s").read_bytes() == bytes([number]) * 5000
        (d.path / f"d{number}/s").unlink()
        (d.path / f"d{number}/g").unlink()
        (d.path / f"d{number}").rmdir()
        assert (d.path / f"f{number}").stat().st_nlink == 1
    assert names(d.path) == ["a", "big", *(f"f{number}" for number in range(5))]


def test_new_file_of_a_successor_is_not_taken_for_an_old_one(d: UnmodifiedDaemon) -> None:
    held = [(d.path / f"old{number}").open("w+b", buffering=0) for number in range(20)]
    for number, f in enumerate(held):
        f.write(b"old%d" % number)
    d.replace()
    # A successor numbers them as its predecessor numbered the old ones.
    for number in range(20):
        (d.path / f"new{number}").write_bytes(b"new%d" % number)
    for number, f in enumerate(held):
        f.seek(0)
        assert f.read() == b"old%d" % number
        f.close()
        assert (d.path / f"new{number}").read_bytes() == b"new%d" % number


def test_file_is_closed_without_a_daemon(d: UnmodifiedDaemon) -> None:
    for _ in range(2):
        f = (d.path / "big").open("rb")
        assert f.read(10) == BIG[:10]
        d.dies()
        f.close()
        d.follow()
        assert (d.path / "big").read_bytes() == BIG
    fails(errno.ENOTEMPTY, os.rmdir, d.path / "a")


def locked(path: Path) -> bool:
    """Return whether another open file has a lock of the file."""
    with path.open("rb") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_name_that_is_looked_up_after_the_daemons_end_is_of_the_inode_that_is_open(
    d: UnmodifiedDaemon, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    (source / "a/one").write_bytes(b"first")
    os.link(source / "a/one", source / "two")
    with (d.path / "a/one").open("r+b", buffering=0) as f:
        d.replace()
        assert (d.path / "two").stat().st_nlink == 2
        f.write(b"FIRST")
        assert (d.path / "two").read_bytes() == b"FIRST"


def test_lock_at_the_daemon_is_its_successors(d: UnmodifiedDaemon, tmp_path: Path) -> None:
    names = [d.path / "big", d.path / "a/b/c/file"]
    with names[0].open("rb") as held, names[1].open("rb") as given_back:
        for f in (held, given_back):
            fcntl.flock(f, fcntl.LOCK_EX)
        fcntl.flock(given_back, fcntl.LOCK_UN)
        d.replace()
        assert locked(names[0])
        assert locked(tmp_path / "source/big")
        assert not locked(tmp_path / "source/a/b/c/file")
        assert not locked(names[1])
        fcntl.flock(held, fcntl.LOCK_UN)
        # The daemon closes the file of the last look at it by itself.
        eventually(lambda: not locked(tmp_path / "source/big"), "the lock to be given back")
    assert d.record.failed == 0


def test_lock_ends_with_its_file_in_the_gap(d: UnmodifiedDaemon, tmp_path: Path) -> None:
    f = (d.path / "big").open("rb")
    fcntl.flock(f, fcntl.LOCK_EX)
    d.dies()
    f.close()
    d.follow()
    assert not locked(tmp_path / "source/big")
    assert not locked(d.path / "big")


def test_lock_that_another_client_has_taken_is_reported(
    d: UnmodifiedDaemon, tmp_path: Path
) -> None:
    with (d.path / "big").open("rb") as f, (tmp_path / "source/big").open("rb") as other:
        fcntl.flock(f, fcntl.LOCK_EX)
        d.dies()
        eventually(lambda: not locked(tmp_path / "source/big"), "the daemon's files to be closed")
        fcntl.flock(other, fcntl.LOCK_EX)
        d.follow()
        eventually(lambda: d.record.failed == 1, "the lock to be lost")


def test_listing_goes_on_where_it_was(d: UnmodifiedDaemon) -> None:
    directory = d.path / "many"
    directory.mkdir()
    every = {f"name-{number:03}" for number in range(300)}
    for name in every:
        (directory / name).touch()
    with os.scandir(directory) as entries:
        got = [next(entries).name for _ in range(40)]
        d.replace()
        for name in got:
            (directory / name).unlink()
        (directory / "later").touch()
        got += [next(entries).name for _ in range(100)]
        d.replace()
        got += [entry.name for entry in entries]
    assert sorted(got) == sorted(every) or sorted(got) == sorted({*every, "later"})
    assert set(names(directory)) == (every | {"later"}) - set(got[:40])


def _replace_until(d: UnmodifiedDaemon, done: Callable[[], bool], rng: random.Random) -> None:
    """Kill and replace the daemon at random moments, until *done*."""
    while not done():
        select.select([], [], [], rng.random() / 4)
        d.replace()


def test_tree_is_removed_while_daemons_are_replaced(d: UnmodifiedDaemon, tmp_path: Path) -> None:
    for number in range(6):
        directory = d.path / f"tree/{number}"
        directory.mkdir(parents=True)
        for name in range(60):
            (directory / f"file-{name}").touch()
    with running(shutil.rmtree, d.path / "tree") as call:
        _replace_until(d, call.done, random.Random(1))
        call.result()
    assert not (tmp_path / "source/tree").exists()
    assert d.record.failed == 0


def work(directory: Path, seed: int, rounds: int, ended: Callable[[], bool]) -> dict[str, bytes]:
    """Make, change, move and remove files below *directory*; return what must be there then.

    :param rounds: the smallest number of changes.
    :param ended: whether that many suffice.
    """
    rng = random.Random(seed)
    files: dict[str, bytes] = {}
    number = 0
    while number < rounds or not ended():
        name = f"f{number % 12}"
        act = rng.choice(("write", "append", "rename", "unlink", "replace", "tree", "list", "read"))
        path = directory / name
        if act == "write" or name not in files:
            files[name] = rng.randbytes(rng.randrange(20000))
            path.write_bytes(files[name])
        elif act == "append":
            more = rng.randbytes(rng.randrange(3000))
            with path.open("r+b", buffering=0) as f:
                f.seek(0, os.SEEK_END)
                f.write(more)
                os.fsync(f.fileno())
            files[name] += more
        elif act == "rename":
            to = f"r{rng.randrange(6)}"
            path.rename(directory / to)
            files[to] = files.pop(name)
        elif act == "unlink":
            path.unlink()
            del files[name]
        elif act == "replace":
            files[name] = rng.randbytes(rng.randrange(9000))
            (directory / "new").write_bytes(files[name])
            (directory / "new").rename(path)
        elif act == "tree":
            (directory / "t/u/v").mkdir(parents=True)
            (directory / "t/u/v/w").write_bytes(b"w")
            assert (directory / "t/u/v/w").read_bytes() == b"w"
            shutil.rmtree(directory / "t")
        elif act == "list":
            assert names(directory) == sorted(files), number
        for some in rng.sample(sorted(files), min(2, len(files))):
            assert (directory / some).read_bytes() == files[some], (number, some)
        number += 1
    return files


@pytest.mark.parametrize("seed", [1, 2])
def test_no_caller_notices_that_the_daemon_is_killed_again_and_again(
    d: UnmodifiedDaemon, tmp_path: Path, seed: int
) -> None:
    rng = random.Random(seed)
    print(f"seed {seed}")
    for worker in range(2):
        (d.path / f"w{worker}").mkdir()

    def killed_often() -> bool:
        return d.connection.incarnation > 10

    with (
        running(work, d.path / "w0", seed, 60, killed_often) as one,
        running(work, d.path / "w1", seed + 100, 60, killed_often) as two,
    ):
        _replace_until(d, lambda: one.done() and two.done(), rng)
        results = one.result(), two.result()
    for worker, files in enumerate(results):
        for directory in (d.path / f"w{worker}", tmp_path / f"source/w{worker}"):
            assert {p.name: p.read_bytes() for p in directory.iterdir()} == files
    assert d.record.failed == 0
