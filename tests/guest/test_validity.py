# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test how long an answer stays valid: timeouts, consistency modes, invalidations."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guest.support.daemons import (
    Call,
    Mount,
    birth_stat,
    eventually,
    fails,
    force_stat,
    monotonic_ns,
    mounted,
    running,
)
from tests.guest.support.wire import FOPEN_NOFLUSH

LONG = 3600.0
SHORT = 2.0
MODES = ["strict", "ttl", "cto", "exclusive"]


def _after(seconds: float, since_ns: int) -> None:
    """Wait until the kernel's clock has passed a timeout that began at *since_ns*."""
    eventually(lambda: monotonic_ns() > since_ns + seconds * 10**9)


def test_xattr_in_ttl_mode_expires_after_its_timeout(mountpoint: Path) -> None:
    with mounted(mountpoint, entry_timeout=SHORT, attr_timeout=SHORT) as m:
        m.model.create("f", b"1")
        m.model.set_xattr("f", b"user.x", b"1")
        assert os.getxattr(m / "f", "user.x") == b"1"
        begun = monotonic_ns()
        hits = m.count("getxattr", "hits")
        assert os.getxattr(m / "f", "user.x") == b"1"
        quick = monotonic_ns() - begun < SHORT * 10**9 / 2
        assert not quick or m.count("getxattr", "hits") == hits + 1
        m.model.set_xattr("f", b"user.x", b"2")
        _after(2 * SHORT, begun)
        with m.passed("getxattr", "expired"):
            assert os.getxattr(m / "f", "user.x") == b"2"


def test_attributes_in_ttl_mode_expire_after_their_timeout(mountpoint: Path) -> None:
    with mounted(mountpoint, entry_timeout=LONG, attr_timeout=SHORT) as m:
        m.model.create("f", b"1")
        m.model.hard_link("f", "g")
        file = os.open(m / "f", os.O_RDONLY)
        for size, opcode in ((2, "getattr"), (3, "lookup")):
            os.stat(m / "g")
            begun = monotonic_ns()
            m.model.put("f", b"x" * size)
            _after(2 * SHORT, begun)
            if opcode == "lookup":
                m.drop()
            with m.passed(opcode, "expired"):
                assert os.stat(m / "g").st_size == size
        os.close(file)


def test_negative_entry_in_ttl_mode_expires_after_its_timeout(mountpoint: Path) -> None:
    with mounted(mountpoint, negative_timeout=SHORT) as m:
        fails(errno.ENOENT, os.stat, m / "f")
        begun = monotonic_ns()
        m.model.create("f", b"1")
        _after(2 * SHORT, begun)
        with m.passed("lookup", "expired"):
            assert os.stat(m / "f").st_size == 1


def test_reply_without_a_timeout_is_not_used_again(mountpoint: Path) -> None:
    with mounted(mountpoint) as m:
        m.model.create("f", b"1")
        m.model.set_xattr("f", b"user.x", b"1")
        for _ in range(3):
            with m.passed("lookup"):
                os.stat(m / "f")
            with m.passed("getxattr"):
                os.getxattr(m / "f", "user.x")
            with m.passed("lookup"):
                fails(errno.ENOENT, os.stat, m / "none")


def test_forced_getattr_in_ttl_mode_goes_to_the_daemon(mountpoint: Path) -> None:
    with mounted(mountpoint, entry_timeout=LONG, attr_timeout=LONG) as m:
        m.model.create("f", b"1")
        force_stat(m / "f")
        m.model.put("f", b"22")
        with m.passed("getattr", "stale"):
            assert force_stat(m / "f").st_size == 2


def test_strict_mode_sends_every_request_to_the_daemon(mountpoint: Path) -> None:
    with mounted(
        mountpoint,
        consistency="strict",
        declare=("no_open", "caller_independent", "no_flush"),
        negative_timeout=LONG,
        entry_timeout=LONG,
        attr_timeout=LONG,
    ) as m:
        m.model.mkdir("d")
        m.model.create("d/f", b"")
        for size in range(1, 5):
            m.model.put("d/f", b"x" * size)
            m.model.set_xattr("d/f", b"user.x", b"%d" % size)
            os.listdir(m / "d")
            assert os.stat(m / "d/f").st_size == size
            assert force_stat(m / "d/f").st_size == size
            assert os.getxattr(m / "d/f", "user.x") == b"%d" % size
            assert Path(m / "d/f").read_bytes() == b"x" * size
            fails(errno.ENOENT, os.stat, m / "n")
            m.model.create("n")
            os.stat(m / "n")
            m.model.remove("n")
        for opcode in ("lookup", "getattr", "getxattr", "open", "opendir", "flush"):
            assert not m.count(opcode, "hits"), opcode
        assert not m.connection.learned


