# SPDX-License-Identifier: LGPL-2.1-or-later
"""A mount without a daemon: what goes on meanwhile, how it ends, and who may take it over."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import select
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from efuse.control import Connection
from efuse.fs.mountpoint import MountOptions, mount_efuse, unmount
from tests.guest.support import wire
from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.channel import Channel, tied
from tests.guest.support.daemons import as_user, eventually, fails, force_stat, running
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.file_pages import LONG, libc
from tests.guest.support.manual_daemon import root_attributes
from tests.guest.support.running_kernel import LINUX
from tests.guest.support.succession import (
    Recovering,
    open_device,
    recovering,
    successor_of,
    take_over,
)
from tests.guest.support.wire import FUSE_WRITEBACK_CACHE

STATES = ("before", "after")
INIT_FLAGS = (
    wire.FUSE_ASYNC_READ
    | wire.FUSE_ATOMIC_O_TRUNC
    | wire.FUSE_BIG_WRITES
    | wire.FUSE_AUTO_INVAL_DATA
    | wire.FUSE_PARALLEL_DIROPS
    | wire.FUSE_MAX_PAGES
    | wire.FUSE_DO_READDIRPLUS
)
"""What a scripted daemon accepts without further options."""


def size_of(path: str) -> int:
    return os.stat(path).st_size


def waits(m: Recovering, number: int = 1) -> None:
    eventually(lambda: m.connection.waiting >= number, "a caller to wait")


# Callers in the gap


def test_new_caller_waits_for_the_successor(mountpoint: Path) -> None:
    with recovering(mountpoint) as m:
        m.model.create("file", b"data")
        state = m.dies()
        with running(size_of, m / "file") as call:
            waits(m)
            assert not call.done()
            m.follow(state)
            assert call.result() == 4
        assert m.connection.waiting == 0


def test_killed_caller_does_not_wait(mountpoint: Path) -> None:
    with recovering(mountpoint) as m:
        m.hold("getattr", "before")
        with running(size_of, str(m.path)) as held:
            m.wait_held()
            state = m.dies()
            with running(size_of, str(m.path)) as new:
                waits(m, 2)
                held.kill()
                new.kill()
            assert m.connection.waiting == 0
            assert m.record.failed == 2
            m.follow(state)
        assert size_of(str(m.path)) == state.model.get(1).size


def test_stopped_caller_goes_on_waiting(mountpoint: Path) -> None:
    with recovering(mountpoint) as m:
        state = m.dies()
        with running(size_of, str(m.path)) as call:
            waits(m)
            os.kill(call.pid, signal.SIGSTOP)
            os.kill(call.pid, signal.SIGCONT)
            assert not call.done()
            m.follow(state)
            call.result()


def test_waiting_caller_does_not_keep_the_machine_from_suspending(mountpoint: Path) -> None:
    power = Path("/sys/power")
    with recovering(mountpoint) as m:
        state = m.dies()
        with running(size_of, str(m.path)) as call:
            waits(m)
            (power / "pm_test").write_text("freezer")
            try:
                # Fails with EBUSY if a task cannot be frozen.
                (power / "state").write_text("freeze")
            finally:
                (power / "pm_test").write_text("none")
            m.follow(state)
            call.result()


def test_callers_get_enotconn_at_the_deadline(mountpoint: Path) -> None:
    with recovering(mountpoint) as m:
        m.hold("getattr", "before")
        with running(size_of, str(m.path)) as held:
            m.wait_held()
            m.dies()
            with running(size_of, str(m.path)) as new:
                waits(m, 2)
                m.connection.recovery = 1
                fails(errno.ENOTCONN, held.result)
                fails(errno.ENOTCONN, new.result)
        assert not m.connection.connected
        assert m.connection.daemon == "none"
        fails(errno.ENOTCONN, size_of, str(m.path))
        fails(errno.ENOTCONN, successor_of, mountpoint)


@pytest.mark.parametrize("way", ["abort", "recovery", "umount"])
def test_abort_in_the_gap_ends_the_connection(mountpoint: Path, way: str) -> None:
    with recovering(mountpoint, generic_flags=FUSE_WRITEBACK_CACHE) as m:
        m.model.create("file", b"data")
        m.files["file"] = os.open(m / "file", os.O_RDWR)
        os.pwrite(m.files["file"], b"DATA", 0)
        m.dies()
        with running(size_of, str(m.path)) as call, running(os.fsync, m.files["file"]) as write:
            waits(m, 2)
            if way == "abort":
                m.connection.abort()
            elif way == "recovery":
                m.connection.recovery = 0
            else:
                # Not umount(8): a new process closes the file, and the FLUSH waits as well.
                libc.umount2(os.fsencode(mountpoint), 1)  # MNT_FORCE
            fails(errno.ENOTCONN, call.result)
            with pytest.raises(OSError):
                write.result()
        assert not m.connection.connected
        with contextlib.suppress(OSError):
            os.close(m.files["file"])


def test_unmount_in_the_gap(mountpoint: Path) -> None:
    with recovering(mountpoint) as m:
        m.model.create("file", b"data")
        assert Path(m / "file").read_bytes() == b"data"
        m.dies()
        # Not umount(8), which asks for the attributes of the root.
        assert libc.umount2(os.fsencode(mountpoint), 0) == 0
        assert not m.connection.path.exists()


@pytest.mark.parametrize("missing", ["recovery", "stable_nodeids"])
def test_connection_ends_with_its_daemon_by_default(mountpoint: Path, missing: str) -> None:
    with recovering(mountpoint) as m:
        setattr(m.connection, missing, 0)
        m.hold("getattr", "before")
        with running(size_of, str(m.path)) as call:
            m.wait_held()
            m.kill()
            fails(errno.ECONNABORTED, call.result)
        assert not m.connection.connected
        fails(errno.ENOTCONN, size_of, str(m.path))


def test_daemon_that_dies_before_init_ends_the_connection(mountpoint: Path) -> None:
    device = mount_efuse(str(mountpoint), MountOptions.parse([]))
    connection = Connection.at(mountpoint)
    connection.stable_nodeids = True
    connection.recovery = 60
    os.close(device)
    assert not connection.connected
    unmount(str(mountpoint))


def test_recovery_out_of_range_fails(mountpoint: Path) -> None:
    with recovering(mountpoint) as m:
        file = m.connection.path / "recovery"
        for value in ("86401", "-1", "x"):
            fails(errno.EINVAL, file.write_text, value)
        assert file.read_text() == "600\n"


# What goes on without a daemon


def test_learned_answers_are_given_in_the_gap(mountpoint: Path) -> None:
    with recovering(mountpoint, consistency="exclusive", attach=True, **LONG) as m:
        make(m, "f", fill("d", BLOCK))
        force_stat(m / "f")
        hits = m.count("getattr", "hits")
        state = m.dies()
        assert force_stat(m / "f").st_size == BLOCK
        assert m.count("getattr", "hits") == hits + 1
        m.follow(state)
        with m.answered("getattr"):
            assert force_stat(m / "f").st_size == BLOCK


def test_answers_from_before_the_gap_are_void_after_it(mountpoint: Path) -> None:
    """Another client may have changed the file, and no daemon was there to say so."""
    with recovering(mountpoint, attach=True, **LONG) as m:
        m.model.create("f", b"data")
        assert Path(m / "f").read_bytes() == b"data"
        assert size_of(m / "f") == 4
        state = m.dies()
        assert size_of(m / "f") == 4
        ino = state.model.get(1).entries[b"f"]
        state.model.write(ino, 0, b"other data")
        m.follow(state)
        assert size_of(m / "f") == 10
        assert Path(m / "f").read_bytes() == b"other data"


def test_backing_file_is_read_and_written_in_the_gap(mountpoint: Path, lower: Path) -> None:
    path = backing(lower, fill("b", 4 * BLOCK))
    with recovering(mountpoint, consistency="exclusive", attach=True, **LONG) as m:
        make(m, "f", fill("b", 4 * BLOCK))
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_RDWR)
        # The first write asks for the capabilities of the file.
        assert os.pwrite(fd, fill("b", BLOCK), 0) == BLOCK
        state = m.dies()
        assert os.pread(fd, 4 * BLOCK, 0) == fill("b", 4 * BLOCK)
        assert os.pwrite(fd, b"in the gap", BLOCK) == 10
        assert os.pread(fd, 10, BLOCK) == b"in the gap"
        assert Path(path).read_bytes()[BLOCK : BLOCK + 10] == b"in the gap"
        m.follow(state)
        m.log()
        assert os.pread(fd, 10, BLOCK) == b"in the gap"
        assert "read" not in m.asked()
        os.close(fd)


def test_map_is_stored_to_in_the_gap_and_written_back_after_it(mountpoint: Path) -> None:
    flags = FUSE_WRITEBACK_CACHE
    with recovering(mountpoint, consistency="exclusive", generic_flags=flags, **LONG) as m:
        m.model.create("f", fill("b", 4 * BLOCK))
        with open(m / "f", "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
            assert view[:] == fill("b", 4 * BLOCK)
            state = m.dies()
            view[BLOCK : BLOCK + 8] = b"mapped!!"
            assert view[BLOCK : BLOCK + 8] == b"mapped!!"
            with running(os.fsync, file.fileno()) as synced:
                waits(m)
                assert not synced.done()
                m.follow(state)
                synced.result()
        expected = bytearray(fill("b", 4 * BLOCK))
        expected[BLOCK : BLOCK + 8] = b"mapped!!"
        assert bytes(m.call("inode", "f").data) == expected


def test_reader_of_a_map_waits_for_a_page_in_the_gap(mountpoint: Path) -> None:
    with recovering(mountpoint) as m:
        m.model.create("f", fill("b", 4 * BLOCK))
        with open(m / "f", "rb") as file:
            view = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            state = m.dies()
            with running(lambda: view[BLOCK]) as call:
                waits(m)
                m.follow(state)
                assert call.result() == fill("b", 4 * BLOCK)[BLOCK]
            view.close()


# Requests of the background


def written(path: str, data: bytes) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        os.pwrite(fd, data, 0)
        os.fsync(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("point", STATES)
def test_write_back_in_flight_is_sent_again(mountpoint: Path, point: str) -> None:
    flags = FUSE_WRITEBACK_CACHE
    with recovering(mountpoint, consistency="exclusive", generic_flags=flags) as m:
        m.model.create("f", fill("b", 64 * BLOCK))
        m.hold("write", point, times=1)
        with running(written, m / "f", fill("w", 64 * BLOCK)) as call:
            m.wait_held()
            m.replace()
            call.result()
        assert bytes(m.call("inode", "f").data) == fill("w", 64 * BLOCK)
        assert (m.record.resent >= 1, m.record.failed) == (True, 0)


@pytest.mark.parametrize("point", STATES)
def test_read_ahead_in_flight_is_sent_again(mountpoint: Path, point: str) -> None:
    with recovering(mountpoint) as m:
        data = bytes(range(256)) * (256 * BLOCK // 256)
        m.model.create("f", data)
        m.hold("read", point)
        with running(Path(m / "f").read_bytes) as call:
            m.wait_held()
            m.replace()
            assert call.result() == data
        assert (m.record.resent >= 1, m.record.failed) == (True, 0)


# Descriptors


def test_request_of_a_closed_descriptor_is_read_by_another(mountpoint: Path) -> None:
    with recovering(mountpoint) as m:
        m.call("pause")
        with running(size_of, str(m.path)) as call, contextlib.ExitStack() as stack:
            device = m.device()
            stack.callback(os.close, device)
            clone = tied(device)
            try:
                request = wire.parse(os.read(clone, 1 << 20))
            finally:
                os.close(clone)
            assert request.opcode == "getattr"
            m.call("resume")
            call.result()
        assert m.connection.daemon == "serving"
        assert m.connection.incarnation == 0


def test_daemon_lives_until_its_last_descriptor_is_closed(mountpoint: Path) -> None:
    with recovering(mountpoint) as m:
        device = m.device()
        clone = tied(device)
        os.close(device)
        m.kill()
        assert m.connection.daemon == "serving"
        fails(errno.EBUSY, successor_of, mountpoint)
        os.close(clone)
        assert m.connection.daemon == "dead"


@contextlib.contextmanager
def starting(m: Recovering) -> Iterator[tuple[int, wire.Request]]:
    """Take a dead daemon's mount over; yield the descriptor and the INIT that it got."""
    device = successor_of(m.path)
    try:
        assert m.connection.daemon == "starting"
        yield device, wire.parse(os.read(device, 8192))
    finally:
        os.close(device)


