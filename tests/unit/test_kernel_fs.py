# SPDX-License-Identifier: LGPL-2.1-or-later
"""How the kernel's file systems are mounted where systemd has not mounted them."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from efuse import kernel_fs


class _Libc:
    """Records the calls of mount(2)."""

    def __init__(self) -> None:
        self.mounted: list[tuple[Any, ...]] = []

    def mount(self, *arguments: Any) -> int:
        self.mounted.append(arguments)
        return 0


@pytest.fixture
def libc(monkeypatch: pytest.MonkeyPatch) -> _Libc:
    made = _Libc()
    monkeypatch.setattr(ctypes, "CDLL", lambda *_arguments, **_options: made)
    return made


def _mounts(monkeypatch: pytest.MonkeyPatch, table: bytes) -> None:
    monkeypatch.setattr(Path, "read_bytes", lambda _path: table)


def test_bpffs_is_mounted_for_root_alone(monkeypatch: pytest.MonkeyPatch, libc: _Libc) -> None:
    """Without this option the kernel lets every user create directories there."""
    _mounts(monkeypatch, b"proc /proc proc rw 0 0\n")
    kernel_fs.mount_bpffs()
    assert libc.mounted == [(b"bpf", b"/sys/fs/bpf", b"bpf", 0, b"mode=0700")]


def test_bpffs_that_is_mounted_is_left_as_it_is(
    monkeypatch: pytest.MonkeyPatch, libc: _Libc
) -> None:
    _mounts(monkeypatch, b"bpf /sys/fs/bpf bpf rw,mode=700 0 0\n")
    kernel_fs.mount_bpffs()
    assert libc.mounted == []
