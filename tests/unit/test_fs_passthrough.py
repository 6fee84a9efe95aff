# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pass-through's tables, without a mount."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from efuse.fs.passthrough import inodes as inodes_module
from efuse.fs.passthrough import mounts as mounts_module
from efuse.fs.passthrough.credentials import Credentials
from efuse.fs.passthrough.handles import Files, Streams
from efuse.fs.passthrough.inodes import Inodes, Node
from efuse.fs.passthrough.syscalls import Status, getdents, status
from efuse.fs.passthrough.watches import Watches


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Inodes]:
    made = Inodes(str(tmp_path), 32)
    yield made
    made.close()


def _find(table: Inodes, name: bytes, parent: Node | None = None) -> Node:
    parent = parent or table.root
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=table.fd(parent))
    return table.adopt(parent, name, fd)[0]


def _known(table: Inodes, name: bytes) -> Node | None:
    fd = os.open(name, os.O_PATH | os.O_NOFOLLOW, dir_fd=table.fd(table.root))
    return table.known(table.root, name, fd)


def _open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_inode_has_the_lower_number_and_one_node_for_all_names(
    table: Inodes, tmp_path: Path
) -> None:
    (tmp_path / "a").touch()
    os.link(tmp_path / "a", tmp_path / "b")
    a, b = _find(table, b"a"), _find(table, b"b")
    assert a is b
    assert a.nodeid == (tmp_path / "a").stat().st_ino
    assert a.kind == stat.S_IFREG


def test_root_is_number_one_and_never_forgotten(table: Inodes) -> None:
    assert table.node(1) is table.root
    assert table.forget(1, 1) is None
    assert table.node(1) is table.root


def test_inode_is_dropped_with_its_last_lookup(table: Inodes, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    before = _open_descriptors()
    node = _find(table, b"a")
    node.lookups = 3
    assert table.forget(node.nodeid, 2) is None
    assert table.lookups == {node.nodeid: 1}
    assert table.forget(node.nodeid, 1) is node
    assert table.lookups == {}
    assert _open_descriptors() == before
    with pytest.raises(KeyError):
        table.node(node.nodeid)


def test_forgetting_too_much_is_logged(
    table: Inodes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a").touch()
    node = _find(table, b"a")
    node.lookups = 1
    assert table.forget(node.nodeid, 2) is node
    assert table.forget(12345, 1) is None
    assert [r.levelname for r in caplog.records] == ["ERROR", "ERROR"]


@pytest.mark.parametrize("file_handles", [True, False])
def test_inodes_put_aside_are_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_handles: bool
) -> None:
    if not file_handles:
        monkeypatch.setattr(inodes_module, "file_handle", lambda fd: None)
    table = Inodes(str(tmp_path), 32)
    (tmp_path / "d").mkdir()
    directory = _find(table, b"d")
    nodes = []
    for n in range(200):
        (tmp_path / f"d/{n}").write_text(f"{n}")
        nodes.append(_find(table, b"%d" % n, directory))
        nodes[-1].lookups = 1
    assert table.descriptors <= 34
    for n, node in enumerate(nodes):
        path = f"/proc/self/fd/{table.fd(table.node(node.nodeid))}"
        assert Path(path).read_text() == f"{n}"
    table.close()


@pytest.mark.parametrize("file_handles", [True, False])
def test_inode_put_aside_and_removed_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_handles: bool
) -> None:
    if not file_handles:
        monkeypatch.setattr(inodes_module, "file_handle", lambda fd: None)
    table = Inodes(str(tmp_path), 32)
    (tmp_path / "first").touch()
    first = _find(table, b"first")
    for n in range(100):
        (tmp_path / f"{n}").touch()
        _find(table, b"%d" % n)
    assert first.fd == -1
    (tmp_path / "first").unlink()
    with pytest.raises(OSError, match="Stale"):
        table.fd(first)
    table.close()


def test_number_used_again_below_is_another_node(table: Inodes, tmp_path: Path) -> None:
    (tmp_path / "old").touch()
    old = _find(table, b"old")
    # As if its descriptor had been closed to save descriptors, and its number given to a new file.
    os.close(old.fd)
    table._open.pop(old)
    old.fd = -1
    old.handle = b"the handle of an inode that has gone"
    new = _find(table, b"old")
    assert new is not old
    assert new.nodeid != old.nodeid
    assert new.generation != old.generation
    assert table.node(old.nodeid) is old
    assert table.forget(old.nodeid, 0) is old
    assert _known(table, b"old") is new


