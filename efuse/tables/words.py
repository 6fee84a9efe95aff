# SPDX-License-Identifier: LGPL-2.1-or-later
"""Text for the state and the transport of a mount, and for the bounds of latencies."""

from __future__ import annotations

import functools

from efuse.control.transport import why_no_channels
from efuse.stats.latency import bounds_ns
from efuse.stats.model import Sample
from efuse.units import duration

__all__ = ["bucket_words", "daemon_words", "state_words", "transport_words"]

_WHY_EACH_NS = 10_000_000_000


def state_words(sample: Sample) -> tuple[str, str, str]:
    """Return what is attached to a mount, the style for that, and the rest of the state."""
    waiting = "" if sample.waiting is None else f"  {sample.waiting} waiting"
    if sample.is_plain:
        span = "" if sample.counted_ns is None else f"  counted for {duration(sample.counted_ns)}"
        return "plain FUSE", "", f"{waiting}{span}"
    attached = sample.state == "attached"
    state, style = (f"{sample.ops} attached", "green") if attached else ("plain", "yellow")
    daemon = "" if sample.daemon == "serving" else f"  daemon {sample.daemon}"
    return state, style, f"  {sample.consistency}{waiting}{daemon}"


def daemon_words(sample: Sample) -> str:
    """Return the state of the daemon of an eFuse mount, and what is known of the last end of one.

    It is empty if the mount ends with its daemon, and always had the same one.
    """
    record = sample.last_end
    if not (sample.recovery or sample.incarnation or record.time):
        return ""
    last = ""
    if record.time:
        last = (
            f"  last end: {record.lost} lost, {record.resent} sent again, {record.settled} settled,"
            f" {record.failed} failed, {duration(record.gap_ns)} without a daemon"
        )
    return f"{sample.daemon}  successors {sample.incarnation}  recovery {sample.recovery} s{last}"


def transport_words(sample: Sample) -> str:
    """Return how requests of an eFuse mount reach its daemon; if by the device itself, why.

    The reason is looked for among all processes, so only once in 10 s.
    """
    if sample.io_uring:
        return "io_uring"
    if sample.has_channels:
        return "channels"
    return (
        f"/dev/efuse: {_why(sample.connection, sample.mountpoint, sample.taken_ns // _WHY_EACH_NS)}"
    )


@functools.lru_cache(maxsize=16)
def _why(connection: int, mountpoint: str, period: int) -> str:
    return why_no_channels(connection)


def bucket_words(bucket: int) -> str:
    """Return the bound of a latency bucket (`efuse.stats.latency`) as text: ``< 4.1 us``."""
    start, end = bounds_ns(bucket)
    return f"< {duration(end)}" if end is not None else f">= {duration(start)}"
