# SPDX-License-Identifier: LGPL-2.1-or-later
"""The session of a mount, without a mount."""

from __future__ import annotations

import errno
import functools
import os
import threading
from pathlib import Path
from typing import cast

import pyfuse3
import pytest
import trio

import efuse
from efuse.errors import UsageError
from efuse.fs import session as module
from efuse.fs.own_mount import OwnMount
from efuse.fs.session import _Session


def _session(path: Path) -> _Session:
    async def make() -> _Session:
        return _Session(efuse.Operations(), str(path), (), channels=False)

    return trio.run(make)


@pytest.mark.parametrize("recovery", [-1, 86401])
def test_recovery_out_of_range_fails(tmp_path: Path, recovery: int) -> None:
    with pytest.raises(UsageError, match="recovery cannot be"):
        trio.run(functools.partial(efuse.serve, efuse.Operations(), tmp_path, recovery=recovery))


class _Mount:
    """A mount that is gone. It records the descriptors by which it was to be unmounted."""

    def __init__(self) -> None:
        self.devices: list[int] = []

    def detach(self, device: int) -> None:
        self.devices.append(device)


@pytest.mark.parametrize("is_initialized", [True, False])
def test_descriptor_of_the_mount_is_forgotten_before_it_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_initialized: bool
) -> None:
    """Another file may get its number while another thread aborts the mount."""
    session, mount = _session(tmp_path), _Mount()
    device = os.open("/dev/null", os.O_RDWR)
    session._own = cast(OwnMount, mount)
    session._is_initialized = is_initialized
    session._fd = session._device = session._state.device = device
    session._state.mounted_type = "efuse"
    close, known = os.close, []

    def close_and_abort(fd: int = device, *, unmount: bool = False) -> None:
        assert not unmount
        close(fd)
        foreign = os.open("/dev/null", os.O_RDWR)
        assert foreign == device
        known.append(session._state.device)
        session.abort()
        close(foreign)

    monkeypatch.setattr(os, "close", close_and_abort)
    monkeypatch.setattr(pyfuse3, "close", close_and_abort)
    trio.run(session.close)
    monkeypatch.undo()
    assert mount.devices == [device, -1]  # before the close, and while it is closed
    assert known == [None]


def test_descriptor_of_the_mount_is_closed_although_a_thread_that_unmounts_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.01)
    session = _session(tmp_path)
    session._fd = session._device = os.open("/dev/null", os.O_RDWR)
    session._state.mounted_type = "efuse"
    with session._unmounting:
        closing = threading.Thread(target=trio.run, args=(session.close,))
        closing.start()
        closing.join()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(session._fd)
    assert session._device == -1


def test_file_that_aborts_the_connection_is_closed_once_although_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """close(2) frees the number in any case, and another file may get it."""
    closed: list[tuple[int, int]] = []
    close = os.close

    def fails(fd: int) -> None:
        closed.append((fd, session._abort_fd))
        close(fd)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    session = _session(tmp_path)
    fd = os.open(tmp_path / "abort", os.O_WRONLY | os.O_CREAT)
    session._abort_fd = fd
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", fails)
        with pytest.raises(OSError, match="Input/output error"):
            session._forget()
    foreign = os.open(tmp_path / "foreign", os.O_RDWR | os.O_CREAT)
    assert foreign == fd
    session._forget()
    session.abort()
    assert os.pread(foreign, 1, 0) == b""
    os.close(foreign)
    assert closed == [(fd, -1)]
