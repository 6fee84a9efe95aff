# SPDX-License-Identifier: LGPL-2.1-or-later
"""The broken builds of mutants.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

_MUTANTS = Path(__file__).with_name("mutants.toml")


@dataclass(frozen=True)
class Mutant:
    """A broken build; see mutants.toml."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def is_of_modules(self) -> bool:
        """Whether only the modules are broken, and not what the tests themselves use."""
        return self.file.startswith(("kernel_patches/src/", "csd/src/"))

    def apply(self, root: Path) -> None:
        """Break the sources below *root*.

        :raises ValueError: the text to replace does not occur exactly once.
        """
        path = root / self.file
        text = path.read_text()
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.file} has {text.count(self.old)} such places")
        path.write_text(text.replace(self.old, self.new))


def mutants() -> list[Mutant]:
    """Return all broken builds."""
    tables = tomllib.loads(_MUTANTS.read_text())
    return [
        Mutant(name, t["file"], t["old"], t["new"], tuple(t["tests"])) for name, t in tables.items()
    ]
