# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read a git repository through the git command."""

import errno
import functools
import subprocess
import threading

import pyfuse3

REFS_FORMAT = "%(refname:lstrip=2) %(objecttype) %(objectname) %(*objecttype) %(*objectname)"


class Repository:
    """A git repository, whose objects one ``git cat-file`` process delivers."""

    def __init__(self, path: str) -> None:
        self._git = ("git", "-C", path)
        self._lock = threading.Lock()
        self._cat = subprocess.Popen(
            [*self._git, "cat-file", "--batch-command"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C unmounts, and does not kill git.
        )
        # The kernel reads a file in parts, but git delivers it as a whole.
        self.contents = functools.lru_cache(16)(self._contents)

    def _ask(self, question: str) -> tuple[str, int, bytes]:
        """Return the type and size of an object and, for ``contents``, its data."""
        assert self._cat.stdin and self._cat.stdout
        with self._lock:
            self._cat.stdin.write(f"{question}\n".encode())
            self._cat.stdin.flush()
            words = self._cat.stdout.readline().decode().split()
            if not words:
                raise pyfuse3.FUSEError(errno.EIO)  # The process has ended.
            if len(words) != 3:
                return "missing", 0, b""
            size = int(words[2])
            data = b""
            if question.startswith("contents"):
                data = self._cat.stdout.read(size + 1)[:size]
        return words[1], size, data

    def info(self, oid: str) -> tuple[str, int]:
        """Return the type and the size of an object."""
        return self._ask(f"info {oid}")[:2]

    def _contents(self, oid: str) -> bytes:
        return self._ask(f"contents {oid}")[2]

    def tree(self, oid: str) -> list[tuple[int, bytes, str]]:
        """Return the mode, name and object of each entry of a tree, or of the tree of a commit."""
        raw, length = self.contents(f"{oid}^{{tree}}"), len(oid) // 2
        files, at = [], 0
        while at < len(raw):
            nul = raw.index(b"\0", at)
            mode, name = raw[at:nul].split(b" ", 1)
            at = nul + 1 + length
            files.append((int(mode, 8), name, raw[nul + 1 : at].hex()))
        return files

    def refs(self, prefix: str) -> dict[bytes, str]:
        """Return the commit of each branch or tag below *prefix*, by name.

        A tag of anything else than a commit is left out.
        """
        command = [*self._git, "for-each-ref", f"--format={REFS_FORMAT}", prefix]
        found = {}
        for line in subprocess.run(command, check=True, capture_output=True).stdout.splitlines():
            name, *objects = line.split()
            # An annotated tag is an object itself, and is followed by the object that it names.
            kind, oid = objects[-2:]
            if kind == b"commit":
                found[name] = oid.decode()
        return found