def test_pinned_inode_keeps_its_descriptor(table: Inodes, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("kept")
    node = _find(table, b"a")
    table.pin(node)
    (tmp_path / "a").unlink()
    table.unpin(node, lost=(table.root, b"a"))
    for n in range(100):
        (tmp_path / f"{n}").touch()
        _find(table, b"%d" % n)
    assert Path(f"/proc/self/fd/{table.fd(node)}").read_text() == "kept"


def test_held_descriptor_stays_open_until_the_block_ends_although_its_node_is_put_aside(
    table: Inodes, tmp_path: Path
) -> None:
    (tmp_path / "first").write_bytes(b"first")
    first = _find(table, b"first")
    before = _open_descriptors()
    with pytest.raises(KeyError), table.held(first) as fd:
        for n in range(40):
            (tmp_path / f"{n}").touch()
            _find(table, b"%d" % n).lookups = 1
        assert first.fd == -1
        assert Path(f"/proc/self/fd/{fd}").read_bytes() == b"first"
        for n in range(40):
            table.forget((tmp_path / f"{n}").stat().st_ino, 1)
        raise KeyError
    assert _open_descriptors() == before - 1


def test_held_descriptor_fails_with_estale_if_the_inode_is_gone(
    table: Inodes, tmp_path: Path
) -> None:
    node = table.lost(table.root, b"gone", stat.S_IFREG)
    before = _open_descriptors()
    with pytest.raises(OSError, match="Stale") as caught, table.held(node):
        pass
    assert caught.value.errno == errno.ESTALE
    assert _open_descriptors() == before


def test_descriptors_that_must_stay_open_are_counted(table: Inodes, tmp_path: Path) -> None:
    assert table.descriptors == 1
    before = _open_descriptors()
    for number in range(3):
        (tmp_path / f"{number}").touch()
        _find(table, b"%d" % number)
    table.pin(_find(table, b"0"))
    assert table.descriptors == 1 + _open_descriptors() - before == 4
    table.forget(_find(table, b"1").nodeid, 0)
    assert table.descriptors == 3


@pytest.mark.parametrize("file_handles", [True, False])
def test_inode_that_lost_one_of_two_names_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_handles: bool
) -> None:
    if not file_handles:
        monkeypatch.setattr(inodes_module, "file_handle", lambda fd: None)
    table = Inodes(str(tmp_path), 32)
    nodes = []
    for n in range(60):
        (tmp_path / f"{n}").write_text(f"{n}")
        os.link(tmp_path / f"{n}", tmp_path / f"other{n}")
        nodes.append(_find(table, b"%d" % n))
        table.pin(nodes[-1])
        (tmp_path / f"{n}").unlink()
        table.unpin(nodes[-1], lost=(table.root, b"%d" % n))
    for n in range(100):
        (tmp_path / f"x{n}").touch()
        _find(table, b"x%d" % n)
    assert (nodes[0].fd == -1) == file_handles
    for n, node in enumerate(nodes):
        assert Path(f"/proc/self/fd/{table.fd(node)}").read_text() == f"{n}"
    table.close()