REFUSED = {
    "flags": wire.init_out(INIT_FLAGS & ~wire.FUSE_ATOMIC_O_TRUNC),
    "max_write": wire.init_out(INIT_FLAGS, max_write=4096),
    "major version": b"\x06" + wire.init_out(INIT_FLAGS)[1:],
    "minor version": wire.init_out(INIT_FLAGS)[:4] + b"\x0c" + wire.init_out(INIT_FLAGS)[5:],
}


@pytest.mark.parametrize("lack", [*REFUSED, "reply"])
def test_successor_that_negotiates_less_is_refused(mountpoint: Path, lack: str) -> None:
    with recovering(mountpoint) as m:
        state = m.dies()
        with running(size_of, str(m.path)) as call:
            waits(m)
            with starting(m) as (device, init):
                assert init.opcode == "init"
                error = errno.EPERM if lack == "reply" else 0
                os.write(device, wire.reply(init.unique, error, REFUSED.get(lack, b"")))
                assert m.connection.daemon == "dead"
                fails(errno.ENODEV, os.read, device, 1 << 20)
                fails(errno.ENOENT, os.write, device, wire.notification(2, bytes(24)))
                fails(errno.ENOMEM if LINUX >= 7 else errno.EINVAL, tied, device)
                assert not call.done()
                m.follow(state)
                call.result()
                fails(errno.ENODEV, os.read, device, 1 << 20)
        # The refused one's descriptor was closed: that is not the end of the daemon.
        assert m.connection.daemon == "serving"
        assert m.connection.incarnation == 1
        assert size_of(str(m.path)) == state.model.get(1).size


