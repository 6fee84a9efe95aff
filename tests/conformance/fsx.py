# SPDX-License-Identifier: LGPL-2.1-or-later
"""fsx: random operations on one file, whose content is compared with a copy in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.conformance.outcome import Amount, Outcome, Place, judged, run
from tests.conformance.versions import program

SEED = 20261128

_DATA = "read = 10.0\nwrite = 10.0\nmapread = 10.0\nmapwrite = 10.0\ntruncate = 10.0\n"
_REST = (
    "close_open = 2.0\ninvalidate = 2.0\nfsync = 1.0\nfdatasync = 1.0\nposix_fallocate = 3.0\n"
    "punch_hole = 3.0\nsendfile = 5.0\nposix_fadvise = 2.0\ncopy_file_range = 5.0\n"
)
CASES = {
    "data": f"[weights]\n{_DATA}",
    "all operations": f"[weights]\n{_DATA}{_REST}",
    "whole pages": f"[opsize]\nalign = 4096\n[weights]\n{_DATA}{_REST}",
    "small": f"flen = 40000\n[opsize]\nmax = 3000\n[weights]\n{_DATA}{_REST}",
}
"""Configurations by the name of the test."""

_LIMIT_S = 1800
_OPERATION = re.compile(r"^\[\w+ +fsx\] +(\d+) (?!skipping)", re.MULTILINE)


def tests(place: Place, amount: Amount) -> Iterator[Outcome]:
    """Run each case with the same seed on every system."""
    for name, text in CASES.items():
        configuration = place.scratch / "fsx.toml"
        configuration.write_text(text)
        words: list[str | Path] = [program("fsx"), "-v", "-f", configuration, "-S", str(SEED)]
        words += ["-N", str(amount.fsx_operations), "-P", place.scratch, place.root / "file"]
        done = run(words, cwd=place.scratch, limit_s=_LIMIT_S)
        yield judged(name, done, why=_missing(done.output, amount.fsx_operations))
        (place.root / "file").unlink()


def _missing(output: str, operations: int) -> str:
    """Return what is wrong if the log has too few operations; an operation may have no effect."""
    logged = {int(number) for number in _OPERATION.findall(output)}
    if len(logged) >= operations // 2:
        return ""
    return f"only {len(logged)} of {operations} operations are in the log"