def test_stat_after_a_statx_in_strict_mode_goes_to_the_daemon(mountpoint: Path) -> None:
    """A statx(2) that asks for the time of birth sends a STATX, whose reply has attributes."""
    with mounted(mountpoint, consistency="strict", statx=True, attr_timeout=LONG) as m:
        m.model.create("f", b"1")
        fd = os.open(m / "f", os.O_RDONLY)
        for size in range(2, 5):
            with m.passed("statx"):
                birth_stat(fd)
            m.model.put("f", b"x" * size)
            with m.passed("getattr"):
                assert os.fstat(fd).st_size == size
        os.close(fd)


def test_cto_mode_sends_each_open_and_then_voids_the_inode(mountpoint: Path) -> None:
    with mounted(
        mountpoint,
        consistency="cto",
        declare=("no_open",),
        entry_timeout=LONG,
        attr_timeout=LONG,
    ) as m:
        m.model.create("f", b"1")
        m.model.set_xattr("f", b"user.x", b"1")
        for size in range(2, 6):
            os.getxattr(m / "f", "user.x")
            with m.answered("getxattr"):
                os.getxattr(m / "f", "user.x")
            m.model.put("f", b"x" * size)
            m.model.set_xattr("f", b"user.x", b"%d" % size)
            with m.passed("open", "declined" if size > 2 else None), open(m / "f", "rb") as file:
                assert os.fstat(file.fileno()).st_size == size
                assert file.read() == b"x" * size
                assert os.getxattr(m / "f", "user.x") == b"%d" % size


def test_exclusive_mode_answers_beyond_the_timeout(mountpoint: Path) -> None:
    with mounted(mountpoint, consistency="exclusive") as m:
        m.model.create("f", b"1")
        m.model.set_xattr("f", b"user.x", b"1")
        m.model.symlink("s", b"f")
        os.stat(m / "f")
        force_stat(m / "f")
        os.getxattr(m / "f", "user.x")
        os.readlink(m / "s")
        os.statvfs(m.path)
        fails(errno.ENOENT, os.stat, m / "n")
        m.log()
        for opcode, ask in {
            "getattr": lambda: force_stat(m / "f"),
            "getxattr": lambda: os.getxattr(m / "f", "user.x"),
            "readlink": lambda: os.readlink(m / "s"),
            "statfs": lambda: os.statvfs(m.path),
        }.items():
            with m.answered(opcode):
                ask()
        requests = m.count("lookup", "requests")
        fails(errno.ENOENT, os.stat, m / "n")
        assert os.stat(m / "f").st_size == 1
        assert m.count("lookup", "requests") == requests, "FUSE's own caches were not raised"
        assert not m.asked()


def _learn(m: Mount) -> None:
    """Fill every cache with the current sizes, names and xattrs."""
    for _ in range(2):
        os.stat(m / "d/f")
        os.getxattr(m / "d/f", "user.x")
        Path(m / "d/f").read_bytes()
        fails(errno.ENOENT, os.stat, m / "d/n")
        os.listdir(m / "d")


@pytest.mark.parametrize("kept", [False, True], ids=["unused", "in_use"])
@pytest.mark.parametrize("consistency", ["ttl", "cto", "exclusive"])
def test_sysfs_invalidate_voids_all_values(mountpoint: Path, consistency: str, kept: bool) -> None:
    with mounted(
        mountpoint, consistency=consistency, negative_timeout=LONG, declare=("no_open",),
        entry_timeout=LONG, attr_timeout=LONG,
    ) as m:  # fmt: skip
        m.model.mkdir("d")
        m.model.create("d/f", b"1")
        m.model.set_xattr("d/f", b"user.x", b"1")
        held = os.open(m / "d/f", os.O_RDONLY) if kept else -1
        _learn(m)
        m.model.put("d/f", b"22")
        m.model.set_xattr("d/f", b"user.x", b"2")
        m.model.create("d/n", b"333")
        m.connection.invalidate()
        assert os.stat(m / "d/f").st_size == 2
        assert os.getxattr(m / "d/f", "user.x") == b"2"
        assert Path(m / "d/f").read_bytes() == b"22"
        assert os.stat(m / "d/n").st_size == 3
        assert sorted(os.listdir(m / "d")) == ["f", "n"]
        if kept:
            assert os.fstat(held).st_size == 2
            os.close(held)


