# SPDX-License-Identifier: LGPL-2.1-or-later
"""Helpers to run storage functions at a chosen place, and to compare them with their references."""

from __future__ import annotations

import functools
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random

from efuse import functions
from efuse.errors import EfuseError
from efuse.functions import Place, Run, Shipped, Status
from tests.guest.support.manual_daemon import DEADLINE_S

BLOCK = 4096

# A function that emits the offset and the first word of each block, and goes on with the blocks
# that its arguments name.
JUMPS = """
#include "csd.bpf.h"
struct jumps { u64 offset[16]; };
struct at { u64 number; };
int step(struct csd_run *run)
{
	const struct jumps *jumps = csd_args(run, sizeof(*jumps));
	struct at *at = csd_scratch(run, sizeof(*at));
	const u8 *block = csd_block(run, CSD_BLOCK_SIZE);
	u64 seen[2];
	if (!jumps || !at || !block)
		return -EPROTO;
	seen[0] = csd_offset(run);
	seen[1] = *(const u64 *)block;
	csd_emit(run, seen, sizeof(seen));
	u64 next = jumps->offset[at->number++ & 15];
	if (next == 1)
		return CSD_DONE;
	csd_next(run, next);
	return CSD_GO_ON;
}
CSD_SCRATCH(struct at)
CSD_ARGS(struct jumps)
"""


# JUMPS with the flag that it seldom continues with the following block.
CHAINING = JUMPS + "CSD_FLAGS(CSD_JUMPS)\n"


@functools.cache
def btree_items() -> dict[int, bytes]:
    """Return items whose leaves are more blocks than a layout has, below two nodes and a root."""
    return {3 * number: Random(number).randbytes(64) for number in range(20_000)}


def numbered(numbers: Iterable[int]) -> bytes:
    """Return blocks that each begin with one of the numbers."""
    return b"".join(struct.pack("<Q", number).ljust(BLOCK, b".") for number in numbers)


def jumps_args(offsets: Sequence[int]) -> bytes:
    """Return the arguments of `JUMPS`: offsets of up to 16 blocks to take after the first one."""
    return struct.pack("<16Q", *offsets, *[1] * (16 - len(offsets)))


def jumps_seen(raw: bytes) -> list[tuple[int, int]]:
    """Return (offset, number) of each block that `JUMPS` got."""
    return list(struct.iter_unpack("<QQ", raw))


def blocks(size: int) -> int:
    """Return how many blocks a file of *size* bytes has."""
    return -(-size // BLOCK)


def result(call: Shipped, path: Path, place: Place) -> tuple[bytes, Status]:
    """Run a loaded function to its end; return its output and status."""
    with functions.run(call.name, path, call.encode(), place=place) as one:
        return one.result(), one.status()


def outcome(run: Callable[[], bytes]) -> bytes | str:
    """Return the output of a run, or the message of the error with which it failed."""
    try:
        return run()
    except EfuseError as error:
        return str(error)


def agree(call: Shipped, path: Path, data: bytes, seed: object = "") -> tuple[Status, Status]:
    """Check that device, kernel and Python give the same result for a file: output, or error.

    Also check that each run used the place that it was asked to use, and that both runs looked at
    the same number of blocks.

    :param seed: anything to show if a check fails.
    :returns: statuses of the runs at the device and in the kernel.
    """
    path.write_bytes(data)
    wanted = outcome(lambda: call.reference(data))
    statuses = []
    for place in (Place.DEVICE, Place.KERNEL):
        with functions.run(call.name, path, call.encode(), place=place) as one:
            found = outcome(one.result)
            statuses.append(one.status())
        assert found == wanted, (call, place, seed)
    device, kernel = statuses
    assert (device.kernel_steps, kernel.device_steps) == (0, 0), (call, seed)
    assert device.device_steps == kernel.kernel_steps > 0 or not data, (call, seed)
    return device, kernel


def stack_of(thread: threading.Thread) -> str:
    """Return the stack of a thread in the kernel."""
    return Path(f"/proc/self/task/{thread.native_id}/stack").read_text()


class Background:
    """A run that goes to its end in a thread."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.found: bytes | None = None
        self.error: EfuseError | None = None
        self._thread = threading.Thread(target=self._go)
        self._thread.start()

    def _go(self) -> None:
        try:
            self.found = self.run.result()
        except EfuseError as error:
            self.error = error

    def end(self, *, last: bool = True) -> Status:
        """Wait for the end of the run.

        :param last: close the run.
        """
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        status = self.run.status()
        if last:
            self.run.close()
        return status


def background(path: Path, call: Shipped, place: Place = Place.DEVICE) -> Background:
    """Run a loaded function in a thread."""
    return Background(functions.run(call.name, path, call.encode(), place=place))
