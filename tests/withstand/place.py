# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where a program of the load works, and how it compares."""

from __future__ import annotations

import random
import subprocess
from dataclasses import dataclass
from pathlib import Path

COMMAND_S = 600
"""How long a command of a load may take, in seconds: it waits while no daemon serves."""


class DifferenceError(AssertionError):
    """A program has found something else than it would have without crashes."""


@dataclass(frozen=True)
class Place:
    """Where a program works.

    :ivar directory: its directory on the mount.
    :ivar scratch: its directory elsewhere.
    :ivar ends: a file that exists when the program is to end.
    :ivar rng: makes its random choices.
    """

    directory: Path
    scratch: Path
    ends: Path
    rng: random.Random

    def goes_on(self, steps: int) -> bool:
        """Tell whether the program is to make another step, after *steps* of them."""
        return not steps or not self.ends.exists()

    def compare(self, what: str, found: object, wanted: object) -> None:
        """Compare what was found with what must be there.

        :raises DifferenceError: they differ.
        """
        if found != wanted:
            raise DifferenceError(f"{what}: found {_short(found)}, wanted {_short(wanted)}")

    def run(self, *command: str | Path, status: int = 0, cwd: Path | None = None) -> str:
        """Run a command, and return its output.

        :raises DifferenceError: it has another exit status than *status*.
        """
        words = [str(word) for word in command]
        done = subprocess.run(
            words,
            check=False,
            cwd=cwd or self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=COMMAND_S,
        )
        if done.returncode != status:
            raise DifferenceError(f"{words} ended with {done.returncode}: {done.stdout[:1000]}")
        return done.stdout


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"
