# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test a pass-through of a file system that is itself stacked on others."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import efuse
from efuse.control import Connection
from tests.guest.support.shell import run

DATA = bytes(range(256)) * 4096


@pytest.fixture(params=["overlay", "efuse"])
def stacked(request: pytest.FixtureRequest, lower: Path) -> Iterator[tuple[Path, Path]]:
    """Yield a directory of a stacked file system, and the origin of its file ``f``."""
    if request.param == "overlay":
        both: Path = request.getfixturevalue("overlay")
        (lower / "below/f").write_bytes(DATA)
        yield both, lower / "below/f"
        return
    for name in ("source", "middle"):
        (lower / name).mkdir()
    (lower / "source/f").write_bytes(DATA)
    operations = efuse.Passthrough(lower / "source")
    with efuse.mount(operations, lower / "middle", required=True):
        yield lower / "middle", lower / "source/f"
    operations.close()


def _at_the_daemon(connection: int | None) -> tuple[int, int]:
    """Return the numbers of READs and WRITEs that reached the daemon."""
    found = Connection(connection or 0)
    return found.counts("stats/read")["daemon"], found.counts("stats/write")["daemon"]


def _hits(connection: int | None, opcode: str) -> int:
    return Connection(connection or 0).counts(f"stats/{opcode}")["hits"]


def _read_and_write(path: Path) -> None:
    assert path.read_bytes() == DATA
    with path.open("r+b", buffering=0) as file:  # The overlay copies the file up.
        for at in (0, 4096, 100_000):
            assert os.pwrite(file.fileno(), b"new", at) == 3
    changed = bytearray(DATA)
    for at in (0, 4096, 100_000):
        changed[at : at + 3] = b"new"
    assert path.read_bytes() == changed


@pytest.mark.parametrize("consistency", ["ttl", "exclusive"])
def test_files_of_a_stacked_file_system_are_read_in_the_kernel(
    stacked: tuple[Path, Path], mountpoint: Path, consistency: str
) -> None:
    """Also written, except on an overlay, which waits while the file system below is frozen."""
    source, origin = stacked
    overlay = origin.parent.name == "below"
    operations = efuse.Passthrough(source, consistency=consistency)
    with efuse.mount(operations, mountpoint, required=True) as one:
        _read_and_write(mountpoint / "f")
        assert (mountpoint / "f").read_bytes() == (source / "f").read_bytes()
        assert _at_the_daemon(one.connection) == (0, 3 if overlay else 0)
        assert _hits(one.connection, "read") > 0
        written = _hits(one.connection, "write")
        assert written == 0 if overlay else written >= 3
    operations.close()
    # The overlay's lower layer has not changed.
    assert (origin.read_bytes() == DATA) == overlay


@pytest.mark.parametrize("consistency", ["ttl", "exclusive"])
def test_hard_links_separated_by_an_overlay_are_separate_files(
    overlay: Path, lower: Path, mountpoint: Path, consistency: str
) -> None:
    """A changed name is copied up, and the other name keeps the old file."""
    (lower / "below/a").write_bytes(DATA)
    os.link(lower / "below/a", lower / "below/b")
    operations = efuse.Passthrough(overlay, consistency=consistency)
    with efuse.mount(operations, mountpoint, required=True):
        a, b = mountpoint / "a", mountpoint / "b"
        for path in (a, b, a, b):
            assert path.read_bytes() == DATA
        with a.open("r+b", buffering=0) as file:
            assert file.write(b"A" * 16) == 16
            for _ in range(2):
                assert a.read_bytes() == b"A" * 16 + DATA[16:]
                assert b.read_bytes() == DATA
        b.chmod(0o600)
        with b.open("r+b", buffering=0) as file:
            assert file.write(b"B" * 16) == 16
        assert a.stat().st_mode & 0o777 != 0o600
        a.rename(mountpoint / "c")
        b.rename(a)
        for name, first in (("a", b"B"), ("c", b"A")):
            expected = first * 16 + DATA[16:]
            assert (mountpoint / name).read_bytes() == expected
            assert (overlay / name).read_bytes() == expected
    operations.close()


