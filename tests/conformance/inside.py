# SPDX-License-Identifier: LGPL-2.1-or-later
"""What runs in a guest: ``python -m tests.conformance.inside DIRECTORY SYSTEM SUITE...``

It keeps each result in DIRECTORY as it comes, and does not repeat what is kept there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conformance.outcome import LONG
from tests.conformance.results import load, save
from tests.conformance.suites import carried_out, system
from tests.conformance.systems import lower_file_system


def main() -> None:
    kept, name, *suites = sys.argv[1:]
    with lower_file_system() as lower, system(name, lower) as one:
        for suite in suites:
            if load(Path(kept), suite, name) is not None:
                continue
            result = carried_out(suite, name, one, LONG)
            save(Path(kept), result)
            took = f"{result.took_s} s, {result.answers} answers of the kernel"
            print(f"conformance: {suite} on {name}: {result.counts()}; {took}", flush=True)


if __name__ == "__main__":
    main()
