# SPDX-License-Identifier: LGPL-2.1-or-later
"""A nodeid names an inode only while the kernel holds it, until the daemon reads the FORGET.

Extents that were mapped, and values that were published, between these two would belong to the next
file with that nodeid.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import random
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse import bpf
from efuse.bpf import DataCache, PublishedEntry
from efuse.bpf.values import NEVER_NS
from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.daemons import Mount, eventually, fails, mounted
from tests.guest.support.file_data import BLOCK, SIZE, fill, read, read_direct, write
from tests.guest.support.publishing import published


def drop_inodes() -> None:
    """Make the kernel drop every inode that is not in use."""
    Path("/proc/sys/vm/drop_caches").write_text("2")


def forgotten(m: Mount) -> None:
    """Wait until the daemon has read the FORGET of every inode that is not in use."""
    eventually(m.balanced, "forgotten")


@pytest.mark.parametrize("new", [False, True])
def test_map_of_a_nodeid_with_an_unread_forget_fails(
    mountpoint: Path, lower: Path, new: bool
) -> None:
    secret = backing(lower, fill("s"), "secret")
    with mounted(mountpoint, entry_timeout=60.0, attr_timeout=60.0, reuse_nodeids=True) as m:
        make(m, "one", fill("1"))
        nodeid = m.call("nodeid", "one")
        assert m.call("map_forgotten", "one", secret, write=True, new=new) == errno.ESTALE
        forgotten(m)
        make(m, "two", fill("2"))
        assert m.call("nodeid", "two") == nodeid
        with m.passed("read"):
            assert read(m / "two") == fill("2")
        assert write(m / "two", b"for two") == 7
        assert Path(secret).read_bytes() == fill("s")
        assert bytes(m.call("inode", "two").data[:7]) == b"for two"


def test_map_of_a_nodeid_that_the_kernel_does_not_hold_fails(mountpoint: Path, lower: Path) -> None:
    path = backing(lower, fill("b"))
    with mounted(mountpoint, reuse_nodeids=True) as m:
        make(m, "f", fill("d"))
        nodeid = m.call("nodeid", "f")
        forgotten(m)
        assert m.call("raw_map", (nodeid, 0, 0, 0, 0), 2, path, os.O_RDONLY) == errno.ESTALE
        # With the flag for a new nodeid, the extent is for a reply to come. The FORGET ends it,
        # too.
        assert not m.call("raw_map", (nodeid, 0, 0, 0, 0), 2 | 8, path, os.O_RDONLY)
        os.stat(m / "f")
        assert m.call("nodeid", "f") == nodeid
        with m.answered("read"):
            assert read(m / "f") == fill("b")
        forgotten(m)
        make(m, "g", fill("g"))
        os.unlink(m / "f")
        with m.passed("read"):
            assert read(m / "g") == fill("g")


def test_map_of_a_nodeid_looked_up_again_before_its_forget_stays(
    mountpoint: Path, lower: Path
) -> None:
    """The daemon replies with the nodeid again before it reads the FORGET, so the extent stays."""
    path = backing(lower, fill("b"))
    with mounted(mountpoint, entry_timeout=60.0, attr_timeout=60.0, reuse_nodeids=True) as m:
        make(m, "f", fill("d"))
        fd = os.open(m / "f", os.O_RDONLY)
        whole(m, path)
        for _ in range(3):
            m.drop()
            drop_inodes()
            os.stat(m / "f")
        assert os.pread(fd, 100, 0) == fill("b")[:100]
        os.close(fd)


@contextlib.contextmanager
def _queued_forget(m: Mount, nodeid: int) -> Iterator[None]:
    """Hold back the FORGET of a nodeid, so that the daemon reads it at the end of this context."""
    device = m.device()
    m.call("pause")
    try:
        assert not select.select([device], [], [], 0)[0]
        m.drop()
        assert select.select([device], [], [], 0)[0], "no FORGET is queued"
        assert nodeid in m.call("counts"), "the FORGET has been read"
        yield
    finally:
        os.close(device)
        m.call("resume")
    forgotten(m)


def _is_open_for_writing(path: str) -> bool:
    """Return whether any file of a path is open for writing, which refuses a read lease."""
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def test_backing_file_is_closed_while_a_forget_is_queued(mountpoint: Path, lower: Path) -> None:
    """The extents of a nodeid end when the kernel forgets it, before the daemon hears of that."""
    path = backing(lower, fill("b"))
    with mounted(mountpoint) as m:
        make(m, "f", fill("d"))
        whole(m, path, write=True)
        assert _is_open_for_writing(path)
        with _queued_forget(m, m.call("nodeid", "f")):
            eventually(lambda: not _is_open_for_writing(path), "the backing file is closed")


_late = pytest.mark.parametrize("late", [False, True], ids=["while it is queued", "later"])


@_late
def test_data_read_while_a_forget_is_queued_is_not_served_for_the_next_file(
    mountpoint: Path, late: bool
) -> None:
    """The data is published while the FORGET is queued, or when the next file has the nodeid."""
    with mounted(mountpoint, consistency="exclusive", reuse_nodeids=True) as m:
        assert m.attachment
        with DataCache(m.attachment.maps) as cache:
            make(m, "one", fill("1"))
            nodeid = m.call("nodeid", "one")

            def publish(epoch: int) -> None:
                cache.publish(nodeid, 0, fill("p"), epoch=epoch, valid_ns=NEVER_NS, end=True)

            publish(m.connection.epoch)
            with m.answered("read"):
                assert read_direct(m / "one", SIZE) == fill("p")
            eventually(lambda: not m.call("handles"))
            with _queued_forget(m, nodeid):
                epoch = m.connection.epoch
                if not late:
                    publish(epoch)
            make(m, "two", fill("2"))
            assert m.call("nodeid", "two") == nodeid
            if late:
                publish(epoch)
            with m.passed("read", "stale"):
                assert read_direct(m / "two", SIZE) == fill("2")
            publish(epoch)
            assert read(m / "two") == fill("2")


def _names(m: Mount, epoch: int, entry: PublishedEntry) -> None:
    assert m.attachment
    assert bpf.publish(m.attachment.maps, [entry], epoch=epoch) == 1


@_late
def test_name_read_while_a_forget_is_queued_does_not_lead_to_the_next_file(
    mountpoint: Path, late: bool
) -> None:
    """The name is published while the FORGET is queued, or when the next file has the nodeid."""
    with mounted(mountpoint, reuse_nodeids=True, one_generation=True) as m:
        make(m, "one", b"old")
        nodeid = m.call("nodeid", "one")
        entry = published(
            b"one",
            nodeid,
            generation=1,
            st_mode=0o100644,
            st_nlink=1,
            st_size=3,
            entry_timeout=3600.0,
            attr_timeout=3600.0,
        )
        fd = os.open(m / "one", os.O_RDONLY)
        _names(m, m.connection.epoch, entry)
        m.drop()
        with m.answered("lookup"):
            assert os.stat(m / "one").st_size == 3
        os.close(fd)
        eventually(lambda: not m.call("handles"))
        with _queued_forget(m, nodeid):
            epoch = m.connection.epoch
            if not late:
                _names(m, epoch, entry)
        m.model.remove("one")
        make(m, "two", b"new file")
        assert m.call("nodeid", "two") == nodeid
        fd = os.open(m / "two", os.O_RDONLY)
        if late:
            _names(m, epoch, entry)
        with m.passed("getattr", "stale" if late else None):
            assert os.fstat(fd).st_size == 8
        with m.passed("lookup", "stale"):
            fails(errno.ENOENT, os.stat, m / "one")
        os.close(fd)


@pytest.mark.parametrize("seed", range(3))
def test_read_never_returns_bytes_of_an_earlier_file_of_the_nodeid(
    mountpoint: Path, lower: Path, seed: int
) -> None:
    """Files are made, mapped and removed at random, and the bytes of each file name that file."""
    rng = random.Random(seed)
    with mounted(
        mountpoint, entry_timeout=60.0, attr_timeout=60.0, reuse_nodeids=True, consistency="ttl"
    ) as m:
        alive: dict[str, bytes] = {}
        mapped = made = 0
        for step in range(120):
            what = rng.choice(("make", "map", "late", "drop", "stop", "remove", "read", "read"))
            name = rng.choice(sorted(alive)) if alive else ""
            if what == "make" or not name:
                name = f"f{made}"
                made += 1
                alive[name] = fill(chr(65 + made % 26), BLOCK) + name.encode()
                make(m, name, alive[name])
            elif what in ("map", "late"):
                path = backing(lower, alive[name], name)
                os.stat(m / name)
                if what == "map":
                    m.call("map_extent", name, path, os.O_RDONLY)
                    mapped += 1
                else:
                    m.call("map_forgotten", name, path, new=bool(step % 2))
            elif what == "drop":
                m.drop()
            elif what == "stop":
                # FORGETs of several uses of a nodeid wait at the same time.
                os.kill(m.pid, signal.SIGSTOP)
                drop_inodes()
                os.kill(m.pid, signal.SIGCONT)
            elif what == "remove":
                os.unlink(m / name)
                del alive[name]
            for name in rng.sample(sorted(alive), min(3, len(alive))):
                assert read(m / name) == alive[name], (step, what, name)
        assert mapped
        assert m.count("read", "hits")
        assert m.call("reused")
