# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the supervisor of `efuse run` knows of the callers of a daemon."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
from collections.abc import Callable, Iterator

import pytest

from efuse.supervisor import answering, reports
from efuse.supervisor.admission import Busy, Owner
from efuse.supervisor.ancestry import Confined, is_confined, parent_of
from efuse.supervisor.answering import Answering, Situation
from efuse.supervisor.caller import Caller
from efuse.supervisor.entering import Place
from efuse.supervisor.notifications import Notification
from efuse.supervisor.sharing import own, same_file
from efuse.supervisor.swapping import Swap

_BIND, _MOUNT_TMPFS = 1 << 12, 0


@contextlib.contextmanager
def _child(*steps: Callable[[], object]) -> Iterator[int]:
    """Run a process that takes the steps and then waits to be killed."""
    told, tells = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            for step in steps:
                step()
            os.write(tells, b"x")
            signal.pause()
        os._exit(1)
    try:
        os.close(tells)
        assert os.read(told, 1) == b"x"
        yield pid
    finally:
        os.close(told)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_processes_with_the_same_open_file_are_found() -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    other = os.dup(fd)
    separate = os.open("/dev/null", os.O_RDONLY)
    try:
        assert sorted(own(os.getpid(), fd)) == [fd, other]
        with _child() as sharer, _child(lambda: [os.close(each) for each in (fd, other)]):
            assert [*same_file(os.getpid(), fd)] == [sharer]
    finally:
        for each in (fd, other, separate):
            os.close(each)


def test_only_dev_fuse_is_handed_to_the_supervisor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread of the caller may put another file there after the look at it."""
    number = os.stat("/dev/null").st_rdev
    fuse, other = os.open("/dev/null", os.O_RDWR), os.open("/dev/zero", os.O_RDWR)
    device = os.open("/dev/null", os.O_PATH)
    try:
        assert Swap(Caller(os.getpid()), fuse, device, number).places == {fuse: True}
        monkeypatch.setattr(Caller, "descriptor", lambda *_: os.dup(other))
        with pytest.raises(OSError, match="Bad file descriptor"):
            Swap(Caller(os.getpid()), fuse, device, number)
    finally:
        for each in (fuse, other, device):
            os.close(each)


def test_path_of_a_descriptor_is_no_duplicate_of_it() -> None:
    fd = os.open("/dev/null", os.O_RDONLY)
    directory = os.open("/", os.O_RDONLY)
    caller = Caller(os.getpid())
    try:
        for place in (Place(caller, f"/proc/self/fd/{fd}"), Place(caller, "", directory)):
            found = place.opened()
            assert caller.flags_of(found) & os.O_PATH
            os.close(found)
        with pytest.raises(OSError, match="Bad file descriptor"):
            Place(caller, "x", 1 << 20)
    finally:
        os.close(fd)
        os.close(directory)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("7", 7),
        ("+7", 7),
        ("7\n", 7),
        ("010", 8),
        ("000000000000007", 7),
        ("0x1f", 31),
        ("0X000000000001f", 31),
        ("2147483648", -1),
        ("08", -1),
        ("0x", -1),
        ("7\n\n", -1),
        (" 7", -1),
        ("", -1),
    ],
)
def test_number_of_a_descriptor_is_read_as_the_kernel_does(text: str, number: int) -> None:
    assert answering._number(text) == number


@pytest.mark.parametrize(
    ("kind", "source", "is_passed_on"),
    [
        ("fuse", "x", True),
        ("fuseblk", "/dev/sda1", True),
        ("fuseblk", "sda1", False),
        ("fuseblk.ntfs", "sda1", False),
    ],
)
def test_block_device_is_looked_for_where_the_caller_is(
    kind: str, source: str, is_passed_on: bool
) -> None:
    """The supervisor has another working directory, and does not enter the caller's."""
    assert (answering._why_not_passed_on(0, kind, source, "fd=3") == "") == is_passed_on


