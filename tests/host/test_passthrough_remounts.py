# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pass-through of mounts that become read-only or writable while their files are in use."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import efuse
from efuse.fs.passthrough.inodes import Found, Inodes, Node
from tests.descriptors import no_descriptor_left
from tests.host.mounting import bind, remount

SHORT = {"entry_timeout": 0.0, "attr_timeout": 0.0}
LONG = {"entry_timeout": 60.0, "attr_timeout": 60.0}


def _serve(served: Any, source: Path, **arguments: Any) -> Path:
    path: Path = served(arguments={"source": str(source), "descriptors": 32, **arguments}).path
    return path


@pytest.fixture
def table(source: Path) -> Iterator[Inodes]:
    made = Inodes(str(source), 32)
    yield made
    made.close()


def _look_up(table: Inodes, source: Path, *names: str) -> Node:
    """Look up the path of *names* below *source*, like LOOKUPs do, and return its last node."""
    node = table.root
    for number, name in enumerate(names, 1):
        path = source.joinpath(*names[:number])
        node, _ = table.adopt(node, name.encode(), os.open(path, os.O_PATH | os.O_NOFOLLOW))
        node.lookups += 1
    return node


def _two_names(
    source: Path, mount: Callable[..., None], *, one: str = "", two: str = "", data: bytes = b"-"
) -> None:
    """Make the directory ``below`` with the file ``f``, and bind it to ``one`` and ``two``."""
    for name in ("below", "one", "two"):
        (source / name).mkdir()
    (source / "below" / "f").write_bytes(data)
    bind(mount, source / "below", source / "one", one)
    bind(mount, source / "below", source / "two", two)


