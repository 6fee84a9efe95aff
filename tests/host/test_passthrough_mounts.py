# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pass-through of a directory with mounts below it."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from efuse.fs.passthrough.inodes import Inodes, Node
from tests.host.conftest import run_python
from tests.host.mounting import bind, remount

SHORT = {"entry_timeout": 0.0, "attr_timeout": 0.0}
LONG = {"entry_timeout": 60.0, "attr_timeout": 60.0}


def _serve(served: Any, source: Path, **arguments: Any) -> Path:
    path: Path = served(arguments={"source": str(source), "descriptors": 32, **arguments}).path
    return path


def _put_aside(path: Path) -> None:
    """Look up more inodes than can keep a descriptor, so that others are put aside."""
    for number in range(64):
        (path / f"a{number}").stat()


def test_read_only_bind_mount_below_cannot_be_written(
    served: Any, place: Path, source: Path, mount: Callable[..., None]
) -> None:
    """The mount is a read-only bind mount. Its file system is writable."""
    other = place / "other"
    other.mkdir()
    (other / "f").write_bytes(b"protected")
    (source / "ro").mkdir()
    bind(mount, other, source / "ro", "ro")
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
def test_file_has_the_rights_of_the_mount_of_its_name(
    served: Any, source: Path, mount: Callable[..., None], first: str
) -> None:
    for name in ("ro", "rw"):
        (source / name).mkdir()
    (source / "rw" / "f").write_bytes(b"x")
    bind(mount, source / "rw", source / "ro", "ro")
    path = _serve(served, source, **SHORT)
    (path / first / "f").stat()
    (path / "rw" / "f").write_bytes(b"written")
    with pytest.raises(OSError, match="Read-only"):
        (path / "ro" / "f").write_bytes(b"refused")
    assert (path / "ro" / "f").read_bytes() == b"written"


def _two_names(
    source: Path, mount: Callable[..., None], options: str = "", data: bytes = b"-" * 40
) -> None:
    """Make the directory ``one`` with the file ``f``, and bind it to ``two``."""
    for name in ("one", "two"):
        (source / name).mkdir()
    (source / "one" / "f").write_bytes(data)
    bind(mount, source / "one", source / "two", options)


@pytest.mark.parametrize("writeback", [False, True])
@pytest.mark.parametrize("options", ["", "nosuid", "nodev,noexec"])
def test_writes_through_two_mounts_of_a_file_are_all_kept(
    served: Any, source: Path, mount: Callable[..., None], options: str, writeback: bool
) -> None:
    """Two inodes would each write back whole pages, and overwrite the changes of the other."""
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


def test_file_on_two_mounts_with_equal_rights_is_one_inode(
    served: Any, source: Path, mount: Callable[..., None]
) -> None:
    _two_names(source, mount, data=b"x")
    path = _serve(served, source, **LONG)
    assert (path / "one" / "f").stat().st_ino == (path / "two" / "f").stat().st_ino
    assert (path / "two" / "f").read_bytes() == b"x"
    (path / "one" / "f").write_bytes(b"longer")
    assert (path / "two" / "f").read_bytes() == b"longer"


@pytest.mark.parametrize("first", ["one", "two"])
def test_link_within_a_directory_works_for_a_file_found_on_another_mount(
    served: Any, source: Path, mount: Callable[..., None], first: str
) -> None:
    _two_names(source, mount)
    path = _serve(served, source, **SHORT)
    (path / first / "f").stat()
    for name in ("one", "two"):
        os.link(path / name / "f", path / name / f"of {name}")
    assert sorted(os.listdir(source / "one")) == ["f", "of one", "of two"]
    assert (source / "one" / "f").stat().st_nlink == 3


