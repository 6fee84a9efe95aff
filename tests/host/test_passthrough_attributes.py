# SPDX-License-Identifier: LGPL-2.1-or-later
"""Attributes, extended attributes and permissions through the pass-through."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from tests.host.attempts import ATTEMPT

_libc = ctypes.CDLL(None, use_errno=True)

ALICE, BOB, GROUP = 41001, 41002, 41100


def _refused(number: int) -> Any:
    return pytest.raises(OSError, match=rf"\[Errno {number}\]")


def _same(upper: os.stat_result, lower: os.stat_result) -> None:
    for name in ("mode", "ino", "nlink", "uid", "gid", "rdev", "size", "blocks", "mtime_ns"):
        assert getattr(upper, f"st_{name}") == getattr(lower, f"st_{name}"), name
    assert (upper.st_atime_ns, upper.st_ctime_ns) == (lower.st_atime_ns, lower.st_ctime_ns)


def test_attributes_equal_the_lower_ones(mounted: Any) -> None:
    (mounted.source / "f").write_bytes(bytes(5000))
    (mounted.source / "d").mkdir()
    os.symlink("f", mounted.source / "l")
    os.chown(mounted.source / "f", ALICE, GROUP)
    for name in ("f", "d", "l"):
        _same((mounted.path / name).lstat(), (mounted.source / name).lstat())


def test_mode_owner_and_times_are_changed_in_the_lower_file(mounted: Any) -> None:
    (mounted.path / "f").write_bytes(b"x")
    os.chmod(mounted.path / "f", 0o4751)
    os.chown(mounted.path / "f", ALICE, -1)
    os.chown(mounted.path / "f", -1, GROUP)
    os.chmod(mounted.path / "f", 0o640)
    os.utime(mounted.path / "f", ns=(1_600_000_000_123_456_789, 1_500_000_000_987_654_321))
    lower = (mounted.source / "f").stat()
    assert (stat.S_IMODE(lower.st_mode), lower.st_uid, lower.st_gid) == (0o640, ALICE, GROUP)
    assert lower.st_atime_ns == 1_600_000_000_123_456_789
    assert lower.st_mtime_ns == 1_500_000_000_987_654_321
    _same((mounted.path / "f").stat(), lower)


def test_change_of_one_timestamp_keeps_the_other(mounted: Any) -> None:
    (mounted.path / "f").write_bytes(b"x")
    os.utime(mounted.path / "f", ns=(1_111_111_111, 2_222_222_222))
    times = (ctypes.c_long * 4)(7, 5, 0, (1 << 30) - 2)  # atime 7.000000005, mtime omitted
    assert _libc.utimensat(-100, os.fsencode(mounted.path / "f"), times, 0) == 0
    lower = (mounted.source / "f").stat()
    assert (lower.st_atime_ns, lower.st_mtime_ns) == (7_000_000_005, 2_222_222_222)


def test_symbolic_link_itself_is_changed(mounted: Any) -> None:
    (mounted.source / "f").write_bytes(b"x")
    before = (mounted.source / "f").stat()
    os.symlink("f", mounted.path / "l")
    os.chown(mounted.path / "l", ALICE, GROUP, follow_symlinks=False)
    os.utime(mounted.path / "l", ns=(10**9, 2 * 10**9), follow_symlinks=False)
    lower = (mounted.source / "l").lstat()
    assert (lower.st_uid, lower.st_gid, lower.st_mtime_ns) == (ALICE, GROUP, 2 * 10**9)
    after = (mounted.source / "f").stat()
    assert (after.st_uid, after.st_mtime_ns) == (before.st_uid, before.st_mtime_ns)


def test_umask_of_the_caller_is_applied(mounted: Any, as_user: Any) -> None:
    old = os.umask(0o027)
    try:
        (mounted.path / "f").touch(0o666)
        (mounted.path / "d").mkdir(0o777)
    finally:
        os.umask(old)
    assert stat.S_IMODE((mounted.source / "f").stat().st_mode) == 0o640
    assert stat.S_IMODE((mounted.source / "d").stat().st_mode) == 0o750


@pytest.mark.parametrize("value", [b"", b"v", b"\0binary\xff\0", b"x" * 2000])
def test_extended_attribute_reads_back(mounted: Any, value: bytes) -> None:
    (mounted.path / "f").touch()
    os.setxattr(mounted.path / "f", "user.a", value)
    assert os.getxattr(mounted.source / "f", "user.a") == value
    assert os.getxattr(mounted.path / "f", "user.a") == value
    assert os.listxattr(mounted.path / "f") == ["user.a"]


def test_extended_attributes_are_listed_and_removed(mounted: Any) -> None:
    (mounted.path / "f").touch()
    assert os.listxattr(mounted.path / "f") == []
    for n in range(20):
        os.setxattr(mounted.path / "f", f"user.{n}", b"%d" % n)
    assert sorted(os.listxattr(mounted.path / "f")) == sorted(os.listxattr(mounted.source / "f"))
    os.removexattr(mounted.path / "f", "user.7")
    assert "user.7" not in os.listxattr(mounted.source / "f")
    with _refused(errno.ENODATA):
        os.getxattr(mounted.path / "f", "user.7")
    with _refused(errno.ENODATA):
        os.removexattr(mounted.path / "f", "user.7")


def test_extended_attribute_is_read_after_it_was_absent(mounted: Any) -> None:
    (mounted.path / "f").touch()
    for value in (b"one", b"two"):
        with _refused(errno.ENODATA):
            os.getxattr(mounted.path / "f", "user.a")
        os.setxattr(mounted.path / "f", "user.a", value)
        assert os.getxattr(mounted.path / "f", "user.a") == value
        os.removexattr(mounted.path / "f", "user.a")


def test_extended_attribute_flags_create_and_replace(mounted: Any) -> None:
    (mounted.path / "f").touch()
    with _refused(errno.ENODATA):
        os.setxattr(mounted.path / "f", "user.a", b"1", os.XATTR_REPLACE)
    os.setxattr(mounted.path / "f", "user.a", b"1", os.XATTR_CREATE)
    with _refused(errno.EEXIST):
        os.setxattr(mounted.path / "f", "user.a", b"2", os.XATTR_CREATE)
    os.setxattr(mounted.path / "f", "user.a", b"3", os.XATTR_REPLACE)
    assert os.getxattr(mounted.source / "f", "user.a") == b"3"


def test_extended_attribute_size_is_reported_and_a_small_buffer_fails(mounted: Any) -> None:
    (mounted.path / "f").touch()
    os.setxattr(mounted.path / "f", "user.a", b"12345")
    path = os.fsencode(mounted.path / "f")
    assert _libc.getxattr(path, b"user.a", None, 0) == 5
    assert _libc.listxattr(path, None, 0) == len(b"user.a\0")
    small = ctypes.create_string_buffer(4)
    assert _libc.getxattr(path, b"user.a", small, 4) == -1
    assert ctypes.get_errno() == errno.ERANGE
    assert _libc.listxattr(path, small, 4) == -1
    assert ctypes.get_errno() == errno.ERANGE


def test_extended_attributes_of_a_symbolic_link_are_its_own(mounted: Any) -> None:
    (mounted.source / "f").touch()
    os.symlink("f", mounted.path / "l")
    os.setxattr(mounted.path / "l", "trusted.a", b"link", follow_symlinks=False)
    assert os.getxattr(mounted.source / "l", "trusted.a", follow_symlinks=False) == b"link"
    assert os.listxattr(mounted.source / "f") == []


CREATE = """
import os, sys, socket
os.umask(0o022)
os.chdir(sys.argv[1])
open("file", "w").close()
os.mkdir("directory")
os.symlink("x", "link")
os.mkfifo("fifo")
os.link("file", "hard")
"""


@pytest.mark.parametrize("options", [("allow_other",), ("allow_other", "default_permissions")])
def test_new_files_of_a_user_belong_to_the_user(
    served: Any, as_user: Any, options: tuple[str, ...]
) -> None:
    mounted = served(options=options)
    mounted.source.chmod(0o777)
    as_user(ALICE, CREATE, mounted.path)
    for name in ("file", "directory", "link", "fifo", "hard"):
        lower = (mounted.source / name).lstat()
        assert (lower.st_uid, lower.st_gid) == (ALICE, ALICE), name


@pytest.mark.parametrize("options", [("allow_other",), ("allow_other", "default_permissions")])
def test_files_in_a_setgid_directory_inherit_its_group(
    served: Any, as_user: Any, options: tuple[str, ...]
) -> None:
    mounted = served(options=options)
    os.chown(mounted.source, 0, GROUP)
    mounted.source.chmod(0o2777)
    as_user(ALICE, CREATE, mounted.path)
    assert (mounted.source / "file").stat().st_gid == GROUP
    lower = (mounted.source / "directory").stat()
    assert lower.st_gid == GROUP
    assert lower.st_mode & stat.S_ISGID


ATTEMPTS = f"""{ATTEMPT}
attempt("read", lambda: open("private").read())
attempt("write", lambda: open("private", "r+").close())
attempt("read-shared", lambda: open("shared").read())
attempt("write-shared", lambda: open("shared", "r+").write("y"))
attempt("write-group", lambda: open("group", "r+").write("z"))
attempt("touch-group", lambda: os.utime("group"))
attempt("set-time-group", lambda: os.utime("group", (1, 1)))
attempt("chmod", lambda: os.chmod("shared", 0o777))
attempt("chown", lambda: os.chown("shared", os.getuid(), -1))
attempt("truncate", lambda: os.truncate("shared", 0))
attempt("create", lambda: open("closed/new", "w"))
attempt("unlink", lambda: os.unlink("closed/f"))
attempt("rename", lambda: os.rename("closed/f", "closed/g"))
attempt("link", lambda: os.link("closed/f", "closed/l"))
attempt("list", lambda: os.listdir("hidden"))
attempt("search", lambda: os.stat("hidden/f"))
attempt("setxattr", lambda: os.setxattr("shared", "user.a", b"1"))
print("access", os.access("private", os.R_OK), os.access("shared", os.R_OK))
attempt("own", lambda: open("own", "r+").write("w"))
attempt("chmod-own", lambda: os.chmod("own", 0o640))
"""


def _furnish(source: Path) -> None:
    for name, mode in (("private", 0o600), ("shared", 0o644), ("group", 0o664), ("own", 0o600)):
        (source / name).write_text("content")
        (source / name).chmod(mode)
    os.chown(source / "group", 0, GROUP)
    os.chown(source / "own", ALICE, ALICE)
    for name, mode in (("closed", 0o755), ("hidden", 0o700)):
        (source / name).mkdir()
        (source / name / "f").write_text("content")
        (source / name).chmod(mode)


@pytest.mark.parametrize("groups", [(), (GROUP,)])
@pytest.mark.parametrize("options", [("allow_other",), ("allow_other", "default_permissions")])
def test_users_have_the_access_that_they_have_to_the_lower_files(
    served: Any, as_user: Any, options: tuple[str, ...], groups: tuple[int, ...]
) -> None:
    mounted = served(options=options)
    twin = mounted.source.parent / "twin"
    twin.mkdir(0o755)
    for directory in (mounted.source, twin):
        _furnish(directory)
    below = as_user(ALICE, ATTEMPTS, twin, groups=groups)
    assert as_user(ALICE, ATTEMPTS, mounted.path, groups=groups) == below
    assert "read EACCES" in below
    assert ("touch-group ok" in below) == bool(groups)
    assert "set-time-group EPERM" in below


def test_answers_for_root_are_not_given_to_others(served: Any, as_user: Any) -> None:
    mounted = served(options=("allow_other",), arguments={"entry_timeout": 60, "attr_timeout": 60})
    _furnish(mounted.source)
    assert (mounted.path / "private").read_text() == "content"
    assert os.listdir(mounted.path / "hidden") == ["f"]
    for user in (ALICE, BOB):
        output = as_user(user, ATTEMPTS, mounted.path)
        assert "read EACCES" in output
        assert "list EACCES" in output
    assert (mounted.path / "private").read_text() == "content"


@pytest.mark.parametrize("shown_by", ["a-look", "a-listing"])
def test_names_learned_for_one_user_are_not_resolved_for_another(
    served: Any, as_user: Any, shown_by: str
) -> None:
    long = {"entry_timeout": 60, "attr_timeout": 60, "negative_timeout": 60}
    mounted = served(options=("allow_other",), arguments=long)
    (mounted.source / "d/sub").mkdir(parents=True)
    for name in ("d/f", "d/sub/g"):
        (mounted.source / name).write_text("content")
        (mounted.source / name).chmod(0o644)
    (mounted.source / "d").chmod(0o700)
    show = (
        "import os, sys; [os.stat(f'{sys.argv[1]}/{n}') for n in ('d/f', 'd/sub/g')]"
        if shown_by == "a-look"
        else "import os, sys; [[*os.scandir(f'{sys.argv[1]}/{n}')] for n in ('d', 'd/sub')]"
    )
    walk = """
