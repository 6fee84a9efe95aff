# SPDX-License-Identifier: LGPL-2.1-or-later
"""The base class: mistakes in handlers, invalidation, and its state."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def _fails(action: Callable[[], object]) -> str:
    with pytest.raises(OSError) as caught:
        action()
    assert caught.value.errno is not None
    return errno.errorcode[caught.value.errno]


@pytest.fixture
def faulty(served: Any) -> Any:
    return served("filesystems:Faulty", options=())


@pytest.mark.parametrize("name", ["exception", "oserror", "nothing", "text"])
def test_exception_in_lookup_is_eio_and_the_mount_stays(faulty: Any, name: str) -> None:
    assert _fails(lambda: os.stat(faulty.path / name)) == "EIO"
    assert os.stat(faulty.path / "file").st_size == 10
    report = faulty.report()
    assert report["handler_errors"] == {"lookup": 1}
    assert len(report["logged"]) == 1
    assert report["logged"][0].startswith("lookup failed: ")


def test_fuse_error_of_a_handler_reaches_the_caller(faulty: Any) -> None:
    assert _fails(lambda: os.stat(faulty.path / "fuse-error")) == "EDOM"
    assert faulty.report()["handler_errors"] == {}


def test_wrong_results_of_other_handlers_are_eio_and_the_mount_stays(faulty: Any) -> None:
    fd = os.open(faulty.path / "file", os.O_RDWR)
    assert os.pread(fd, 10, 0) == b"0123456789"
    failures = {
        "read": lambda: os.pread(fd, 10, 1000),
        "write": lambda: os.write(fd, b"x"),
        "getxattr": lambda: os.getxattr(faulty.path / "file", "user.text"),
        "listxattr": lambda: os.listxattr(faulty.path / "file"),
        "opendir": lambda: os.listdir(faulty.path),
        "statfs": lambda: os.statvfs(faulty.path),
    }
    for name, action in failures.items():
        assert _fails(action) == "EIO", name
    assert _fails(lambda: os.pread(fd, 10, 500)) == "EIO"
    os.close(fd)
    assert os.stat(faulty.path / "file").st_size == 10
    errors = faulty.report()["handler_errors"]
    assert errors == {**dict.fromkeys(failures, 1), "read": 2}


def test_repeated_exception_is_counted_each_time(faulty: Any) -> None:
    for _ in range(5):
        assert _fails(lambda: os.stat(faulty.path / "exception")) == "EIO"
    assert faulty.report()["handler_errors"] == {"lookup": 5}


def test_exception_in_forget_keeps_the_mount(faulty: Any, eventually: Any) -> None:
    os.stat(faulty.path / "file")

    def forgotten() -> bool:
        Path("/proc/sys/vm/drop_caches").write_text("2")
        return "forget" in faulty.report()["handler_errors"]

    eventually(forgotten, what="a FORGET")
    assert os.stat(faulty.path / "file").st_size == 10
    faulty.unmount()


def test_file_system_of_pyfuse3_alone_is_served_and_guarded(served: Any, place: Path) -> None:
    import signal
    import subprocess
    import sys

    mountpoint = place / "plain"
    mountpoint.mkdir()
    script = (
        "import sys, trio, efuse, filesystems\n"
        "class Said(trio.TaskStatus):\n"
        "    def started(self, value=None): print('mounted', flush=True)\n"
        "async def main():\n"
        "    await efuse.serve(filesystems.Plain(), sys.argv[1], (), task_status=Said())\n"
        "trio.run(main)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, mountpoint],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{Path(__file__).parent}"},
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "mounted\n"
        assert _fails(lambda: os.stat(mountpoint / "bug")) == "EIO"
        assert _fails(lambda: os.stat(mountpoint / "none")) == "ENOENT"
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
        process.stdout.close()
    assert not os.path.ismount(mountpoint)


def _poke(mounted: Any, text: bytes) -> None:
    fd = os.open(mounted.path / "poke", os.O_WRONLY)
    os.write(fd, text)
    os.close(fd)


def test_attributes_are_cached_until_they_are_invalidated(served: Any) -> None:
    for invalidate in (False, True):
        mounted = served("filesystems:Invalidating", {"invalidate": invalidate}, options=())
        assert os.stat(mounted.path / "file").st_size == 1
        _poke(mounted, b"grow")
        assert os.stat(mounted.path / "file").st_size == (2 if invalidate else 1)


def test_names_are_cached_until_they_are_invalidated(served: Any, eventually: Any) -> None:
    mounted = served("filesystems:Invalidating", options=())
    file = mounted.path / "file"
    assert file.exists()
    _poke(mounted, b"vanish")
    eventually(lambda: not file.exists(), what="the name to vanish")
    _poke(mounted, b"appear")
    eventually(file.exists, what="the name to appear")


def test_plain_fuse_reports_the_reason_and_counts_requests(mounted: Any) -> None:
    (mounted.path / "f").write_bytes(b"x")
    report = mounted.report()
    assert report["accelerated"] is False
    assert report["type"] == "fuse"
    assert report["reason"].startswith("the kernel has no eFuse: ")
    assert report["requests"]["create"] == 1
    assert report["requests"]["write"] == 1
