# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make a database for archive_fs.py: ``pack.py DATABASE < ARCHIVE.tar[.gz|.bz2|.xz]``."""

import os
import sqlite3
import stat
import sys
import tarfile
from typing import BinaryIO

SCHEMA = "CREATE TABLE files (path BLOB UNIQUE NOT NULL, mode INTEGER, mtime REAL, data BLOB)"
ADD = "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)"


def pack(database: str, source: BinaryIO) -> int:
    """Pack a tar archive into a new database, and return the number of its rows."""
    connection = sqlite3.connect(database)
    with connection, tarfile.open(fileobj=source, mode="r|*") as archive:
        connection.execute(SCHEMA)
        for member in archive:
            path = _path(member.name)
            if path in (b"", b".", b"..") or path.startswith(b"../"):
                continue  # The root, or a path out of it.
            _add_parents(connection, path)
            if member.isdir():
                mode, data = stat.S_IFDIR, None
            elif member.issym():
                mode, data = stat.S_IFLNK, os.fsencode(member.linkname)
            elif member.islnk():  # A hard link to an earlier member.
                query = "SELECT data FROM files WHERE path = ?"
                target = connection.execute(query, (_path(member.linkname),)).fetchone()
                if target is None:
                    continue  # The member was left out: a device, or a path out of the root.
                mode, data = stat.S_IFREG, target[0]
            elif (file := archive.extractfile(member)) is not None:
                mode, data = stat.S_IFREG, file.read()
            else:
                continue  # A device or a pipe.
            connection.execute(ADD, (path, mode | member.mode, member.mtime, data))
    (count,) = connection.execute("SELECT count(*) FROM files").fetchone()
    connection.close()
    return int(count)


def _path(name: str) -> bytes:
    return os.fsencode(os.path.normpath(name).lstrip("/"))


def _add_parents(connection: sqlite3.Connection, path: bytes) -> None:
    """Add the directories above *path*, which some archives leave out."""
    query = "INSERT OR IGNORE INTO files VALUES (?, ?, 0, NULL)"
    for end, letter in enumerate(path):
        if letter == ord("/"):
            connection.execute(query, (path[:end], stat.S_IFDIR | 0o755))


if __name__ == "__main__":
    print(f"{pack(sys.argv[1], sys.stdin.buffer)} files")
