# SPDX-License-Identifier: LGPL-2.1-or-later
"""Whose groups and capabilities a pass-through uses that checks permissions itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.host.attempts import ATTEMPT

ALICE, BOB, GROUP = 41001, 41002, 41100
ALONE = ("allow_other",)
_PYTHON = (os.path.realpath(sys.executable), "-I", "-c")

READ = """
import errno, sys
for name in sys.argv[2:]:
    try:
        with open(f"{sys.argv[1]}/{name}") as file:
            print(name, file.read())
    except OSError as error:
        print(name, errno.errorcode[error.errno])
"""
# Runs in the PID namespace of the daemon, in a process with a given number.
READ_AS_PROCESS = """
import errno, os, sys
path, user, number = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open("/proc/sys/kernel/ns_last_pid", "w") as last:
    last.write(str(number - 1))
if (child := os.fork()):
    os.waitpid(child, 0)
    assert child == number, (child, number)
    sys.exit()
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
try:
    with open(path) as file:
        print(file.read())
except OSError as error:
    print(errno.errorcode[error.errno])
"""


def _write(path: Path, mode: int, uid: int = 0, gid: int = 0) -> None:
    path.write_text("content")
    os.chown(path, uid, gid)
    path.chmod(mode)


def _printed(*words: object) -> str:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, cwd="/", check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def with_foreign_proc(served: Any) -> Any:
    """A daemon in a PID namespace of its own, where /proc shows the namespace above."""
    return served(options=ALONE, within=("unshare", "--pid", "--fork"))


@pytest.fixture
def with_own_proc(served: Any) -> Any:
    """A daemon in a PID and mount namespace of its own, whose /proc shows its PID namespace."""
    return served(options=ALONE, within=("unshare", "--pid", "--fork", "--mount-proc"))


@pytest.fixture
def donor() -> Iterator[int]:
    """The number of a process of Alice that is in the group GROUP, in this PID namespace."""
    process = subprocess.Popen(
        ["sleep", "infinity"], user=ALICE, group=ALICE, extra_groups=[GROUP], cwd="/"
    )
    yield process.pid
    process.kill()
    process.wait()


def _entering(mounted: Any, *namespaces: str) -> tuple[str, ...]:
    """Return the beginning of a command that runs in the given namespaces of the daemon."""
    unshare = mounted.process.pid
    (daemon,) = Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()
    return ("nsenter", "--target", daemon, *namespaces)


def _as_alice(groups: str) -> tuple[str, ...]:
    return ("setpriv", f"--reuid={ALICE}", f"--regid={ALICE}", groups, *_PYTHON)


def test_groups_of_a_process_with_the_same_number_elsewhere_are_not_used(
    with_foreign_proc: Any, donor: int
) -> None:
    _write(with_foreign_proc.source / "f", 0o640, gid=GROUP)
    path = with_foreign_proc.path / "f"
    within = _entering(with_foreign_proc, "--pid")
    assert _printed(*within, *_PYTHON, READ_AS_PROCESS, path, ALICE, donor) == "EACCES"


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        (f"--groups={GROUP}", "excluding EACCES\nshared content"),
        ("--clear-groups", "excluding content\nshared EACCES"),
    ],
)
def test_groups_are_found_in_a_pid_namespace_with_its_own_proc(
    with_own_proc: Any, groups: str, expected: str
) -> None:
    _write(with_own_proc.source / "excluding", 0o604, gid=GROUP)
    _write(with_own_proc.source / "shared", 0o640, gid=GROUP)
    within = _entering(with_own_proc, "--pid", "--mount")
    run = (*_as_alice(groups), READ, with_own_proc.path, "excluding", "shared")
    assert _printed(*within, *run) == expected


@pytest.mark.parametrize("daemon", ["with_foreign_proc", "with_own_proc"])
def test_group_without_rights_is_refused_where_groups_are_unknown(
    request: pytest.FixtureRequest, daemon: str
) -> None:
    """The file excludes the members of a group. The daemon does not know who they are."""
    mounted = request.getfixturevalue(daemon)
    _write(mounted.source / "f", 0o604, gid=GROUP)
    run = (*_as_alice(f"--groups={GROUP}"), READ, mounted.path, "f")
    assert _printed(*_entering(mounted, "--mount"), *run) == "f EACCES"


@pytest.fixture
def mounted_alone(served: Any) -> Any:
    return served(options=ALONE)


def test_caller_with_unknown_groups_reads_where_the_kernel_checks(
    served: Any, as_user: Any
) -> None:
    mounted = served(within=("unshare", "--pid", "--fork"))
    _write(mounted.source / "excluding", 0o604, gid=GROUP)
    _write(mounted.source / "shared", 0o640, gid=GROUP)
    output = as_user(ALICE, READ, mounted.path, "excluding", "shared", groups=(GROUP,))
    assert output.split() == ["excluding", "EACCES", "shared", "content"]


@pytest.mark.parametrize("daemon", ["with_foreign_proc", "with_own_proc"])
def test_root_in_another_pid_namespace_has_its_rights(
    request: pytest.FixtureRequest, daemon: str
) -> None:
    mounted = request.getfixturevalue(daemon)
    _write(mounted.source / "f", 0o600, BOB, BOB)
    run = (*_PYTHON, READ, mounted.path, "f")
    assert _printed(*_entering(mounted, "--mount"), *run) == "f content"


ATTEMPTS = f"""{ATTEMPT}
attempt("read", lambda: open("private").read())
attempt("write", lambda: open("private", "r+").close())
attempt("read-group", lambda: open("group").read())
attempt("write-group", lambda: open("group", "r+").close())
attempt("read-excluding", lambda: open("excluding").read())
attempt("search", lambda: os.stat("hidden/f"))
attempt("list", lambda: os.listdir("hidden"))
attempt("create", lambda: os.close(os.open("closed/new", os.O_CREAT)))
attempt("mkdir", lambda: os.mkdir("closed/directory"))
attempt("rename", lambda: os.rename("closed/f", "closed/g"))
attempt("set-time", lambda: os.utime("shared", (1, 1)))
attempt("setxattr", lambda: os.setxattr("shared", "user.a", b"1"))
attempt("truncate", lambda: os.truncate("shared", 0))
attempt("chmod", lambda: os.chmod("shared", 0o666))
attempt("chown", lambda: os.chown("shared", 0, 0))
"""


def _furnish(source: Path) -> None:
    for name in ("closed", "hidden"):
        (source / name).mkdir()
        _write(source / name / "f", 0o644, BOB, BOB)
        os.chown(source / name, BOB, BOB)
    (source / "closed").chmod(0o755)
    (source / "hidden").chmod(0o700)
    _write(source / "private", 0o600, BOB, BOB)
    _write(source / "shared", 0o644, BOB, BOB)
    _write(source / "group", 0o660, BOB, GROUP)
    _write(source / "excluding", 0o604, BOB, GROUP)


def _as_root(*options: str) -> Callable[[Path], str]:
    words = ("setpriv", "--reuid=0", *options, *_PYTHON, ATTEMPTS)
    return lambda directory: _printed(*words, directory)


@pytest.mark.parametrize("gid", [0, GROUP])
@pytest.mark.parametrize("groups", ["--clear-groups", f"--groups={GROUP}"])
@pytest.mark.parametrize(
    "capabilities", ["-all", "-all,+dac_override", "-all,+dac_read_search,+fowner", "-fowner"]
)
def test_root_has_the_access_that_its_capabilities_give_it_to_the_lower_files(
    mounted_alone: Any, gid: int, groups: str, capabilities: str
) -> None:
    twin = mounted_alone.source.parent / "twin"
    twin.mkdir()
    twin.chmod(0o755)
    for directory in (mounted_alone.source, twin):
        _furnish(directory)
    attempts = _as_root(f"--regid={gid}", groups, f"--bounding-set={capabilities}")
    below = attempts(twin)
    assert attempts(mounted_alone.path) == below
    assert ("read ok" in below) == (capabilities != "-all")
    assert ("chmod ok" in below) == ("+fowner" in capabilities)
    assert ("chown ok" in below) == (capabilities == "-fowner")


def test_root_of_another_user_namespace_has_no_capabilities_below(mounted_alone: Any) -> None:
    """Such a process has all capabilities, but only in a namespace of its own."""
    _write(mounted_alone.source / "f", 0o600, BOB, BOB)
    words = ("unshare", "--user", "--map-root-user", *_PYTHON, READ)
    for directory in (mounted_alone.source, mounted_alone.path):
        assert _printed(*words, directory, "f") == "f EACCES"


def test_root_keeps_its_capabilities_after_serving_root_without_any(mounted_alone: Any) -> None:
    _furnish(mounted_alone.source)
    attempts = _as_root("--regid=0", "--clear-groups", "--bounding-set=-all")
    assert "read EACCES" in attempts(mounted_alone.path)
    assert (mounted_alone.path / "hidden/f").read_text() == "content"
    assert "read EACCES" in attempts(mounted_alone.path)
    (mounted_alone.path / "closed/own").write_text("root")
    assert (mounted_alone.source / "closed/own").stat().st_uid == 0


def test_overlay_above_reads_for_users_as_the_root_that_mounted_it(
    mounted_alone: Any, as_user: Any, place: Path, mount: Any
) -> None:
    """The request names Alice's process, and the ids of root."""
    _write(mounted_alone.source / "f", 0o600, ALICE, ALICE)
    (place / "empty").mkdir()
    (place / "overlay").mkdir()
    mounted_alone.path.stat()  # the overlay copies the mode that FUSE knows
    lower = f"lowerdir={mounted_alone.path}:{place / 'empty'}"
    mount("-t", "overlay", "overlay", "-o", lower, place / "overlay")
    assert as_user(ALICE, READ, place / "overlay", "f") == "f content"
    assert as_user(BOB, READ, place / "overlay", "f") == "f EACCES"
