# SPDX-License-Identifier: LGPL-2.1-or-later
"""The hit ratio of a full data cache, compared with well-known replacement policies.

``.venv/bin/python -m tests.perf.replacement [READS]``. The data cache is the kernel's, in a guest
with real reads through a mount. The other policies are those of libCacheSim
(``pip install '.[perf]'``), with the same blocks.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.commands import EFUSE
from tests.perf.traces import ROOM, TRACES

POLICIES = ("Random", "FIFO", "LRU", "Clock", "Sieve", "S3FIFO", "ARC")
_INSIDE = "--inside"


def kernel_hits(length: int) -> dict[str, int]:
    """Return how many reads of each trace the data cache answers. To be called in a guest."""
    from tests.guest.support.replacement import cache_hits

    hits = {}
    for name, make_trace in TRACES.items():
        with tempfile.TemporaryDirectory() as directory:
            hits[name] = cache_hits(Path(directory), make_trace(length))
    return hits


def guests_hits(length: int) -> dict[str, int]:
    """Return how many reads of each trace the data cache answers, in a guest that is booted."""
    command = [*EFUSE, "guest", "run", "--", sys.executable, "-m", "tests.perf.replacement"]
    out = subprocess.run(
        [*command, str(length), _INSIDE], stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    hits: dict[str, int] = json.loads(out.splitlines()[-1])
    return hits


def simulated_hits(policy: str, trace: list[int]) -> int:
    """Return how many reads a cache with this policy answers."""
    import libcachesim

    cache = getattr(libcachesim, policy)(ROOM)
    hits = 0
    for block in trace:
        request = libcachesim.Request()
        request.obj_id = block
        request.obj_size = 1
        hits += bool(cache.get(request))
    return hits


def main(arguments: list[str]) -> None:
    length = int(arguments[0]) if arguments else 20000
    if _INSIDE in arguments:
        print(json.dumps(kernel_hits(length)))
        return
    print(f"{length} reads, room for {ROOM} blocks; hits in percent")
    print(f"{'trace':14}{'data cache':>11}", *(f"{policy:>8}" for policy in POLICIES))
    found = guests_hits(length)
    for name, make_trace in TRACES.items():
        trace = make_trace(length)
        shares = [found[name], *(simulated_hits(policy, trace) for policy in POLICIES)]
        print(f"{name:14}   ", *(f"{100 * hits / length:8.1f}" for hits in shares))


if __name__ == "__main__":
    main(sys.argv[1:])