@pytest.mark.parametrize("to", ["strict", "ttl", "cto"])
def test_end_of_exclusive_mode_voids_extended_timeouts(mountpoint: Path, to: str) -> None:
    with mounted(mountpoint, consistency="exclusive") as m:
        m.model.mkdir("d")
        m.model.create("d/f", b"1")
        m.model.set_xattr("d/f", b"user.x", b"1")
        _learn(m)
        m.connection.consistency = to
        for size in (2, 3):
            m.model.put("d/f", b"x" * size)
            m.model.set_xattr("d/f", b"user.x", b"%d" % size)
            assert os.stat(m / "d/f").st_size == size
            assert os.getxattr(m / "d/f", "user.x") == b"%d" % size
            m.model.create("d/n")
            os.stat(m / "d/n")
            m.model.remove("d/n")
            fails(errno.ENOENT, os.stat, m / "d/n")


@pytest.mark.parametrize("consistency", MODES)
def test_inval_inode_notification_voids_the_inode(mountpoint: Path, consistency: str) -> None:
    with mounted(
        mountpoint, consistency=consistency, entry_timeout=LONG, attr_timeout=LONG
    ) as m:  # fmt: skip
        m.model.create("f", b"1")
        for size in range(2, 5):
            for _ in range(2):
                os.stat(m / "f")
                os.listxattr(m / "f")
                Path(m / "f").read_bytes()
            m.model.put("f", b"x" * size)
            m.model.set_xattr("f", b"user.%d" % size, b"")
            m.call("inval_inode", "f")
            assert os.stat(m / "f").st_size == size
            assert force_stat(m / "f").st_size == size
            assert f"user.{size}" in os.listxattr(m / "f")
            assert Path(m / "f").read_bytes() == b"x" * size
        # In cto mode, each of these reads voids the learned values.
        assert bool(m.count("listxattr", "hits")) == (consistency in ("ttl", "exclusive"))


@pytest.mark.parametrize("consistency", MODES)
def test_inval_entry_notification_voids_the_name(mountpoint: Path, consistency: str) -> None:
    with mounted(
        mountpoint,
        consistency=consistency,
        negative_timeout=LONG,
        entry_timeout=LONG,
        attr_timeout=LONG,
    ) as m:
        m.model.mkdir("d")
        for _ in range(3):
            fails(errno.ENOENT, os.stat, m / "d/n")
            fails(errno.ENOENT, os.stat, m / "d/n")
            ino = m.model.create("d/n", b"1")
            m.call("inval_entry", "d", b"n")
            for _ in range(2):
                assert os.stat(m / "d/n").st_ino == ino
                m.drop()
            m.model.remove("d/n")
            m.call("inval_entry", "d", b"n")
            fails(errno.ENOENT, os.stat, m / "d/n")


@pytest.mark.parametrize("consistency", ["ttl", "cto", "exclusive"])
def test_inc_epoch_notification_voids_all_names(mountpoint: Path, consistency: str) -> None:
    with mounted(
        mountpoint, consistency=consistency, negative_timeout=LONG, entry_timeout=LONG,
        attr_timeout=LONG,
    ) as m:  # fmt: skip
        m.model.mkdir("d")
        m.model.create("d/f", b"1")
        m.model.set_xattr("d/f", b"user.x", b"1")
        m.model.hard_link("d/f", "d/g")
        held = os.open(m / "d/g", os.O_RDONLY)
        _learn(m)
        m.drop()
        os.stat(m / "d/f")
        m.drop()
        with m.answered("lookup"):
            assert os.stat(m / "d/f").st_size == 1
        if m.call("minor") < 44:
            # This kernel has no such notification.
            with pytest.raises(AssertionError, match=f"inc_epoch: {errno.EINVAL}"):
                m.call("inc_epoch")
            os.close(held)
            return
        m.model.remove("d/f")
        ino = m.model.create("d/f", b"22")
        m.model.create("d/n", b"333")
        m.call("inc_epoch")
        for _ in range(2):
            assert os.stat(m / "d/f").st_ino == ino
            assert os.stat(m / "d/f").st_size == 2
            assert os.stat(m / "d/n").st_size == 3
            fails(errno.ENODATA, os.getxattr, m / "d/f", "user.x")
            m.drop()
        os.close(held)


