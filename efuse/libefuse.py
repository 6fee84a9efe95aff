# SPDX-License-Identifier: LGPL-2.1-or-later
"""Build the package's C libraries, once for each version of their sources."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from efuse import locations
from efuse.errors import EfuseError, reason

__all__ = ["library", "sources"]


def library(name: str) -> Path:
    """Return the path of the shared object *name*. Build it with make and gcc if it is not cached.

    :param name: a target of ``libefuse/Makefile``.
    :raises EfuseError: the library cannot be built.
    """
    return locations.made_once("libefuse", name, sources(), _make)


def sources() -> tuple[Path, ...]:
    """Return the source files of the libraries."""
    source = locations.data("libefuse")
    header = locations.data("kernel_patches") / "include" / "uapi" / "linux" / "efuse.h"
    return (*sorted(source.glob("*.[ch]")), source / "preload.map", source / "Makefile", header)


def _make(out: Path) -> None:
    # Build outside the cache: make treats spaces, colons and $ in a target's path specially.
    with tempfile.TemporaryDirectory(prefix="efuse-") as scratch:
        made = Path(scratch) / out.name
        _make_plainly(made)
        shutil.copy(made, out)


def _make_plainly(out: Path) -> None:
    try:
        done = subprocess.run(
            ["make", "-s", "-C", str(locations.data("libefuse")), f"OUT={out.parent}", str(out)],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise EfuseError(
            f"{out.name} cannot be built: make: {reason(error)}", hint="apt-get install make gcc"
        ) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["make printed nothing"])[-1]
        raise EfuseError(
            f"{out.name} cannot be built: {last}",
            hint="apt-get install gcc libc6-dev pkg-config libfuse3-dev",
        )
