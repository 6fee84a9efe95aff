# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test lookups that the kernel answers, which must not cause FORGETs.

At its end each mount checks that every lookup of the daemon was forgotten exactly once.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from efuse import bpf
from tests.guest.support.daemons import Call, Mount, eventually, fails, force_stat, mounted
from tests.guest.support.publishing import published

LONG = 3600.0


def _hard_links(m: Mount, names: int = 3) -> int:
    """Make links to one file, and return a descriptor, which keeps it alive without the names."""
    m.model.create("f0", b"data")
    for i in range(1, names):
        os.link(m / "f0", m / f"f{i}")
    return os.open(m / "f0", os.O_RDONLY)


@pytest.mark.parametrize("consistency", ["ttl", "cto", "exclusive"])
def test_lookup_of_a_live_inode_is_answered_and_counted(mountpoint: Path, consistency: str) -> None:
    with mounted(mountpoint, consistency=consistency, entry_timeout=LONG, attr_timeout=LONG) as m:
        fd = _hard_links(m)
        m.drop()
        os.stat(m / "f1")
        for _ in range(5):
            m.drop()
            with m.answered("lookup"):
                assert os.stat(m / "f1").st_ino == os.fstat(fd).st_ino
        os.close(fd)


def test_lookup_counts_are_balanced_after_dropping_caches(mountpoint: Path) -> None:
    with mounted(mountpoint, entry_timeout=LONG, attr_timeout=LONG) as m:
        fd = _hard_links(m)
        os.stat(m / "f2")
        before = m.count("lookup", "hits")
        for what in ("2", "3", "2"):
            Path("/proc/sys/vm/drop_caches").write_text(what)
            m.drop()
            assert os.stat(m / "f2").st_size == 4
        assert m.count("lookup", "hits") - before == 3
        os.close(fd)


def test_lookup_counts_are_balanced_after_forced_revalidation(mountpoint: Path) -> None:
    with mounted(mountpoint, entry_timeout=LONG, attr_timeout=LONG) as m:
        fd = _hard_links(m)
        os.stat(m / "f1")
        for _ in range(3):
            with m.answered("lookup"):
                fails(errno.EEXIST, os.link, m / "f0", m / "f1")
        os.close(fd)


def test_lookup_counts_are_balanced_after_unlink(mountpoint: Path) -> None:
    with mounted(mountpoint, entry_timeout=LONG, attr_timeout=LONG) as m:
        fd = _hard_links(m, names=6)
        for i in range(1, 6):
            os.stat(m / f"f{i}")
            m.drop()
            with m.answered("lookup"):
                os.stat(m / f"f{i}")
            os.unlink(m / f"f{i}")
            fails(errno.ENOENT, os.stat, m / f"f{i}")
            m.drop()
            fails(errno.ENOENT, os.stat, m / f"f{i}")
        assert os.fstat(fd).st_nlink == 1
        os.close(fd)


def test_lookup_of_a_forgotten_inode_goes_to_the_daemon(mountpoint: Path) -> None:
    with mounted(mountpoint, entry_timeout=LONG, attr_timeout=LONG) as m:
        m.model.create("f")
        os.stat(m / "f")
        eventually(m.balanced)
        with m.passed("lookup", "stale"):
            os.stat(m / "f")


def test_lookup_of_a_published_name_without_inode_goes_to_the_daemon(mountpoint: Path) -> None:
    with mounted(mountpoint, consistency="exclusive") as m:
        nodeid = m.model.create("f", b"data")
        assert m.attachment is not None
        entry = published(b"f", nodeid, st_mode=0o100644)
        assert bpf.publish(m.attachment.maps, [entry], epoch=m.connection.epoch) == 1
        with m.passed("lookup", "not_alive"):
            assert os.stat(m / "f").st_size == 4


def test_lookup_of_a_forgotten_inode_with_stable_nodeids_is_answered(mountpoint: Path) -> None:
    with mounted(
        mountpoint, declare=("stable_nodeids",), entry_timeout=LONG, attr_timeout=LONG
    ) as m:
        m.model.create("f", b"data")
        os.stat(m / "f")
        for _ in range(3):
            eventually(m.balanced)
            with m.answered("lookup"):
                assert os.stat(m / "f").st_size == 4
            assert not m.call("counts"), "the daemon granted no lookup"
        with m.passed("lookup"):
            m.connection.invalidate()
            os.stat(m / "f")


