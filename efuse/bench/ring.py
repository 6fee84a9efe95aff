# SPDX-License-Identifier: LGPL-2.1-or-later
"""Systems whose daemon gets its requests by io_uring, and a proof that it does.

A parameter of the module, fuse or efuse, enables it. The daemon has a ring for each CPU. Each
request that the kernel delivers is one more completion, which the ``fdinfo`` of the ring's
descriptor counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from efuse.bench.usage import Usage
from efuse.control import Connection
from efuse.control.fusectl import FUSECTL
from efuse.errors import EfuseError, NotSupportedError, reason

__all__ = ["EFUSE_RING", "RING", "RINGS", "delivered", "enabled", "missed", "waiting"]

RING = "fuse-io-uring"
"""Name of the system of plain FUSE."""

EFUSE_RING = "efuse-io-uring"
"""Name of the system of eFuse."""

RINGS = (RING, EFUSE_RING)

_MODULES = Path("/sys/module")
_LINK = "anon_inode:[io_uring]"
_COUNTED = re.compile(r"^CqTail:\s*(\d+)", re.MULTILINE)
_WRAPS = 1 << 32
_TRIES = 1000


@contextmanager
def enabled(system: str) -> Iterator[None]:
    """Enable io_uring for the daemons of a system while the context lasts.

    :param system: one of `RINGS`.
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
    return f"of {requests} requests only {came} came over io_uring" * (came < requests)
