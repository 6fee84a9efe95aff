# SPDX-License-Identifier: LGPL-2.1-or-later
"""dbench: what a file server does for its clients, from a recorded load."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.conformance.outcome import Amount, Outcome, Place, judged, run
from tests.conformance.versions import program

LOAD = "/usr/share/dbench/client.txt"
CASES = {
    "4 clients": ("4",),
    "synchronous": ("-s", "-S", "2"),
    "extended attributes": ("-x", "2"),
}
"""Arguments by the name of the test."""

_LIMIT_S = 600
_CREATED = re.compile(r"^ *NTCreateX +(\d+) ", re.MULTILINE)
_FAULT = re.compile(r"^.*(?:ERROR|\[\d+\].*failed|expected).*$", re.MULTILINE)


def tests(place: Place, amount: Amount) -> Iterator[Outcome]:
    """Run each case for a while."""
    for name, arguments in CASES.items():
        words: list[str | Path] = [
            program("dbench"),
            "-c",
            LOAD,
            "-t",
            str(amount.dbench_s),
            "-D",
            place.root,
        ]
        done = run([*words, *arguments], cwd=place.scratch, limit_s=_LIMIT_S)
        yield judged(name, done, why=fault(done.output))
        shutil.rmtree(place.root / "clients", ignore_errors=True)


def fault(output: str) -> str:
    """Return what is wrong according to the output, or an empty string."""
    found = _FAULT.search(output)
    if found is not None:
        return found[0].strip()
    created = _CREATED.search(output)
    return "" if created is not None and int(created[1]) else "no file was opened"