@pytest.mark.parametrize(("times", "rounds"), [(SHORT, 2), (LONG, 1)], ids=["no time", "long"])
def test_write_fails_after_its_mount_became_read_only(
    served: Any, source: Path, mount: Callable[..., None], times: dict[str, float], rounds: int
) -> None:
    """The file can be written by its other name, by which the kernel holds the old inode."""
    _two_names(source, mount)
    path = _serve(served, source, **times)
    held = os.open(path / "two" / "f", os.O_RDONLY)
    (path / "one" / "f").stat()
    for _ in range(rounds):
        remount(source / "two", "ro")
        with pytest.raises(OSError, match="Read-only"):
            (path / "two" / "f").write_bytes(b"refused")
        with pytest.raises(OSError, match="Read-only"):
            os.truncate(path / "two" / "f", 3)
        (path / "one" / "f").write_bytes(b"written")
        assert (source / "two" / "f").read_bytes() == b"written"
        remount(source / "two", "rw")
        (path / "two" / "f").write_bytes(b"again")
        assert (source / "one" / "f").read_bytes() == b"again"
    assert os.fstat(held).st_nlink == 1
    os.close(held)


@pytest.mark.parametrize("times", [SHORT, LONG], ids=["no time", "long"])
@pytest.mark.parametrize("writeback", [False, True])
def test_file_is_one_inode_after_its_mount_became_writable(
    served: Any,
    source: Path,
    mount: Callable[..., None],
    times: dict[str, float],
    writeback: bool,
) -> None:
    """Nothing is written by the old inode any more, although the kernel knows a name of it."""
    _two_names(source, mount, "ro")
    path = _serve(served, source, writeback=writeback, **times)
    old = os.open(path / "two" / "f", os.O_RDONLY)
    assert os.pread(old, 4, 0) == b"----"
    (path / "one" / "f").stat()
    remount(source / "two", "rw")
    with (
        (path / "one" / "f").open("r+b", buffering=0) as one,
        (path / "two" / "f").open("r+b", buffering=0) as two,
        mmap.mmap(one.fileno(), 40) as here,
        mmap.mmap(two.fileno(), 40) as there,
    ):
        here[:4], there[4:8] = b"AAAA", b"BBBB"
        here.flush()
        there.flush()
    assert (source / "one" / "f").read_bytes()[:8] == b"AAAABBBB"
    with pytest.raises(OSError, match="Stale"):
        os.open(f"/proc/self/fd/{old}", os.O_RDWR)
    os.close(old)


def test_file_open_for_writing_stays_one_inode_when_another_mount_changes(
    source: Path, mount: Callable[..., None]
) -> None:
    """Otherwise two inodes would have pages to write back."""
    _two_names(source, mount)
    table = Inodes(str(source), 32)

    def look_up(*names: str) -> Node:
        node = table.root
        for number, name in enumerate(names, 1):
            path = source.joinpath(*names[:number])
            node, _ = table.adopt(node, name.encode(), os.open(path, os.O_PATH))
            node.lookups += 1
        return node

    node = look_up("two", "f")
    fd = os.open(source / "one" / "f", os.O_RDWR)
    table.opened(node, fd)
    remount(source / "two", "ro")
    assert table.node(node.nodeid) is node
    table.check_writable(node)
    assert look_up("one", "f") is node
    read_only = look_up("two", "f")
    assert read_only is not node
    remount(source / "two", "rw")
    with pytest.raises(OSError, match="Stale"):
        table.check_writable(table.node(read_only.nodeid))
    assert look_up("two", "f") is node
    table.closed(node, fd)
    os.close(fd)
    table.close()


def test_source_read_only_at_the_start_becomes_writable_and_read_only_mounts_stay(
    served: Any, place: Path, mount: Callable[..., None]
) -> None:
    """The root directory is read-only, for example, while a machine boots."""
    source = place / "source"
    source.mkdir()
    mount("-t", "tmpfs", "tmpfs", source)
    for name in ("rw", "ro"):
        (source / name).mkdir()
    (source / "rw" / "f").write_bytes(b"protected")
    subprocess.run(["mount", "-o", "remount,ro", source], check=True)
    path = _serve(served, source, **SHORT)
    subprocess.run(["mount", "-o", "remount,rw", source], check=True)
    bind(mount, source / "rw", source / "ro", "ro")
    (path / "rw" / "f").stat()
    with pytest.raises(OSError, match="Read-only"):
        (path / "ro" / "f").write_bytes(b"refused")
    (path / "rw" / "f").write_bytes(b"written")
    assert (path / "ro" / "f").read_bytes() == b"written"


_IN_USER_NAMESPACE = """
import ctypes, sys
assert ctypes.CDLL(None).unshare(0x10000000) == 0
print(flush=True)
sys.stdin.read()
"""
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = map(ctypes.c_long, (428, 429, 442))
_libc = ctypes.CDLL(None, use_errno=True)