def test_init_offers_what_was_negotiated(mountpoint: Path) -> None:
    with recovering(mountpoint) as m:
        m.dies()
        with starting(m) as (_, init):
            assert init.flags & INIT_FLAGS == INIT_FLAGS
            assert not init.flags & FUSE_WRITEBACK_CACHE
            assert not init.flags & wire.FUSE_POSIX_ACL


def test_successor_that_dies_before_its_init_is_followed(mountpoint: Path) -> None:
    with recovering(mountpoint) as m:
        state = m.dies()
        with running(size_of, str(m.path)) as call:
            waits(m)
            os.close(successor_of(m.path))
            assert m.connection.daemon == "dead"
            with starting(m):
                pass
            assert m.connection.daemon == "dead"
            assert not call.done()
            m.follow(state)
            call.result()
        assert m.connection.incarnation == 1


def test_only_init_is_sent_to_a_starting_successor(mountpoint: Path) -> None:
    with recovering(mountpoint) as m:
        m.dies()
        with running(size_of, str(m.path)) as call, starting(m) as (device, init):
            waits(m, 2)
            os.set_blocking(device, False)
            fails(errno.EAGAIN, os.read, device, 1 << 20)
            fails(errno.ENOTCONN, Channel, device, 0)
            assert not call.done()
            os.write(device, wire.reply(init.unique, 0, wire.init_out(INIT_FLAGS)))
            eventually(lambda: m.connection.daemon == "serving", "the successor to serve")
            os.set_blocking(device, True)
            request = wire.parse(os.read(device, 1 << 20))
            assert request.opcode == "getattr"
            os.write(device, wire.reply(request.unique, 0, root_attributes(1234)))
            assert call.result() == 1234