@pytest.mark.parametrize(
    ("busy", "owner", "expected"),
    [
        ([], Owner(1, 0), True),
        ([Owner(1, 0)] * 8, Owner(1, 0), False),
        ([Owner(1, 0)] * 8, Owner(2, 0), True),
        ([Owner(n, 0) for n in range(95)], Owner(100, 0), True),
        ([Owner(n, 0) for n in range(96)], Owner(100, 0), False),
        ([Owner(n, 5) for n in range(15)], Owner(100, 5), True),
        ([Owner(n, 5) for n in range(16)], Owner(100, 5), False),
        ([Owner(n, 5) for n in range(16)], Owner(100, 6), True),
        ([Owner(n, n % 24 + 1) for n in range(48)], Owner(100, 99), False),
        ([Owner(n, n % 24 + 1) for n in range(48)], Owner(100, 0), True),
    ],
)
def test_calls_of_some_leave_room_for_others(
    busy: list[Owner], owner: Owner, expected: bool
) -> None:
    assert Busy(busy).has_room(owner) == expected


def test_confined_process_and_those_below_it_are_known() -> None:
    first, confined = os.getpid(), Confined()
    with _child() as restricted, _child() as free:
        confined.add(restricted)
        assert confined.has_any
        assert is_confined(restricted, first, confined.processes)
        assert not is_confined(free, first, confined.processes)
        assert not is_confined(first, first, confined.processes)
        # Not below the first process, as far as /proc tells: its parent may have been confined.
        assert is_confined(parent_of(first), first, confined.processes)


def test_too_many_confined_processes_make_all_of_them_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("efuse.supervisor.ancestry._MOST", 0)
    confined = Confined()
    confined.add(os.getpid())
    assert confined.has_too_many


def test_confined_process_that_has_ended_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("efuse.supervisor.ancestry._MOST", 2)
    confined = Confined()
    for _ in range(2):
        with _child() as ended:
            confined.add(ended)
    confined.add(os.getpid())
    assert [pid for pid, _ in confined.processes] == [os.getpid()]
    assert not confined.has_too_many


def test_process_that_confines_itself_again_and_again_costs_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Any user can have the supervisor look at it, as often as this user wants."""
    looked: list[int] = []

    def seen(process: int) -> tuple[int, int]:
        looked.append(process)
        return 1, process

    monkeypatch.setattr("efuse.supervisor.ancestry._seen", seen)
    confined = Confined()
    for process in [*range(100), *range(100)]:
        confined.add(process)
    assert len(looked) == 200


def test_process_that_gains_no_privileges_is_known() -> None:
    with _child() as free, _child(lambda: ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)) as bound:
        assert not Caller(free).has_no_new_privileges
        assert Caller(bound).has_no_new_privileges


def _answer(
    monkeypatch: pytest.MonkeyPatch, name: str, flags: int, devices: list[int] | None
) -> object:
    """Return the answer to a caller whose memory cannot be read, nor its descriptors if None."""

    def unreadable(*_: object, **_more: object) -> str:
        raise PermissionError

    def seen(_: Caller) -> list[int]:
        return unreadable() if devices is None else devices  # type: ignore[return-value]

    monkeypatch.setattr(Caller, "text", unreadable)
    monkeypatch.setattr(Caller, "devices", seen)
    call = Notification(1, os.getpid(), name, (4, 1, 1, flags, 1, 0))
    situation = Situation(-1, 0, os.getpid(), os.getpid(), False, False, ())
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, its:
        Answering(call, situation, its).find()
        return reports.receive(ours)[0]


@pytest.mark.parametrize(
    ("name", "flags", "devices", "plain"),
    [
        ("mount", _BIND, None, False),
        ("mount", _MOUNT_TMPFS, [], False),
        ("mount", _MOUNT_TMPFS, [5], True),
        ("mount", _MOUNT_TMPFS, None, True),
        ("fsopen", 0, [], False),
        ("fsopen", 0, [5], True),
        ("move_mount", 4, [5], False),
        ("fsconfig", 1, [5], False),
    ],
)
def test_call_that_cannot_be_read_is_of_fuse_only_if_it_may_be(
    name: str, flags: int, devices: list[int] | None, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _answer(monkeypatch, name, flags, devices)
    assert isinstance(found, reports.Plain if plain else reports.Leave)
