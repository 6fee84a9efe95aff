# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run the file systems of docs/examples, and make the data that they serve."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).resolve().parents[1] / "docs/examples"
_MNT_DETACH = 2
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def running(
    script: str, mountpoint: Path, eventually: Any, *arguments: object, through: Sequence[str] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """Run an example until it has mounted, and yield it; at the end it must exit with status 0.

    :param through: arguments of Python that run the script; empty: none.
    """
    mountpoint.mkdir(exist_ok=True)
    command = [sys.executable, *through, str(EXAMPLES / script), *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)

    def is_mounted() -> bool:
        assert process.poll() is None, f"{script} ended with {process.returncode}"
        return os.path.ismount(mountpoint)

    try:
        eventually(is_mounted, what=f"{script} to be mounted")
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
        assert not os.path.ismount(mountpoint)
    finally:
        _libc.umount2(os.fsencode(mountpoint), _MNT_DETACH)
        process.kill()
        process.wait()


def text(letter: str, size: int) -> bytes:
    """Return bytes in groups of eight that contain their own offset."""
    return b"".join(f"{letter}{n:07}".encode() for n in range(size // 8 + 1))[:size]


TREE = {
    "a/b/deep": text("d", 10_000),
    "a/small": b"small\n",
    "a/empty": b"",
    "large": text("l", 300_000),
    "run": b"#!/bin/sh\n",
}
LINK, TARGET = "a/link", "../large"


def make_tree(top: Path) -> None:
    """Make files of several sizes, one of them executable, and a symbolic link."""
    for name, data in TREE.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(data)
        os.utime(top / name, (1_000_000_000, 1_000_000_000))
        (top / name).chmod(0o644)
    (top / "run").chmod(0o755)
    (top / LINK).symlink_to(TARGET)


def pack(archive: bytes, database: Path) -> None:
    """Convert a tar archive to a database of archive_fs."""
    command = [sys.executable, str(EXAMPLES / "archive_fs/pack.py"), str(database)]
    subprocess.run(command, input=archive, check=True)


def make_database(source: Path, database: Path) -> None:
    """Pack a directory for archive_fs."""
    with io.BytesIO() as file:
        with tarfile.open(fileobj=file, mode="w") as archive:
            archive.add(source, arcname=".")
        pack(file.getvalue(), database)


def git(repository: Path, *arguments: str) -> bytes:
    """Run git without the user's and the system's configuration; return its output."""
    nobody = {
        **{"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"},
        **{f"GIT_{who}_NAME": "Somebody" for who in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{who}_EMAIL": "somebody@example.org" for who in ("AUTHOR", "COMMITTER")},
    }
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(
        command, check=True, capture_output=True, env={**os.environ, **nobody}
    ).stdout.strip()


def make_repository(repository: Path) -> str:
    """Make a repository with two commits, two branches and two tags; return the first commit."""
    repository.mkdir()
    git(repository, "init", "--quiet", "--initial-branch=main")
    make_tree(repository)
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message=One")
    git(repository, "tag", "light")
    (repository / "a/small").write_bytes(b"changed\n")
    git(repository, "commit", "--quiet", "--all", "--message=Two")
    git(repository, "tag", "--annotate", "v1.0", "--message=A release")
    git(repository, "branch", "feature/x", "light")
    return git(repository, "rev-parse", "light").decode()


def _read(path: Path) -> bytes:
    # A buffered file asks by an ioctl whether it is a terminal, which costs a request.
    with path.open("rb", buffering=0) as file:
        return file.readall()


def walk(top: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, size and data of all that is below a directory, by relative path."""
    found = {}
    for directory, names, files in os.walk(top):
        for name in names + files:
            path = Path(directory) / name
            status = path.lstat()
            if path.is_symlink():
                data = os.fsencode(os.readlink(path))
            else:
                data = _read(path) if path.is_file() else b""
            size = 0 if path.is_dir() else status.st_size
            found[str(path.relative_to(top))] = (status.st_mode, size, data)
    return found
