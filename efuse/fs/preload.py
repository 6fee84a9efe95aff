# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the shared object that `efuse run` preloads."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from efuse import locations
from efuse.errors import EfuseError, reason
from efuse.libefuse import library

__all__ = ["preload_library"]

_RUNTIME = Path("/run/efuse")


def preload_library() -> Path:
    """Return the path of the shared object, in a form that LD_PRELOAD accepts.

    In LD_PRELOAD, spaces and colons are separators, and ``$`` is expanded. If the path of the cache
    has such a character, the shared object is copied below ``/run/efuse``.

    :raises EfuseError: the library cannot be built or copied, or another user can change it.
    """
    made = library("libefuse-preload.so")
    if _can_be_named(made):
        return made
    copied = _RUNTIME / made.parent.name / made.name
    if not copied.exists():
        _copy(made, copied)
    return locations.check_private(copied)


def _can_be_named(path: Path) -> bool:
    return re.search(r"[\s:$]", str(path)) is None


def _copy(made: Path, copied: Path) -> None:
    try:
        locations.make_directory(copied.parent)
        with tempfile.TemporaryDirectory(dir=copied.parent) as scratch:
            shutil.copy(made, Path(scratch) / made.name)
            locations.make_private(Path(scratch) / made.name)
            os.replace(Path(scratch) / made.name, copied)  # noqa: PTH105 - atomic
    except OSError as error:
        raise EfuseError(
            f"{made} cannot be preloaded from there and not copied to {copied}: {reason(error)}",
            hint="set XDG_CACHE_HOME to a path without spaces, colons and $",
        ) from error
