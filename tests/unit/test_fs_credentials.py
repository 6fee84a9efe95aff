# SPDX-License-Identifier: LGPL-2.1-or-later
"""With whose credentials a pass-through acts, and which callers it refuses."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import pytest

from efuse.fs.passthrough import callers, syscalls
from efuse.fs.passthrough.callers import FILE_CAPABILITIES, Callers, UnknownCallerError
from efuse.fs.passthrough.credentials import Credentials

ALICE, BOB, GROUP = 41001, 41002, 41100
_EVERYTHING = (1 << 64) - 1
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root acts as others")


@dataclass(frozen=True)
class _Caller:
    uid: int
    gid: int
    pid: int


@pytest.fixture
def alice() -> Iterator[_Caller]:
    process = subprocess.Popen(
        ["sleep", "infinity"], user=ALICE, group=ALICE, extra_groups=[GROUP, GROUP + 1]
    )
    yield _Caller(ALICE, ALICE, process.pid)
    process.kill()
    process.wait()


def _acts_as(credentials: Credentials, caller: _Caller) -> tuple[int, list[int]]:
    """Return the file capabilities and the groups with which the thread acts for a caller."""
    with credentials.of(caller):
        return syscalls.effective_capabilities(0) & FILE_CAPABILITIES, sorted(os.getgroups())


@as_root
def test_groups_of_the_caller_are_used_only_within_the_block(alice: _Caller) -> None:
    credentials, own = Credentials(), os.getgroups()
    assert _acts_as(credentials, alice) == (0, [GROUP, GROUP + 1])
    assert os.getgroups() == own
    assert syscalls.effective_capabilities(0) & FILE_CAPABILITIES
    credentials.close()


@as_root
def test_caller_that_acts_with_other_ids_than_its_own_is_refused(alice: _Caller) -> None:
    """The kernel acts so for a server of NFS, for example. The groups it uses are unknown."""
    credentials = Credentials()
    for uid, gid in ((BOB, ALICE), (ALICE, BOB)):
        with pytest.raises(PermissionError):
            _acts_as(credentials, _Caller(uid, gid, alice.pid))
    credentials.close()


@as_root
def test_user_in_another_pid_namespace_is_refused_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    credentials = Credentials()
    with caplog.at_level(logging.WARNING, "efuse.fs"):
        for _ in range(3):
            with pytest.raises(PermissionError) as caught:
                _acts_as(credentials, _Caller(ALICE, ALICE, 0))
            assert caught.value.errno == errno.EACCES
    assert [record.getMessage() for record in caplog.records] == [
        f"user {ALICE} is refused (EACCES): the groups are unknown, because the caller is in"
        " another PID namespace than the daemon"
    ]
    credentials.checked_by_kernel = True
    assert _acts_as(credentials, _Caller(ALICE, ALICE, 0)) == (0, [])
    credentials.close()


@as_root
def test_process_that_has_ended_gives_no_rights(alice: _Caller) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    credentials = Credentials()
    with pytest.raises(PermissionError):
        _acts_as(credentials, _Caller(ALICE, ALICE, ended.pid))
    with pytest.raises(PermissionError):
        _acts_as(credentials, _Caller(0, 0, ended.pid))
    credentials.close()


@as_root
def test_requests_of_the_kernel_itself_have_the_rights_of_the_daemon(alice: _Caller) -> None:
    """It sends them as root: from its own threads, or for a user of an overlay."""
    credentials, own = Credentials(), syscalls.effective_capabilities(0) & FILE_CAPABILITIES
    for pid in (0, alice.pid):
        assert _acts_as(credentials, _Caller(0, 0, pid))[0] == own
    assert _acts_as(credentials, _Caller(0, GROUP, 0)) == (own, [])
    credentials.close()


@as_root
def test_daemon_acts_with_its_own_capabilities_within_a_block_of_root_without_any() -> None:
    process = subprocess.Popen(["setpriv", "--bounding-set=-all", "sleep", "infinity"])
    try:
        while syscalls.effective_capabilities(process.pid):
            assert process.poll() is None
        credentials, own = Credentials(), syscalls.effective_capabilities(0)
        with credentials.of(_Caller(0, 0, process.pid)):
            assert not syscalls.effective_capabilities(0) & FILE_CAPABILITIES
            with credentials.of_daemon():
                assert syscalls.effective_capabilities(0) == own
            assert not syscalls.effective_capabilities(0) & FILE_CAPABILITIES
        assert syscalls.effective_capabilities(0) == own
        credentials.checked_by_kernel = True
        with credentials.of(_Caller(0, 0, process.pid)):
            assert syscalls.effective_capabilities(0) == own
        credentials.close()
    finally:
        process.kill()
        process.wait()


def test_daemon_of_a_user_refuses_other_users_but_not_root(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: ALICE)
    credentials, own = Credentials(), sorted(os.getgroups())
    for uid in (ALICE, 0):
        assert _acts_as(credentials, _Caller(uid, uid, os.getpid()))[1] == own
    with pytest.raises(PermissionError):
        _acts_as(credentials, _Caller(BOB, BOB, os.getpid()))
    credentials.checked_by_kernel = True
    assert _acts_as(credentials, _Caller(BOB, BOB, os.getpid()))[1] == own
    credentials.close()


def test_proc_of_another_pid_namespace_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    content = callers._content

    def from_above(name: str, directory: int) -> bytes:
        return content(name, directory).replace(b"\nNSpid:\t", b"\nNSpid:\t4711\t")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(callers, "_content", from_above)
    found = Callers()
    with pytest.raises(UnknownCallerError, match="does not show the daemon's PID namespace"):
        found.groups(_Caller(os.geteuid(), os.getegid(), os.getpid()))
    assert found.capabilities(_Caller(0, 0, os.getpid())) == 0
    assert found.capabilities(_Caller(0, 0, 0)) == _EVERYTHING
    assert len(os.listdir("/proc/self/fd")) == before
    found.close()


def test_lack_of_a_descriptor_is_reported_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Callers()

    def full(_name: str, _directory: int) -> NoReturn:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(callers, "_content", full)
    with pytest.raises(OSError, match="Too many open files"):
        found.groups(_Caller(os.geteuid(), os.getegid(), os.getpid()))
    found.close()


def test_status_of_a_process_is_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process can be in more groups than fit one read."""
    status = b"Name:\tx\nUid:\t1\t1\t1\t7\nGid:\t1\t1\t1\t8\nGroups:\t"
    status += b" ".join(b"%d" % group for group in range(65536)) + b" \nNStgid:\t5\n"
    pipe = [status[start : start + 4096] for start in range(0, len(status), 4096)]
    monkeypatch.setattr(os, "read", lambda _fd, _size: pipe.pop(0) if pipe else b"")
    found = Callers.__new__(Callers)
    found._proc = os.open("/", os.O_PATH)
    monkeypatch.setattr(os, "open", lambda *_, **__: os.dup(0))
    assert found.groups(_Caller(7, 8, 5)) == list(range(65536))
    found.close()
