# SPDX-License-Identifier: LGPL-2.1-or-later
"""Builds of libefuse with sanitizers, and the environment that they need."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from efuse import libefuse, locations


@dataclass(frozen=True)
class Sanitizer:
    """A build with a sanitizer."""

    flags: str
    libraries: tuple[str, ...]
    """Libraries to preload before libefuse: the daemon is not linked with them."""

    def preload_library(self) -> Path:
        """Return the shim of `efuse run` in this build; build it if it is not in the cache."""

        def made(out: Path) -> None:
            flags = f"CFLAGS=-O1 -g -fno-omit-frame-pointer {self.flags}"
            words = [
                "make",
                "-s",
                "-C",
                locations.data("libefuse"),
                f"OUT={out.parent}",
                flags,
                out,
            ]
            subprocess.run(words, check=True)

        # The key includes this file, which has the flags.
        kind = f"sanitized/{self.libraries[0]}"
        sources = (*libefuse.sources(), Path(__file__))
        return locations.made_once(kind, "libefuse-preload.so", sources, made)


# AddressSanitizer does not notice that pthread_cancel(3) has unwound a stack.
ADDRESS = Sanitizer(
    "-fsanitize=address,undefined --param asan-stack=0", ("libasan.so.8", "libubsan.so.1")
)
THREAD = Sanitizer("-fsanitize=thread", ("libtsan.so.2",))

_HERE = Path(__file__).parent

SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "exitcode=66",
    "LSAN_OPTIONS": f"print_suppressions=0:suppressions={_HERE / 'lsan.supp'}",
    "TSAN_OPTIONS": f"exitcode=66:suppressions={_HERE / 'tsan.supp'}",
}
"""Environment of the daemon. After a report it exits with status 66."""
