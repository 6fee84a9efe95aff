# SPDX-License-Identifier: LGPL-2.1-or-later
"""Ask before, during and after each change, with the daemon held in between.

Every change meets every question about the things it touches, in each order in which their requests
and replies can cross. The mount is exclusive, so that a wrong value would be believed for ever.
Names have no timeout, so that each use of a name is a LOOKUP.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tests.guest.support.daemons import Call, Mount, as_user, force_stat, mounted
from tests.guest.support.wire import FOPEN_NOFLUSH

USER = 1000
_NOREPLACE, _EXCHANGE = 1, 2
_libc = ctypes.CDLL(None, use_errno=True)


def rename2(old: str, new: str, flags: int) -> None:
    """Call renameat2(2)."""
    if _libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), old, None, new)


@dataclass
class Scene:
    """A directory with open files of every kind."""

    m: Mount
    name: str
    fds: dict[str, int] = field(default_factory=dict)
    inos: dict[str, int] = field(default_factory=dict)

    def __truediv__(self, name: str) -> str:
        return self.m / f"{self.name}/{name}"

    def open(self) -> None:
        d = self.name
        self.m.call(
            "many",
            [
                ("mkdir", d),
                ("mkdir", f"{d}/sub"),
                ("mkdir", f"{d}/empty"),
                ("create", f"{d}/a", b"a" * 100),
                ("hard_link", f"{d}/a", f"{d}/a2"),
                ("create", f"{d}/b", b"b" * 200),
                ("set_xattr", f"{d}/b", b"user.x", b"1"),
                ("symlink", f"{d}/s", b"a"),
            ],
        )
        self.inos = {n: i.ino for n, i in self.m.call("tree", d).items()}
        self.inos["."] = self.m.call("inode", d).ino
        self.fds["."] = os.open(self.m / d, os.O_RDONLY)
        for name in ("a", "b", "sub", "empty"):
            self.fds[name] = os.open(name, os.O_RDONLY, dir_fd=self.fds["."])

    def close(self) -> None:
        for fd in self.fds.values():
            os.close(fd)

    def inode(self, name: str) -> Any:
        """Return the daemon's inode of the file that had *name* when the scene was opened."""
        return self.m.call("model.get", self.inos[name])


@contextmanager
def scene(m: Mount, name: str) -> Iterator[Scene]:
    s = Scene(m, name)
    s.open()
    try:
        yield s
    finally:
        s.close()


@dataclass(frozen=True)
class Question:
    """A question about a file, and the right answer."""

    opcode: str
    name: str
    ask: Callable[[Scene], Any]
    truth: Callable[[Scene], Any]
    uid: int = 0

    def __str__(self) -> str:
        return f"{self.opcode} of {self.name}"

    def __call__(self, s: Scene) -> Any:
        return as_user(self.uid, self.ask, s) if self.uid else self.ask(s)

    def start(self, s: Scene) -> Call[Any]:
        return Call(self.ask, s, uid=self.uid, gid=self.uid)


def _errno(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except OSError as error:
        return error.errno


def _facts(inode: Any) -> tuple[int, ...]:
    if hasattr(inode, "st_size"):
        return (inode.st_mode, inode.st_nlink, inode.st_uid, inode.st_size, inode.st_mtime_ns)
    size = 0 if stat.S_ISDIR(inode.mode) else inode.size
    return (inode.mode, inode.nlink, inode.uid, size, inode.mtime_ns)


def attributes(name: str) -> Question:
    return Question(
        "getattr",
        name,
        lambda s: _facts(force_stat(s.fds[name])),
        lambda s: _facts(s.inode(name)),
    )


def named(name: str) -> Question:
    """Return a question about a name that stays the same."""
    return Question(
        "lookup",
        name,
        lambda s: _facts(os.stat(name, dir_fd=s.fds["."])),
        lambda s: _facts(s.m.call("inode", f"{s.name}/{name}")),
    )


def xattr(name: str) -> Question:
    return Question(
        "getxattr",
        name,
        lambda s: _errno(os.getxattr, s.fds[name], "user.x"),
        lambda s: s.inode(name).xattrs.get(b"user.x", errno.ENODATA),
    )


def xattrs(name: str) -> Question:
    return Question(
        "listxattr",
        name,
        lambda s: os.listxattr(s.fds[name]),
        lambda s: [x.decode() for x in s.inode(name).xattrs],
    )


def _readable(s: Scene, name: str) -> bool:
    return bool(s.inode(name).mode & 0o004)


def allowed(name: str) -> Question:
    return Question(
        "access",
        name,
        lambda s: os.access(f"/proc/self/fd/{s.fds[name]}", os.R_OK),
        lambda s: _readable(s, name),
        USER,
    )


def _open(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY))
    except PermissionError:
        return False
    return True


