# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where eFuse keeps what it makes, and where the package's own data lies."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from efuse.errors import EfuseError

__all__ = ["cache", "data", "made_once", "package"]

_DATA_NAMES = ("bpf_programs", "csd", "kernel_patches", "libefuse", "specs")


def package() -> Path:
    """Return the directory of the ``efuse`` package itself."""
    return Path(__file__).resolve().parent


def cache() -> Path:
    """Return the directory for whatever can be made again; it may not exist yet.

    It holds kernels, module builds, compiled specs and the guests' files: ``$XDG_CACHE_HOME/efuse``
    or ``~/.cache/efuse``.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "efuse"


def made_once(kind: str, name: str, sources: Iterable[Path], make: Callable[[Path], None]) -> Path:
    """Return the file *name* in the cache, made now if it is not there for these very sources.

    :param kind: the directory below the cache.
    :param make: is called with the path of the file to make. It is seen by others once it is whole.
    """
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    directory = cache() / kind / digest.hexdigest()[:16]
    made = directory / name
    if not made.exists():
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            make(Path(scratch) / name)
            os.replace(Path(scratch) / name, made)  # noqa: PTH105 - atomic, for a second maker
    return made


def data(name: str) -> Path:
    """Return the directory of the package's data called ``name``.

    An installed package carries it in ``efuse/_data``, a checkout at its root.

    :param name: one of ``bpf_programs``, ``csd``, ``kernel_patches``, ``libefuse``, ``specs``.
    :raises ValueError: there is no data of that name.
    :raises EfuseError: the installation lacks it.
    """
    if name not in _DATA_NAMES:
        raise ValueError(f"no package data is called {name!r}")
    for directory in (package() / "_data" / name, package().parent / name):
        if directory.is_dir():
            return directory
    raise EfuseError(
        f"the package's data {name!r} is missing: neither installed nor in a checkout",
        hint="install efuse again, or run it from a complete checkout",
    )
