# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pass-through of file systems whose inodes and names behave unlike those of a disk."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import random
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from efuse.fs.passthrough import inodes as table_of_inodes
from efuse.fs.passthrough.inodes import Found, Inodes, Node
from efuse.fs.passthrough.mounts import LowerMount
from efuse.fs.passthrough.syscalls import status

LONG = {"entry_timeout": 3600.0, "attr_timeout": 3600.0}
NO_TIME = {"entry_timeout": 0.0, "attr_timeout": 0.0}


def _run(*command: object) -> None:
    subprocess.run(list(map(str, command)), check=True)


@pytest.fixture
def lower(place: Path) -> Iterator[Callable[..., Path]]:
    """Mount a lower file system: ``lower("overlay", prepare)``.

    *prepare* is called before the mount, with the directory below it.
    """
    made: list[Path] = []

    def mount(kind: str, prepare: Callable[[Path], None] = lambda below: None) -> Path:
        base = place / f"{kind}{len(made)}"
        base.mkdir()
        _run("mount", "-t", "tmpfs", "tmpfs", base)
        made.append(base)
        for name in ("below", "above", "work", "both"):
            (base / name).mkdir()
        prepare(base / "below")
        if kind == "overlay":
            layers = f"lowerdir={base}/below,upperdir={base}/above,workdir={base}/work"
            options = f"{layers},index=off"
            _run("mount", "-t", "overlay", "-o", options, "overlay", base / "both")
        else:
            times = "entry_timeout=0,attr_timeout=0,negative_timeout=0"
            _run("bindfs", "-o", times, base / "below", base / "both")
        made.append(base / "both")
        return base / "both"

    yield mount
    for each in reversed(made):
        _run("umount", "--lazy", each)


@pytest.fixture
def overlay(lower: Callable[..., Path]) -> Path:
    return lower("overlay")


def _serve(served: Any, source: Path, **arguments: Any) -> Path:
    path: Path = served(arguments={**LONG, "source": str(source), **arguments}).path
    return path