def opened(name: str) -> Question:
    return Question(
        "open",
        name,
        lambda s: _open(f"/proc/self/fd/{s.fds[name]}"),
        lambda s: _readable(s, name),
        USER,
    )


@dataclass(frozen=True)
class Change:
    """A system call that makes a change, and the questions whose answers it may change."""

    name: str
    opcode: str
    do: Callable[[Scene], Any]
    questions: tuple[Question, ...]


def _write(path: str, flags: int, *, at: int = 0, data: bytes = b"new") -> None:
    fd = os.open(path, flags)
    os.pwrite(fd, data, at)
    os.close(fd)


def _ftruncate(path: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    os.ftruncate(fd, 7)
    os.close(fd)


def _fallocate(path: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    os.posix_fallocate(fd, 0, 5000)
    os.close(fd)


def _map(path: str) -> None:
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, 100) as memory:
        memory[0:3] = b"new"
        memory.flush()
    os.close(fd)


def _copy(source: str, target: str) -> None:
    one, two = os.open(source, os.O_RDONLY), os.open(target, os.O_WRONLY)
    assert os.copy_file_range(one, two, 200) == 200
    os.close(one)
    os.close(two)


_A = (attributes("a"), named("a2"))
_COPY = "copy_file_range"
_GRANTS = (allowed("a"), opened("a"))

CHANGES = (
    Change("chmod", "setattr", lambda s: os.chmod(s / "a", 0o600), _A + _GRANTS),
    Change("chown", "setattr", lambda s: os.chown(s / "a", 5, 6), (*_A, allowed("a"))),
    Change("utime", "setattr", lambda s: os.utime(s / "a", ns=(3000, 5000)), _A),
    Change("truncate", "setattr", lambda s: os.truncate(s / "a", 7), _A),
    Change("ftruncate", "setattr", lambda s: _ftruncate(s / "a"), _A),
    Change("O_TRUNC", "open", lambda s: _write(s / "a", os.O_WRONLY | os.O_TRUNC), _A),
    Change("write", "write", lambda s: _write(s / "a", os.O_WRONLY, at=4000), _A),
    Change("append", "write", lambda s: _write(s / "a", os.O_WRONLY | os.O_APPEND), _A),
    Change("mmap", "write", lambda s: _map(s / "a"), _A),
    Change("fallocate", "fallocate", lambda s: _fallocate(s / "a"), _A),
    Change("copy", _COPY, lambda s: _copy(s / "b", s / "a"), _A),
    Change(
        "setxattr",
        "setxattr",
        lambda s: os.setxattr(s / "a", "user.x", b"2"),
        (xattr("a"), xattrs("a")),
    ),
    Change(
        "replace xattr",
        "setxattr",
        lambda s: os.setxattr(s / "b", "user.x", b"22"),
        (xattr("b"),),
    ),
    Change(
        "removexattr",
        "removexattr",
        lambda s: os.removexattr(s / "b", "user.x"),
        (xattr("b"), xattrs("b")),
    ),
    Change("link", "link", lambda s: os.link(s / "a", s / "n"), (*_A, attributes("."))),
    Change("unlink", "unlink", lambda s: os.unlink(s / "a"), (*_A, attributes("."))),
    Change("rmdir", "rmdir", lambda s: os.rmdir(s / "empty"), (attributes("."),)),
    Change("mkdir", "mkdir", lambda s: os.mkdir(s / "n"), (attributes("."),)),
    Change("mknod", "mknod", lambda s: os.mknod(s / "n"), (attributes("."),)),
    Change("symlink", "symlink", lambda s: os.symlink("a", s / "n"), (attributes("."),)),
    Change(
        "create",
        "create",
        lambda s: os.close(os.open(s / "n", os.O_CREAT | os.O_WRONLY)),
        (attributes("."),),
    ),
    Change("rename", "rename", lambda s: os.rename(s / "a", s / "n"), (attributes("."),)),
    Change(
        "rename away",
        "rename",
        lambda s: os.rename(s / "a", s / "sub/a"),
        (attributes("."), attributes("sub")),
    ),
    Change("rename over", "rename", lambda s: os.rename(s / "b", s / "a"), (*_A, attributes("."))),
    Change(
        "rename a directory",
        "rename",
        lambda s: os.rename(s / "empty", s / "sub/empty"),
        (attributes("."), attributes("sub")),
    ),
    Change(
        "exchange",
        "rename2",
        lambda s: rename2(s / "a", s / "empty", _EXCHANGE),
        (attributes("."),),
    ),
    Change(
        "rename to a free name",
        "rename2",
        lambda s: rename2(s / "a", s / "n", _NOREPLACE),
        (attributes("."),),
    ),
)
BOTH = [(change, question) for change in CHANGES for question in change.questions]
NAMES = ("a", "a2", "b", "s", "n", "sub", "sub/a", "sub/empty", "empty")


def _true_names(s: Scene) -> None:
    """Check that every name leads to the right file, also when it is looked up again."""
    truth = s.m.call("tree", s.name)
    for again in (False, True):
        if again:
            s.m.drop()
        for name in NAMES:
            seen = _errno(os.lstat, s / name)
            if name not in truth:
                assert seen == errno.ENOENT, f"{name}: {seen}, but it is not there"
                continue
            assert not isinstance(seen, int), f"{name} is there, but {os.strerror(seen)}"
            assert seen.st_ino == truth[name].ino, name
            if not stat.S_ISLNK(seen.st_mode):
                assert _facts(seen) == _facts(truth[name]), name
    assert sorted(os.listdir(s.fds["."])) == sorted(n for n in truth if "/" not in n)


def _true(s: Scene, question: Question) -> None:
    truth = question.truth(s)
    for _ in range(3):
        assert question(s) == truth
    _true_names(s)


def _true_in_its_midst(s: Scene, question: Question, before: Any) -> None:
    """Check an answer while a change has happened but its caller does not know.

    FUSE ignores the attributes of a LOOKUP while the inode's size changes, so the old attributes
    may be seen until the change returns.
    """
    seen, truth = question(s), question.truth(s)
    assert seen == truth or (question.opcode == "lookup" and seen == before)


def _warm(s: Scene, question: Question) -> None:
    """Let the kernel learn the answer, and check that it uses it."""
    question(s)
    with s.m.answered(question.opcode):
        assert question(s) == question.truth(s)


def _quiet(s: Scene, question: Question, change: Change) -> None:
    """The change begins and ends between questions."""
    _warm(s, question)
    change.do(s)


def _question_crosses_change(s: Scene, question: Question, change: Change) -> None:
    """The daemon answers, then all of the change happens, and then the answer arrives."""
    question(s)
    s.m.connection.invalidate()
    s.m.hold(question.opcode, "after")
    asked = question.start(s)
    s.m.wait_held()
    Call(change.do, s).result()
    s.m.release()
    asked.result()


def _asked_while_change_waits(s: Scene, question: Question, change: Change) -> None:
    """The change is on its way to the daemon. The kernel gives no answer that it may make false."""
    _warm(s, question)
    s.m.hold(change.opcode, "before")
    changed = Call(change.do, s)
    s.m.wait_held()
    with s.m.passed(question.opcode, "stale"):
        assert question(s) == question.truth(s)
    s.m.release()
    changed.result()


def _asked_while_reply_waits(s: Scene, question: Question, change: Change) -> None:
    """The change has happened, but its caller does not know."""
    _warm(s, question)
    before = question.truth(s)
    s.m.hold(change.opcode, "after")
    changed = Call(change.do, s)
    s.m.wait_held()
    with s.m.passed(question.opcode, "stale"):
        _true_in_its_midst(s, question, before)
    s.m.release()
    changed.result()


def _question_begins_inside_change(s: Scene, question: Question, change: Change) -> None:
    """The daemon answers before the change, which ends before the answer arrives."""
    _warm(s, question)
    s.m.hold(change.opcode, "before")
    changed = Call(change.do, s)
    s.m.wait_held()
    s.m.hold(question.opcode, "after")
    asked = question.start(s)
    s.m.wait_held(2)
    s.m.release(change.opcode)
    changed.result()
    s.m.release()
    asked.result()


def _question_ends_inside_change(s: Scene, question: Question, change: Change) -> None:
    """The daemon answers before the change begins, and the answer arrives during the change."""
    question(s)
    before = question.truth(s)
    s.m.connection.invalidate()
    s.m.hold(question.opcode, "after")
    asked = question.start(s)
    s.m.wait_held()
    s.m.hold(change.opcode, "after")
    changed = Call(change.do, s)
    s.m.wait_held(2)
    s.m.release(question.opcode)
    asked.result()
    with s.m.passed(question.opcode):
        _true_in_its_midst(s, question, before)
    s.m.release()
    changed.result()


# A page fault may wait for a WRITE with the page locked (the flusher is fast on FUSE), and a reply
# with a new mtime waits for the page. So no question can be answered before that WRITE is.
_ASKED_INSIDE = (
    _asked_while_change_waits,
    _asked_while_reply_waits,
    _question_ends_inside_change,
)


orders = pytest.mark.parametrize(
    "order",
    [
        _quiet,
        _question_crosses_change,
        _asked_while_change_waits,
        _asked_while_reply_waits,
        _question_begins_inside_change,
        _question_ends_inside_change,
    ],
    ids=lambda order: order.__name__.strip("_"),
)
Order = Callable[[Scene, Question, Change], None]


def _in_order(
    mountpoint: Path, order: Order, both: list[tuple[Change, Question]], *lacks: str
) -> None:
    """Let each change meet its question.

    :param lacks: the requests that the daemon does not implement.
    """
    wrong = []
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("no_open", "nodeid_per_file"),
        default_permissions=False,
        check_modes=True,
        readdirplus=False,
        # Without this flag, close() would wait for the inode lock, which the change holds.
        open_flags=FOPEN_NOFLUSH,
        lacks=lacks,
    ) as m:
        for number, (change, question) in enumerate(both):
            if change.name == "mmap" and order in _ASKED_INSIDE:
                continue
            if change.opcode == _COPY and not lacks:
                change = replace(change, opcode=m.copy_opcode)
            with scene(m, f"d{number}") as s:
                try:
                    order(s, question, change)
                    _true(s, question)
                except AssertionError as error:
                    wrong.append(f"{change.name}, {question}: {error}")
                    m.release()
    assert not wrong, "\n\n".join(wrong)


@orders
def test_answers_are_right_in_each_order_of_request_and_change(
    mountpoint: Path, order: Order
) -> None:
    _in_order(mountpoint, order, BOTH)


@orders
def test_answers_are_right_in_each_order_with_the_older_copy_request(
    mountpoint: Path, order: Order
) -> None:
    """Newer kernels send another request first. Daemons that do not know it get this one."""
    both = [(change, question) for change, question in BOTH if change.opcode == _COPY]
    _in_order(mountpoint, order, both, "copy_file_range_64")
