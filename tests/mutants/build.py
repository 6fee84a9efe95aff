# SPDX-License-Identifier: LGPL-2.1-or-later
"""Build the modules; compile only what has changed since the last build in the same directory.

``python -m tests.mutants.build DIRECTORY`` prints their paths, in JSON, by variable of the
environment.
"""

from __future__ import annotations

import fcntl
import json
import sys
from pathlib import Path

from efuse.guest.run import CSD_MODULE, MODULE
from efuse.module import kernel
from efuse.module.build import CSD, EFUSE, build


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    target = kernel.find()
    built = {}
    with (directory / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for variable, of in ((MODULE, EFUSE), (CSD_MODULE, CSD)):
            kept = directory / f"{of.name}-{target.release}"
            built[variable] = str(build(target, of, kept=kept))
    print(json.dumps(built))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
