# SPDX-License-Identifier: LGPL-2.1-or-later
"""Loads by programs of others: SQLite, git, tar, a build, and fio."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3

from tests.withstand.place import COMMAND_S, Place

_AUTHOR = ("-c", "user.name=n", "-c", "user.email=e", "-c", "gc.auto=0", "-c", "core.fsync=all")
_UNITS = 3


def sqlite_journal(place: Place) -> int:
    """Commit transactions of a database with a rollback journal."""
    return _sqlite(place, "delete")


def sqlite_wal(place: Place) -> int:
    """Commit transactions of a database with a write-ahead log."""
    return _sqlite(place, "wal")


def _sqlite(place: Place, journal: str) -> int:
    path = place.directory / f"{journal}.db"
    rows: dict[int, bytes] = {}
    steps = 0
    with contextlib.closing(sqlite3.connect(path, timeout=COMMAND_S, isolation_level=None)) as db:
        (mode,) = db.execute(f"pragma journal_mode={journal}").fetchone()
        place.compare("the journal", mode, journal)
        db.execute("create table rows (number integer primary key, data blob)")
        while place.goes_on(steps):
            steps += 1
            changed = {
                place.rng.randrange(200): place.rng.randbytes(place.rng.randrange(2000))
                for _ in range(8)
            }
            db.execute("begin immediate")
            db.executemany("insert or replace into rows values (?, ?)", changed.items())
            db.execute("commit" if steps % 7 else "rollback")
            if steps % 7:
                rows |= changed
            if steps % 10 == 0:
                place.compare("the rows", dict(db.execute("select * from rows")), rows)
    with contextlib.closing(sqlite3.connect(path, timeout=COMMAND_S)) as db:
        place.compare("integrity_check", db.execute("pragma integrity_check").fetchall(), [("ok",)])
        place.compare("the rows", dict(db.execute("select * from rows")), rows)
    return steps


def git(place: Place) -> int:
    """Commit changes to a repository; check all objects, and the files of a clone."""
    place.run("git", "init", "-q", "repository")
    repository = place.directory / "repository"
    files: dict[str, bytes] = {}
    steps = 0
    while place.goes_on(steps):
        steps += 1
        for _ in range(4):
            name = f"{place.rng.randrange(4)}/{place.rng.randrange(6)}"
            files[name] = place.rng.randbytes(place.rng.randrange(1, 5000))
            (repository / name).parent.mkdir(exist_ok=True)
            (repository / name).write_bytes(files[name])
        place.run("git", "add", "-A", cwd=repository)
        place.run("git", *_AUTHOR, "commit", "-q", "-m", str(steps), cwd=repository)
    place.run("git", "fsck", "--full", "--strict", cwd=repository)
    place.compare("git status", place.run("git", "status", "--porcelain", cwd=repository), "")
    count = place.run("git", "rev-list", "--count", "HEAD", cwd=repository) if steps else "0"
    place.compare("the number of commits", int(count), steps)
    if steps:
        place.run("git", "clone", "-q", repository, place.scratch / "clone")
        found = {name: (place.scratch / "clone" / name).read_bytes() for name in files}
        place.compare("the files of a clone", found, files)
    return steps


def tar(place: Place) -> int:
    """Unpack an archive, compare the files with it, pack them again, and remove them."""
    tree = place.scratch / "tree"
    for number in range(60):
        path = tree / f"{number % 4}/{number % 7}/{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(place.rng.randbytes(place.rng.randrange(30000)))
        path.chmod(0o644 if number % 2 else 0o600)
        if number % 9 == 0:
            path.with_suffix(".link").symlink_to(path.name)
    archive = place.scratch / "tree.tar"
    place.run("tar", "-cf", archive, "-C", tree, ".")
    steps = 0
    while place.goes_on(steps):
        steps += 1
        unpacked = place.directory / "unpacked"
        unpacked.mkdir()
        place.run("tar", "-xpf", archive, "-C", unpacked)
        place.run("tar", "-df", archive, "-C", unpacked)
        place.run("diff", "-r", "--no-dereference", tree, unpacked)
        shutil.rmtree(unpacked)
    return steps


def build(place: Place) -> int:
    """Build a program from several files by make, run it, and remove what was built."""
    directory = place.directory / "build"
    directory.mkdir()
    objects = [f"unit{number}.o" for number in range(_UNITS)]
    (directory / "Makefile").write_text(
        f"program: {' '.join(objects)} main.o\n\t$(CC) -o $@ $^\n\n%.o: %.c\n\t$(CC) -c -o $@ $<\n"
    )
    declared = "".join(f"int unit{number}(void);\n" for number in range(_UNITS))
    called = " + ".join(f"unit{number}()" for number in range(_UNITS))
    (directory / "main.c").write_text(
        f'#include <stdio.h>\n{declared}int main(void) {{ printf("%d\\n", {called}); return 0; }}\n'
    )
    steps = 0
    while place.goes_on(steps):
        steps += 1
        values = [place.rng.randrange(1000) for _ in range(_UNITS)]
        for number, value in enumerate(values):
            text = f"int unit{number}(void) {{ return {value}; }}\n"
            (directory / f"unit{number}.c").write_text(text)
        place.run("make", "-s", "-B", "-j2", cwd=directory)
        found = place.run(directory / "program", cwd=place.scratch)
        place.compare("the program's output", found, f"{sum(values)}\n")
        for name in (*objects, "main.o", "program"):
            os.unlink(directory / name)
    return steps


def fio(place: Place) -> int:
    """Write random blocks by fio, which verifies a checksum of each, buffered and direct."""
    steps = 0
    while place.goes_on(steps):
        steps += 1
        place.run(
            *("fio", "--name=verified", f"--directory={place.directory}", "--size=2m"),
            *("--rw=randwrite", "--bs=4k-16k", "--verify=crc32c", "--verify_fatal=1"),
            *("--ioengine=psync", f"--direct={steps % 2}", f"--randseed={steps}"),
            cwd=place.scratch,
        )
        for path in place.directory.iterdir():
            path.unlink()
    return steps
