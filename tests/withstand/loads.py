# SPDX-License-Identifier: LGPL-2.1-or-later
"""The loads, each a process: ``python -m tests.withstand.loads LOAD DIRECTORY SCRATCH ENDS SEED``.

A load works until the file ENDS exists. It prints how many steps it has made. If it finds a
difference, or a call fails, it ends with a traceback.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

from tests.withstand import contents, names, programs
from tests.withstand.place import Place

LOADS: dict[str, Callable[[Place], int]] = {
    load.__name__: load
    for load in (
        names.names,
        names.symbolic,
        names.trees,
        contents.opened,
        contents.mapped,
        contents.exercised,
        programs.sqlite_journal,
        programs.sqlite_wal,
        programs.git,
        programs.tar,
        programs.build,
        programs.fio,
    )
}
"""The loads that change files, by name."""

READING: dict[str, Callable[[Place], int]] = {"reads": contents.reads}
"""The loads for a file system that cannot be written to."""


def main() -> None:
    name, directory, scratch, ends, seed = sys.argv[1:]
    place = Place(Path(directory), Path(scratch), Path(ends), random.Random(f"{name} {seed}"))
    print((LOADS | READING)[name](place))


if __name__ == "__main__":
    main()
