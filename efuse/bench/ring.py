# SPDX-License-Identifier: LGPL-2.1-or-later
"""Systems whose daemon gets its requests by io_uring, and a proof that it does.

A parameter of the module, fuse or efuse, enables it. The daemon has a ring for each CPU. Each
request that the kernel delivers is one more completion, which the ``fdinfo`` of the ring's
descriptor counts.

libfuse does not support zero copy. So it has systems of its own, whose daemon is always
``passthrough_uring.c``, and the same daemon has systems without zero copy to compare with. This
daemon counts its READs and WRITEs, and those without a copy, in a file next to the mountpoint.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from efuse.bench.usage import Moves, Usage
from efuse.control import Connection
from efuse.control.fusectl import FUSECTL
from efuse.errors import EfuseError, NotSupportedError, reason

__all__ = [
    "COPYING",
    "EFUSE_RING",
    "OVER_RINGS",
    "OWN",
    "RING",
    "RINGS",
    "ZERO_COPY",
    "copied",
    "counts_file",
    "delivered",
    "enabled",
    "missed",
    "moves",
    "waiting",
]

RING = "fuse-io-uring"
"""Name of the system of plain FUSE."""

EFUSE_RING = "efuse-io-uring"
"""Name of the system of eFuse."""

RINGS = (RING, EFUSE_RING)
"""The systems whose daemon uses libfuse."""

ZERO_COPY = ("fuse-io-uring-zero-copy", "efuse-io-uring-zero-copy")
"""The systems with zero copy."""

COPYING = ("fuse-io-uring-copy", "efuse-io-uring-copy")
"""The systems of the same daemon without zero copy."""

OWN = (*COPYING, *ZERO_COPY)
"""The systems whose daemon is ``passthrough_uring``."""

OVER_RINGS = (*RINGS, *OWN)
"""All systems over io_uring."""

_MODULES = Path("/sys/module")
_LINK = "anon_inode:[io_uring]"
_COUNTED = re.compile(r"^CqTail:\s*(\d+)", re.MULTILINE)
_WRAPS = 1 << 32
_TRIES = 1000
_COUNTS = struct.Struct("=4Q")


@contextmanager
def enabled(system: str) -> Iterator[None]:
    """Enable io_uring for the daemons of a system while the context lasts.

    :param system: one of `OVER_RINGS`.
    :raises NotSupportedError: this kernel does not support it, or the user may not enable it.
    """
    switch = _MODULES / system.partition("-")[0] / "parameters/enable_uring"
    try:
        before = switch.read_text()
        switch.write_text("1")
    except OSError as error:
        raise NotSupportedError(
            f"the FUSE of this kernel has no io_uring: {reason(error)}",
            hint="efuse bench --kernel 7",
        ) from error
    try:
        yield
    finally:
        switch.write_text(before)


def delivered(pid: int) -> tuple[int, ...]:
    """Return the number of completions so far on each ring of a process.

    :raises EfuseError: the kernel does not report them.
    """
    found = []
    for descriptor in sorted(Path(f"/proc/{pid}/fd").iterdir()):
        try:
            link = str(descriptor.readlink())
        except FileNotFoundError:
            continue  # The descriptor has been closed meanwhile.
        if link == _LINK:
            found.append(_completions(Path(f"/proc/{pid}/fdinfo/{descriptor.name}")))
    return tuple(found)


def _completions(information: Path) -> int:
    # The count is missing while the daemon is in the kernel with this ring: try again.
    for _ in range(_TRIES):
        match = _COUNTED.search(information.read_text())
        if match:
            return int(match[1])
    raise EfuseError(f"{information} does not show what the ring has delivered")


def waiting(connection: int, *, on_efuse: bool) -> int:
    """Return how many requests of a connection are not yet answered."""
    if on_efuse:
        return Connection(connection).waiting
    return int((FUSECTL / str(connection) / "waiting").read_text())


def missed(before: Usage, after: Usage, requests: int) -> str:
    """Return a text if fewer than *requests* came over the rings between two usages, else empty."""
    came = (sum(after.rings) - sum(before.rings)) % _WRAPS
    if before.moves is not None and after.moves is not None:
        came = min(came, after.moves.requests - before.moves.requests)
    return f"of {requests} requests only {came} came over io_uring" * (came < requests)


def counts_file(mountpoint: Path) -> Path:
    """Return the file in which ``passthrough_uring`` counts what it does for *mountpoint*."""
    return mountpoint.with_name(f"{mountpoint.name}.counts")


def moves(system: str, mountpoint: Path) -> Moves | None:
    """Return what the daemon of *system* has counted so far; None if it counts nothing."""
    if system not in OWN:
        return None
    return Moves(*_COUNTS.unpack(counts_file(mountpoint).read_bytes()))


def copied(system: str, before: Usage, after: Usage) -> str:
    """Return a text if READs and WRITEs were moved in another way than *system* has, else empty.

    They are those between two usages.
    """
    if before.moves is None or after.moves is None:
        return ""
    data = after.moves.data - before.moves.data
    without = after.moves.zero_copied - before.moves.zero_copied
    if system in ZERO_COPY:
        return f"of {data} READs and WRITEs only {without} were zero-copied" * (without < data)
    return f"{without} READs and WRITEs were zero-copied" * bool(without)