def test_successor_uses_channels(mountpoint: Path) -> None:
    with recovering(mountpoint) as m:
        device = m.device()
        first = [Channel(device, cpu) for cpu in (0, 1)]
        os.close(device)
        m.kill()
        for channel in first:
            assert m.connection.daemon == "serving"
            channel.close()
        eventually(lambda: m.connection.daemon == "dead", "the daemon to be dead")
        with running(size_of, str(m.path)) as call, starting(m) as (device, init):
            os.write(device, wire.reply(init.unique, 0, wire.init_out(INIT_FLAGS)))
            eventually(lambda: m.connection.daemon == "serving", "the successor to serve")
            channel = Channel(device, 0)
            message = channel.next()
            assert message.request.opcode == "getattr"
            answer = wire.reply(message.request.unique, 0, root_attributes(1234))
            channel.reply(message.slot, channel.put(message.slot, answer))
            assert call.result() == 1234
            channel.close()


# Who may take a mount over


def test_takeover_of_a_running_daemon_fails(mountpoint: Path) -> None:
    with recovering(mountpoint) as m:
        fails(errno.EBUSY, successor_of, mountpoint)
        assert size_of(str(m.path)) >= 0


def test_one_of_two_successors_takes_over(mountpoint: Path) -> None:
    with recovering(mountpoint) as m:
        state = m.dies()
        target = os.open(mountpoint, os.O_PATH)
        devices = [open_device() for _ in range(8)]

        def attempt(device: int) -> bool:
            try:
                take_over(device, target)
            except OSError as error:
                assert error.errno == errno.EBUSY
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            taken = list(pool.map(attempt, devices))
        assert taken.count(True) == 1
        for device, has in zip(devices, taken, strict=True):
            if not has:
                os.close(device)
        m.succeed(devices[taken.index(True)], state)
        eventually(lambda: m.connection.daemon == "serving", "the successor to serve")
        os.close(target)


def test_takeover_by_another_user_fails(mountpoint: Path) -> None:
    with recovering(mountpoint) as m:
        state = m.dies()
        target, device = os.open(mountpoint, os.O_PATH), open_device()
        fails(errno.EPERM, as_user, 1000, take_over, device, target)
        assert m.connection.daemon == "dead"
        os.close(target)
        os.close(device)
        m.follow(state)


