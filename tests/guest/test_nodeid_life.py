# SPDX-License-Identifier: LGPL-2.1-or-later
"""A nodeid names an inode only while the kernel holds it, until the daemon reads the FORGET.

An extent that was mapped between these two would belong to the next file with that nodeid.
"""

from __future__ import annotations

import errno
import os
import random
import signal
from pathlib import Path

import pytest

from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.daemons import Mount, eventually, mounted
from tests.guest.support.file_data import BLOCK, fill, read, write


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