def test_lookups_with_small_maps_are_right_and_balanced(mountpoint: Path) -> None:
    with mounted(
        mountpoint,
        consistency="exclusive",
        capacity={"entries": 16, "attrs": 16},
        entry_timeout=LONG,
        attr_timeout=LONG,
    ) as m:
        m.model.create("f")
        m.call("many", [("hard_link", "f", f"l{i}") for i in range(100)])
        m.call("many", [("create", f"g{i}", b"x" * i) for i in range(100)])
        with open(m / "f"):
            for _ in range(2):
                for i in range(100):
                    assert os.stat(m / f"l{i}").st_nlink == 101
                    assert os.stat(m / f"g{i}").st_size == i
                    assert force_stat(m / f"g{i}").st_size == i
                m.drop()
            # A name may share a bucket with a nodeid whose FORGET the daemon has not read yet.
            eventually(lambda: len(m.call("counts")) == 1)
            os.stat(m / "l0")
            m.drop()
            with m.answered("lookup"):
                os.stat(m / "l0")


@pytest.mark.parametrize("kind", ["file", "symlink"])
def test_reused_nodeid_of_a_file_is_not_answered_from_old_values(
    mountpoint: Path, kind: str
) -> None:
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("no_open",),
        reuse_nodeids=True,
        entry_timeout=LONG,
        attr_timeout=LONG,
    ) as m:
        m.model.create("old", b"old!")
        m.model.set_xattr("old", b"user.x", b"old")
        nodeid = os.stat(m / "old").st_ino and m.call("nodeid", "old")
        force_stat(m / "old")
        with m.answered("getattr"):
            force_stat(m / "old")
        for _ in range(2):
            os.listxattr(m / "old")
            assert os.getxattr(m / "old", "user.x") == b"old"
            fails(errno.ENODATA, os.getxattr, m / "old", "user.y")
        eventually(m.balanced)

        m.model.remove("old")
        if kind == "file":
            m.model.create("new", b"new")
            m.model.set_xattr("new", b"user.y", b"new")
        else:
            m.model.symlink("new", b"there")
        seen = os.lstat(m / "new")
        assert m.call("nodeid", "new") == nodeid, "the nodeid did not come back"
        assert m.call("reused") >= 1
        assert seen.st_mode == force_stat(m / "new").st_mode == m.call("inode", "new").mode
        assert force_stat(m / "new").st_size == m.call("inode", "new").size
        if kind == "file":
            assert os.listxattr(m / "new") == ["user.y"]
            fails(errno.ENODATA, os.getxattr, m / "new", "user.x")
            assert os.getxattr(m / "new", "user.y") == b"new"
            assert Path(m / "new").read_bytes() == b"new"
        else:
            assert os.readlink(m / "new") == "there"


def test_reused_nodeid_of_a_directory_has_none_of_the_old_names(mountpoint: Path) -> None:
    with mounted(
        mountpoint,
        consistency="exclusive",
        reuse_nodeids=True,
        entry_timeout=LONG,
        attr_timeout=LONG,
    ) as m:
        m.model.mkdir("old")
        os.stat(m / "old")
        nodeid = m.call("nodeid", "old")
        fails(errno.ENOENT, os.stat, m / "old/name")
        m.drop()
        os.stat(m / "old")
        eventually(m.balanced)

        m.model.remove("old")
        m.model.mkdir("new")
        m.model.create("new/name", b"here")
        os.stat(m / "new")
        assert m.call("nodeid", "new") == nodeid, "the nodeid did not come back"
        assert os.stat(m / "new/name").st_size == 4


def test_negative_entry_of_a_live_directory_is_answered(mountpoint: Path) -> None:
    with mounted(mountpoint, negative_timeout=LONG, entry_timeout=LONG, attr_timeout=LONG) as m:
        fails(errno.ENOENT, os.stat, m / "none")
        for _ in range(3):
            m.drop()
            with m.answered("lookup"):
                fails(errno.ENOENT, os.stat, m / "none")


