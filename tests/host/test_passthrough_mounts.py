# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pass-through of a directory with mounts below it."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.host.conftest import run_python

SHORT = {"entry_timeout": 0.0, "attr_timeout": 0.0}
LONG = {"entry_timeout": 60.0, "attr_timeout": 60.0}


@pytest.fixture
def mount() -> Iterator[Callable[..., None]]:
    """Mount: ``mount("-t", "tmpfs", "tmpfs", path)``; the path is unmounted at the end."""
    made: list[Path] = []

    def run(*words: object) -> None:
        subprocess.run(["mount", *map(str, words)], check=True)
        made.append(Path(str(words[-1])))

    yield run
    for each in reversed(made):
        subprocess.run(["umount", "--lazy", each], check=False)  # a test may have unmounted it


@pytest.fixture
def source(place: Path) -> Path:
    path = place / "source"
    path.mkdir()
    for number in range(64):
        (path / f"a{number}").touch()
    return path


def _serve(served: Any, source: Path, **arguments: Any) -> Path:
    path: Path = served(arguments={"source": str(source), "descriptors": 32, **arguments}).path
    return path


def _put_aside(path: Path) -> None:
    """Have more inodes looked up than keep a descriptor."""
    for number in range(64):
        (path / f"a{number}").stat()


def _bind(mount: Callable[..., None], what: Path, where: Path, options: str = "") -> None:
    mount("--bind", what, where)
    subprocess.run(["mount", "--make-private", where], check=True)
    if options:
        subprocess.run(["mount", "-o", f"remount,bind,{options}", where], check=True)


def test_mount_that_is_read_only_stays_so(
    served: Any, place: Path, source: Path, mount: Callable[..., None]
) -> None:
    """It is a bind mount of what can be written: its file system alone does not refuse."""
    other = place / "other"
    other.mkdir()
    (other / "f").write_bytes(b"protected")
    (source / "ro").mkdir()
    _bind(mount, other, source / "ro", "ro")
    path = _serve(served, source, **LONG)
    for _ in range(2):
        for name in ("f", "new"):
            with pytest.raises(OSError, match="Read-only") as failure:
                (path / "ro" / name).write_bytes(b"overwritten")
            assert failure.value.errno == errno.EROFS
        _put_aside(path)
    assert (other / "f").read_bytes() == b"protected"
    assert os.listdir(other) == ["f"]


@pytest.mark.parametrize("first", ["ro", "rw"])
def test_file_has_the_rights_of_the_mount_that_its_name_is_on(
    served: Any, source: Path, mount: Callable[..., None], first: str
) -> None:
    for name in ("ro", "rw"):
        (source / name).mkdir()
    (source / "rw" / "f").write_bytes(b"x")
    _bind(mount, source / "rw", source / "ro", "ro")
    path = _serve(served, source, **SHORT)
    (path / first / "f").stat()
    (path / "rw" / "f").write_bytes(b"written")
    with pytest.raises(OSError, match="Read-only"):
        (path / "ro" / "f").write_bytes(b"refused")
    assert (path / "ro" / "f").read_bytes() == b"written"


def _two_names(
    source: Path, mount: Callable[..., None], options: str = "", data: bytes = b"-" * 40
) -> None:
    """Show the directory ``one``, with the file ``f``, as ``two`` as well."""
    for name in ("one", "two"):
        (source / name).mkdir()
    (source / "one" / "f").write_bytes(data)
    _bind(mount, source / "one", source / "two", options)


