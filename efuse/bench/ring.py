# SPDX-License-Identifier: LGPL-2.1-or-later
"""Plain FUSE whose daemon takes its requests by io_uring, and what shows that it does.

The kernel's FUSE has a switch for it. A daemon has a ring for each CPU; each request that the
kernel hands over there is one more completion, which ``fdinfo`` of the ring's descriptor counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from efuse.bench.usage import Usage
from efuse.errors import EfuseError, NotSupportedError, reason

__all__ = ["RING", "delivered", "enabled", "missed", "waiting"]

RING = "fuse-io-uring"
"""The system of that name."""

_SWITCH = Path("/sys/module/fuse/parameters/enable_uring")
_CONNECTIONS = Path("/sys/fs/fuse/connections")
_LINK = "anon_inode:[io_uring]"
_COUNTED = re.compile(r"^CqTail:\s*(\d+)", re.MULTILINE)
_WRAPS = 1 << 32
_TRIES = 1000


@contextmanager
def enabled() -> Iterator[None]:
    """Let daemons on plain FUSE that ask for io_uring have it, as long as the context lasts.

    :raises NotSupportedError: this kernel has it not, or one may not switch it on.
    """
    try:
        before = _SWITCH.read_text()
        _SWITCH.write_text("1")
    except OSError as error:
        raise NotSupportedError(
            f"the FUSE of this kernel has no io_uring: {reason(error)}",
            hint="efuse bench --kernel 7",
        ) from error
    try:
        yield
    finally:
        _SWITCH.write_text(before)


def delivered(pid: int) -> tuple[int, ...]:
    """Return how many completions there were so far on each of the rings of a process.

    :raises EfuseError: the kernel does not say so.
    """
    found = []
    for descriptor in sorted(Path(f"/proc/{pid}/fd").iterdir()):
        try:
            link = str(descriptor.readlink())
        except FileNotFoundError:
            continue  # It was closed meanwhile.
        if link == _LINK:
            found.append(_completions(Path(f"/proc/{pid}/fdinfo/{descriptor.name}")))
    return tuple(found)


def _completions(information: Path) -> int:
    # It is empty while the daemon is in the kernel with its ring.
    for _ in range(_TRIES):
        said = _COUNTED.search(information.read_text())
        if said:
            return int(said[1])
    raise EfuseError(f"{information} does not say what the ring has delivered")


def waiting(connection: int) -> int:
    """Return how many requests of a connection of plain FUSE have not been answered yet."""
    return int((_CONNECTIONS / str(connection) / "waiting").read_text())


def missed(before: Usage, after: Usage, requests: int) -> str:
    """Return which of *requests* did not come over the rings between two usages; empty: none."""
    came = (sum(after.rings) - sum(before.rings)) % _WRAPS
    return f"of {requests} requests only {came} came over io_uring" * (came < requests)
