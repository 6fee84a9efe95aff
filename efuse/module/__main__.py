# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write the source tree of ``efuse.ko`` below a directory. DKMS runs this at each build.

``python3 -m efuse.module DIRECTORY RELEASE``. The parts of the kernel's source that are needed are
unpacked to ``DIRECTORY/cache``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from efuse import locations
from efuse.errors import EfuseError
from efuse.module import kernel, source

__all__ = ["main"]


def main(directory: Path, release: str) -> None:
    """Write the source tree for the kernel *release*. Exit with status 1 if that fails."""
    os.environ["XDG_CACHE_HOME"] = str(directory / "cache")
    version = kernel.version(release)
    try:
        archive = kernel.source_archive(version=version)
        source.write_tree(directory, locations.data("kernel_patches"), archive, version)
    except EfuseError as error:
        print(f"efuse: {error}\ntry: {error.hint}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
