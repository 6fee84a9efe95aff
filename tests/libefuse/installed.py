# SPDX-License-Identifier: LGPL-2.1-or-later
"""An installation of libefuse in a directory of the test."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from efuse import locations

_ROOT = locations.package().parent


class Installed:
    """The result of ``make -C libefuse install``."""

    def __init__(self, base: Path) -> None:
        self.prefix = base / "prefix"
        words = [
            "make",
            "-s",
            "-C",
            locations.data("libefuse"),
            f"OUT={base}",
            f"PREFIX={self.prefix}",
        ]
        subprocess.run([*words, "install"], check=True)
        lib = self.prefix / "lib"
        self.environment = {
            **os.environ,
            "LD_LIBRARY_PATH": str(lib),
            "PKG_CONFIG_PATH": str(lib / "pkgconfig"),
        }

    def flags(self, *wanted: str) -> list[str]:
        """Return pkg-config's output for the library."""
        words = ["pkg-config", *wanted, "libefuse"]
        return subprocess.check_output(words, env=self.environment, text=True).split()

    def compiled(self, source: str, program: Path) -> Path:
        """Compile *source*, a path in the repository, and return the program."""
        words = ["gcc", "-Wall", "-Wextra", "-Werror", "-o", program, _ROOT / source]
        subprocess.run([*words, *self.flags("--cflags", "--libs")], check=True)
        return program