@pytest.mark.parametrize("linked", ["through the mount", "below"])
@pytest.mark.parametrize("writeback", [False, True])
@pytest.mark.parametrize("consistency", ["ttl", "exclusive"])
def test_hard_links_of_one_overlay_file_are_one_inode(
    overlay: Path, lower: Path, mountpoint: Path, consistency: str, writeback: bool, linked: str
) -> None:
    """The file was made in the overlay, or the first link copies it up from the lower layer."""
    (lower / "below/low").write_bytes(b"-" * 32)
    operations = efuse.Passthrough(overlay, consistency=consistency, writeback=writeback)
    with efuse.mount(operations, mountpoint, required=True):
        (mountpoint / "up").write_bytes(b"-" * 32)
        for name in ("up", "low"):
            f, g = mountpoint / name, mountpoint / f"{name}2"
            held = os.open(f, os.O_RDONLY)
            where = mountpoint if linked == "through the mount" else overlay
            os.link(where / name, where / g.name)
            assert f.stat().st_ino == g.stat().st_ino == os.fstat(held).st_ino
            os.close(held)
            with f.open("r+b", buffering=0) as one, g.open("r+b", buffering=0) as other:
                assert one.read() == other.read() == b"-" * 32
                for file, data, at in ((one, b"ffff", 0), (other, b"gggg", 4)):
                    assert os.pwrite(file.fileno(), data, at) == 4
                    with mmap.mmap(file.fileno(), 32) as pages:
                        pages[at + 8 : at + 12] = data
                        pages.flush()
                os.fsync(one.fileno())
                os.fsync(other.fileno())
            for path in (f, g, f):
                with path.open("ab") as file:
                    file.write(path.name.encode())
            expected = b"ffffgggg" * 2 + b"-" * 16 + f"{name}{name}2{name}".encode()
            assert f.read_bytes() == g.read_bytes() == (overlay / g.name).read_bytes() == expected
            f.unlink()
            assert g.read_bytes() == expected
    operations.close()


def test_given_stack_depth_overrides_the_default(
    overlay: Path, lower: Path, mountpoint: Path
) -> None:
    """Such a mount may be a layer of an overlay, so the daemon reads and writes its files."""
    (lower / "below/f").write_bytes(DATA)
    operations = efuse.Passthrough(overlay)
    above = lower / "over"
    above.mkdir()
    layers = f"lowerdir={mountpoint}:{lower}/work"
    for given, refused in ((["stack_depth=1"], False), ([], True)):
        options = ["default_permissions", *given]
        with efuse.mount(operations, mountpoint, options, required=True) as one:
            assert (mountpoint / "f").read_bytes() == DATA
            asked, _ = _at_the_daemon(one.connection)
            assert (asked == 0) == refused
            made = run("mount", "-t", "overlay", "-o", layers, "o", above, check=False)
            assert (made.returncode != 0) == refused, made.stderr
            if not refused:
                assert (above / "f").read_bytes() == DATA
                run("umount", above)
    operations.close()


def test_stack_depth_on_a_file_system_that_is_not_stacked_is_1(lower: Path) -> None:
    operations = efuse.Passthrough(lower)
    assert operations.efuse_stack_depth == 1
    operations.close()


@pytest.mark.parametrize("consistency", ["ttl", "cto"])
@pytest.mark.parametrize("depth", ["stack_depth=1", "stack_depth=2"])
@pytest.mark.parametrize("change", ["unlink", "rename"])
def test_open_file_is_found_after_its_name_was_removed_behind_the_mount(
    overlay: Path, mountpoint: Path, consistency: str, depth: str, change: str
) -> None:
    """The kernel has opened this file and others by itself, so no handle of the daemon finds it."""
    for number in range(100):
        (overlay / f"a{number}").touch()
    (overlay / "f").write_bytes(b"data")
    operations = efuse.Passthrough(
        overlay, consistency=consistency, descriptors=32, entry_timeout=60, attr_timeout=60
    )
    options = ("default_permissions", "allow_other", depth)
    with efuse.mount(operations, mountpoint, options, required=True):
        for _ in range(3):
            os.close(os.open(mountpoint / "f", os.O_RDWR))
        with (mountpoint / "f").open("r+b", buffering=0) as file:
            for number in range(100):
                (mountpoint / f"a{number}").read_bytes()
            held = os.open(overlay / "f", os.O_RDONLY)
            if change == "unlink":
                (overlay / "f").unlink()
            else:
                (overlay / "f").rename(overlay / "g")
            assert os.pwrite(file.fileno(), b"WW", 0) == 2
            assert os.pread(file.fileno(), 10, 0) == b"WWta"
            file.truncate(3)
            assert os.fstat(file.fileno()).st_size == 3
            os.fsync(file.fileno())
            assert os.pread(held, 10, 0) == b"WWt"
            os.close(held)
    operations.close()