@pytest.mark.parametrize(
    "make",
    [
        lambda m: os.close(os.open(m / "n", os.O_CREAT | os.O_WRONLY)),
        lambda m: os.mkdir(m / "n"),
        lambda m: os.mknod(m / "n"),
        lambda m: os.symlink("x", m / "n"),
        lambda m: os.link(m / "f", m / "n"),
        lambda m: os.rename(m / "f", m / "n"),
    ],
    ids=["create", "mkdir", "mknod", "symlink", "link", "rename"],
)
def test_negative_entry_is_void_after_create(
    mountpoint: Path, make: Callable[[Mount], None]
) -> None:
    with mounted(
        mountpoint,
        consistency="exclusive",
        negative_timeout=LONG,
        entry_timeout=LONG,
        attr_timeout=LONG,
    ) as m:
        m.model.create("f")
        os.stat(m / "f")
        fails(errno.ENOENT, os.lstat, m / "n")
        m.drop()
        with m.answered("lookup"):
            fails(errno.ENOENT, os.lstat, m / "n")
        make(m)
        for _ in range(2):
            assert os.lstat(m / "n").st_ino == m.call("inode", "n").ino
            m.drop()


def _refused(name: bytes, directory: int) -> bool:
    """Return whether the name of a missing file is too long."""
    try:
        os.stat(name, dir_fd=directory)
    except OSError as error:
        assert error.errno in (errno.ENOENT, errno.ENAMETOOLONG)
        return error.errno == errno.ENAMETOOLONG
    raise AssertionError(f"there is a file of {len(name)} bytes")


def test_names_with_any_byte_and_of_any_length_are_looked_up(mountpoint: Path) -> None:
    names = [bytes([b]) for b in range(1, 256) if b not in b"/."]
    names += [b"x" * 255, bytes(b or 1 for b in range(255)).replace(b"/", b"_"), b"...", b". "]
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("stable_nodeids",),
        entry_timeout=LONG,
        attr_timeout=LONG,
    ) as m:
        base = os.fsencode(m.path) + b"/"
        m.call("many", [("make", 1, n, 0o100600 | (i % 8)) for i, n in enumerate(names)])
        for n in names:
            os.stat(base + n)
            fails(errno.ENOENT, os.stat, base + n[:200] + b"?!")
        m.drop()
        m.log()
        before = m.count("lookup", "hits")
        for i, n in enumerate(names):
            assert os.stat(base + n).st_mode == 0o100600 | (i % 8), n
            fails(errno.ENOENT, os.stat, base + n[:200] + b"?!")
        assert m.count("lookup", "hits") - before == 2 * len(names)
        assert "lookup" not in m.asked()
        # Longer names fit into no key, so the daemon is asked, also after FUSE has dropped the
        # answer. FUSE passes up to 1024 bytes. Newer kernels pass as many as a path may have.
        root = os.open(m.path, os.O_PATH)
        m.log()
        longest = 1024 if _refused(b"x" * 1025, root) else 4095
        assert ("lookup" in m.asked()) == (longest > 1024)
        for length in (256, 257, 1024, longest):
            for _ in range(2):
                m.drop()
                with m.passed("lookup"):
                    assert not _refused(b"x" * length, root)
        assert _refused(b"x" * (longest + 1), root)
        os.close(root)


def test_lookup_counts_are_balanced_after_parallel_lookups(mountpoint: Path) -> None:
    def look(m: Mount) -> None:
        for i in range(300):
            os.stat(m / f"f{i % 3}")
            if not i % 10:
                m.drop()

    with mounted(mountpoint, entry_timeout=LONG, attr_timeout=LONG) as m:
        fd = _hard_links(m)
        calls = [Call(look, m) for _ in range(4)]
        for call in calls:
            call.result()
        assert m.count("lookup", "hits") > 50
        os.close(fd)


def test_lookup_of_a_readdirplus_entry_that_fuse_refuses_is_forgotten(mountpoint: Path) -> None:
    """READDIRPLUS counts a lookup of each entry, but FUSE forgets one with wrong attributes."""
    with mounted(
        mountpoint,
        consistency="exclusive",
        entry_timeout=LONG,
        attr_timeout=LONG,
        reuse_nodeids=True,
    ) as m:
        m.model.mkdir("d")
        for name in ("good", "bad"):
            m.model.create(f"d/{name}", name.encode())
        m.model.set_mode("d/bad", 0o644)  # The file has no type.
        assert sorted(os.listdir(m / "d")) == ["bad", "good"]
        assert "readdirplus" in m.asked()
        eventually(lambda: not m.call("nodeid", "d/bad"), "its lookup is not returned")
        m.model.set_mode("d/bad", stat.S_IFREG | 0o644)
        assert Path(m / "d/bad").read_bytes() == b"bad"
        assert Path(m / "d/good").read_bytes() == b"good"
