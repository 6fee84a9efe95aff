# SPDX-License-Identifier: LGPL-2.1-or-later
"""fsx: random operations on one file, whose content is compared with a copy in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.conformance.outcome import Amount, Outcome, Place, judged, run
from tests.conformance.versions import program

SEED = 20261128

_WEIGHTS = (
    "[weights]\nread = 10.0\nwrite = 10.0\nmapread = 10.0\nmapwrite = 10.0\ntruncate = 10.0\n"
    "close_open = 2.0\ninvalidate = 2.0\nfsync = 1.0\nfdatasync = 1.0\n"
    "sendfile = 5.0\nposix_fadvise = 2.0\ncopy_file_range = 5.0\n"
)
_ALLOCATE = "posix_fallocate = 3.0\n"
_PUNCH = "punch_hole = 3.0\n"


class Case(NamedTuple):
    """A configuration of fsx, and by how much fewer operations it has than others."""

    configuration: str
    divisor: int = 1


CASES = {
    "all but holes": Case(_WEIGHTS + _ALLOCATE),
    "holes": Case(_WEIGHTS + _ALLOCATE + _PUNCH, 4),
    "small file": Case(f"flen = 40000\n[opsize]\nmax = 3000\n{_WEIGHTS}{_ALLOCATE}", 4),
    # With an alignment, fsx allocates ranges of no length, which is an error.
    "whole pages": Case(f"[opsize]\nalign = 4096\n{_WEIGHTS}", 4),
}
"""The cases by the name of the test."""

_LIMIT_S = 1800
_OPERATION = re.compile(r"^\[\w+ +fsx\] +(\d+) (?!skipping)", re.MULTILINE)


def tests(place: Place, amount: Amount) -> Iterator[Outcome]:
    """Run each case with the same seed on every system."""
    for name, case in CASES.items():
        configuration = place.scratch / "fsx.toml"
        configuration.write_text(case.configuration)
        operations = amount.fsx_operations // case.divisor
        words: list[str | Path] = [program("fsx"), "-v", "-f", configuration, "-S", str(SEED)]
        words += ["-N", str(operations), "-P", place.scratch, place.root / "file"]
        done = run(words, cwd=place.scratch, limit_s=_LIMIT_S)
        yield judged(name, done, why=missing(done.output, operations))
        (place.root / "file").unlink()


def missing(output: str, operations: int) -> str:
    """Return what is wrong if the log has too few operations; an operation may have no effect."""
    logged = {int(number) for number in _OPERATION.findall(output)}
    if len(logged) >= operations // 2:
        return ""
    return f"only {len(logged)} of {operations} operations are in the log"