@pytest.mark.parametrize("writeback", [False, True])
@pytest.mark.parametrize("options", ["", "nosuid", "nodev,noexec"])
def test_what_is_written_by_two_mounts_of_a_file_is_there(
    served: Any, source: Path, mount: Callable[..., None], options: str, writeback: bool
) -> None:
    """Two inodes would each write whole pages back, with what the other one had before."""
    _two_names(source, mount, options)
    path = _serve(served, source, writeback=writeback, **SHORT)
    with (
        (path / "one" / "f").open("r+b", buffering=0) as one,
        (path / "two" / "f").open("r+b", buffering=0) as two,
    ):
        fcntl.flock(one, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.pwrite(one.fileno(), b"AAAA", 0)
        os.pwrite(two.fileno(), b"BBBB", 4)
        with mmap.mmap(one.fileno(), 40) as here, mmap.mmap(two.fileno(), 40) as there:
            assert here[:8] == there[:8] == b"AAAABBBB"
            here[8:12], there[12:16] = b"aaaa", b"bbbb"
            here.flush()
            there.flush()
        for file in (one, two):
            os.fsync(file)
    assert (source / "one" / "f").read_bytes() == b"AAAABBBBaaaabbbb" + b"-" * 24


def test_file_is_one_by_two_mounts_of_the_same_rights(
    served: Any, source: Path, mount: Callable[..., None]
) -> None:
    _two_names(source, mount, data=b"x")
    path = _serve(served, source, **LONG)
    assert (path / "one" / "f").stat().st_ino == (path / "two" / "f").stat().st_ino
    assert (path / "two" / "f").read_bytes() == b"x"
    (path / "one" / "f").write_bytes(b"longer")
    assert (path / "two" / "f").read_bytes() == b"longer"


def test_what_is_mounted_within_a_bind_mount_is_shown(
    served: Any, source: Path, mount: Callable[..., None]
) -> None:
    """Beside what it covers, which is shown by the other name."""
    hides, shows = source / "hides", source / "shows"
    (hides / "m").mkdir(parents=True)
    (hides / "m" / "covered").touch()
    shows.mkdir()
    _bind(mount, hides, shows)
    mount("-t", "tmpfs", "tmpfs", shows / "m")
    (shows / "m" / "shown").touch()
    path = _serve(served, source, **SHORT)
    for _ in range(2):
        assert os.listdir(path / "hides" / "m") == ["covered"]
        held = os.open(path / "shows", os.O_PATH)
        _put_aside(path)
        inner = os.open("m", os.O_RDONLY, dir_fd=held)
        assert os.listdir(inner) == os.listdir(path / "shows" / "m") == ["shown"]
        os.close(inner)
        os.close(held)


def test_mount_can_be_unmounted_when_the_kernel_has_forgotten_it(
    served: Any, source: Path, mount: Callable[..., None], eventually: Callable[..., Any]
) -> None:
    sub = source / "sub"
    sub.mkdir()
    path = _serve(served, source, **SHORT)
    mount("-t", "tmpfs", "tmpfs", sub)
    for number in range(80):
        (sub / f"d{number}").mkdir()
        (path / "sub" / f"d{number}").stat()

    def is_unmounted() -> bool:
        Path("/proc/sys/vm/drop_caches").write_text("2")
        return subprocess.run(["umount", sub], capture_output=True, check=False).returncode == 0

    eventually(is_unmounted, timeout=60, what="nothing of the mount to be used")


def test_hard_links_of_an_overlay_are_parted_whatever_had_its_device_number(
    served: Any, place: Path, source: Path, mount: Callable[..., None]
) -> None:
    """The number of a device is given to the next file system that is mounted."""
    sub, base = source / "sub", place / "base"
    sub.mkdir()
    base.mkdir()
    path = _serve(served, source, **SHORT)
    mount("-t", "tmpfs", "tmpfs", base)
    for name in ("below", "above", "work"):
        (base / name).mkdir()
    (base / "below" / "a").write_bytes(b"lower")
    os.link(base / "below" / "a", base / "below" / "b")
    mount("-t", "tmpfs", "tmpfs", sub)
    device = sub.stat().st_dev
    (sub / "f").touch()
    (path / "sub" / "f").stat()
    layers = f"lowerdir={base}/below,upperdir={base}/above,workdir={base}/work,index=off"
    for _ in range(100):
        subprocess.run(["umount", "--lazy", sub], check=True)
        Path("/proc/sys/vm/drop_caches").write_text("2")
        assert "f" not in os.listdir(path / "sub")
        mount("-t", "overlay", "-o", layers, "overlay", sub)
        if sub.stat().st_dev == device:
            break  # the tmpfs was in use for a moment longer
    assert sub.stat().st_dev == device
    for name in "ab":
        (path / "sub" / name).stat()
    (path / "sub" / "b").write_bytes(b"BBBBB")
    assert (sub / "b").read_bytes() == b"BBBBB"
    assert (sub / "a").read_bytes() == b"lower"


_LISTS = "import os, sys; print(sorted(os.listdir(sys.argv[1])))"


def test_own_mount_below_the_source_is_left_out(served: Any, place: Path) -> None:
    """Else the daemon waits for itself, and its caller, another process, until it is killed."""
    (place / "f").write_bytes(b"data")
    path = served(arguments={"source": str(place), **SHORT}).path
    callers = [run_python(_LISTS, where) for where in (path, path / path.name)]
    listed, refused = (caller.communicate(timeout=20)[0] for caller in callers)
    assert listed == "['f', 'low0']\n"
    assert (refused, callers[1].returncode) == ("", 1)
    assert (path / "f").read_bytes() == b"data"