def test_handles_are_never_inode_numbers(table: Inodes, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    files, streams = Files(table, 8), Streams(table, 8)
    node = _find(table, b"a")
    handle = files.add(os.open(tmp_path / "a", os.O_RDONLY))
    stream = streams.add(streams.open(table.root))
    for number in (handle, stream):
        assert number >= 1 << 63
        with pytest.raises(KeyError):
            table.node(number)
    assert files.opened(node.nodeid) is None
    files.close()
    streams.close()


def test_entry_that_is_skipped_leaves_the_position(table: Inodes, tmp_path: Path) -> None:
    """The reader continues at the last position that it was given."""
    for name in "abc":
        (tmp_path / name).touch()
    streams = Streams(table, 8)
    stream = streams.take(table.root.nodeid, 0)
    told = stream.peek()
    assert told is not None
    stream.advance()
    while stream.peek() is not None:
        stream.skip()
    assert stream.position == told[0]
    streams.put(table.root.nodeid, stream, ended=False)
    assert streams.take(table.root.nodeid, told[0]) is stream
    assert stream.peek() is None
    streams.put(table.root.nodeid, stream, ended=True)


@pytest.mark.parametrize(
    ("kind", "kept"),
    [(0xEF53, False), (0x01021994, False), (0x794C7630, True), (0x65735546, True)],
)
def test_directory_handle_is_kept_on_file_systems_without_lasting_positions(
    table: Inodes, monkeypatch: pytest.MonkeyPatch, kind: int, kept: bool
) -> None:
    """If a handle has its two highest bits set, the kernel does not open the directory itself."""
    monkeypatch.setattr(table.root.mount, "kind", kind)
    streams = Streams(table, 8)
    for _ in range(2):
        handle = streams.add(streams.open(table.root))
        assert handle >> 62 == (3 if kept else 2)
    streams.close()


@pytest.mark.parametrize("left", [1, 3])
def test_listing_of_tmpfs_ends_where_no_entry_is_left_to_come(left: int) -> None:
    """A listing of tmpfs itself would start again. Streams seek because the kernel opened it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        for number in range(8):
            Path(name, f"{number}").touch()
        table = Inodes(name, 100)
        streams = Streams(table, 8)
        stream = streams.take(table.root.nodeid, 0)
        assert stream.kind == 0x01021994
        told, position = [], 0
        while len(told) < left and (entry := stream.peek()) is not None:
            stream.advance()
            position = entry[0]
            told += [os.fsdecode(entry[2])] if entry[2] not in (b".", b"..") else []
        streams.put(table.root.nodeid, stream, ended=True)
        for other in set(os.listdir(name)) - set(told):
            Path(name, other).unlink()
        again = streams.take(table.root.nodeid, position)
        assert again.peek() is None
        streams.put(table.root.nodeid, again, ended=True)
        streams.close()
        table.close()


def test_file_that_the_kernel_opened_is_read_and_written(table: Inodes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    node = _find(table, b"a")
    files = Files(table, 8)
    before = _open_descriptors()
    assert os.pread(files.get(node.nodeid), 10, 0) == b"abc"
    assert os.pwrite(files.get(node.nodeid, write=True), b"X", 1) == 1
    assert os.pread(files.get(node.nodeid), 10, 0) == b"aXc"
    assert _open_descriptors() == before + 2
    files.forget(node.nodeid)
    assert _open_descriptors() == before


def test_files_that_the_kernel_opened_are_bounded(table: Inodes, tmp_path: Path) -> None:
    files = Files(table, 8)
    nodes = []
    for n in range(30):
        (tmp_path / f"{n}").write_bytes(b"%d" % n)
        nodes.append(_find(table, b"%d" % n))
    before = _open_descriptors()
    for _ in range(2):
        for n, node in enumerate(nodes):
            assert os.pread(files.get(node.nodeid), 10, 0) == b"%d" % n
    assert _open_descriptors() == before + 8
    files.close()


def test_unlinked_file_that_the_kernel_opened_stays_readable(table: Inodes, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    node = _find(table, b"a")
    table.pin(node)
    (tmp_path / "a").unlink()
    table.unpin(node, lost=(table.root, b"a"))
    files = Files(table, 8)
    assert os.pread(files.get(node.nodeid), 10, 0) == b"abc"
    files.close()


def test_release_closes_a_file_once(table: Inodes, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    files = Files(table, 8)
    before = _open_descriptors()
    handle = files.add(os.open(tmp_path / "a", os.O_RDONLY))
    files.release(handle)
    files.release(handle)
    assert _open_descriptors() == before
    with pytest.raises(KeyError):
        files.get(handle)


def _names(streams: Streams, handle: int, position: int, count: int) -> tuple[list[bytes], int]:
    stream = streams.take(handle, position)
    names = []
    while len(names) < count and (entry := stream.peek()) is not None:
        names.append(entry[2])
        stream.advance()
    streams.put(handle, stream, ended=stream.position == position)
    return names, stream.position


def test_two_readers_of_a_directory_that_the_kernel_opened_do_not_mix(
    table: Inodes, tmp_path: Path
) -> None:
    expected = {b".", b".."}
    for n in range(100):
        (tmp_path / f"{n}").touch()
        expected.add(b"%d" % n)
    streams = Streams(table, 8)
    found: dict[str, list[bytes]] = {"one": [], "two": []}
    position = dict.fromkeys(found, 0)
    for step in range(60):
        for who, count in (("one", 3), ("two", 5)):
            names, position[who] = _names(streams, 1, position[who], count + step % 2)
            found[who] += names
    for names in found.values():
        assert len(names) == len(expected)
        assert set(names) == expected
    streams.close()


def test_streams_that_are_not_read_to_the_end_are_bounded(table: Inodes, tmp_path: Path) -> None:
    for n in range(40):
        (tmp_path / f"{n}").touch()
    streams = Streams(table, 8)
    before = _open_descriptors()
    position = 0
    for _ in range(30):
        _, position = _names(streams, 1, position, 1)
        _names(streams, 1, 0, 1)
    assert _open_descriptors() <= before + 8
    streams.forget(1)
    assert _open_descriptors() == before


def test_directory_entries_carry_type_and_name(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / ("n" * 255)).touch()
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    entries: dict[bytes, int] = {name: kind for _, kind, name, _ in getdents(fd)}
    assert getdents(fd) == []
    os.close(fd)
    assert entries == {b".": 4, b"..": 4, b"d": 4, b"n" * 255: 8}


def test_node_put_aside_is_found_after_a_rename_above_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inodes_module, "file_handle", lambda fd: None)
    table = Inodes(str(tmp_path), 32)
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "a/b/f").write_text("found")
    a = _find(table, b"a")
    b = _find(table, b"b", a)
    f = _find(table, b"f", b)
    for n in range(100):
        (tmp_path / f"{n}").touch()
        _find(table, b"%d" % n)
    assert (a.fd, b.fd, f.fd) == (-1, -1, -1)
    os.rename(tmp_path / "a", tmp_path / "c")
    a.name = b"c"
    assert Path(f"/proc/self/fd/{table.fd(f)}").read_text() == "found"
    table.close()


class _Context:
    """The context of a caller that no longer exists, and so has no supplementary groups."""

    uid, gid, pid, umask = 41001, 41002, 0, 0


def test_credentials_of_the_caller_are_used_only_within_the_block(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    directory = os.open(tmp_path, os.O_PATH)  # other users cannot reach it by its path

    def owner(name: str) -> tuple[int, int]:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=directory))
        st = os.stat(name, dir_fd=directory)
        return st.st_uid, st.st_gid

    context: Any = _Context()
    credentials = Credentials()
    credentials.checked_by_kernel = True
    own = (os.geteuid(), os.getegid())
    caller = (41001, 41002) if own[0] == 0 else own  # without root the identity cannot change
    assert owner("before") == own
    with credentials.of(context):
        assert owner("caller") == caller
        with credentials.of_daemon():
            assert owner("daemon") == own
        assert owner("again") == caller
    assert owner("behind") == own
    with credentials.of_daemon():
        assert owner("itself") == own
    with pytest.raises(KeyError), credentials.of(context):
        raise KeyError
    assert owner("at last") == own
    os.close(directory)


def test_inode_has_one_watch_and_no_other_gets_its_number(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "b").symlink_to("a")
    os.mkfifo(tmp_path / "c")
    os.link(tmp_path / "a", tmp_path / "other")
    before = _open_descriptors()
    fds = [os.open(tmp_path / name, os.O_PATH | os.O_NOFOLLOW) for name in ("a", "b", "c", "other")]
    watches = Watches()
    a, b, c, other = (watches.add(fd) for fd in fds)
    assert a == other
    assert len({a, b, c}) == 3
    watches.remove(a)
    watches.remove(a)  # as if the inode no longer existed
    assert watches.add(fds[0]) not in (a, b, c)
    watches.close()
    for fd in fds:
        os.close(fd)
    assert _open_descriptors() == before


@pytest.fixture
def may_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat the lower file system like an overlayfs, whose changes can separate hard links."""
    monkeypatch.setattr(inodes_module, "parts_hard_links", lambda kind: True)
    monkeypatch.setattr(mounts_module, "is_local", lambda kind: False)


@pytest.mark.usefixtures("may_part")
def test_hard_links_that_a_copy_up_separates_have_two_nodes(
    table: Inodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """overlayfs copies up the file that is changed; until then both have the same inode number."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(inodes_module, "status", lambda fd, **_: _numbered(status(fd), 7, 2))
    a, b = _find(table, b"a"), _find(table, b"b")
    assert a is not b
    assert _find(table, b"a") is a
    assert _known(table, b"b") is b
    # Copied up: another inode number, and no other name.
    monkeypatch.setattr(inodes_module, "status", lambda fd, **_: _numbered(status(fd), 8, 1))
    assert _find(table, b"a") is a
    (tmp_path / "a").rename(tmp_path / "c")
    table.renamed(a, (table.root, b"a"), (table.root, b"c"))
    assert _find(table, b"c") is a


@pytest.mark.usefixtures("may_part")
@pytest.mark.parametrize("watches", [4096, 1, 0])
def test_names_of_one_inode_have_one_node_on_overlayfs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watches: int
) -> None:
    """Links are made before the first lookup, after it, and by the kernel; lookups in any order."""
    monkeypatch.setattr(inodes_module, "_MOST_WATCHES", watches)
    table = Inodes(str(tmp_path), 32)
    (tmp_path / "a").touch()
    a = _find(table, b"a")
    os.link(tmp_path / "a", tmp_path / "b")
    assert _find(table, b"b") is a
    assert _find(table, b"a") is a
    os.link(tmp_path / "b", tmp_path / "c")
    table.linked(a, table.root, b"c")
    for name in (b"a", b"b", b"c", b"a"):
        assert _find(table, name) is _known(table, name) is a
    for lost in ("c", "a"):
        table.pin(a)
        (tmp_path / lost).unlink()
        table.unpin(a, lost=(table.root, os.fsencode(lost)))
        assert _find(table, b"b") is a
    table.close()


def _one_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Make the files ``a`` and ``b``, which have one inode number, and return it by the real ones.

    A test changes the number of a file there.
    """
    for name in ("a", "b"):
        (tmp_path / name).touch()
    number = {(tmp_path / name).stat().st_ino: 7 for name in ("a", "b")}

    def renumbered(fd: int, *, fresh: bool = False) -> Status:
        found = status(fd)
        return _numbered(found, number.get(found.inode, found.inode), 2)

    monkeypatch.setattr(inodes_module, "status", renumbered)
    return number


@pytest.mark.usefixtures("may_part")
def test_inode_with_a_changed_number_keeps_its_node_for_all_names(
    table: Inodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link is made below, which copies the file up, and the new name is looked up first."""
    number = _one_number(tmp_path, monkeypatch)
    a, b = _find(table, b"a"), _find(table, b"b")
    assert a is not b
    number[(tmp_path / "a").stat().st_ino] = 8
    os.link(tmp_path / "a", tmp_path / "c")
    assert _find(table, b"c") is a
    assert _find(table, b"a") is a
    assert _find(table, b"b") is b
    for node in (a, b):
        node.lookups = 1
        assert table.forget(node.nodeid, 1) is node
    assert not table._by_watch and not table._by_place
    assert _find(table, b"a") is _find(table, b"c")


@pytest.mark.usefixtures("may_part")
def test_files_that_a_copy_up_separated_both_follow_a_remount(
    table: Inodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No watch is left to tell them apart, so the new number of the changed file has to."""
    monkeypatch.setattr(inodes_module, "_MOST_WATCHES", 0)
    number = _one_number(tmp_path, monkeypatch)
    a, b = _find(table, b"a"), _find(table, b"b")
    assert a is not b
    number[(tmp_path / "a").stat().st_ino] = 8
    monkeypatch.setattr(table.mounts, "follow", lambda **_: None)
    table.mounts._note_rights(table.root.mount, mounts_module._READ_ONLY)
    for node in (a, b):
        assert table.node(node.nodeid) is node
        table.check_writable(node)
        assert node.key[1:] == (8 if node is a else 7, mounts_module._READ_ONLY)


@pytest.mark.usefixtures("may_part")
def test_names_of_an_inode_that_was_put_aside_have_one_node(tmp_path: Path) -> None:
    table = Inodes(str(tmp_path), 32)
    nodes = []
    for n in range(100):
        (tmp_path / f"{n}").touch()
        os.link(tmp_path / f"{n}", tmp_path / f"other{n}")
        nodes.append(_find(table, b"%d" % n))
    assert nodes[0].fd == -1
    assert len(table._by_watch) < 40
    for n, node in enumerate(nodes):
        assert _find(table, b"other%d" % n) is node
        assert _find(table, b"%d" % n) is node
    table.close()


@pytest.mark.usefixtures("may_part")
@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC, errno.EACCES])
def test_lookup_of_a_possible_hard_link_without_watches_fails(
    table: Inodes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    """To treat them as one inode or as two could both lose written data."""

    def refuse(self: object, fd: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Watches, "add", refuse)
    (tmp_path / "a").touch()
    os.link(tmp_path / "a", tmp_path / "b")
    a = _find(table, b"a")
    assert _find(table, b"a") is a
    with pytest.raises(OSError, match=os.strerror(number)):
        _find(table, b"b")
    assert "cannot be determined" in caplog.text
    (tmp_path / "b").unlink()
    assert _find(table, b"a") is a


@pytest.mark.usefixtures("may_part")
def test_table_on_overlayfs_without_watches_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, fd: int) -> int:
        raise OSError(errno.EMFILE, "none left")

    monkeypatch.setattr(Watches, "add", refuse)
    before = _open_descriptors()
    with pytest.raises(OSError, match="none left"):
        Inodes(str(tmp_path), 32)
    assert _open_descriptors() == before


@pytest.mark.usefixtures("may_part")
def test_watches_are_reused_if_the_user_has_none_left(
    table: Inodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Watches.add

    def add(self: Watches, fd: int) -> int:
        if len(table._by_watch) >= 3:
            raise OSError(errno.ENOSPC, "none left")
        return real(self, fd)

    monkeypatch.setattr(Watches, "add", add)
    nodes = []
    for n in range(10):
        (tmp_path / f"{n}").touch()
        os.link(tmp_path / f"{n}", tmp_path / f"other{n}")
        nodes.append(_find(table, b"%d" % n))
    for n, node in enumerate(nodes):
        assert _find(table, b"other%d" % n) is node


def _numbered(st: Status, ino: int, links: int) -> Status:
    """Return *st* with another inode number and link count, unless it is of a directory."""
    return st if stat.S_ISDIR(st.mode) else st._replace(inode=ino, links=links)


_FUSE, _NFS, _KAFS, _ORANGEFS = 0x65735546, 0x6969, 0x6B414653, 0x20030528


@pytest.mark.parametrize("name_is", ["gone", "of another file"])
def test_descriptor_that_follows_a_name_is_exchanged_for_a_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name_is: str
) -> None:
    """On bindfs a descriptor leads to the file that now has the name by which it was opened."""
    monkeypatch.setattr(mounts_module, "file_system_type", lambda fd: _FUSE)
    table = Inodes(str(tmp_path), 32)
    (tmp_path / "a").write_text("same")
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "other").touch()
    node = _find(table, b"a")
    table.linked(node, table.root, b"b")
    old = os.readlink(f"/proc/self/fd/{node.fd}")
    other = os.open(tmp_path / "other", os.O_PATH)

    def follows(fd: int, *, fresh: bool = False) -> Status:
        if not fresh or os.readlink(f"/proc/self/fd/{fd}") != old:
            return status(fd)
        if name_is == "gone":
            raise FileNotFoundError(errno.ENOENT, "gone")
        return status(other)

    monkeypatch.setattr(inodes_module, "status", follows)
    monkeypatch.setattr(inodes_module, "file_handle", lambda fd: None)
    assert _find(table, b"b") is node
    assert os.readlink(f"/proc/self/fd/{table.fd(node)}") == str(tmp_path / "b")
    os.close(other)
    table.close()


