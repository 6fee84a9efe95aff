# SPDX-License-Identifier: LGPL-2.1-or-later
"""Build the modules; compile only what has changed since the last build in the same directory.

``python -m tests.mutants.build DIRECTORY``.
"""

from __future__ import annotations

import fcntl
import sys
from pathlib import Path

from efuse.module import kernel
from efuse.module.build import CSD, EFUSE, build


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    target = kernel.find()
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for of in (EFUSE, CSD):
            build(target, of, kept=directory / f"{of.name}-{target.release}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