def _is_read_only(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return True
    return False


@pytest.mark.parametrize("consistency", ["ttl", "exclusive"])
@pytest.mark.parametrize("to", ["rw", "ro"])
def test_file_stays_one_inode_when_its_only_mount_is_remounted(
    served: Any, source: Path, mount: Callable[..., None], to: str, consistency: str
) -> None:
    sub = source / "sub"
    sub.mkdir()
    mount("-t", "tmpfs", "tmpfs", sub)
    (sub / "f").write_bytes(b"before")
    if to == "rw":
        remount(sub, "ro")
    path = _serve(served, source, consistency=consistency, **LONG)
    with (path / "sub" / "f").open("rb", buffering=0) as held:
        assert held.read() == b"before"
        number = os.fstat(held.fileno()).st_ino
        remount(sub, to)
        if to == "rw":
            (path / "sub" / "f").write_bytes(b"behind it")
            assert os.pread(held.fileno(), 20, 0) == b"behind it"
            assert (sub / "f").read_bytes() == b"behind it"
        else:
            with pytest.raises(OSError, match="Read-only") as failure:
                (path / "sub" / "f").write_bytes(b"refused")
            assert failure.value.errno == errno.EROFS
        fcntl.flock(held, fcntl.LOCK_EX)
        with (path / "sub" / "f").open("rb") as again:
            assert os.fstat(again.fileno()).st_ino == number
            with pytest.raises(BlockingIOError):
                fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("rounds", [1, 3])
def test_node_is_found_after_many_remounts(
    table: Inodes, source: Path, mount: Callable[..., None], rounds: int
) -> None:
    sub = source / "sub"
    sub.mkdir()
    mount("-t", "tmpfs", "tmpfs", sub)
    (sub / "f").touch()
    node = _look_up(table, source, "sub", "f")
    for _ in range(rounds):
        for options in ("ro", "rw"):
            remount(sub, options)
            assert table.node(node.nodeid) is node
            table.check_writable(node)
            assert _look_up(table, source, "sub", "f") is node


@pytest.mark.parametrize("times", [SHORT, LONG], ids=["no time", "long"])
def test_file_in_use_on_another_mount_stays_one_inode_when_a_mount_becomes_read_only(
    served: Any,
    source: Path,
    mount: Callable[..., None],
    eventually: Callable[..., Any],
    times: dict[str, float],
) -> None:
    """The file was found on the mount that changes, so it is open by a descriptor there."""
    _two_names(source, mount, data=b"-" * 40)
    path = _serve(served, source, **times)
    (path / "two" / "f").stat()
    with (path / "one" / "f").open("rb", buffering=0) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with mmap.mmap(held.fileno(), 40, prot=mmap.PROT_READ) as shown:
            assert shown[:4] == b"----"
            remount(source / "two", "ro")
            with (path / "one" / "f").open("r+b", buffering=0) as file:
                with pytest.raises(BlockingIOError):
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with mmap.mmap(file.fileno(), 40) as stored:
                    stored[:4] = b"AAAA"
                    assert shown[:8] == b"AAAA----"
                    stored.flush()
        # The daemon tells the kernel to look the name up again, but does not wait for that.
        eventually(lambda: _is_read_only(path / "two" / "f"), what="the rights of the mount")
        assert not _is_read_only(path / "one" / "f")
    assert (source / "below" / "f").read_bytes() == b"AAAA" + b"-" * 36


@pytest.mark.parametrize("times", [SHORT, LONG], ids=["no time", "long"])
def test_file_in_use_on_another_mount_stays_one_inode_when_a_mount_becomes_writable(
    served: Any, source: Path, mount: Callable[..., None], times: dict[str, float]
) -> None:
    _two_names(source, mount, one="ro", two="ro", data=b"data")
    path = _serve(served, source, **times)
    (path / "two" / "f").stat()
    with (path / "one" / "f").open("rb", buffering=0) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        remount(source / "two", "rw")
        (path / "two" / "f").write_bytes(b"written")
        again = os.open(path / "one" / "f", os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(again)
        with pytest.raises(OSError, match="Read-only"):
            (path / "one" / "f").write_bytes(b"refused")
    assert (source / "below" / "f").read_bytes() == b"written"


def test_hard_links_of_an_overlay_keep_their_nodes_after_a_remount(
    table: Inodes, place: Path, source: Path, mount: Callable[..., None]
) -> None:
    """Both links have one inode number until one of them is changed."""
    base, both = place / "base", source / "both"
    for directory in (base, both):
        directory.mkdir()
    mount("-t", "tmpfs", "tmpfs", base)
    for name in ("below", "above", "work"):
        (base / name).mkdir()
    (base / "below" / "a").write_bytes(b"lower")
    os.link(base / "below" / "a", base / "below" / "b")
    layers = f"lowerdir={base}/below,upperdir={base}/above,workdir={base}/work,index=off"
    mount("-t", "overlay", "-o", layers, "overlay", both)
    nodes = {name: _look_up(table, source, "both", name) for name in "ab"}
    assert nodes["a"] is not nodes["b"]
    for options in ("ro", "rw"):
        remount(both, options)
        table.node(1)
        for name, node in nodes.items():
            table.check_writable(node)
            assert _look_up(table, source, "both", name) is node
    (both / "b").write_bytes(b"changed")
    os.link(both / "b", both / "c")
    assert _look_up(table, source, "both", "c") is nodes["b"]
    assert _look_up(table, source, "both", "a") is nodes["a"]


def test_file_in_use_is_not_outdated_if_no_descriptor_is_left_after_a_remount(
    table: Inodes, source: Path, mount: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request fails, and the next one follows the mount."""
    _two_names(source, mount)
    node = _look_up(table, source, "two", "f")
    fd = os.open(source / "one" / "f", os.O_RDWR)
    table.opened(node, fd)
    remount(source / "two", "ro")
    open_file = os.open

    def fails(path: Any, *arguments: Any, **more: Any) -> int:
        if path == b"/proc/self/fd/%d" % fd:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_file(path, *arguments, **more)

    monkeypatch.setattr(os, "open", fails)
    with pytest.raises(OSError, match="Too many open files"):
        table.node(node.nodeid)
    monkeypatch.undo()
    assert table.node(node.nodeid) is node
    table.check_writable(node)
    assert _look_up(table, source, "one", "f") is node
    table.closed(node, fd)
    os.close(fd)


@pytest.mark.parametrize("names", [("one", "three"), ("three", "one")])
def test_file_goes_on_by_a_name_on_a_writable_mount_if_another_name_fails(
    table: Inodes,
    source: Path,
    mount: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, str],
) -> None:
    _two_names(source, mount)
    (source / "three").mkdir()
    bind(mount, source / "below", source / "three", "")
    node = _look_up(table, source, "two", "f")
    for name in names:
        assert _look_up(table, source, name, "f") is node
    rights = node.key[2]
    remount(source / "two", "ro")
    open_file = os.open

    def fails(path: Any, *arguments: Any, dir_fd: int | None = None, **more: Any) -> int:
        if path == b"f" and os.readlink(f"/proc/self/fd/{dir_fd}") == str(source / "one"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return open_file(path, *arguments, dir_fd=dir_fd, **more)

    monkeypatch.setattr(os, "open", fails)
    assert table.node(node.nodeid) is node
    monkeypatch.undo()
    assert node.key[2] == rights
    assert node.mount is _look_up(table, source, "three").mount
    for name in names:
        assert _look_up(table, source, name, "f") is node
    table.check_writable(node)
    assert _look_up(table, source, "two", "f") is not node


def test_file_in_use_follows_a_remount_although_callers_have_taken_all_descriptors(
    source: Path, mount: Callable[..., None]
) -> None:
    """Nodes that were not used lately are put aside. Otherwise all requests would fail."""
    _two_names(source, mount)
    with contextlib.closing(Inodes(str(source), 200)) as table:
        node = _look_up(table, source, "two", "f")
        for number in range(100):
            (source / f"{number}").touch()
            _look_up(table, source, f"{number}")
        fd = os.open(source / "one" / "f", os.O_RDWR)
        table.opened(node, fd)
        rights = node.key[2]
        remount(source / "two", "ro")
        with no_descriptor_left():
            assert table.node(node.nodeid) is node
            assert node.key[2] == rights
            table.check_writable(node)
            assert os.fstat(table.fd(node)).st_ino == os.fstat(fd).st_ino
        assert table.descriptors >= 32
        assert _look_up(table, source, "one", "f") is node
        table.closed(node, fd)
        os.close(fd)


def test_grants_are_void_after_some_files_followed_a_mount_and_the_next_one_could_not(
    table: Inodes, source: Path, mount: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In exclusive the kernel would open the first file with the rights that it had."""
    _two_names(source, mount)
    (source / "below" / "first").touch()
    first = _look_up(table, source, "two", "first")
    rights = first.key[2]
    node = _look_up(table, source, "two", "f")
    fd = os.open(source / "one" / "f", os.O_RDWR)
    table.opened(node, fd)
    voided: list[int] = []
    table.changed = lambda: voided.append(first.key[2])
    remount(source / "two", "ro")
    open_file = os.open

    def fails(path: Any, *arguments: Any, **more: Any) -> int:
        if path == b"/proc/self/fd/%d" % fd:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return open_file(path, *arguments, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fails)
        with pytest.raises(OSError, match="Too many open files"):
            table.node(node.nodeid)
    assert voided
    assert voided[-1] == first.key[2] != rights
    table.node(node.nodeid)
    assert len(voided) == 2
    table.closed(node, fd)
    os.close(fd)


def test_node_does_not_become_another_file_with_the_same_inode_number(
    table: Inodes, source: Path, mount: Callable[..., None]
) -> None:
    """The node was put aside, so another file may have its name and its inode number now."""
    _two_names(source, mount)
    node = _look_up(table, source, "one", "f")
    assert _look_up(table, source, "two", "f") is node
    with Found(table.mounts, os.open(source / "two" / "f", os.O_PATH)) as found:
        assert found.mount is _look_up(table, source, "two").mount
        table._exchange(node, found)
    os.close(node.fd)
    table._open.pop(node)
    node.fd, node.handle = -1, b"the handle of an inode that has gone"
    remount(source / "two", "ro")
    table.node(node.nodeid)
    assert node.fd < 0
    assert _look_up(table, source, "one", "f") is not node


def test_remount_is_applied_to_nodes_before_the_next_lookup(
    table: Inodes, source: Path, mount: Callable[..., None]
) -> None:
    """A lookup that first finds another mount reads the table of mounts again."""
    sub, other = source / "sub", source / "other"
    for directory in (sub, other):
        directory.mkdir()
    mount("-t", "tmpfs", "tmpfs", sub)
    (sub / "f").touch()
    remount(sub, "ro")
    node = _look_up(table, source, "sub", "f")
    remount(sub, "rw")
    mount("-t", "tmpfs", "tmpfs", other)
    _look_up(table, source, "other")
    assert _look_up(table, source, "sub", "f") is node
    assert table.node(node.nodeid) is node
    table.check_writable(node)


def test_remount_is_noticed_by_each_process_with_the_table(
    table: Inodes, source: Path, mount: Callable[..., None]
) -> None:
    """The kernel reports a change once to each open mountinfo, which a child would inherit."""
    _two_names(source, mount, two="ro")
    node = _look_up(table, source, "one", "f")
    changed, checked = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        found = 1
        try:
            os.read(changed[0], 1)
            table.node(1)
            found = 0 if _look_up(table, source, "two", "f") is node else 2
        finally:
            os.write(checked[1], b"x")
            os._exit(found)
    try:
        # The parent reads the table before the child does.
        remount(source / "two", "rw")
        assert _look_up(table, source, "two", "f") is node
        os.write(changed[1], b"x")
        os.read(checked[0], 1)
    finally:
        _, status = os.waitpid(child, 0)
        for fd in (*changed, *checked):
            os.close(fd)
    assert os.waitstatus_to_exitcode(status) == 0


def test_stores_by_two_names_are_kept_in_both_mounts_of_one_object(
    place: Path, source: Path, mount: Callable[..., None]
) -> None:
    """Two inodes would each write back the whole page, and overwrite the change of the other."""
    _two_names(source, mount, two="ro", data=b"-" * 40)
    operations = efuse.Passthrough(source, descriptors=32, **SHORT)
    places = [place / "first", place / "second"]
    with contextlib.ExitStack() as mounted:
        for path in places:
            path.mkdir()
            mounted.enter_context(efuse.mount(operations, path))
            for name in ("one", "two"):
                (path / name / "f").stat()
        remount(source / "two", "rw")
        expected = b"-" * 40
        for number, path in enumerate(places):
            with (
                (path / "one" / "f").open("r+b", buffering=0) as one,
                (path / "two" / "f").open("r+b", buffering=0) as two,
                mmap.mmap(one.fileno(), 40) as here,
                mmap.mmap(two.fileno(), 40) as there,
            ):
                assert here[:] == there[:] == expected
                here[number * 8 : number * 8 + 4] = b"AAAA"
                there[number * 8 + 4 : number * 8 + 8] = b"BBBB"
                here.flush()
                there.flush()
            expected = b"AAAABBBB" * (number + 1) + b"-" * (32 - 8 * number)
            assert (source / "below" / "f").read_bytes() == expected
    operations.close()


def test_file_on_a_new_mount_stays_one_node_if_other_mounts_change_amid_its_lookup(
    source: Path, tmp_path: Path, mount: Callable[..., None]
) -> None:
    """The search for the names of another file meets the new mount, before it has a node."""
    (source / "a").write_bytes(b"a")
    os.link(source / "a", source / "b")
    other = tmp_path / "other"
    other.write_bytes(b"other")
    bind(mount, source, source)
    made = Inodes(str(source), 32)
    try:
        _look_up(made, source, "a")
        _look_up(made, source, "b")
        bind(mount, other, source / "b", "ro")
        remount(source, "ro")
        node, _ = made.adopt(made.root, b"b", os.open(source / "b", os.O_PATH | os.O_NOFOLLOW))
        node.lookups += 1
        remount(source / "b", "rw")
        assert _look_up(made, source, "b") is node
    finally:
        made.close()
