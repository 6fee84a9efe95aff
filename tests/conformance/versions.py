# SPDX-License-Identifier: LGPL-2.1-or-later
"""The versions of the suites, and where their programs are."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import NamedTuple

from efuse import locations
from efuse.errors import NotSupportedError

_LIST = Path(__file__).with_name("versions")


class Package(NamedTuple):
    """A package of a registry: ``crate`` or ``deb``, its name and its version."""

    registry: str
    name: str
    version: str


def packages() -> list[Package]:
    """Return the packages that scripts/setup-suites installs."""
    lines = (line.split() for line in _LIST.read_text().splitlines())
    return [Package(*words) for words in lines if words and words[0] != "#"]


def program(name: str) -> str:
    """Return the path of a suite's program.

    :raises NotSupportedError: it is not installed.
    """
    for package in packages():
        if package.registry == "crate" and package.name == name:
            directory = locations.cache() / "suites" / f"{name}-{package.version}"
            path: str | None = str(directory / "bin" / name)
            break
    else:
        path = shutil.which(name)
    if path is None or not Path(path).exists():
        raise NotSupportedError(f"{name} is not installed", hint="scripts/setup-suites")
    return path
