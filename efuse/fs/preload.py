# SPDX-License-Identifier: LGPL-2.1-or-later
"""Builds the shared object that `efuse run` preloads, once for each version of its source."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from efuse import paths
from efuse.errors import EfuseError, reason

__all__ = ["preload_library"]

_NAME = "libefuse-preload.so"


def preload_library() -> Path:
    """Return the shim's shared object, built with make and gcc if it is not in the cache.

    :raises EfuseError: it cannot be built.
    """
    source = paths.data("libefuse")
    digest = hashlib.sha256()
    for name in ("Makefile", "preload.c"):
        digest.update((source / name).read_bytes())
    directory = paths.cache() / "libefuse" / digest.hexdigest()[:16]
    library = directory / _NAME
    if library.exists():
        return library
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        _make(source, scratch)
        os.replace(Path(scratch) / _NAME, library)  # noqa: PTH105 - atomic, for a second builder
    return library


def _make(source: Path, out: str) -> None:
    try:
        done = subprocess.run(
            ["make", "-s", "-C", str(source), f"OUT={out}"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise EfuseError(
            f"{_NAME} cannot be built: make: {reason(error)}", hint="apt-get install make gcc"
        ) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["make said nothing"])[-1]
        raise EfuseError(f"{_NAME} cannot be built: {last}", hint="apt-get install gcc libc6-dev")
