# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test the Python pass-through on eFuse: the kernel's answers agree with the lower directory."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyfuse3
import pytest
import trio

import efuse
from efuse.control import Connection
from tests.tree_workloads import RENAMES, TREES, walk

USER = 41001


class Places:
    def __init__(self, top: Path) -> None:
        self.source, self.path = top / "source", top / "mnt"
        self.source.mkdir()
        self.path.mkdir()
        self.connection: Connection | None = None

    def hits(self, opcode: str) -> int:
        return self._count(opcode, "hits")

    def all_hits(self) -> int:
        assert self.connection is not None
        return sum(self.hits(opcode) for opcode in self.connection.opcodes())

    def asked(self, opcode: str) -> int:
        return self._count(opcode, "daemon")

    def _count(self, opcode: str, name: str) -> int:
        assert self.connection is not None
        return self.connection.counts(f"stats/{opcode}")[name]


@pytest.fixture(params=["exclusive", "ttl"])
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Places]:
    places = Places(tmp_path)
    operations = efuse.Passthrough(
        places.source, consistency=request.param, entry_timeout=3600, attr_timeout=3600
    )
    options = ("default_permissions", "allow_other")
    with efuse.mount(operations, places.path, options, required=True) as one:
        assert (one.type, one.accelerated, one.reason) == ("efuse", True, "")
        assert one.connection is not None
        places.connection = Connection(one.connection)
        yield places
    operations.close()


def _in_processes(count: int, script: str, *arguments: object) -> None:
    started = [
        subprocess.Popen([sys.executable, "-I", "-S", "-c", script, str(n), *map(str, arguments)])
        for n in range(count)
    ]
    assert [process.wait(timeout=600) for process in started] == [0] * count


def test_connection_has_the_declarations_of_the_class(mounted: Places) -> None:
    assert mounted.connection is not None
    assert mounted.connection.no_open
    assert mounted.connection.no_flush
    assert mounted.connection.nodeid_per_file
    assert not mounted.connection.stable_nodeids
    assert not mounted.connection.lazy_atime


def test_file_opened_in_the_kernel_is_written_read_and_removed(mounted: Places) -> None:
    (mounted.path / "f").write_bytes(b"0" * 10_000)
    for _ in range(4):
        os.close(os.open(mounted.path / "f", os.O_RDWR))
    before = mounted.hits("open")
    fd = os.open(mounted.path / "f", os.O_RDWR)
    assert mounted.hits("open") == before + 1, "the kernel did not open it by itself"
    for n in range(10):
        os.pwrite(fd, b"%d" % n, n)
    assert (mounted.source / "f").read_bytes() == b"0123456789" + b"0" * 9990
    os.unlink(mounted.path / "f")
    os.pwrite(fd, b"end", 9997)
    os.fsync(fd)
    os.ftruncate(fd, 9999)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    assert os.pread(fd, 20_000, 0) == b"0123456789" + b"0" * 9987 + b"en"
    assert os.fstat(fd).st_nlink == 0
    os.close(fd)


def test_directory_opened_in_the_kernel_is_listed(mounted: Places) -> None:
    names = {f"{n:04}" for n in range(1000)}
    for name in names:
        (mounted.source / name).touch()
    for _ in range(3):
        found = os.listdir(mounted.path)
        assert len(found) == len(names)
        assert set(found) == names
    assert mounted.hits("opendir") > 0
    streams = [os.scandir(mounted.path) for _ in range(3)]
    listed = [{next(stream).name for _ in range(500)} for stream in streams]
    for stream, seen in zip(streams, listed, strict=True):
        seen |= {entry.name for entry in stream}
    assert listed == [names] * 3


