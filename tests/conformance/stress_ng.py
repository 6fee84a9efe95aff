# SPDX-License-Identifier: LGPL-2.1-or-later
"""stress-ng: its stressors of the class ``filesystem``, which check their results (--verify)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.conformance.outcome import SKIPPED, Amount, Done, Outcome, Place, judged, run
from tests.conformance.versions import program

_LEFT_OUT = {
    "bind-mount": "it mounts over the root of the machine, so stress-ng refuses to run it",
    "binderfs": "it tests a file system that Debian's kernel does not have",
    "fanotify": "it taints Debian's kernels, and a guest with a tainted kernel counts as failed",
    "inode-flags": "a round takes more than five minutes in an emulated guest, also on ext4",
}
"""Stressors that do not run, and why."""

_SMALLER = {
    name: (f"--{name}-bytes", "1M") for name in ("fallocate", "fiemap", "iomix", "sync-file")
}
"""Options of stressors whose files are so large that a round of their calls takes minutes."""

_LIMIT_S = 900
"""Some stressors look only after thousands of calls whether their time is over."""

_ROUND_S = 60
_SKIPPED = re.compile(r"info: +\[\d+\] (.*\bskipp(?:ing|ed)\b.*)")
_FAULT = re.compile(r"(?:fail|error): +\[\d+\] (.*)")


def stressors() -> list[str]:
    """Return the names of the class ``filesystem``, except those in `_LEFT_OUT`.

    :raises ValueError: stress-ng does not list them.
    """
    done = run([program("stress-ng"), "--class", "filesystem?"], limit_s=60)
    _, _, listed = done.output.partition("stressors:")
    names = listed.split()
    if done.status or not _LEFT_OUT.keys() <= set(names) or len(names) == len(_LEFT_OUT):
        raise ValueError(f"stress-ng lists no stressors: {done.status}, {done.output}")
    return [name for name in names if name not in _LEFT_OUT]


def tests(place: Place, amount: Amount) -> Iterator[Outcome]:
    """Run each stressor alone.

    If its time was too short for a round of its calls, it runs again until it has done one round.
    """
    for name in amount.stressors or stressors():
        words = [program("stress-ng"), f"--{name}", "1", "--verify", "--metrics", "--no-rand-seed"]
        words += _SMALLER.get(name, ())
        words += ["--temp-path", str(place.root), "--timeout"]
        done = run([*words, f"{amount.stressor_s}s"], cwd=place.scratch, limit_s=_LIMIT_S)
        if done.status == 0 and rounds(name, done) == 0:
            one_round = [f"{_ROUND_S}s", f"--{name}-ops", "1"]
            done = run([*words, *one_round], cwd=place.scratch, limit_s=_LIMIT_S)
        yield outcome(name, done)


def rounds(name: str, done: Done) -> int | None:
    """Return how many rounds a stressor has done; None if it does not tell."""
    told = re.search(rf"metrc: +\[\d+\] {re.escape(name)} +(\d+) ", done.output)
    return None if told is None else int(told[1])


def outcome(name: str, done: Done) -> Outcome:
    """Return the outcome of a stressor: it has passed only if it has done something."""
    fault = _FAULT.search(done.output)
    if fault is not None:
        return judged(name, done, why=fault[1])
    did = rounds(name, done)
    skipped = _SKIPPED.search(done.output)
    if not did and skipped is not None and done.status == 0:
        return Outcome(name, SKIPPED, skipped[1])
    return judged(name, done, why="" if did else "it did nothing")
