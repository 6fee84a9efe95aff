# SPDX-License-Identifier: LGPL-2.1-or-later
"""The session of a mount, without a mount."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import trio

import efuse
from efuse.fs.session import _Session


def test_file_that_aborts_the_connection_is_closed_once_although_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """close(2) frees the number in any case, and another file may get it."""
    closed: list[tuple[int, int]] = []
    close = os.close

    async def make() -> _Session:
        return _Session(efuse.Operations(), str(tmp_path), (), channels=False)

    def fails(fd: int) -> None:
        closed.append((fd, session._abort_fd))
        close(fd)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    session = trio.run(make)
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
