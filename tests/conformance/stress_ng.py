# SPDX-License-Identifier: LGPL-2.1-or-later
"""stress-ng: its stressors of the class ``filesystem``, which check their results (--verify)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.conformance.outcome import SKIPPED, Amount, Done, Outcome, Place, judged, run
from tests.conformance.versions import program

_LEFT_OUT = {"fanotify"}
"""It taints Debian's kernels, and a guest whose kernel becomes tainted counts as failed."""

_LIMIT_S = 180
_SKIPPED = re.compile(r"info: +\[\d+\] (.*\bskipp(?:ing|ed)\b.*)")
_FAULT = re.compile(r"(?:fail|error): +\[\d+\] (.*)")


def stressors() -> list[str]:
    """Return the names of the class ``filesystem``, except those in `_LEFT_OUT`."""
    printed = run([program("stress-ng"), "--class", "filesystem?"], limit_s=60).output
    _, _, names = printed.partition("stressors:")
    return [name for name in names.split() if name not in _LEFT_OUT]


def tests(place: Place, amount: Amount) -> Iterator[Outcome]:
    """Run each stressor alone."""
    for name in amount.stressors or stressors():
        words = [program("stress-ng"), f"--{name}", "1", "--timeout", f"{amount.stressor_s}s"]
        words += ["--verify", "--metrics", "--no-rand-seed", "--temp-path", str(place.root)]
        yield outcome(name, run(words, cwd=place.scratch, limit_s=_LIMIT_S))


def outcome(name: str, done: Done) -> Outcome:
    """Return the outcome of a stressor: it has passed only if it has done something."""
    fault = _FAULT.search(done.output)
    if fault is not None:
        return judged(name, done, why=fault[1])
    did = re.search(rf"metrc: +\[\d+\] {re.escape(name)} +(\d+) ", done.output)
    skipped = _SKIPPED.search(done.output)
    if did is None and skipped is not None and done.status == 0:
        return Outcome(name, SKIPPED, skipped[1])
    return judged(name, done, why="" if did is not None and int(did[1]) else "it did nothing")
