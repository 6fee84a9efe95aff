# SPDX-License-Identifier: LGPL-2.1-or-later
"""How the requests of a mount reach its daemon, and why they do not pass through channels."""

from __future__ import annotations

import re
from pathlib import Path

from efuse.control.daemons import serving

__all__ = ["why_no_channels"]

_LIBFUSE = re.compile(r"/libfuse3\.so\.((\d+)\.(\d+)[0-9.]*)(?: \(deleted\))?$")
_PRELOADED = "libefuse-preload.so"
_NEEDED = 14  # the minor version


def why_no_channels(connection: int, *, proc: Path = Path("/proc")) -> str:
    """Return in a few words why the daemon of a mount reads and writes /dev/efuse.

    If `efuse.control.daemons.serving` finds several processes with different reasons, all are
    named.

    :param connection: number of the connection.
    """
    reasons = {_reason(process) for process in serving(connection, "/dev/efuse", proc=proc)}
    if not reasons:
        return "its daemon is not visible here"
    return reasons.pop() if len(reasons) == 1 else "one of: " + "; ".join(sorted(reasons))


def _reason(process: Path) -> str:
    try:
        words = (process / "environ").read_bytes().split(b"\0")
        maps = (process / "maps").read_text(errors="surrogateescape").split("\n")
    except OSError:
        return "its daemon may not be looked at"
    names = {line.split(maxsplit=5)[5] for line in maps if len(line.split(maxsplit=5)) == 6}
    libfuse = next(filter(None, map(_LIBFUSE.search, names)), None)
    if b"EFUSE_CHANNELS=0" in words:
        return "they were turned off (EFUSE_CHANNELS=0)"
    if libfuse is None:
        return "its daemon does not use libfuse 3 as a shared library"
    if int(libfuse[3]) < _NEEDED:
        return f"its daemon uses libfuse 3.{libfuse[3]}; they take 3.14 or later"
    if not any(name.endswith(f"/{_PRELOADED}") for name in names):
        return "its daemon was not started by `efuse run`"
    return "its daemon serves requests in a single thread, or could not make them"