READ = """
import errno, sys
for path in sys.argv[1:]:
    try:
        with open(path) as file:
            print(file.read())
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


@pytest.mark.parametrize("consistency", ["exclusive", "ttl"])
def test_root_without_capabilities_gets_nothing_that_root_was_given(
    tmp_path: Path, consistency: str
) -> None:
    """The kernel knows names, attributes and grants from root. The daemon checks permissions."""
    places = Places(tmp_path)
    (places.source / "hidden").mkdir()
    for name, mode in (("hidden/f", 0o644), ("f", 0o600), ("hidden", 0o700)):
        if name != "hidden":
            (places.source / name).write_text("content")
        os.chown(places.source / name, USER, USER)
        (places.source / name).chmod(mode)
    operations = efuse.Passthrough(
        places.source, consistency=consistency, entry_timeout=3600, attr_timeout=3600
    )
    run = (sys.executable, "-I", "-S", "-c", READ, places.path / "hidden/f", places.path / "f")
    with efuse.mount(operations, places.path, ("allow_other",), required=True) as one:
        assert one.connection is not None
        places.connection = Connection(one.connection)
        for _ in range(4):
            assert subprocess.check_output(run, text=True).split() == ["content"] * 2
        assert places.hits("open") > 0
        without = ("setpriv", "--bounding-set=-all", *run)
        assert subprocess.check_output(without, text=True).split() == ["EACCES"] * 2
        assert subprocess.check_output(run, text=True).split() == ["content"] * 2
    operations.close()


def test_warm_stats_do_not_reach_the_daemon(mounted: Places) -> None:
    for n in range(50):
        (mounted.source / f"{n}").write_bytes(b"x" * n)
        assert (mounted.path / f"{n}").stat().st_size == n
    asked = mounted.asked("getattr"), mounted.asked("lookup")
    for _ in range(3):
        for n in range(50):
            assert (mounted.path / f"{n}").stat().st_size == n
    assert (mounted.asked("getattr"), mounted.asked("lookup")) == asked


def test_processes_in_separate_trees_see_their_own_changes(mounted: Places) -> None:
    _in_processes(2, TREES, mounted.path, 40)
    assert walk(mounted.path) == walk(mounted.source)
    assert mounted.all_hits() > 0


def test_mount_equals_the_source_after_parallel_renames_and_unlinks(mounted: Places) -> None:
    for name in ("d0", "d1"):
        (mounted.path / name).mkdir()
    _in_processes(3, RENAMES, mounted.path, 30)
    assert walk(mounted.path) == walk(mounted.source)


class Catalog(efuse.Operations):
    """A directory whose names are all published before they are looked up."""

    efuse_options = efuse.Options(consistency="exclusive", stable_nodeids=True)
    names = tuple(b"name-%d" % n for n in range(600))

    def entry(self, inode: int) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = inode
        kind = stat.S_IFDIR if inode == pyfuse3.ROOT_INODE else stat.S_IFREG
        entry.st_mode = kind | 0o644 | (0o111 if kind == stat.S_IFDIR else 0)
        entry.st_size = inode
        return entry

    async def lookup(self, parent_inode: int, name: bytes, ctx: Any) -> pyfuse3.EntryAttributes:
        return self.entry(10 + self.names.index(name))

    async def getattr(self, inode: int, ctx: Any = None) -> pyfuse3.EntryAttributes:
        return self.entry(inode)


def test_published_names_are_answered_before_their_first_lookup(tmp_path: Path) -> None:
    catalog = Catalog()
    sizes: list[int] = []

    def look() -> None:
        for name in catalog.names:
            sizes.append(os.stat(os.fsencode(tmp_path) + b"/" + name).st_size)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            state = await nursery.start(efuse.serve, catalog, tmp_path)
            assert state.accelerated, state.reason
            rows = [
                efuse.PublishedEntry(pyfuse3.ROOT_INODE, name, catalog.entry(10 + n))
                for n, name in enumerate(catalog.names)
            ]
            assert catalog.publish_entries(rows, epoch=state.epoch()) == len(rows)
            assert len(state.maps["entries"]) >= len(rows)
            await trio.to_thread.run_sync(look)
            asked = catalog.efuse.statistics().requests
            assert asked.get("lookup", 0) == 0, "a published name was asked for"
            await catalog.invalidate()
            await trio.to_thread.run_sync(look)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert sizes == [10 + n for n in range(len(catalog.names))] * 2
    assert not os.path.ismount(tmp_path)


@pytest.mark.parametrize("when", ["before", "later"])
def test_source_with_two_mounts_of_a_directory_loses_exclusive_mode(
    tmp_path: Path, when: str
) -> None:
    """The kernel does not learn of changes that are made through the other mount's names."""
    places = Places(tmp_path)
    one, two = places.path / "one", places.path / "two"
    for name in ("one", "two"):
        (places.source / name).mkdir()
    for name in ("gone", "moved"):
        (places.source / "one" / name).write_bytes(b"x")

    def bind() -> None:
        subprocess.run(
            ["mount", "--bind", places.source / "one", places.source / "two"], check=True
        )

    if when == "before":
        bind()
    operations = efuse.Passthrough(
        places.source, consistency="exclusive", entry_timeout=0, attr_timeout=0
    )
    try:
        with efuse.mount(operations, places.path, required=True) as served:
            assert served.connection is not None
            connection = Connection(served.connection)
            expected = "ttl" if when == "before" else "exclusive"
            assert connection.consistency == expected
            assert connection.nodeid_per_file is (when == "later")
            for _ in range(3):
                assert sorted(os.listdir(one)) == ["gone", "moved"]
                assert not (one / "new").exists()
                assert (one / "gone").stat().st_nlink == 1
            if when == "later":
                bind()
            for _ in range(3):
                assert sorted(os.listdir(two)) == ["gone", "moved"]
                assert not (two / "new").exists()
                assert (two / "gone").stat().st_nlink == 1
            assert (connection.consistency, connection.nodeid_per_file) == ("ttl", False)
            for here, there in ((one, two), (two, one)):
                (here / "new").write_bytes(b"data")
                assert (there / "new").read_bytes() == b"data"
                (here / "gone").unlink()
                assert not (there / "gone").exists()
                (here / "moved").rename(here / "gone")
                assert sorted(os.listdir(there)) == ["gone", "new"]
                assert (there / "gone").read_bytes() == b"x"
                (here / "gone").rename(here / "moved")
                (here / "new").rename(here / "gone")
    finally:
        subprocess.run(["umount", "--lazy", places.source / "two"], check=True)
        operations.close()


