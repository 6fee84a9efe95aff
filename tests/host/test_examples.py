# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mount the examples of the documents, as the documents describe."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_EXAMPLES = Path(__file__).resolve().parents[2] / "docs/examples"
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def _running(name: str, mountpoint: Path, eventually: Any) -> Iterator[subprocess.Popen[bytes]]:
    mountpoint.mkdir()
    process = subprocess.Popen([sys.executable, str(_EXAMPLES / name), str(mountpoint)])
    try:
        eventually(lambda: os.path.ismount(mountpoint), what=f"{name} to be mounted")
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
        assert not os.path.ismount(mountpoint)
    finally:
        _libc.umount2(os.fsencode(mountpoint), 2)
        process.kill()
        process.wait()


def test_hello_shows_its_message(place: Path, eventually: Any) -> None:
    with _running("hello.py", place / "mnt", eventually):
        assert os.listdir(place / "mnt") == ["message"]
        for _ in range(3):
            assert (place / "mnt/message").read_bytes() == b"hello from user space\n"
        assert not (place / "mnt/other").exists()
        with pytest.raises(PermissionError):
            (place / "mnt/message").write_bytes(b"x")


def test_catalog_replaces_its_items(place: Path, eventually: Any) -> None:
    mountpoint = place / "mnt"
    with _running("catalog.py", mountpoint, eventually):
        for step in range(5):
            assert (mountpoint / f"item-{step}").exists()
            assert not (mountpoint / f"item-{step + 100}").exists()
            (mountpoint / "next").read_bytes()
            eventually(lambda: not (mountpoint / f"item-{step}").exists(), what="one to go")  # noqa: B023
            eventually((mountpoint / f"item-{step + 100}").exists, what="one to come")
        assert (mountpoint / "item-50").read_bytes() == b"     50\n"


def test_mirror_hides_names_that_begin_with_a_dot(place: Path) -> None:
    source, mountpoint = place / "source", place / "mnt"
    source.mkdir()
    mountpoint.mkdir()
    (source / ".hidden").touch()
    (source / "shown").touch()
    command = [
        *(sys.executable, "-c", "from efuse.cli.main import main; main()"),
        *("mount", "mirror:NoDots", "--arg", f"source={source}", str(mountpoint)),
    ]
    subprocess.run(command, cwd=_EXAMPLES, check=True)
    try:
        assert (mountpoint / "shown").exists()
        assert not (mountpoint / ".hidden").exists()
        with pytest.raises(PermissionError):
            (mountpoint / ".new").touch()
        (mountpoint / "new").touch()
        assert (source / "new").exists()
    finally:
        subprocess.run(["umount", mountpoint], check=True)