def test_delete_notification_voids_the_name_and_the_link_count(mountpoint: Path) -> None:
    with mounted(mountpoint, consistency="exclusive") as m:
        m.model.create("f", b"1")
        m.model.hard_link("f", "g")
        with open(m / "g") as file:
            os.stat(m / "f")
            nodeid = m.call("nodeid", "f")
            m.model.remove("f")
            m.call("delete", "", nodeid, b"f")
            fails(errno.ENOENT, os.stat, m / "f")
            assert force_stat(file.fileno()).st_nlink == 1


def test_store_notification_voids_the_attributes(mountpoint: Path) -> None:
    with mounted(mountpoint, consistency="exclusive") as m:
        m.model.create("f", b"1")
        Path(m / "f").read_bytes()
        force_stat(m / "f")
        m.model.put("f", b"stored")
        m.call("store", "f", 0, b"stored")
        assert force_stat(m / "f").st_size == 6
        assert Path(m / "f").read_bytes() == b"stored"


@pytest.mark.parametrize(
    ("opcode", "ask"),
    [
        ("getattr", lambda m: force_stat(m / "f").st_size),
        ("getxattr", lambda m: os.getxattr(m / "f", "user.x")),
    ],
    ids=["getattr", "getxattr"],
)
def test_reply_that_crosses_an_invalidation_is_not_learned(
    mountpoint: Path, opcode: str, ask: Callable[[Mount], object]
) -> None:
    with mounted(mountpoint, consistency="exclusive") as m:
        m.model.create("f", b"1")
        m.model.set_xattr("f", b"user.x", b"1")
        for how in ("inode", "sysfs"):
            ask(m)
            m.connection.invalidate()
            m.hold(opcode, "after")
            asked = Call(ask, m)
            m.wait_held()
            m.model.put("f", b"22")
            m.model.set_xattr("f", b"user.x", b"2" if how == "inode" else b"3")
            if how == "inode":
                m.call("inval_inode", "f")
            else:
                m.connection.invalidate()
            m.release()
            asked.result()
            new = ask(m)
            assert new == (2 if opcode == "getattr" else b"2" if how == "inode" else b"3")


@pytest.mark.parametrize("consistency", ["ttl", "cto"])
def test_attributes_of_an_earlier_request_do_not_replace_later_ones(
    mountpoint: Path, consistency: str
) -> None:
    """Another program changes the file between two requests; the first one's reply arrives last.

    The timeout of that reply ends last, too. In between the kernel must not answer with it.
    """
    with mounted(mountpoint, consistency=consistency, entry_timeout=LONG, attr_timeout=SHORT) as m:
        m.model.create("f", b"old bytes")
        os.stat(m / "f")
        m.call("inval_attributes", "f")
        m.hold("getattr", "after")
        with running(os.stat, m / "f") as earlier:
            m.wait_held()
            m.model.put("f", b"new")
            assert os.stat(m / "f").st_size == 3
            begun = monotonic_ns()
            _after(SHORT / 2, begun)
            m.release()
            assert earlier.result().st_size == 9
        _after(1.1 * SHORT, begun)
        assert os.stat(m / "f").st_size == 3


@pytest.mark.parametrize(
    ("opcode", "change"),
    [
        ("setattr", lambda m: os.chmod(m / "f", 0o600)),
        ("link", lambda m: os.link(m / "f", m / "g")),
    ],
    ids=["setattr", "link"],
)
def test_attributes_in_the_reply_of_a_change_that_crosses_an_invalidation_are_not_used(
    mountpoint: Path, opcode: str, change: Callable[[Mount], object]
) -> None:
    with mounted(mountpoint, consistency="exclusive", declare=("nodeid_per_file",)) as m:
        m.model.create("f", b"1")
        os.stat(m / "f")
        m.hold(opcode, "after")
        changing = Call(change, m)
        m.wait_held()
        m.model.put("f", b"22")
        m.call("inval_inode", "f")
        m.release()
        changing.result()
        assert os.stat(m / "f").st_size == 2
        assert force_stat(m / "f").st_size == 2


def test_open_that_fails_with_estale_is_looked_up_again(mountpoint: Path) -> None:
    with mounted(
        mountpoint, entry_timeout=LONG, attr_timeout=LONG, reuse_nodeids=True
    ) as m:  # fmt: skip
        m.model.create("f", b"1")
        os.stat(m / "f")
        m.call("nodeids.lose", m.call("nodeid", "f"))
        m.model.put("f", b"22")
        with open(m / "f", "rb") as file:
            assert file.read() == b"22"


