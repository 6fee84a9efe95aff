# SPDX-License-Identifier: LGPL-2.1-or-later
"""Fuzz the module in a guest, and check that it is well afterwards; see ``scripts/fuzz``."""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from efuse.guest import kernel_log
from efuse.module import live
from efuse.module.build import CSD
from tests.debug import kernel, races
from tests.fuzz import health
from tests.fuzz.layouts import DEVICE_IOCTLS, STORAGE_IOCTLS
from tests.fuzz.run import Run
from tests.fuzz.storage_run import fuzz_storage
from tests.guest.support.running_kernel import KernelLog

_ROUND_S = 8.0
_DEVICE_SHARE = 0.85
"""Share of the time for mounts; the rest is for storage functions."""
_LONGEST = 3
"""How many times as long as asked for a run may take, on a machine too slow to try everything."""
_DISK_BYTES = 256 << 20


@contextlib.contextmanager
def _disk(directory: Path) -> Iterator[Path]:
    """Mount an ext4 file system for backing files."""
    image, point = directory / "image", directory / "lower"
    with image.open("wb") as file:
        file.truncate(_DISK_BYTES)
    point.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, point], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", "--lazy", point], check=True)


class _Log:
    """The complaints of the kernel since the start."""

    def __init__(self) -> None:
        self._log = KernelLog()
        self.complaints: list[str] = []

    def is_empty(self) -> bool:
        """Look whether the kernel has complained; return whether it never did."""
        self.complaints += kernel_log.complaints(self._log.new_text())
        return not self.complaints


def _fuzz(seconds: float, seed: int, directory: Path, log: _Log) -> list[str]:
    """Fuzz for some time, or longer until everything was tried; return what was not tried."""
    begun = time.monotonic()
    mountpoint = directory / "mnt"
    mountpoint.mkdir()
    with _disk(directory) as lower:
        run = Run(mountpoint, lower, seed)
        with contextlib.closing(run.modes(min(_ROUND_S, seconds / 10), log.is_empty)) as modes:
            for _ in modes:
                passed_s = time.monotonic() - begun
                enough = not run.counts.missing(DEVICE_IOCTLS) or passed_s > _LONGEST * seconds
                if (enough and passed_s > _DEVICE_SHARE * seconds) or not log.is_empty():
                    break
        if log.is_empty():
            storage_s = (1 - _DEVICE_SHARE) * seconds
            run.counts.add(fuzz_storage(directory, f"{seed} csd", storage_s))
            health.check_no_task_hangs()
            health.check_mount(mountpoint)
    print("\n".join(run.counts.lines()))
    return run.counts.missing((*DEVICE_IOCTLS, *STORAGE_IOCTLS))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="duration; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="seed; default: %(default)s")
    chosen = parser.parse_args()
    log = _Log()
    checks_leaks = not kernel.missing_checks()
    if checks_leaks:
        kernel.forget_leaks()
    if races.detectable():
        races.detect()
    print(f"fuzz: seed {chosen.seed}, {chosen.seconds:g} s", flush=True)
    with tempfile.TemporaryDirectory() as name:
        missing = _fuzz(chosen.seconds, chosen.seed, Path(name), log)
    live.unload(CSD)
    live.unload()
    if races.detectable():
        print(f"fuzz: {races.watched()} accesses were watched for data races")
    leaks = [leak.text for leak in kernel.find_leaks() if leak.of_unloaded] if checks_leaks else []
    clean = log.is_empty()
    for text in (*log.complaints, *leaks):
        print(text)
    if missing:
        print(f"fuzz: not tried: {' '.join(missing)}")
    return int(not clean or bool(leaks) or bool(missing))


if __name__ == "__main__":
    sys.exit(main())
