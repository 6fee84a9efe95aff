# SPDX-License-Identifier: LGPL-2.1-or-later
"""Storage functions that are run where their data lies, and what their twins in Python say."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from efuse import functions
from efuse.errors import EfuseError
from efuse.functions import Place, Run, Shipped, Status
from tests.guest.hand import DEADLINE_S

BLOCK = 4096

# Emits where each block is that it is given, and takes those that its arguments name.
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


# The same, and says that it does little else.
HOPS = JUMPS + "CSD_FLAGS(CSD_JUMPS)\n"


def numbered(numbers: Iterable[int]) -> bytes:
    """Return blocks that begin with these numbers."""
    return b"".join(struct.pack("<Q", number).ljust(BLOCK, b".") for number in numbers)


def jumps_args(offsets: Sequence[int]) -> bytes:
    """Return the arguments of `JUMPS`: up to 16 blocks to take behind the first one, by offset."""
    return struct.pack("<16Q", *offsets, *[1] * (16 - len(offsets)))


def jumps_seen(raw: bytes) -> list[tuple[int, int]]:
    """Return the (offset, number) of each block that `JUMPS` was given."""
    return list(struct.iter_unpack("<QQ", raw))


def blocks(size: int) -> int:
    """How many blocks a file of *size* bytes has."""
    return -(-size // BLOCK)


def result(call: Shipped, path: Path, place: Place) -> tuple[bytes, Status]:
    """Run a function that is loaded to its end."""
    with functions.run(call.name, path, call.encode(), place=place) as one:
        return one.result(), one.status()


def outcome(run: Callable[[], bytes]) -> bytes | str:
    """What a function emitted, or the error that it failed with."""
    try:
        return run()
    except EfuseError as error:
        return str(error)


def agree(call: Shipped, path: Path, data: bytes, seed: object = "") -> tuple[Status, Status]:
    """Assert that device, kernel and Python make the same of a file: the bytes, or the error.

    And that each was looked at where it was asked to be, and at as many blocks.

    :param seed: what a failure says.
    :returns: of the device and of the kernel.
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
    """Return the kernel's functions that a thread waits in."""
    return Path(f"/proc/self/task/{thread.native_id}/stack").read_text()


class Background:
    """A run to its end in a thread."""

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
        """Wait for its end.

        :param last: the run is not needed any more.
        """
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        status = self.run.status()
        if last:
            self.run.close()
        return status


def background(path: Path, call: Shipped, place: Place = Place.DEVICE) -> Background:
    """Run a function that is loaded in a thread."""
    return Background(functions.run(call.name, path, call.encode(), place=place))