@pytest.mark.parametrize("writeback", [False, True])
@pytest.mark.parametrize("linked", ["through the mount", "below"])
def test_writes_by_two_names_of_an_overlay_file_are_all_kept(
    served: Any, overlay: Path, writeback: bool, linked: str
) -> None:
    path = _serve(served, overlay, writeback=writeback, **NO_TIME)
    f, g = path / "f", path / "g"
    f.write_bytes(b"-" * 40)
    where = path if linked == "through the mount" else overlay
    os.link(where / "f", where / "g")
    assert f.stat().st_ino == g.stat().st_ino
    with f.open("r+b", buffering=0) as one, g.open("r+b", buffering=0) as other:
        fcntl.flock(one, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with mmap.mmap(one.fileno(), 40) as here, mmap.mmap(other.fileno(), 40) as there:
            here[0:4], there[4:8] = b"MAPf", b"MAPg"
            here.flush()
            there.flush()
        os.pwrite(one.fileno(), b"f" * 4, 8)
        os.pwrite(other.fileno(), b"g" * 4, 12)
        os.fsync(one.fileno())
        os.fsync(other.fileno())
    for _ in range(2):
        for name in (f, g):
            with name.open("ab") as file:
                file.write(name.name.encode() * 5)
                file.flush()
                os.fsync(file.fileno())
    expected = b"MAPfMAPgffffgggg" + b"-" * 24 + b"fffffggggg" * 2
    assert f.read_bytes() == g.read_bytes() == expected
    assert (overlay / "f").read_bytes() == expected


def test_hard_links_of_a_lower_layer_are_separated_by_a_change(
    served: Any, lower: Callable[..., Path]
) -> None:
    """Changes below the mount do so, too. Later names of a changed link lead to its new inode."""

    def prepare(below: Path) -> None:
        (below / "a").write_bytes(b"lower")
        for name in "bcd":
            os.link(below / "a", below / name)

    source = lower("overlay", prepare)
    path = _serve(served, source, **NO_TIME)
    numbers = {name: (path / name).stat().st_ino for name in "abcd"}
    assert len(set(numbers.values())) == 4
    held = os.open(path / "b", os.O_RDONLY)
    with (path / "a").open("r+b") as file:
        file.write(b"A")
    os.link(source / "b", source / "b2")  # copies b up; the next lookup is that of b2
    assert (path / "b2").stat().st_ino == numbers["b"] == os.fstat(held).st_ino
    os.link(path / "c", path / "c2")
    with (path / "b2").open("r+b") as file:
        file.write(b"B")
    with (path / "c").open("r+b") as file:
        file.write(b"C")
    read = {name: (path / name).read_bytes()[:1] for name in ("a", "b", "b2", "c", "c2", "d")}
    assert read == {"a": b"A", "b": b"B", "b2": b"B", "c": b"C", "c2": b"C", "d": b"l"}
    os.close(held)
    assert {name: (path / name).stat().st_ino for name in "abcd"} == numbers


def test_open_hard_link_renamed_below_is_the_same_file(
    served: Any, lower: Callable[..., Path]
) -> None:
    """It is copied up under its new name, with another inode number and no other name."""

    def prepare(below: Path) -> None:
        (below / "g").write_bytes(b"-" * 40)
        os.link(below / "g", below / "other")

    source = lower("overlay", prepare)
    path = _serve(served, source, **NO_TIME)
    with (path / "g").open("r+b", buffering=0) as one:
        fcntl.flock(one, fcntl.LOCK_EX)
        (source / "g").rename(source / "new")
        with (path / "new").open("r+b", buffering=0) as other:
            with pytest.raises(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with mmap.mmap(one.fileno(), 40) as here, mmap.mmap(other.fileno(), 40) as there:
                assert here[:] == there[:] == b"-" * 40
                here[:4], there[4:8] = b"AAAA", b"BBBB"
            for file in (one, other):
                os.fsync(file)
    assert (source / "new").read_bytes() == b"AAAABBBB" + b"-" * 32


@pytest.fixture
def inodes() -> Iterator[Callable[[Path], Inodes]]:
    """Make the `Inodes` of a directory, with few descriptors."""
    made: list[Inodes] = []

    def make(source: Path) -> Inodes:
        made.append(Inodes(str(source), 32))
        return made[-1]

    yield make
    for each in made:
        each.close()


def _looked_up(table: Inodes, source: Path, *names: str) -> Node:
    """Look up the path of *names* below *source*, like LOOKUPs do, and return its last node."""
    node = table.root
    for number, name in enumerate(names, 1):
        path = source.joinpath(*names[:number])
        node, _ = table.adopt(node, name.encode(), os.open(path, os.O_PATH | os.O_NOFOLLOW))
        node.lookups += 1
    return node


def test_nodes_of_an_inode_linked_behind_the_mount_become_one(
    lower: Callable[..., Path], inodes: Callable[[Path], Inodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One node had lost its watch when the inode got another name in the lower directory."""
    monkeypatch.setattr(table_of_inodes, "_MOST_WATCHES", 4)

    def prepare(below: Path) -> None:
        for number in range(8):
            (below / f"a{number}").write_bytes(b"")
            os.link(below / f"a{number}", below / f"b{number}")

    source = lower("overlay", prepare)
    table = inodes(source)
    for number in range(8):
        _looked_up(table, source, f"a{number}")
    first = _looked_up(table, source, "a0")
    first_watch = first.watch
    for number in range(1, 8):
        _looked_up(table, source, f"b{number}")
    assert first_watch
    assert not first.watch
    os.link(source / "a0", source / "new")
    new = _looked_up(table, source, "new")
    assert new.watch
    assert _looked_up(table, source, "a0") is new
    for node in (new, first):
        assert table.forget(node.nodeid, node.lookups) is node


def _two_names(below: Path) -> None:
    """Make a file with two names."""
    (below / "a").write_bytes(b"")
    os.link(below / "a", below / "b")


def test_lookup_that_fails_leaves_no_watch(
    lower: Callable[..., Path], inodes: Callable[[Path], Inodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = lower("overlay", _two_names)
    table = inodes(source)
    first = _looked_up(table, source, "a")
    table._unwatch(first)
    added, removed = [], []
    add, remove = table._watches.add, table._watches.remove
    monkeypatch.setattr(table._watches, "add", lambda fd: added.append(add(fd)) or added[-1])
    monkeypatch.setattr(table._watches, "remove", lambda w: (removed.append(w), remove(w)))
    monkeypatch.setattr(table, "fd", _fails)
    with pytest.raises(OSError, match="descriptors"):
        _looked_up(table, source, "b")
    assert added
    assert removed == added


def _fails(_node: Node) -> int:
    raise OSError(errno.EMFILE, "no descriptors are left")


def test_directories_moved_into_each_other_below_cause_no_endless_lookup(
    lower: Callable[..., Path], inodes: Callable[[Path], Inodes]
) -> None:
    source = lower("bindfs")
    (source / "d1" / "d2").mkdir(parents=True)
    table = inodes(source)
    inner = _looked_up(table, source, "d1", "d2")
    (source / "d1" / "d2").rename(source / "t")
    (source / "d1").rename(source / "t" / "d1")
    table.adopt(inner, b"d1", os.open(source / "t" / "d1", os.O_PATH))
    for number in range(64):
        (source / f"file{number}").touch()
        _looked_up(table, source, f"file{number}")
    with pytest.raises(OSError, match="Stale") as failure:
        table.fd(inner)
    assert failure.value.errno == errno.ESTALE


def test_file_that_lost_one_of_its_names_keeps_no_descriptor(
    lower: Callable[..., Path], inodes: Callable[[Path], Inodes]
) -> None:
    source = lower("bindfs")
    table = inodes(source)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(64):
        name, other = f"a{number}", f"b{number}"
        (source / name).write_bytes(name.encode())
        node = _looked_up(table, source, name)
        os.link(source / name, source / other)
        table.linked(node, table.root, other.encode())
        table.pin(node)
        (source / other).unlink()
        table.unpin(node, lost=(table.root, other.encode()))
        table.node(node.nodeid)
    assert len(os.listdir("/proc/self/fd")) - before <= 33
    assert Path(f"/proc/self/fd/{table.fd(node)}").read_bytes() == b"a63"


@pytest.mark.parametrize("kind", ["overlay", "bindfs"])
def test_open_file_is_found_after_its_lower_name_was_removed(
    served: Any, lower: Callable[..., Path], kind: str
) -> None:
    source = lower(kind)
    for number in range(64):
        (source / f"a{number}").touch()
    (source / "f").write_bytes(b"data")
    path = _serve(served, source, descriptors=32, **NO_TIME)
    with (path / "f").open("r+b", buffering=0) as file:
        for number in range(64):
            (path / f"a{number}").stat()
        (source / "f").unlink()
        assert os.fstat(file.fileno()).st_size == 4
        file.truncate(3)
        assert os.pread(file.fileno(), 10, 0) == b"dat"


@pytest.mark.parametrize("kind", ["overlay", "bindfs"])
def test_open_directory_is_found_after_a_rename_below(
    served: Any, lower: Callable[..., Path], kind: str
) -> None:
    source = lower(kind)
    for number in range(64):
        (source / f"a{number}").touch()
    (source / "d").mkdir()
    (source / "d" / "f").write_bytes(b"data")
    path = _serve(served, source, descriptors=32, **NO_TIME)
    held = os.open(path / "d", os.O_RDONLY)
    for number in range(64):
        (path / f"a{number}").stat()
    (source / "d").rename(source / "e")
    assert stat.S_ISDIR(os.fstat(held).st_mode)
    assert os.listdir(held) == ["f"]
    with open(os.open("f", os.O_RDONLY, dir_fd=held), "rb") as file:
        assert file.read() == b"data"
    os.close(held)


@pytest.fixture
def bindfs(place: Path) -> Iterator[Path]:
    """A bindfs mount of a disk, which reuses inode numbers. bindfs has timeouts of one second."""
    below, both = place / "below", place / "both"
    below.mkdir()
    both.mkdir()
    _run("bindfs", below, both)
    yield both
    _run("umount", "--lazy", both)


@pytest.mark.parametrize("held", [False, True])
def test_file_with_a_reused_inode_number_is_another_file(
    served: Any, bindfs: Path, held: bool
) -> None:
    """The numbers are those of the disk, and bindfs does not keep them from being reused."""
    path = _serve(served, bindfs, entry_timeout=1.0, attr_timeout=1.0)
    a = path / "a"
    kept: list[int] = []
    for number in range(60):
        a.mkdir()
        (a / "x").write_bytes(b"in a directory")
        if held:
            kept += [os.open(name, os.O_PATH) for name in (a, a / "x")]
        (a / "x").unlink()
        a.rmdir()
        a.write_bytes(b"%d" % number)
        assert a.read_bytes() == b"%d" % number
        mode = a.stat().st_mode
        for fd in kept:
            with pytest.raises(FileNotFoundError):
                os.chmod(f"/proc/self/fd/{fd}", 0o700)
            os.close(fd)
        kept = []
        assert a.stat().st_mode == mode
        a.unlink()


@pytest.mark.parametrize("linked", [False, True])
def test_name_leads_to_its_file_after_its_former_name_was_reused_below(
    served: Any, bindfs: Path, linked: bool
) -> None:
    """A descriptor on bindfs follows the former name, and shows old attributes for a second."""
    below = bindfs.parent / "below"
    (below / "a").write_bytes(b"original of a")
    path = _serve(served, bindfs, **NO_TIME)
    assert (path / "a").read_bytes() == b"original of a"
    if linked:
        os.link(below / "a", below / "b")
        assert (path / "b").stat().st_size == (path / "a").stat().st_size
        (below / "new").write_bytes(b"another file")
        (below / "new").rename(below / "a")
    else:
        (below / "a").rename(below / "b")
        (below / "a").write_bytes(b"another file")
    assert (path / "b").read_bytes() == b"original of a"
    with (path / "b").open("r+b", buffering=0) as file:
        file.write(b"WRITTEN")
    os.truncate(path / "b", 10)
    assert (below / "b").read_bytes() == b"WRITTENl o"
    assert (below / "a").read_bytes() == b"another file"


def test_open_file_is_found_after_its_last_name_was_removed(
    served: Any, lower: Callable[..., Path]
) -> None:
    """bindfs renames the open name to a hidden one. The file was found last by its other name."""
    path = _serve(served, lower("bindfs"), **NO_TIME)
    (path / "a").write_bytes(b"data")
    with (path / "a").open("r+b", buffering=0) as file:
        os.link(path / "a", path / "b")
        (path / "b").stat()
        (path / "a").unlink()
        (path / "b").unlink()
        assert os.fstat(file.fileno()).st_size == 4
        os.fchmod(file.fileno(), 0o600)
        file.truncate(3)
        assert os.pread(file.fileno(), 10, 0) == b"dat"


def test_open_file_without_names_is_on_the_mount_that_it_was_opened_on(
    lower: Callable[..., Path], inodes: Callable[[Path], Inodes]
) -> None:
    """The file was found last on another mount, whose rights differ from those of the open file."""
    both = lower("bindfs")
    again = both.parent / "again"
    again.mkdir()
    _run("mount", "--bind", both, again)
    try:
        (both / "f").write_bytes(b"data")
        table = inodes(both.parent)
        node = _looked_up(table, both.parent, "both", "f")
        opened = os.open(both / "f", os.O_RDWR)
        table.opened(node, opened)
        with Found(table.mounts, os.open(again / "f", os.O_PATH)) as found:
            assert found.mount is _on(table, both.parent, "again")
            table._exchange(node, found)
        assert _looked_up(table, both.parent, "again", "f") is node
        table.pin(node)
        (both / "f").unlink()
        for directory in ("both", "again"):
            parent = _looked_up(table, both.parent, directory)
            table.unpin(node, lost=(parent, b"f"))
        assert node.mount.number == status(table.fd(node)).mount == status(opened).mount
        table.closed(node, opened)
        os.close(opened)
    finally:
        _run("umount", "--lazy", again)


def _on(table: Inodes, source: Path, name: str) -> LowerMount:
    """Return the mount that the directory *name* is on."""
    return _looked_up(table, source, name).mount


def test_node_that_is_found_again_has_a_watch(
    lower: Callable[..., Path], inodes: Callable[[Path], Inodes]
) -> None:
    source = lower("overlay", _two_names)
    table = inodes(source)
    node = _looked_up(table, source, "a")
    for number in range(64):
        (source / f"file{number}").touch()
        _looked_up(table, source, f"file{number}")
    assert node.fd < 0
    table.fd(node)
    assert node.watch


def _instances_of_inotify() -> int:
    links = (link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    return sum("inotify" in str(link) for link in links)


def test_inotify_instance_is_not_created_before_it_is_needed(
    lower: Callable[..., Path], inodes: Callable[[Path], Inodes]
) -> None:
    """A user may have only 128 of them, and another process may serve the pass-through."""
    before = _instances_of_inotify()
    inodes(lower("overlay"))
    assert _instances_of_inotify() == before


def test_directory_with_hard_links_of_an_unreadable_file_is_listed(
    lower: Callable[..., Path], inodes: Callable[[Path], Inodes]
) -> None:
    """The daemon's user cannot open the file, so no write can be lost."""

    def prepare(below: Path) -> None:
        _two_names(below)
        (below / "a").chmod(0o600)

    source = lower("overlay", prepare)
    os.seteuid(65534)
    try:
        table = inodes(source)
        assert _looked_up(table, source, "a").name == b"a"
        assert _looked_up(table, source, "b").name == b"b"
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("how", ["unlink", "unlink and make", "rename", "rename to another"])
def test_name_exists_after_another_name_of_its_file_was_removed(
    served: Any, lower: Callable[..., Path], how: str
) -> None:
    """bindfs finds files by their names, and each name has an inode of its own there."""
    path = _serve(served, lower("bindfs"))
    a, b, c = path / "a", path / "b", path / "c"
    a.write_bytes(b"data")
    c.write_bytes(b"another")
    os.link(a, b)
    os.link(a, path / "third")
    assert a.stat().st_ino == b.stat().st_ino
    (path / "third").unlink()
    held = os.open(b, os.O_PATH)
    if how.startswith("unlink"):
        a.unlink()
    elif how == "rename":
        c.rename(a)
    else:
        a.rename(c)
    if how == "unlink and make":
        a.mkdir()
    assert b.stat().st_size == 4
    assert b.read_bytes() == b"data"
    with b.open("ab") as file:
        file.write(b"+")
    b.chmod(0o600)
    os.truncate(b, 3)
    assert stat.S_IMODE(os.fstat(held).st_mode) == 0o600
    os.close(held)
    assert b.read_bytes() == b"dat"


def _prepare_tree(below: Path) -> None:
    for number in range(6):
        directory = below / f"d{number % 3}"
        directory.mkdir(exist_ok=True)
        (directory / f"n{number}").write_bytes(b"low%d" % number)
    for name, other in (("d0/n0", "d0/x"), ("d0/n0", "d1/x"), ("d2/n2", "d2/x")):
        os.link(below / name, below / other)


def _write(path: str, flags: int, data: bytes) -> int:
    fd = os.open(path, flags, 0o640)
    try:
        return os.write(fd, data)
    finally:
        os.close(fd)


def _shown(path: str) -> tuple[object, ...]:
    """Return the properties of a file that do not depend on its place: mode, size, content."""
    st = os.lstat(path)
    if stat.S_ISDIR(st.st_mode):
        return (st.st_mode, sorted(os.listdir(path)))
    return (st.st_mode, st.st_size, Path(path).read_bytes())


def _act(rng: random.Random, step: int) -> Callable[[Path], object]:
    """Choose a random action below a directory."""

    def name() -> str:
        return (
            f"{rng.choice(['d0', 'd1', 'd2', 'd0/s'])}/{rng.choice(['x', 'y', 'n0', 'n1', 'n2'])}"
        )

    p, q, data, size = name(), name(), b"%d;" % step, rng.randrange(8)
    actions: list[Callable[[Path], object]] = [
        lambda top: _write(f"{top}/{p}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, data),
        lambda top: _write(f"{top}/{p}", os.O_WRONLY | os.O_APPEND, data),
        lambda top: _write(f"{top}/{p}", os.O_WRONLY, data),
        lambda top: os.link(f"{top}/{p}", f"{top}/{q}"),
        lambda top: os.link(f"{top}/{q}", f"{top}/{p}"),
        lambda top: os.rename(f"{top}/{p}", f"{top}/{q}"),
        lambda top: os.unlink(f"{top}/{p}"),
        lambda top: os.truncate(f"{top}/{p}", size),
        lambda top: os.chmod(f"{top}/{p}", 0o600 | size),
        lambda top: os.mkdir(f"{top}/d0/s"),
        lambda top: os.rename(f"{top}/d0/s", f"{top}/d1/s"),
        lambda top: os.rename(f"{top}/d1/s", f"{top}/d0/s"),
        lambda top: _shown(f"{top}/{p}"),
        lambda top: _shown(f"{top}/{p[:2]}"),
    ]
    return rng.choice(actions)


def _result(act: Callable[[Path], object], top: Path) -> object:
    try:
        return act(top)
    except OSError as error:
        return errno.errorcode[error.errno or 0]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("times", [NO_TIME, LONG], ids=["no time", "long"])
@pytest.mark.parametrize("kind", ["overlay", "bindfs"])
def test_random_changes_match_the_same_changes_to_a_copy(
    served: Any, lower: Callable[..., Path], kind: str, times: dict[str, float], seed: int
) -> None:
    source, twin = lower(kind, _prepare_tree), lower(kind, _prepare_tree)
    path = _serve(served, source, descriptors=32, **times)
    rng = random.Random(seed)
    for step in range(1000):
        act = _act(rng, step)
        assert _result(act, path) == _result(act, twin), step
    for directory, _, names in os.walk(twin):
        for name in names:
            place = (Path(directory) / name).relative_to(twin)
            assert _shown(f"{path}/{place}") == _shown(f"{twin}/{place}")
            assert _shown(f"{source}/{place}") == _shown(f"{twin}/{place}")


@pytest.mark.parametrize("first", ["both", "ro"])
def test_hard_link_has_the_rights_of_the_mount_of_its_name(
    served: Any, lower: Callable[..., Path], first: str
) -> None:
    """A watch identifies the file, but not the mount."""
    source = lower("overlay")
    _two_names(source)
    read_only = source.parent / "ro"
    read_only.mkdir()
    _run("mount", "--bind", source, read_only)
    try:
        _run("mount", "-o", "remount,bind,ro", read_only)
        path = _serve(served, source.parent, **NO_TIME)
        for _ in range(2):
            for name in "ab":
                (path / first / name).stat()
            (path / "both" / "a").write_bytes(b"written")
            for name in "ab":
                with pytest.raises(OSError, match="Read-only"):
                    (path / "ro" / name).write_bytes(b"refused")
            assert (path / "ro" / "a").read_bytes() == b"written"
            with (path / "both" / "a").open("rb") as one, (path / "both" / "b").open("rb") as other:
                fcntl.flock(one, fcntl.LOCK_EX)
                with pytest.raises(BlockingIOError):
                    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        _run("umount", "--lazy", read_only)
