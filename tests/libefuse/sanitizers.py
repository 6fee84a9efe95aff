# SPDX-License-Identifier: LGPL-2.1-or-later
"""How libefuse is built with sanitizers, and what its daemons are told for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Sanitizer:
    """One build."""

    flags: str
    libraries: tuple[str, ...]
    """To be preloaded before libefuse: the daemon is not linked with them."""


# AddressSanitizer does not know of a stack that pthread_cancel(3) has unwound.
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
"""The daemon's environment. With a report it exits with status 66."""
