# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test `exclusive` mode with random sequences of changes, after each of which the mount is right.

Callers of the mount make changes, and so does the daemon, which notifies the kernel. In between,
the kernel forgets inodes, so that nodeids end. ``EFUSE_SEQUENCE_STEPS`` is the number of steps of a
case, and ``EFUSE_SEQUENCE_SEED`` is the seed: the same seed repeats the same steps.
"""

from __future__ import annotations

import errno
import os
import random
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guest.support.daemons import Mount, as_user, force_stat, lookup_again, mounted
from tests.guest.support.model_file_system import Inode

STEPS = int(os.environ.get("EFUSE_SEQUENCE_STEPS", "200"))
SEED = int(os.environ.get("EFUSE_SEQUENCE_SEED", "20261125"))
_NOBODY = 41001
_DIRECTORIES = ("d", "e")
_PATHS = tuple(f"{d}/{n}" for d in _DIRECTORIES for n in "abc")
_XATTR = "user.x"


class _Sequence:
    """Random steps on one mount.

    :param tells: whether the daemon changes files, too, and notifies the kernel.
    """

    def __init__(self, m: Mount, seed: int, *, tells: bool) -> None:
        self._m = m
        self._random = random.Random(seed)
        self._steps: list[str] = []
        self._fd = -1
        self._ino = 0
        self._changes: list[Callable[[str, str], None]] = [
            self._create,
            self._write,
            self._truncate,
            self._chmod,
            self._setxattr,
            self._link,
            self._rename,
            self._unlink,
            self._hold,
        ]
        if tells:
            self._changes += [self._told_of_content, self._told_of_name, self._told_by_sysfs]
        self._forgets = [self._look_up_again, self._drop_caches]

    def run(self, steps: int) -> None:
        for directory in _DIRECTORIES:
            os.mkdir(self._m / directory)
        for _ in range(steps):
            kind = self._forgets if self._random.random() < 0.03 else self._changes
            step = self._random.choice(kind)
            path, other = self._random.choices(_PATHS, k=2)
            self._steps.append(f"{step.__name__[1:]} {path} {other}")
            try:
                step(path, other)
            except OSError as error:
                self._steps[-1] += f": {errno.errorcode[error.errno or 0]}"
            self._observe(path, other)
        if self._fd >= 0:
            os.close(self._fd)

    # Changes

    def _bytes(self) -> bytes:
        return self._random.randbytes(self._random.choice((1, 100, 5000, 9000)))

    def _create(self, path: str, _: str) -> None:
        os.close(os.open(self._m / path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))

    def _write(self, path: str, _: str) -> None:
        fd = os.open(self._m / path, os.O_WRONLY)
        try:
            os.pwrite(fd, self._bytes(), self._random.randrange(6000))
        finally:
            os.close(fd)

    def _truncate(self, path: str, _: str) -> None:
        os.truncate(self._m / path, self._random.randrange(12_000))

    def _chmod(self, path: str, _: str) -> None:
        os.chmod(self._m / path, self._random.choice((0o600, 0o644, 0o640)))

    def _setxattr(self, path: str, _: str) -> None:
        os.setxattr(self._m / path, _XATTR, self._random.randbytes(8))

    def _link(self, path: str, other: str) -> None:
        os.link(self._m / path, self._m / other)

    def _rename(self, path: str, other: str) -> None:
        os.rename(self._m / path, self._m / other)

    def _unlink(self, path: str, _: str) -> None:
        os.unlink(self._m / path)

    def _hold(self, path: str, _: str) -> None:
        """Keep one file open for a while, even if its name is removed."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self._fd = os.open(self._m / path, os.O_RDONLY)
        self._ino = self._m.call("inode", path).ino

    def _told_of_content(self, path: str, _: str) -> None:
        self._m.model.put(path, self._bytes())
        self._m.call("inval_inode", path)

    def _told_of_name(self, path: str, _: str) -> None:
        directory, _, name = path.rpartition("/")
        gone: dict[str, Inode] = self._m.call("tree", "")
        if path in gone:
            self._m.model.remove(path)
            others = [p for p, i in gone.items() if p != path and i.ino == gone[path].ino]
            for other in others[:1]:
                self._m.call("inval_inode", other)
        else:
            self._m.model.create(path, self._bytes())
        self._m.call("inval_entry", directory, name.encode())

    def _told_by_sysfs(self, path: str, _: str) -> None:
        self._m.model.put(path, self._bytes())
        self._m.model.set_mode(path, stat.S_IFREG | self._random.choice((0o600, 0o644)))
        self._m.connection.invalidate()

    def _look_up_again(self, *_: str) -> None:
        lookup_again(self._m.path)

    def _drop_caches(self, *_: str) -> None:
        Path("/proc/sys/vm/drop_caches").write_text("2")

    # Checks

    def _observe(self, *paths: str) -> None:
        truth: dict[str, Inode] = self._m.call("tree", "")
        for path in (*paths, self._random.choice(_PATHS)):
            self._observe_name(path, truth.get(path))
        for directory in _DIRECTORIES:
            names = sorted(n[2:] for n in truth if n.startswith(f"{directory}/"))
            self._same(f"list {directory}", sorted(os.listdir(self._m / directory)), names)
            self._observe_attributes(directory, truth[directory])
        if self._fd >= 0:
            inode = self._m.call("model.get", self._ino)
            self._same("read of the open file", os.pread(self._fd, 1 << 16, 0), bytes(inode.data))
            self._same("size of the open file", os.fstat(self._fd).st_size, inode.size)

    def _observe_name(self, path: str, inode: Inode | None) -> None:
        self._same(f"exists {path}", os.path.lexists(self._m / path), inode is not None)
        if inode is None:
            return
        self._observe_attributes(path, inode)
        self._same(f"read {path}", self._content(path), bytes(inode.data))
        try:
            value: bytes | None = os.getxattr(self._m / path, _XATTR)
        except OSError as error:
            assert error.errno == errno.ENODATA
            value = None
        self._same(f"xattr of {path}", value, inode.xattrs.get(_XATTR.encode()))
        self._same(f"{path} opens for others", self._opens(path), bool(inode.mode & 0o004))

    def _observe_attributes(self, path: str, inode: Inode) -> None:
        look = force_stat if self._random.random() < 0.1 else os.stat
        seen = look(self._m / path)
        fields = (seen.st_mode, seen.st_nlink, seen.st_mtime_ns, seen.st_ino)
        true = (inode.mode, inode.nlink, inode.mtime_ns, inode.ino)
        self._same(f"attributes of {path}", fields, true)
        if stat.S_ISREG(inode.mode):
            self._same(f"size of {path}", seen.st_size, inode.size)

    def _content(self, path: str) -> bytes:
        fd = os.open(self._m / path, os.O_RDONLY)
        try:
            return os.read(fd, 1 << 16)
        finally:
            os.close(fd)

    def _opens(self, path: str) -> bool:
        try:
            os.close(as_user(_NOBODY, os.open, self._m / path, os.O_RDONLY))
        except PermissionError:
            return False
        return True

    def _same(self, what: str, seen: object, true: object) -> None:
        assert seen == true, f"{what}, after {self._steps[-12:]} ({len(self._steps)} steps)"


@pytest.mark.usefixtures("reachable")
@pytest.mark.parametrize("nodeids", ["for_ever", "used_again", "per_name"])
@pytest.mark.parametrize("who_checks", ["kernel", "daemon"])
def test_mount_shows_the_models_state_after_random_changes(
    mountpoint: Path, who_checks: str, nodeids: str
) -> None:
    per_name = nodeids == "per_name"
    promises = () if per_name else ("nodeid_per_file",)
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("no_open", "no_flush", *promises),
        default_permissions=who_checks == "kernel",
        check_modes=True,
        reuse_nodeids=nodeids == "used_again",
        nodeid_per_name=per_name,
    ) as m:
        _Sequence(m, SEED, tells=not per_name).run(STEPS)
        for opcode in ("lookup", "getattr", "open"):
            assert m.count(opcode, "hits") > 20, opcode
