# SPDX-License-Identifier: LGPL-2.1-or-later
"""libefuse's part of pyfuse3's channel with sanitizers. ``plain_channel.c`` emulates it on FUSE."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from efuse import locations
from efuse.fs.mountpoint import unmount
from tests.blocking_file_system import SIZES, act, poke, read_all, read_while_handlers_sleep
from tests.conftest import Eventually
from tests.libefuse.sanitizers import ADDRESS, SANITIZER_OPTIONS, THREAD

_ROOT = locations.package().parent
_DEADLINE_S = 60


@dataclass(frozen=True)
class Build:
    library: Path
    preload: str
    """Value of LD_PRELOAD: the sanitizers' libraries, which Python is not linked with."""


@pytest.fixture(
    scope="module",
    params=[
        ("-O2", ()),
        (f"-O1 {ADDRESS.flags}", ADDRESS.libraries),
        (f"-O1 {THREAD.flags}", THREAD.libraries),
    ],
    ids=["fast", "address", "thread"],
)
def build(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    flags, libraries = request.param
    out = tmp_path_factory.mktemp("python") / "python.so"
    fuse = subprocess.check_output(["pkg-config", "fuse3", "--cflags", "--libs"], text=True).split()
    source = _ROOT / "libefuse"
    files = [source / "python.c", source / "got.c", _ROOT / "tests/libefuse/plain_channel.c"]
    include = [f"-I{source}", f"-I{_ROOT / 'kernel_patches/include/uapi'}"]
    warn = ["-g", "-Wall", "-Wextra", "-Werror", "-Wno-nonnull-compare"]
    words = ["gcc", *flags.split(), *warn, "-fPIC", "-shared", "-fvisibility=hidden", "-o", out]
    subprocess.run([*words, *include, *files, "-Wl,--no-as-needed", *fuse, "-ldl"], check=True)
    return Build(out, ":".join(libraries))


@pytest.fixture
def root(build: Build, eventually: Eventually, tmp_path: Path) -> Iterator[Path]:
    """The root of a served file system.

    After the test, the daemon must end with status 0, without output on standard error, and must
    have received requests by polling.
    """
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    daemon = _ROOT / "tests/libefuse/pyfuse3_daemon.py"
    environment = {
        **os.environ,
        **SANITIZER_OPTIONS,
        "PYTHONPATH": str(_ROOT),
        "LD_PRELOAD": build.preload,
        # Python does not free all of its memory at its end.
        "ASAN_OPTIONS": "exitcode=66:detect_leaks=0",
    }
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(
            [sys.executable, daemon, build.library, mountpoint],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=printed,
            text=True,
        )
        try:
            eventually(lambda: os.path.ismount(mountpoint) or process.poll() is not None)
            yield mountpoint
            unmount(str(mountpoint))
            found = process.communicate(timeout=_DEADLINE_S)[0]
            assert process.returncode == 0
            assert int(found) > 10
        finally:
            process.kill()
            process.communicate()
            with contextlib.suppress(OSError):
                unmount(str(mountpoint), lazy=True)
            printed.seek(0)
            text = printed.read()
            print(text)
        assert text == ""


def test_concurrent_callers_get_their_own_answers(root: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        for each in [pool.submit(read_all, root, 10) for _ in range(4)]:
            each.result(_DEADLINE_S)
    for _ in range(10):
        names = {entry.name: entry.stat().st_size for entry in os.scandir(root)}
        assert names == {f"f{number}": size for number, size in enumerate(SIZES)}


def test_large_writes_between_small_requests_keep_all_bytes(root: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        reading = [pool.submit(read_all, root, 20) for _ in range(2)]
        fd = os.open(root / "f0", os.O_WRONLY)
        for _ in range(20):
            for size in (1, 8000, 1 << 17, 1 << 20):
                assert os.write(fd, bytes(size)) == size
        os.close(fd)
        for each in reading:
            each.result(_DEADLINE_S)


def test_requests_are_served_while_other_handlers_sleep(root: Path) -> None:
    read_while_handlers_sleep(root)


def test_getattr_after_invalidate_goes_to_the_daemon(root: Path) -> None:
    """A notification from another thread does not overtake a reply, and does not wait for one."""
    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(read_all, root, 30) for _ in range(2)]
        poke(root, 500)
        for each in busy:
            each.result(_DEADLINE_S)


def test_channel_works_after_a_handler_forked(root: Path) -> None:
    act(root, "fork")
    read_all(root, 3)
    act(root, "reap")
    read_all(root, 3)
