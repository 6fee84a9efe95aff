# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse run --restart`` and ``efuse takeover``: programs do not notice that a daemon changes."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from efuse.bench.programs import built
from efuse.control import Connection, all_mounts, find
from efuse.control.daemon_locks import DaemonLock, locked
from efuse.control.daemons import holders
from efuse.fs.mountpoint import unmount
from tests.commands import EFUSE, run_output
from tests.guest.support import stateless_files
from tests.guest.support.daemons import as_user, eventually, force_stat, running
from tests.guest.support.forked import Beside, run_efuse
from tests.guest.support.raw_daemons import TEXT, raw_daemon
from tests.guest.support.stateless_files import XATTR, starts

BLOCK = 4096
SIZE = 8 * BLOCK
RESTARTED = ("--restart", "--promise", "stable_nodeids")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    directory = tmp_path / "files"
    directory.mkdir()
    return directory


@pytest.fixture(scope="session")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return raw_daemon(tmp_path_factory.mktemp("raw"))


@contextlib.contextmanager
def supervised(
    *words: object, at: Path, options: tuple[str, ...] = RESTARTED, command: str = "run"
) -> Iterator[tuple[Beside, Connection]]:
    """Run a daemon, and yield the command and the connection of its mount."""
    process = Beside(command, *options, "--", *map(str, words))
    try:
        eventually(lambda: mounted(at), "the mount")
        force_stat(at)  # a daemon that has not answered INIT leaves no mount
        yield process, Connection(find(at).connection)
    finally:
        if mounted(at):
            unmount(str(at), lazy=True)
        with contextlib.suppress(ChildProcessError):  # the test has awaited it
            process.ended()


def mounted(at: Path) -> set[int]:
    return {m.connection for m in all_mounts() if m.mountpoint == str(at) and m.is_efuse}


def kill(connection: Connection, number: int = signal.SIGKILL) -> None:
    """Send a signal to the daemon, which ends by it and leaves its mount."""
    (daemon,) = holders(connection.id)
    before = connection.daemon_exit.time, connection.incarnation
    os.kill(daemon, number)
    eventually(
        lambda: (
            (connection.daemon_exit.time, connection.incarnation) != before
            or connection.daemon != "serving"
        ),
        "the daemon to die",
    )


def served(connection: Connection, incarnation: int) -> None:
    """Wait for a successor."""
    eventually(
        lambda: connection.incarnation == incarnation and connection.daemon == "serving",
        f"successor {incarnation}",
    )


def count(connection: Connection, opcode: str, counter: str) -> int:
    return connection.counts(f"stats/{opcode}")[counter]


def write_and_read(path: str, ends: Path) -> bytes:
    """Write and read a file until *ends* exists; return what has to be in it."""
    expected, number = bytearray(SIZE), 0
    fd = os.open(path, os.O_RDWR)
    try:
        os.pwrite(fd, expected, 0)
        while not ends.exists():
            number += 1
            at = number * 977 % (SIZE - 64)
            data = b"%16d" % number * 4
            assert os.pwrite(fd, data, at) == len(data)
            expected[at : at + len(data)] = data
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(fd, SIZE, 0) == expected
        os.fsync(fd)
    finally:
        os.close(fd)
    return bytes(expected)


