# SPDX-License-Identifier: LGPL-2.1-or-later
"""fs_mark: many small files, synced by each of its methods. Their bytes are compared afterwards."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.conformance.outcome import Amount, Outcome, Place, judged, run
from tests.conformance.versions import program

SIZE = 10_000
"""Size of each file, bytes: not a multiple of the page size."""

_THREADS = 2
_LIMIT_S = 600


def tests(place: Place, amount: Amount) -> Iterator[Outcome]:
    """Write files with each sync method."""
    for method in amount.sync_methods:
        files, lower = place.root / f"s{method}", place.lower / f"s{method}"
        files.mkdir()
        words: list[str | Path] = [
            program("fs_mark"),
            "-d",
            files,
            "-S",
            str(method),
            "-s",
            str(SIZE),
            "-w",
            "4096",
        ]
        words += ["-t", str(_THREADS), "-n", str(amount.files // _THREADS), "-D", "4", "-k"]
        words += ["-l", place.scratch / "fs_mark.log"]
        done = run(words, cwd=place.scratch, limit_s=_LIMIT_S)
        wrong = "" if done.status else compared(files, lower, amount.files // _THREADS * _THREADS)
        yield judged(f"sync method {method}", done, why=wrong)
        shutil.rmtree(files)


def compared(files: Path, lower: Path, number: int) -> str:
    """Return in words how the files differ from those below; empty if they are as written."""
    # Read what is stored, not what the kernel still has in memory.
    Path("/proc/sys/vm/drop_caches").write_text("3")
    found = sorted(path.relative_to(files) for path in files.rglob("*") if path.is_file())
    below = sorted(path.relative_to(lower) for path in lower.rglob("*") if path.is_file())
    if len(found) != number:
        return f"{len(found)} files, not {number}"
    if found != below:
        return "the names differ from those below"
    for path in found:
        data = (files / path).read_bytes()
        if len(data) != SIZE:
            return f"{path} has {len(data)} bytes, not {SIZE}"
        if data != (lower / path).read_bytes():
            return f"{path} differs from the file below"
    return ""