@pytest.mark.parametrize("consistency", ["exclusive", "ttl"])
def test_writes_obey_the_current_rights_of_a_remounted_lower_mount(
    tmp_path: Path, consistency: str
) -> None:
    """The kernel has learned names and opens with the earlier rights. ESTALE ends these."""
    places = Places(tmp_path)
    sub = places.source / "sub"
    sub.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", sub], check=True)
    (sub / "f").write_bytes(b"first")
    shown = places.path / "sub" / "f"

    def remount(options: str) -> subprocess.CompletedProcess[bytes]:
        words = ["mount", "-o", f"remount,bind,{options}", sub]
        return subprocess.run(words, check=False)

    remount("ro").check_returncode()
    operations = efuse.Passthrough(
        places.source, consistency=consistency, entry_timeout=3600, attr_timeout=3600
    )
    try:
        with efuse.mount(operations, places.path, required=True):

            def is_refused() -> bool:
                for _ in range(3):
                    assert shown.read_bytes() == (sub / "f").read_bytes()
                    with pytest.raises(OSError, match=r"Read-only|Stale"):
                        shown.write_bytes(b"refused")
                return True

            assert is_refused()
            remount("rw").check_returncode()
            for number in range(3):
                shown.write_bytes(b"%d" % number)
                assert (sub / "f").read_bytes() == shown.read_bytes() == b"%d" % number
            while remount("ro").returncode:  # Files that the kernel may have open are open below.
                Path("/proc/sys/vm/drop_caches").write_text("2")
            assert is_refused()
    finally:
        subprocess.run(["umount", "--lazy", sub], check=True)
        operations.close()