def test_takeover_by_the_user_who_mounted(mountpoint: Path) -> None:
    device = open_device()
    options = f"fd={device},rootmode=40000,user_id=1000,group_id=1000".encode()
    assert libc.mount(b"test", os.fsencode(mountpoint), b"efuse", 0, options) == 0
    init = wire.parse(os.read(device, 1 << 20))
    os.write(device, wire.reply(init.unique, 0, wire.init_out(INIT_FLAGS)))
    connection = Connection.at(mountpoint)
    connection.stable_nodeids = True
    connection.recovery = 60
    os.close(device)
    assert connection.daemon == "dead"
    target, device = os.open(mountpoint, os.O_PATH), open_device()
    fails(errno.EPERM, as_user, 1001, take_over, device, target)
    as_user(1000, take_over, device, target)
    assert connection.daemon == "starting"
    os.close(device)
    os.close(target)
    assert libc.umount2(os.fsencode(mountpoint), 0) == 0


def test_takeover_with_invalid_arguments_fails(mountpoint: Path, tmp_path: Path) -> None:
    with recovering(mountpoint) as m:
        state = m.dies()
        target, device = os.open(mountpoint, os.O_PATH), open_device()
        other = os.open(tmp_path, os.O_PATH)
        fails(errno.EINVAL, take_over, device, target, 1)
        fails(errno.EINVAL, take_over, device, target, 0, 1)
        fails(errno.EINVAL, take_over, device, other)
        fails(errno.EINVAL, take_over, device, device)
        fails(errno.EBADF, take_over, device, 1 << 20)
        assert m.connection.daemon == "dead"
        take_over(device, target)
        fails(errno.EINVAL, take_over, device, target)
        for fd in (target, device, other):
            os.close(fd)
        m.follow(state)


# What sysfs tells


def test_changes_of_the_daemon_are_polled(mountpoint: Path) -> None:
    with recovering(mountpoint) as m, open(m.connection.path / "daemon") as file:
        poll = select.poll()
        poll.register(file, select.POLLPRI | select.POLLERR)

        def word() -> str:
            file.seek(0)
            return file.read().strip()

        assert word() == "serving"
        state = m.die()
        assert poll.poll(60_000)
        assert word() == "dead"
        m.succeed(successor_of(m.path), state)
        assert poll.poll(60_000)
        eventually(lambda: word() == "serving")
        m.connection.abort()
        assert poll.poll(60_000)
        assert word() == "none"


def test_record_of_an_end(mountpoint: Path) -> None:
    with recovering(mountpoint) as m:
        assert str(m.record) == "none"
        before = int(time.time())
        state = m.dies()
        first = m.record
        assert before - 1 <= first.time <= time.time() + 1
        assert (first.lost, first.resent, first.settled, first.failed) == (0, 0, 0, 0)
        m.follow(state)
        kept = m.record
        assert kept.gap_ms >= first.gap_ms
        assert m.record == kept


# Work while daemons die


def work(top: str, rounds: int) -> None:
    """Make, write, rename, read and remove files; compare all that is read."""
    for n in range(rounds):
        name, data = f"{top}/f{n % 5}", bytes([n % 251]) * (1 + 997 * n % 9000)
        with open(name + ".new", "wb") as file:
            file.write(data)
        os.rename(name + ".new", name)
        with open(name, "rb") as file:
            assert file.read() == data
        os.mkdir(f"{top}/d{n}")
        assert f"d{n}" in os.listdir(top)
        os.rmdir(f"{top}/d{n}")
        if n % 3 == 0:
            os.unlink(name)


def changes(m: Recovering) -> int:
    """Return how many requests that change something were sent so far."""
    return sum(m.count(opcode, "daemon") for opcode in ("create", "write", "rename2", "mkdir"))


@pytest.mark.parametrize("flags", [0, FUSE_WRITEBACK_CACHE])
def test_work_goes_on_over_many_deaths(mountpoint: Path, flags: int) -> None:
    with recovering(
        mountpoint, consistency="exclusive", generic_flags=flags, attach=True, **LONG
    ) as m:
        with running(work, str(m.path), 150) as call:
            for n in range(25):
                sent = changes(m) + n % 4
                eventually(lambda sent=sent: call.done() or changes(m) > sent)
                if call.done():
                    break
                m.replace()
            call.result()
        assert m.record.failed == 0
        assert m.connection.incarnation > 3
