# SPDX-License-Identifier: LGPL-2.1-or-later
"""Fuzz the storage functions: runs over files on an emulated device and on another file system."""

from __future__ import annotations

import subprocess
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from random import Random

from efuse import functions
from efuse.functions import Count, Place
from tests.fuzz.arguments import Memory
from tests.fuzz.counts import Counts
from tests.fuzz.storage import StorageCaller
from tests.fuzz.threads import Shared
from tests.guest.support import csd_device
from tests.guest.support.functions import result

THREADS = 3
_DEADLINE_S = 60.0
_DATA = Random(1).randbytes(40 * 4096)


def fuzz_storage(directory: Path, seed: str, seconds: float) -> Counts:
    """Make a device, fuzz its ioctls, and check that a run is right afterwards."""
    csd_device.load()
    point = directory / "device"
    point.mkdir()
    try:
        with csd_device.csd(size_mib=64, queues=2, cores=2, power=1) as device:
            subprocess.run(["mkfs.ext4", "-q", device.path], check=True)
            subprocess.run(["mount", device.path, point], check=True)
            try:
                return _fuzz([point / "file", directory / "file"], seed, seconds)
            finally:
                subprocess.run(["umount", point], check=True)
    finally:
        csd_device.unload()


def _fuzz(paths: list[Path], seed: str, seconds: float) -> Counts:
    for path in paths:
        path.write_bytes(_DATA)
    counts = Counts()
    with functions.load("count"):
        shared, common = Shared(), Memory()
        callers = [
            StorageCaller(shared, Random(f"{seed} {number}"), paths, common)
            for number in range(THREADS)
        ]
        try:
            with ThreadPoolExecutor(THREADS) as pool:
                working = [pool.submit(caller.work) for caller in callers]
                wait(working, seconds, FIRST_EXCEPTION)
                shared.stop.set()
                for each in working:
                    each.result(_DEADLINE_S)
        finally:
            for caller in callers:
                caller.add_to(counts)
                caller.close()
        call = Count(b"a")
        for place in (Place.KERNEL, Place.DEVICE):
            assert result(call, paths[0], place)[0] == call.reference(_DATA)
    return counts
