# SPDX-License-Identifier: LGPL-2.1-or-later
"""The package's C libraries, each built once for every version of their sources."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from efuse import paths
from efuse.errors import EfuseError, reason

__all__ = ["library"]


def library(name: str) -> Path:
    """Return the shared object *name*, built with make and gcc if it is not in the cache.

    :param name: a target of ``libefuse/Makefile``.
    :raises EfuseError: it cannot be built.
    """
    source = paths.data("libefuse")
    digest = hashlib.sha256()
    header = paths.data("kernel_patches") / "include" / "uapi" / "linux" / "efuse.h"
    for path in (*sorted(source.glob("*.[ch]")), source / "Makefile", header):
        digest.update(path.read_bytes())
    directory = paths.cache() / "libefuse" / digest.hexdigest()[:16]
    built = directory / name
    if built.exists():
        return built
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        _make(source, scratch, name)
        os.replace(Path(scratch) / name, built)  # noqa: PTH105 - atomic, for a second builder
    return built


def _make(source: Path, out: str, name: str) -> None:
    try:
        done = subprocess.run(
            ["make", "-s", "-C", str(source), f"OUT={out}", f"{out}/{name}"],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise EfuseError(
            f"{name} cannot be built: make: {reason(error)}", hint="apt-get install make gcc"
        ) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["make said nothing"])[-1]
        raise EfuseError(f"{name} cannot be built: {last}", hint="apt-get install gcc libc6-dev")