def test_timeouts_in_a_reply_that_crossed_a_change_are_not_extended(mountpoint: Path) -> None:
    """A daemon with a write-back cache still changes the file when its RELEASE arrives."""
    # FOPEN_NOFLUSH: closing a file sends no FLUSH, which the test might hold.
    with mounted(mountpoint, consistency="exclusive", open_flags=FOPEN_NOFLUSH) as m:
        m.model.create("f", b"1")
        fd = os.open(m / "f", os.O_WRONLY)
        os.write(fd, b"22")
        m.hold("release", "before")
        os.close(fd)
        m.wait_held()
        os.chmod(m / "f", 0o600)
        m.model.put("f", b"4444")
        m.release()
        eventually(lambda: not m.call("handles"))
        eventually(lambda: os.stat(m / "f").st_size == 4, "the reply is believed for ever")
        assert force_stat(m / "f").st_size == 4


@pytest.mark.parametrize(
    "answer",
    [
        (errno.ENOSYS, 0),
        (0, -errno.ENOSYS),
        (errno.ENOTTY, 0),
        (0, -errno.ENOTTY),
        (0, 0),
        (errno.EPERM, 0),
        (0, -errno.EPERM),
    ],
    ids=str,
)
@pytest.mark.parametrize("command", [termios.TIOCGWINSZ, termios.TCGETS], ids=hex)
def test_ioctl_voids_the_inode_unless_the_daemon_lacks_it(
    mountpoint: Path, answer: tuple[int, int], command: int
) -> None:
    """TCGETS is the question of isatty(3), which changes nothing if it fails."""
    failed = abs(sum(answer))
    known = failed not in (errno.ENOSYS, errno.ENOTTY) and not (
        failed and command == termios.TCGETS
    )
    with mounted(mountpoint, consistency="exclusive", ioctl=answer) as m:
        m.model.create("f", b"1")
        m.model.set_xattr("f", b"user.x", b"1")
        fd = os.open(m / "f", os.O_RDONLY)
        os.getxattr(fd, "user.x")
        with m.passed("ioctl"), contextlib.suppress(OSError):
            fcntl.ioctl(fd, command, bytes(64))
        with m.passed("getxattr", "stale") if known else m.answered("getxattr"):
            assert os.getxattr(fd, "user.x") == b"1"
        os.close(fd)


_DECLARATIONS = (
    *("stable_nodeids", "nodeid_per_file", "caller_independent"),
    *("no_open", "no_flush", "lazy_atime", "lazy_open"),
)


def _change_rule(m: Mount, rule: str, *, ends: bool) -> None:
    if rule == "consistency":
        m.connection.consistency = "ttl" if ends else "exclusive"
    else:
        setattr(m.connection, rule, not ends)


@pytest.mark.parametrize("ends", [False, True], ids=["begins", "ends"])
@pytest.mark.parametrize("rule", ["consistency", *_DECLARATIONS])
def test_answer_that_was_learned_under_another_rule_is_not_given(
    mountpoint: Path, rule: str, ends: bool
) -> None:
    declare = (rule,) if ends and rule != "consistency" else ()
    mode = "exclusive" if ends and rule == "consistency" else "ttl"
    with mounted(
        mountpoint, consistency=mode, declare=declare, entry_timeout=LONG, attr_timeout=LONG
    ) as m:
        m.model.create("f")
        m.model.set_xattr("f", b"user.x", b"1")
        assert os.getxattr(m / "f", "user.x") == b"1"
        with m.answered("getxattr"):
            assert os.getxattr(m / "f", "user.x") == b"1"
        _change_rule(m, rule, ends=ends)
        with m.passed("getxattr"):
            assert os.getxattr(m / "f", "user.x") == b"1"


@pytest.mark.parametrize("rule", _DECLARATIONS)
def test_end_of_a_declaration_ends_the_timeouts_of_fuse(mountpoint: Path, rule: str) -> None:
    """FUSE's own caches may rely on the declaration."""
    with mounted(mountpoint, declare=(rule,), entry_timeout=LONG, attr_timeout=LONG) as m:
        m.model.create("f")
        os.stat(m / "f")
        m.log()
        os.stat(m / "f")
        assert m.asked() == []
        _change_rule(m, rule, ends=True)
        os.stat(m / "f")
        assert {"lookup", "getattr"} & {*m.asked()}