def test_mount_that_a_search_for_another_name_meets_stays_in_use_for_the_found_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FUSE mount has a file with the number of a known node, and a file with its name."""
    monkeypatch.setattr(mounts_module, "file_system_type", lambda fd: _FUSE)
    monkeypatch.setattr(inodes_module, "file_handle", lambda fd: None)
    table = Inodes(str(tmp_path), 32)
    for name in "ab":
        (tmp_path / name).write_text(name)
    old = _find(table, b"a")
    old_path, new_mount = f"/proc/self/fd/{old.fd}", old.mount.number + 1000

    def covered(fd: int, *, fresh: bool = False) -> Status:
        found = status(fd)
        if f"/proc/self/fd/{fd}" == old_path:
            return found._replace(inode=1) if fresh else found
        if not stat.S_ISREG(found.mode):
            return found
        is_b = os.readlink(f"/proc/self/fd/{fd}").endswith("/b")
        return found._replace(inode=old.key[1] if is_b else 2, mount=new_mount)

    monkeypatch.setattr(inodes_module, "status", covered)
    new = _find(table, b"b")
    assert new is not old
    assert new.mount.number == new_mount
    assert table.mounts.numbers == {old.mount.number, new_mount}
    new.lookups = 1
    table.forget(new.nodeid, 1)
    assert table.mounts.numbers == {old.mount.number}
    table.close()


@pytest.mark.parametrize("kind", [_FUSE, _NFS, _KAFS, _ORANGEFS])
def test_number_that_a_server_gives_again_is_another_node_although_the_old_one_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """The server does not know that an O_PATH descriptor is open."""
    monkeypatch.setattr(mounts_module, "file_system_type", lambda fd: kind)
    table = Inodes(str(tmp_path), 32)
    (tmp_path / "a").touch()
    old = _find(table, b"a")
    table.pin(old)
    (tmp_path / "a").unlink()
    table.unpin(old, lost=(table.root, b"a"))
    (tmp_path / "a").touch()

    def again(fd: int, *, fresh: bool = False) -> Status:
        found = status(fd)
        if fresh and not found.links:
            raise FileNotFoundError(errno.ENOENT, "gone")
        return found._replace(inode=old.key[1]) if stat.S_ISREG(found.mode) else found

    monkeypatch.setattr(inodes_module, "status", again)
    new = _find(table, b"a")
    assert new is not old
    assert new.nodeid != old.nodeid
    assert _find(table, b"a") is new
    table.close()


@pytest.mark.parametrize("kind", [0xEF53, _FUSE, _NFS])
def test_directory_and_file_of_one_number_are_two_nodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    monkeypatch.setattr(mounts_module, "file_system_type", lambda fd: kind)
    monkeypatch.setattr(inodes_module, "status", lambda fd, **_: status(fd)._replace(inode=1000))
    table = Inodes(str(tmp_path), 32)
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").touch()
    link, file = _find(table, b"a"), _find(table, b"b")
    assert (link.kind, file.kind) == (stat.S_IFLNK, stat.S_IFREG)
    table.close()


def test_kept_inodes_keep_their_descriptors_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without file handles an inode could not be opened again. It is kept until it is forgotten."""
    monkeypatch.setattr(inodes_module, "file_handle", lambda fd: None)
    table = Inodes(str(tmp_path), 32, kept=2)
    nodes = []
    for n in range(100):
        (tmp_path / f"{n}").touch()
        nodes.append(_find(table, b"%d" % n))
        if n < 3:
            table.keep(nodes[-1])
    assert [node.fd >= 0 for node in nodes[:3]] == [False, True, True]
    before = _open_descriptors()
    for node in nodes[1:3]:
        table.forget(node.nodeid, 0)
    assert _open_descriptors() == before - 2
    table.close()


def test_inode_whose_handle_does_not_last_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A FUSE daemon forgets nodeids, and its file handles consist of them."""
    monkeypatch.setattr(mounts_module, "file_system_type", lambda fd: _FUSE)

    def forgotten(*_: object) -> int:
        raise OSError(errno.ESTALE, "forgotten")

    monkeypatch.setattr(inodes_module, "open_by_handle", forgotten)
    table = Inodes(str(tmp_path), 32)
    nodes = []
    for n in range(100):
        (tmp_path / f"{n}").write_text(f"{n}")
        nodes.append(_find(table, b"%d" % n))
    assert nodes[0].fd == -1
    for n, node in enumerate(nodes):
        assert Path(f"/proc/self/fd/{table.fd(node)}").read_text() == f"{n}"
    table.close()
