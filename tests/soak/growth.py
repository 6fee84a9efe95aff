# SPDX-License-Identifier: LGPL-2.1-or-later
"""How much a sampled quantity grows, and how much it may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_MIB = 1 << 20

BOUNDS: Mapping[str, float] = {
    "efuse_inode_bytes": 48 << 10,
    "efuse_request_bytes": 12 << 10,
    "slab_bytes": 2 * _MIB,
    "percpu_bytes": _MIB,
    "kernel_stack_bytes": 256 << 10,
    "page_table_bytes": _MIB,
    "bpf_programs": 0.5,
    "bpf_maps": 0.5,
    "bpf_links": 0.5,
    "connections": 0.5,
    "module_references": 0.5,
    "kernel_threads": 0.5,
    "processes": 0.5,
    "mounts": 0.5,
    "pins": 0.5,
    "mount_daemon_fds": 0.5,
    "mount_daemon_rss_bytes": _MIB,
    "run_daemon_fds": 0.5,
    "run_daemon_rss_bytes": _MIB,
    "supervisor_fds": 0.5,
    "supervisor_rss_bytes": _MIB,
    "soak_fds": 0.5,
    "soak_rss_bytes": _MIB,
}
"""How much each quantity may grow in the second half of a run. A count must not grow at all; of
memory, the allocators' and the garbage collectors' usual play is allowed. The bounds of the slab
caches are 16 objects and a slab, whose free objects count while a processor keeps it. An object
that leaks in each of 60 rounds is more."""


def growth(samples: Sequence[float]) -> float:
    """Return how much a quantity grew in the second half of the samples, by least squares.

    The first half is left out: caches fill up, and pools reach their size.
    """
    late = samples[len(samples) // 2 :]
    count = len(late)
    if count < 2:
        raise ValueError(f"{len(samples)} samples are too few")
    mean_at, mean = (count - 1) / 2, sum(late) / count
    covered = sum((at - mean_at) * (value - mean) for at, value in enumerate(late))
    spread = sum((at - mean_at) ** 2 for at in range(count))
    return covered / spread * (count - 1)


def grown(series: Mapping[str, Sequence[float]]) -> list[str]:
    """Return a sentence for each quantity that grows by more than its bound."""
    found = []
    for name, samples in series.items():
        by = growth(samples)
        if by > BOUNDS[name]:
            half = samples[len(samples) // 2 :]
            found.append(
                f"{name} grew by {by:.1f} in the second half, more than {BOUNDS[name]:g}:"
                f" from {half[0]:.0f} to {half[-1]:.0f}"
            )
    return found