import errno, sys
for name in ("d/f", "d/sub/g", "d/none"):
    try:
        print(open(f"{sys.argv[1]}/{name}").read())
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    for directory in (mounted.source, mounted.path):
        as_user(0, show, directory)
        assert as_user(ALICE, walk, directory).split() == ["EACCES"] * 3
        assert as_user(0, walk, directory).split() == ["content", "content", "ENOENT"]
        assert as_user(ALICE, walk, directory).split() == ["EACCES"] * 3


def test_root_keeps_its_rights_after_serving_a_user(served: Any, as_user: Any) -> None:
    mounted = served(options=("allow_other",))
    _furnish(mounted.source)
    as_user(ALICE, ATTEMPTS, mounted.path, groups=(GROUP,))
    (mounted.path / "hidden/new").write_text("root")
    assert (mounted.source / "hidden/new").stat().st_uid == 0


def test_other_users_have_no_access_without_allow_other(served: Any, as_user: Any) -> None:
    mounted = served(options=())
    (mounted.source / "f").write_text("x")
    (mounted.source / "f").chmod(0o666)
    script = "import os, sys\ntry: os.listdir(sys.argv[1])\nexcept PermissionError: print('out')"
    assert as_user(ALICE, script, mounted.path) == "out"


@pytest.mark.parametrize("options", [("allow_other",), ("allow_other", "default_permissions")])
def test_write_by_a_user_clears_set_uid(
    served: Any, as_user: Any, options: tuple[str, ...]
) -> None:
    mounted = served(options=options)
    (mounted.source / "f").write_text("x")
    (mounted.source / "f").chmod(0o6777)
    as_user(
        ALICE, "import sys\nwith open(sys.argv[1], 'r+') as f: f.write('y')", mounted.path / "f"
    )
    assert stat.S_IMODE((mounted.source / "f").stat().st_mode) == 0o777
