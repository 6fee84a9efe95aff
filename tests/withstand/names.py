# SPDX-License-Identifier: LGPL-2.1-or-later
"""Loads of names: files that are made, moved, linked and removed, and trees that come and go."""

from __future__ import annotations

import os
import shutil

from tests.withstand.place import Place

_NAMES = 24
_TREE = 40


def names(place: Place) -> int:
    """Make, replace, move, link and remove files; compare all names and some contents."""
    files: dict[str, bytes] = {}
    steps = 0
    while place.goes_on(steps):
        steps += 1
        name, other = (f"f{place.rng.randrange(_NAMES)}" for _ in range(2))
        path, to = place.directory / name, place.directory / other
        act = place.rng.choice(("write", "replace", "rename", "link", "unlink", "list"))
        if act == "list":
            place.compare("the names", sorted(os.listdir(place.directory)), sorted(files))
        elif act == "write" or name not in files:
            if name in files:  # another name of the file may exist
                path.unlink()
            files[name] = place.rng.randbytes(place.rng.randrange(20000))
            path.write_bytes(files[name])
        elif act == "replace":
            files[name] = place.rng.randbytes(place.rng.randrange(9000))
            (place.directory / "new").write_bytes(files[name])
            (place.directory / "new").rename(path)
        elif act == "rename" and name != other:
            # If both are names of one file, rename(2) does nothing.
            if other in files and path.samefile(to):
                continue
            path.rename(to)
            files[other] = files.pop(name)
        elif act == "link" and other not in files:
            os.link(path, to)
            files[other] = files[name]
        elif act == "unlink":
            path.unlink()
            del files[name]
        for some in place.rng.sample(sorted(files), min(2, len(files))):
            place.compare(some, (place.directory / some).read_bytes(), files[some])
    return steps


def symbolic(place: Place) -> int:
    """Make and remove symbolic links; compare all names and targets."""
    links: dict[str, str] = {}
    steps = 0
    while place.goes_on(steps):
        steps += 1
        name = f"l{place.rng.randrange(_NAMES)}"
        if name in links:
            place.compare(name, os.readlink(place.directory / name), links[name])
            os.unlink(place.directory / name)
            del links[name]
        else:
            links[name] = f"target/{place.rng.random()}"
            os.symlink(links[name], place.directory / name)
        place.compare("the links", sorted(os.listdir(place.directory)), sorted(links))
    return steps


def trees(place: Place) -> int:
    """Make a tree of directories and files, move it, and remove it; compare its names."""
    steps = 0
    while place.goes_on(steps):
        steps += 1
        made = set()
        for number in range(_TREE):
            path = place.directory / f"tree/{number % 5}/{number % 3}/{number}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"%d" % number)
            made.add(str(path.relative_to(place.directory / "tree")))
        (place.directory / "tree").rename(place.directory / "moved")
        found = {
            os.path.relpath(f"{top}/{name}", place.directory / "moved")
            for top, _, found in os.walk(place.directory / "moved")
            for name in found
        }
        place.compare("the names of the tree", sorted(found), sorted(made))
        shutil.rmtree(place.directory / "moved")
        place.compare("what is left", os.listdir(place.directory), [])
    return steps
