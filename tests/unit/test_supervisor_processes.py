# SPDX-License-Identifier: LGPL-2.1-or-later
"""The processes of the supervisor of `efuse run`: they hold nothing, and hold up nothing."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse.supervisor import notifications, reports, unmounting
from efuse.supervisor.daemon_mount import DaemonMount
from efuse.supervisor.notifications import Listener, Notification
from efuse.supervisor.spawner import Spawner
from efuse.supervisor.unmounting import Unmounting
from efuse.supervisor.worker import Worker


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    made = Spawner()
    yield made
    made.close()


def _says_who_it_is(supervisor: socket.socket) -> None:
    reports.send(supervisor, reports.Trouble(f"{os.getsid(0)} {Path.cwd()}"))


def _fails(supervisor: socket.socket) -> None:
    raise ValueError("of no use")


def _hangs(number: int, mountpoint: str, supervisor: socket.socket) -> None:
    signal.pause()


def _report(worker: Worker) -> reports.Report | int | None:
    """Return what a process reports before it ends."""
    assert worker.await_end(30)
    report, _ = worker.received()
    worker.close()
    return report


def test_spawner_holds_no_streams_of_the_supervisor(spawner: Spawner) -> None:
    """A reader of the output of `efuse run` would wait until the mount has ended."""
    links = Path(f"/proc/{spawner.process}/fd").iterdir()
    ours = {str(Path(f"/proc/self/fd/{fd}").readlink()) for fd in (1, 2)} - {"/dev/null"}
    ours |= {str(Path(f"/proc/self/fd/{fd}").readlink()) for fd in os.pipe()}
    report = _report(spawner.start(_says_who_it_is))  # it has closed them by now
    assert not ours & {str(link.readlink()) for link in links}
    assert report == reports.Trouble(f"{spawner.process} /")


def test_job_begins_although_the_spawner_was_killed(spawner: Spawner) -> None:
    os.kill(spawner.process, signal.SIGKILL)
    os.waitpid(spawner.process, 0)
    assert _report(spawner.start(_says_who_it_is)) == reports.Trouble(f"{spawner.process} /")


def test_job_that_fails_tells_why(spawner: Spawner) -> None:
    report = _report(spawner.start(_fails))
    assert isinstance(report, reports.Trouble)
    assert report.text.startswith("ValueError('of no use') (")


@pytest.mark.parametrize(
    ("size", "fds", "number"), [(1 << 17, 0, errno.EMSGSIZE), (10, 4, errno.EMFILE)]
)
def test_report_that_does_not_fit_is_an_error(size: int, fds: int, number: int) -> None:
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        its.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        before = len(os.listdir("/proc/self/fd"))
        reports.send(its, reports.Plain("x" * size, ""), [its.fileno()] * fds)
        with pytest.raises(OSError) as raised:
            reports.receive(ours)
        assert raised.value.errno == number
        assert len(os.listdir("/proc/self/fd")) == before


def test_unmount_that_hangs_holds_up_no_call(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is one process for each mount, and one warning."""
    monkeypatch.setattr(unmounting, "_unmount", _hangs)
    monkeypatch.setattr(unmounting, "_PATIENCE_S", 0.0)
    unmounts, mounts = (
        Unmounting(spawner),
        [DaemonMount("/a", number=1), DaemonMount("/b", number=2)],
    )
    began = time.monotonic()
    for _ in range(3):
        for mount in mounts:
            unmounts.begin(mount)
    assert time.monotonic() - began < 5
    assert len(unmounts.fds) == 2
    assert [each.message for each in caplog.records] == [
        f"{path} cannot be unmounted: a file system on the way to it does not answer"
        for path in ("/a", "/b")
    ]
    unmounts.close()
    assert not unmounts.fds


def test_unmounts_of_a_user_that_hang_hold_up_no_other_user(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unmounting, "_unmount", _hangs)
    monkeypatch.setattr("efuse.supervisor.admission._MOST_PER_USER", 2)
    unmounts = Unmounting(spawner)
    for number, user in enumerate((5, 5, 5, 6), start=1):
        unmounts.begin(DaemonMount(f"/{number}", user=user, number=number))
    assert sorted(unmounts._under_way) == [1, 2, 4]
    unmounts.close()


def test_unmount_that_has_ended_is_not_repeated_immediately(spawner: Spawner) -> None:
    unmounts, mount = Unmounting(spawner), DaemonMount("/a", number=1)
    unmounts.begin(mount)  # there is no such mount
    while unmounts.fds:
        fd = unmounts.fds[0]
        select.select([fd], [], [], 30)
        unmounts.advance(fd)
    unmounts.begin(mount)
    assert not unmounts.fds
    unmounts.forget(mount)
    unmounts.begin(mount)
    assert unmounts.fds
    unmounts.close()


_CALL = Notification(1, 2, "mount", (0,) * 6)


def test_ioctl_that_a_signal_interrupts_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def ioctl(fd: int, request: int, argument: bytearray) -> int:
        made.append(request)
        if len(made) % 3:
            raise InterruptedError(errno.EINTR, "a signal came")
        if request == notifications._RECEIVE:
            argument[:] = notifications._NOTIF.pack(
                1, 2, 0, 165, notifications._X86_64, 0, *[0] * 6
            )
        return 9

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    listener = Listener(-1)
    assert listener.receive() == _CALL
    assert listener.is_valid(_CALL)
    listener.put(_CALL, 5, 6)
    listener.answer(_CALL)
    listener.continue_call(_CALL)
    listener.give(_CALL, 5, cloexec=True)
    assert len(made) == 3 * 7  # giving takes two


def test_descriptor_that_is_given_does_not_answer_before_the_caller_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A signal would end SECCOMP_ADDFD_FLAG_SEND between the two, and the call would return 0."""
    sent: list[bytes] = []

    def ioctl(fd: int, request: int, argument: bytearray) -> int:
        sent.append(bytes(argument))
        return 9

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    Listener(-1).give(_CALL, 5, cloexec=False)
    assert sent == [
        notifications._ADD.pack(1, 0, 5, 0, 0),
        notifications._RESPONSE.pack(1, 9, 0, 0),
    ]


def test_signal_to_the_supervisor_is_no_error_of_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """What else goes wrong is one."""

    def ioctl(*_: object) -> int:
        raise OSError(errno.EMFILE, "no room")

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    with pytest.raises(OSError, match="no room"):
        Listener(-1).put(_CALL, 5, 6)
    with contextlib.suppress(OSError):
        assert not Listener(-1).is_valid(_CALL)