def open_and_read(path: str, content: bytes, ends: Path) -> int:
    """Open and read a file that does not change until *ends* exists."""
    number = 0
    while not ends.exists():
        with open(path, "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert file.read(len(content) + 1) == content
            assert force_stat(file.fileno()).st_size == len(content)
        number += 1
    return number


def under_load(
    files: Path, mountpoint: Path, connection: Connection, replace: Callable[[int], None]
) -> None:
    """Call *replace* several times while programs use the mount; compare what they have written."""
    ends, content = files / "ends", os.urandom(SIZE)
    (files / "9").write_bytes(content)
    writers = [f"{mountpoint}/f{number}" for number in range(3)]
    with contextlib.ExitStack() as stack:
        calls = [stack.enter_context(running(write_and_read, path, ends)) for path in writers]
        reads = stack.enter_context(running(open_and_read, f"{mountpoint}/f9", content, ends))
        for number in range(1, 4):
            before = count(connection, "write", "daemon") + count(connection, "open", "daemon")
            eventually(
                lambda before=before: (
                    count(connection, "write", "daemon") + count(connection, "open", "daemon")
                    > before + 20
                ),
                "the programs to use the mount",
            )
            replace(number)
        ends.touch()
        written = [call.result() for call in calls]
        assert reads.result() > 0
    assert [(files / str(number)).read_bytes() for number in range(3)] == written
    assert connection.daemon_exit.failed == 0


@pytest.mark.parametrize("way", ["foreground", "background"])
def test_programs_do_not_notice_that_the_daemon_is_killed(
    way: str, files: Path, mountpoint: Path
) -> None:
    words = stateless_files.command(files, mountpoint)
    if way == "background":
        (files / "background").touch()
    with supervised(*words, at=mountpoint) as (process, connection):
        if way == "background":
            assert process.ended()[0] == 0

        def replace(number: int) -> None:
            kill(connection)
            served(connection, number)

        under_load(files, mountpoint, connection, replace)
        assert connection.incarnation == 3
        unmount(str(mountpoint))
        if way == "foreground":
            status, _, err = process.ended()
            assert status == 0
            assert err.count("SIGKILL ended the daemon; it is started again in 0 s") >= 1
            assert err.count(f"{mountpoint} has a daemon again, after ") == 3
    assert len(starts(files)) == 4
    assert not mounted(mountpoint)


def test_kernel_answers_while_no_daemon_serves(files: Path, mountpoint: Path) -> None:
    (files / "0").write_bytes(b"data")
    words = stateless_files.command(files, mountpoint)
    with supervised(*words, at=mountpoint) as (_, connection):
        path = mountpoint / "f0"
        assert os.getxattr(path, "user.text") == XATTR
        (files / "gate").touch()
        kill(connection)
        assert connection.daemon == "dead"
        hits = count(connection, "getxattr", "hits")
        for _ in range(10):
            assert os.getxattr(path, "user.text") == XATTR
        assert count(connection, "getxattr", "hits") == hits + 10
        assert connection.daemon == "dead"
        assert connection.state == "attached"
        (files / "gate").unlink()
        served(connection, 1)
        assert path.read_bytes() == b"data"


def test_exit_status_0_is_no_failure(files: Path, mountpoint: Path) -> None:
    words = stateless_files.command(files, mountpoint)
    options = ("--restart=on-failure", *RESTARTED[1:])
    with supervised(*words, at=mountpoint, options=options) as (process, connection):
        kill(connection)
        served(connection, 1)
        kill(connection, signal.SIGUSR1)
        assert process.ended()[0] == 0
    assert len(starts(files)) == 2
    assert not mounted(mountpoint)


@pytest.mark.parametrize("when", ["serving", "dead"])
def test_unmount_ends_it(when: str, files: Path, mountpoint: Path) -> None:
    words = stateless_files.command(files, mountpoint)
    with supervised(*words, at=mountpoint) as (process, connection):
        if when == "dead":
            (files / "gate").touch()
            kill(connection)
            eventually(lambda: len(starts(files)) == 2, "the next start")
        unmount(str(mountpoint))
        status, _, err = process.ended()
        assert status == (0 if when == "serving" else 143), err
    assert len(starts(files)) == (1 if when == "serving" else 2)
    assert not mounted(mountpoint)


def test_signal_to_the_command_ends_it(files: Path, mountpoint: Path) -> None:
    words = stateless_files.command(files, mountpoint)
    with supervised(*words, at=mountpoint) as (process, connection):
        kill(connection)
        served(connection, 1)
        process.end(signal.SIGTERM)
    assert len(starts(files)) == 2
    assert not mounted(mountpoint)


@pytest.mark.parametrize("way", ["mount", "fsopen", "mount,dup", "mount,fork"])
def test_each_mount_of_a_daemon_is_taken_over(way: str, raw: Path, tmp_path: Path) -> None:
    places = [tmp_path / name for name in ("one", "two", "three")]
    for place in places:
        place.mkdir()
    with supervised(raw, way, *places, at=places[0]) as (process, _):
        eventually(lambda: all(map(mounted, places)), "all mounts")
        connections = [Connection(find(place).connection) for place in places]
        for number in (1, 2):
            kill(connections[0])
            for connection, place in zip(connections, places, strict=True):
                served(connection, number)
                assert (place / "f").read_text() == TEXT
        for place in places:
            unmount(str(place))
        assert process.ended()[0] == 0
    assert not any(map(mounted, places))


def test_daemon_that_ends_at_each_start_is_given_up(files: Path, mountpoint: Path) -> None:
    words = stateless_files.command(files, mountpoint)
    options = ("--restart-within", "10", *RESTARTED)
    with supervised(*words, at=mountpoint, options=options) as (process, connection):
        (files / "fails").write_text("7")
        kill(connection)
        with running(force_stat, mountpoint / "f0") as call:
            status, _, err = process.ended()
            with pytest.raises(OSError) as raised:
                call.result()
            assert raised.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
        assert status == 1
        assert (
            f"{mountpoint} has ended, because no daemon has taken it over in time: the daemon"
            " ended with status 7" in err
        )
    # How many starts fit into the time depends on the machine.
    assert len(starts(files)) >= 2
    assert not mounted(mountpoint)


def test_other_options_end_it(files: Path, mountpoint: Path) -> None:
    words = stateless_files.command(files, mountpoint)
    with supervised(*words, at=mountpoint) as (process, connection):
        (files / "options").write_text("ro")
        kill(connection)
        status, _, err = process.ended()
        assert status == 1
        assert (
            f"{mountpoint} cannot be taken over: the daemon asks for other options: ro is new"
            in err
        )
    assert len(starts(files)) == 2
    assert not mounted(mountpoint)


def test_mount_that_ends_with_its_daemon_is_named(files: Path, mountpoint: Path) -> None:
    """A mount in a mount namespace of the daemon's own cannot be given to another process."""
    private = ("unshare", "--mount", "--propagation", "private")
    words = stateless_files.command(files, mountpoint)
    process = Beside("run", "--restart", "--", *private, *words)
    told = process.err.readline(), process.err.readline()
    os.kill(starts(files)[0], signal.SIGKILL)
    assert process.ended()[0] == 137
    assert "will not be started again: it is in a mount namespace of the daemon" in told[1]
    assert len(starts(files)) == 1
    assert not mounted(mountpoint)


def test_successor_unmounts_by_itself(tmp_path: Path, mountpoint: Path) -> None:
    """A daemon with libfuse unmounts when it gets SIGTERM. A successor does not see its mount."""
    source = tmp_path / "source"
    source.mkdir()
    words = [built("passthrough_ll"), "-f", "-o", f"source={source},timeout=3600", mountpoint]
    with supervised(*words, at=mountpoint) as (process, connection):
        kill(connection)
        served(connection, 1)
        (daemon,) = holders(connection.id)
        os.kill(daemon, signal.SIGTERM)
        status, _, err = process.ended()
        assert status in (0, 1), "its status after a signal depends on libfuse"
        assert err.count("it is started again") == 1
    assert not mounted(mountpoint)


def test_mount_by_the_helper_is_taken_over(tmp_path: Path, mountpoint: Path) -> None:
    """With this option, libfuse mounts by `fusermount3`, which does not unmount meanwhile."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "f").write_bytes(b"data")
    words = ["bindfs", "-f", "-o", "auto_unmount", source, mountpoint]
    with supervised(*words, at=mountpoint) as (process, connection):
        kill(connection)
        served(connection, 1)
        assert (mountpoint / "f").read_bytes() == b"data"
        process.end(signal.SIGTERM)
    assert not mounted(mountpoint)


def test_option_of_a_mount_sets_how_long_callers_wait(files: Path, mountpoint: Path) -> None:
    run_efuse("mount", "passthrough", files, mountpoint, "-o", "recovery=60")
    try:
        assert Connection(find(mountpoint).connection).recovery == 60
    finally:
        unmount(str(mountpoint))


def test_programs_do_not_notice_a_takeover(files: Path, mountpoint: Path) -> None:
    words = stateless_files.command(files, mountpoint)
    with contextlib.ExitStack() as stack:
        process, connection = stack.enter_context(supervised(*words, at=mountpoint))
        commands = [process]

        def replace(number: int) -> None:
            last = commands[-1]
            commands.append(Beside("takeover", mountpoint, *RESTARTED, "--", *words))
            served(connection, number)
            assert last.ended()[0] == 128 + signal.SIGTERM
            eventually(lambda: connection.state == "attached", "the handlers")

        under_load(files, mountpoint, connection, replace)
        unmount(str(mountpoint))
        assert commands[-1].ended()[0] == 0
    assert len(starts(files)) == 4
    assert not mounted(mountpoint)


def test_daemon_that_would_unmount_is_killed_only_by_force(
    tmp_path: Path, mountpoint: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    words = [
        str(built("passthrough_ll")),
        "-f",
        "-o",
        f"source={source},timeout=3600",
        str(mountpoint),
    ]
    once = ("--promise", "stable_nodeids")
    with supervised(*words, at=mountpoint, options=once) as (first, connection):
        refused = run_efuse("takeover", mountpoint, *once, "--", *words, status=1)
        assert "its daemon would unmount it when asked to end (EBUSY)" in refused.stderr
        assert (connection.recovery, connection.daemon) == (0, "serving")
        second = Beside("takeover", "--force", mountpoint, *once, "--", *words)
        served(connection, 1)
        assert first.ended()[0] == 128 + signal.SIGKILL
        assert os.listdir(mountpoint) == []
        unmount(str(mountpoint))
        assert second.ended()[0] == 0


def test_takeover_that_fails_lets_the_mount_wait(files: Path, mountpoint: Path) -> None:
    words = stateless_files.command(files, mountpoint)
    with supervised(*words, at=mountpoint) as (_, connection):
        done = run_efuse("takeover", mountpoint, *RESTARTED[1:], "--", "false", status=1)
        assert f"{mountpoint} was not taken over: the daemon ended with status 1" in done.stderr
        assert connection.daemon == "dead"
        second = Beside("takeover", mountpoint, *RESTARTED[1:], "--", *words)
        served(connection, 1)
        assert (mountpoint / "f0").read_bytes() == b""
        unmount(str(mountpoint))
        assert second.ended()[0] == 0


def test_takeover_that_is_not_possible_is_refused(files: Path, mountpoint: Path) -> None:
    words = stateless_files.command(files, mountpoint)

    def fails(text: str, status: int, *options: str) -> None:
        done = run_efuse("takeover", mountpoint, *options, "--", *words, status=status)
        assert text in done.stderr

    promised = RESTARTED[1:]
    fails("is not on eFuse", 1, *promised)
    with supervised(*words, at=mountpoint) as (_, connection):
        other = locked(connection, DaemonLock.REPLACING)
        fails("another process does that (EBUSY)", 1, *promised)
        os.close(other)
        with running(as_user, 65534, fails, "(EACCES)", 3, *promised) as call:
            call.result()
        assert (connection.daemon, connection.incarnation) == ("serving", 0)
        assert starts(files) == [*holders(connection.id)]


def test_python_file_system_is_served_again_by_the_same_command(
    files: Path, mountpoint: Path
) -> None:
    # By a process of its own: a daemon that has files of its mount open waits for itself.
    words = (*EFUSE, "mount", "passthrough", "-o", "recovery=60", files, mountpoint)
    (files / "file").write_bytes(b"data")
    run_output(*words)
    connection = Connection(find(mountpoint).connection)
    try:
        with (mountpoint / "file").open("r+b", buffering=0) as file:
            for number in (1, 2):
                kill(connection)
                with running(force_stat, mountpoint / "file") as call:
                    run_output(*words)
                    assert call.result().st_size == 4 * number
                served(connection, number)
                assert file.read() == b"data"
                file.write(b"data")
                os.fsync(file.fileno())
                file.seek(4 * number)
        assert (files / "file").read_bytes() == b"data" * 3
        assert find(mountpoint).connection == connection.id
        assert connection.state == "attached"
        assert connection.daemon_exit.failed == 0
    finally:
        unmount(str(mountpoint))


def test_mount_that_waits_is_not_mounted_over(
    tmp_path: Path, files: Path, mountpoint: Path
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    run_efuse("mount", "passthrough", "-o", "recovery=60", files, mountpoint)
    connection = Connection(find(mountpoint).connection)
    try:
        kill(connection)
        for options, source, text in (
            ((), files, "a mount there waits for its daemon (EBUSY)"),
            (("--plain",), files, "a mount there waits for its daemon (EBUSY)"),
            (("-o", "recovery=60"), other, "it has other options: "),
        ):
            words = ("mount", "passthrough", *options, source, mountpoint)
            assert text in run_efuse(*words, status=1).stderr
        assert (connection.daemon, connection.incarnation) == ("dead", 0)
    finally:
        unmount(str(mountpoint), lazy=True)