def _done(result: int) -> int:
    assert result >= 0, os.strerror(ctypes.get_errno())
    return result


def _bind_idmapped(what: Path, where: Path, owner: int, shown: int) -> None:
    """Bind *what* to *where*, and show the files of *owner* as files of *shown* there."""
    process = subprocess.Popen(
        [sys.executable, "-c", _IN_USER_NAMESPACE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()
    for kind in ("uid_map", "gid_map"):
        Path(f"/proc/{process.pid}/{kind}").write_text(f"{owner} {shown} 1")
    users = os.open(f"/proc/{process.pid}/ns/user", os.O_RDONLY)
    process.communicate()
    here, none = ctypes.c_long(-100), ctypes.c_char_p(b"")
    flags = ctypes.c_long(1 | os.O_CLOEXEC)  # OPEN_TREE_CLONE
    tree = _done(_libc.syscall(_OPEN_TREE, here, os.fsencode(what), flags))
    idmap = struct.pack("=QQQQ", 0x00100000, 0, 0, users)
    empty, size = ctypes.c_long(0x1000), ctypes.c_long(len(idmap))
    _done(_libc.syscall(_MOUNT_SETATTR, ctypes.c_long(tree), none, empty, idmap, size))
    moved = ctypes.c_long(4)  # MOVE_MOUNT_F_EMPTY_PATH
    _done(_libc.syscall(_MOVE_MOUNT, ctypes.c_long(tree), none, here, os.fsencode(where), moved))
    for fd in (tree, users):
        os.close(fd)


@pytest.mark.parametrize("first", ["one", "two"])
def test_file_has_the_owner_shown_by_the_mount_of_its_name(
    served: Any, source: Path, first: str
) -> None:
    for name in ("one", "two"):
        (source / name).mkdir()
    (source / "one" / "f").touch()
    os.chown(source / "one" / "f", 1000, 1000)
    _bind_idmapped(source / "one", source / "two", 1000, 2000)
    try:
        path = _serve(served, source, **SHORT)
        (path / first / "f").stat()
        assert (path / "one" / "f").stat().st_uid == 1000
        assert (path / "two" / "f").stat().st_uid == 2000
    finally:
        subprocess.run(["umount", "--lazy", source / "two"], check=True)


def test_descriptors_suffice_with_many_mounts(
    served: Any, source: Path, mount: Callable[..., None]
) -> None:
    """Each known mount needs a descriptor, which is then missing for inodes."""
    (source / "x").mkdir()
    for number in range(56):
        (source / f"m{number}").mkdir()
        bind(mount, source / "x", source / f"m{number}")
    path = served(arguments={"source": str(source), **SHORT}, descriptors=128).path
    held = [os.open(path / f"m{number}", os.O_PATH) for number in range(56)]
    for _ in range(2):
        _put_aside(path)
    assert len(os.listdir(path)) == 64 + 1 + 56
    (path / "new").write_bytes(b"x")
    for fd in held:
        os.close(fd)


def test_directory_with_a_mount_without_statfs_is_listed(served: Any, place: Path) -> None:
    below = served("filesystems:Bare").path
    path = served(arguments={"source": str(place), **SHORT}).path
    assert sorted(os.listdir(path)) == ["low0", "low1", "mnt0"]
    assert (path / below.name).stat().st_mode == below.stat().st_mode


def test_mount_within_a_bind_mount_is_shown(
    served: Any, source: Path, mount: Callable[..., None]
) -> None:
    """The directory that it covers is shown by the other name."""
    hides, shows = source / "hides", source / "shows"
    (hides / "m").mkdir(parents=True)
    (hides / "m" / "covered").touch()
    shows.mkdir()
    bind(mount, hides, shows)
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


def test_lower_mount_can_be_unmounted_after_the_kernel_forgot_its_inodes(
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


def test_hard_links_of_an_overlay_are_separated_if_its_device_number_is_reused(
    served: Any, place: Path, source: Path, mount: Callable[..., None]
) -> None:
    """The device number of an unmounted file system is given to the next one."""
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
            break  # otherwise the tmpfs was still in use for a moment
    assert sub.stat().st_dev == device
    for name in "ab":
        (path / "sub" / name).stat()
    (path / "sub" / "b").write_bytes(b"BBBBB")
    assert (sub / "b").read_bytes() == b"BBBBB"
    assert (sub / "a").read_bytes() == b"lower"


@pytest.mark.parametrize("times", [SHORT, LONG], ids=["no time", "long"])
def test_directory_with_a_mount_of_another_user_is_listed(
    served: Any, place: Path, source: Path, times: dict[str, float]
) -> None:
    """No other user may access the mount, not even root."""
    sub, below = source / "sub", place / "below"
    for directory in (sub, below):
        directory.mkdir()
        os.chown(directory, 65534, 65534)
    subprocess.run(["bindfs", "--no-allow-other", below, sub], user=65534, group=65534, check=True)
    try:
        path = _serve(served, source, **times)
        for _ in range(3):
            assert sorted(os.listdir(path)) == sorted(os.listdir(source))
            for top in (source, path):
                with pytest.raises(PermissionError):
                    (top / "sub").stat()
    finally:
        subprocess.run(["umount", "--lazy", sub], check=True)
    assert (path / "sub").stat().st_uid == 65534


def _terminal(where: Path, owner: int) -> tuple[int, Path]:
    """Open a terminal of *owner* on a devpts. Return its descriptor and its lower path."""
    fd = os.open(where / "ptmx", os.O_RDWR | os.O_NOCTTY)
    (number,) = set(os.listdir(where)) - {"ptmx"}
    os.chown(where / number, owner, owner)
    return fd, where / number


def test_terminal_with_a_reused_number_is_another_inode(
    served: Any, source: Path, mount: Callable[..., None]
) -> None:
    """An O_PATH descriptor of the old terminal does not keep its number."""
    below = source / "pts"
    below.mkdir()
    mount("-t", "devpts", "-o", "newinstance,ptmxmode=666", "devpts", below)
    path = _serve(served, source, **SHORT)
    owners = []
    for owner in (1000, 2000):
        fd, terminal = _terminal(below, owner)
        shown = path / "pts" / terminal.name
        owners.append(shown.stat().st_uid)
        shown.chmod(0o600 if owner == 1000 else 0o640)
        assert terminal.stat().st_mode == shown.stat().st_mode
        os.close(fd)
    assert owners == [1000, 2000]


_LISTS = "import os, sys; print(sorted(os.listdir(sys.argv[1])))"


def test_own_mount_below_the_source_is_not_listed(served: Any, place: Path) -> None:
    """Otherwise the daemon would wait for itself, and the caller for the daemon, until killed."""
    (place / "f").write_bytes(b"data")
    path = served(arguments={"source": str(place), **SHORT}).path
    callers = [run_python(_LISTS, where) for where in (path, path / path.name)]
    listed, refused = (caller.communicate(timeout=20)[0] for caller in callers)
    assert listed == "['f', 'low0']\n"
    assert (refused, callers[1].returncode) == ("", 1)
    assert (path / "f").read_bytes() == b"data"


_SERVES_ALONE = """
import sys
import pyfuse3, trio
from efuse.fs import Passthrough
pyfuse3.init(Passthrough(sys.argv[1], entry_timeout=0), sys.argv[2], {"default_permissions"})
print(flush=True)
trio.run(pyfuse3.main)
"""


def test_pyfuse3_alone_lists_the_mount_of_its_working_directory(place: Path, source: Path) -> None:
    """No mount is left out if it is not known which one is the pass-through's own."""
    sub, below, mountpoint = source / "sub", place / "below", place / "mnt"
    for directory in (sub, below, mountpoint):
        directory.mkdir()
    subprocess.run(["bindfs", below, sub], check=True)
    words = [sys.executable, "-c", _SERVES_ALONE, source, mountpoint]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent.parent)}
    process = subprocess.Popen(words, cwd=sub, stdout=subprocess.PIPE, env=environment)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        caller = run_python(_LISTS, mountpoint)
        assert "'sub'" in caller.communicate(timeout=60)[0]
    finally:
        process.kill()
        process.communicate()
        for each in (mountpoint, sub):
            subprocess.run(["umount", "--lazy", each], check=False)
