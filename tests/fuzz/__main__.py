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
from efuse.module.build import CSD
from tests.debug import kernel, races
from tests.fuzz import health
from tests.fuzz.counts import Counts
from tests.fuzz.layouts import STORAGE_IOCTLS
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
        self._printed = 0

    def is_empty(self) -> bool:
        """Look whether the kernel has complained; return whether it never did."""
        self.complaints += kernel_log.complaints(self._log.new_text())
        return not self.complaints

    def print_new(self) -> None:
        """Print the complaints that are not printed yet."""
        self.is_empty()
        for text in self.complaints[self._printed :]:
            print(text, flush=True)
        self._printed = len(self.complaints)


def _fuzz(seconds: float, seed: int, directory: Path, log: _Log) -> list[str]:
    """Fuzz for some time, or longer until everything was tried; return what was not."""
    begun = time.monotonic()
    mountpoint = directory / "mnt"
    mountpoint.mkdir()
    with _disk(directory) as lower:
        run = Run(mountpoint, lower, seed)
        with contextlib.closing(run.modes(min(_ROUND_S, seconds / 10), log.is_empty)) as modes:
            for _ in modes:
                passed_s = time.monotonic() - begun
                enough = not run.untried() or passed_s > _LONGEST * seconds
                if (enough and passed_s > _DEVICE_SHARE * seconds) or not log.is_empty():
                    break
        storage = Counts()
        if log.is_empty():
            storage_s = (1 - _DEVICE_SHARE) * seconds
            storage = fuzz_storage(directory, f"{seed} csd", storage_s)
            health.check_no_task_hangs()
            health.check_mount(mountpoint)
    untried = run.untried()
    untried += [f"success of {name}" for name in STORAGE_IOCTLS if not storage.succeeded[name]]
    run.counts.add(storage)
    print("\n".join(run.counts.lines()))
    return untried


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="duration; default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="seed; default: %(default)s")
    parser.add_argument(
        "--kernel",
        choices=("plain", "kasan", "kcsan"),
        default="plain",
        help="kind of the kernel, whose checks have to work; default: %(default)s",
    )
    chosen = parser.parse_args()
    if lacks := kernel.missing(chosen.kernel):
        print(f"fuzz: this kernel does not check itself: no {', '.join(lacks)}")
        return 2
    log = _Log()
    if chosen.kernel == "kasan":
        kernel.forget_leaks()
    if chosen.kernel == "kcsan":
        races.detect()
    print(f"fuzz: seed {chosen.seed}, {chosen.seconds:g} s", flush=True)
    with tempfile.TemporaryDirectory() as name:
        missing = _fuzz(chosen.seconds, chosen.seed, Path(name), log)
    if missing:
        print(f"fuzz: not tried: {', '.join(missing)}")
    log.print_new()
    health.unload(CSD)
    health.unload()
    faults = [*missing, *_checked(chosen.kernel)]
    log.print_new()
    return int(bool(faults or log.complaints))


def _checked(kind: str) -> list[str]:
    """Print and return what the checks of a kernel have found that is not in its log.

    The modules are unloaded.
    """
    found = []
    if kind == "kcsan":
        watched = races.watched()
        print(f"fuzz: {watched} accesses were watched for data races")
        found += [] if watched else ["KCSAN has watched nothing"]
    if kind == "kasan":
        found += [leak.text for leak in kernel.find_leaks() if leak.of_unloaded]
    for text in found:
        print(text)
    return found


if __name__ == "__main__":
    sys.exit(main())
