# SPDX-License-Identifier: LGPL-2.1-or-later
"""Successors that come at the wrong moment, and requests whose second execution would show."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.guest.support import wire
from tests.guest.support.daemons import DEADLINE_S, eventually, fails, running
from tests.guest.support.succession import (
    Recovering,
    open_device,
    recovering,
    successor_of,
    take_over,
)

BACKING_OPEN = 1 << 30 | 16 << 16 | 229 << 8 | 1
CALLERS = 128


def waits(m: Recovering, number: int = 1) -> None:
    eventually(lambda: m.connection.waiting >= number, "a caller to wait")


def taken(target: int) -> int:
    """Return a descriptor that has taken a mount over, in the moment when that became possible."""
    device = open_device()
    end = time.monotonic() + DEADLINE_S
    while True:
        try:
            take_over(device, target)
        except OSError as error:
            assert error.errno == errno.EBUSY
            assert time.monotonic() < end, "the end of the last daemon was not noticed"
        else:
            return device


# Descriptors


def ask_in_threads(path: str) -> int:
    """Ask for a file's attributes in many threads; return how many answers came."""
    with ThreadPoolExecutor(CALLERS) as pool:
        return len(list(pool.map(os.stat, [path] * CALLERS)))


def test_successor_that_ends_while_the_last_daemon_is_being_closed(mountpoint: Path) -> None:
    """The end of each later daemon is noticed, and only the end of its last descriptor."""
    with recovering(mountpoint) as m:
        target = os.open(mountpoint, os.O_PATH | os.O_CLOEXEC)
        for _ in range(8):
            # The more requests wait to be read, the longer the end of the last descriptor takes.
            m.call("pause")
            with running(ask_in_threads, str(m.path)) as callers:
                waits(m, CALLERS)
                state = m.call("state")
                os.kill(m.pid, signal.SIGKILL)
                device = taken(target)
                assert wire.parse(os.read(device, 8192)).opcode == "init"
                os.close(device)
                m.kill()
                eventually(lambda: m.connection.daemon == "dead", "the successor to be dead")
                m.follow(state)
                assert callers.result() == CALLERS
        m.follow(m.dies())
        os.close(target)


def test_takeover_stands_although_the_successor_before_it_is_still_ending(mountpoint: Path) -> None:
    with recovering(mountpoint) as m, ThreadPoolExecutor(1) as pool:
        target = os.open(mountpoint, os.O_PATH | os.O_CLOEXEC)
        state = m.dies()
        device = taken(target)
        for _ in range(200):
            os.set_blocking(device, False)
            # A successor that has read its INIT ends with it.
            assert wire.parse(os.read(device, 8192)).opcode == "init"
            closed = pool.submit(os.close, device)
            device = taken(target)
            closed.result()
            assert m.connection.daemon == "starting"
        os.close(device)
        os.close(target)
        eventually(lambda: m.connection.daemon == "dead", "the last successor to be dead")
        m.follow(state)


def test_successor_does_not_notify_before_it_has_answered_init(mountpoint: Path) -> None:
    with recovering(mountpoint) as m:
        m.model.create("file", b"data")
        assert Path(m / "file").read_bytes() == b"data"
        nodeid = m.call("nodeid", "file")
        state = m.dies()
        device = successor_of(mountpoint)
        fails(errno.ENOENT, os.write, device, wire.store(nodeid, 0, b"DATA"))
        fails(errno.ENOENT, os.write, device, wire.inval_inode(nodeid, 0, 0))
        fails(errno.ENOENT, os.write, device, wire.resend())
        assert wire.parse(os.read(device, 8192)).opcode == "init"
        os.close(device)
        m.follow(state)
        assert Path(m / "file").read_bytes() == b"data"


def test_refused_successor_opens_no_backing_file(mountpoint: Path, lower: Path) -> None:
    path = lower / "file"
    path.write_bytes(b"lower")
    with recovering(mountpoint, passthrough=str(path)) as m:
        state = m.dies()
        device = successor_of(mountpoint)
        init = wire.parse(os.read(device, 8192))
        os.write(device, wire.reply(init.unique, errno.EPERM))
        assert m.connection.daemon == "dead"
        with open(path, "r+b") as file:
            backing = struct.pack("=iIQ", file.fileno(), 0, 0)
            fails(errno.EPERM, fcntl.ioctl, device, BACKING_OPEN, backing)
        os.close(device)
        m.follow(state)


# Requests


def test_request_that_was_put_back_is_not_carried_out_twice(mountpoint: Path) -> None:
    """FUSE_NOTIFY_RESEND: the daemon has carried the request out, but not read it once more."""
    with recovering(mountpoint, consistency="exclusive") as m:
        m.hold("mkdir", "after")
        with running(os.mkdir, m / "new") as call:
            m.wait_held()
            m.call("pause")
            m.call("resend")
            state = m.call("state")
            m.kill()
            eventually(lambda: m.connection.daemon == "dead", "the daemon to be dead")
            m.follow(state)
            call.result()
        assert os.listdir(m.path) == ["new"]
        assert (m.record.settled, m.record.failed) == (1, 0)


def lock_and_close(path: str) -> None:
    fd = os.open(path, os.O_RDWR)
    fcntl.lockf(fd, fcntl.LOCK_EX)
    os.close(fd)


def test_close_of_a_killed_process_ends_its_locks(mountpoint: Path) -> None:
    with recovering(mountpoint, locks=True) as m:
        m.model.create("file", b"data")
        m.hold("flush", "before")
        with running(lock_and_close, m / "file") as call:
            m.wait_held()
            state = m.dies()
            waits(m)
            os.kill(call.pid, signal.SIGKILL)
            m.follow(state)
            eventually(lambda: not m.call("handles"), "the RELEASE")
            assert "flush" in m.asked()


def append(path: str, data: bytes) -> int:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        return os.write(fd, data)
    finally:
        os.close(fd)


def test_append_is_not_taken_for_one_by_another_nodeid(mountpoint: Path) -> None:
    with recovering(mountpoint, consistency="exclusive", nodeid_per_name=True) as m:
        m.model.create("file", b"data")
        os.link(m / "file", m / "other")
        m.hold("write", "before")
        with running(append, m / "file", b"more") as call:
            m.wait_held()
            assert append(m / "other", b"else") == 4
            m.replace()
            fails(errno.EIO, call.result)
        assert (m.record.settled, m.record.failed) == (0, 1)
        assert bytes(m.call("inode", "file").data) == b"dataelse"


def open_truncated(path: str) -> None:
    os.close(os.open(path, os.O_WRONLY | os.O_TRUNC))


def test_acknowledged_write_outlives_an_open_that_truncates(mountpoint: Path) -> None:
    with recovering(mountpoint) as m:
        m.model.create("file", b"old data")
        m.files["file"] = os.open(m / "file", os.O_WRONLY)
        m.hold("open", "after")
        with running(open_truncated, m / "file") as call:
            m.wait_held()
            assert bytes(m.call("inode", "file").data) == b""
            assert os.pwrite(m.files["file"], b"new", 0) == 3
            m.replace()
            fails(errno.EIO, call.result)
        assert bytes(m.call("inode", "file").data) == b"new"
        os.close(m.files["file"])
