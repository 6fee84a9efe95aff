# SPDX-License-Identifier: LGPL-2.1-or-later
"""pjdfstest: what POSIX says about each system call of a file system."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.conformance.outcome import FAILED, PASSED, SKIPPED, Amount, Outcome, Place, run
from tests.conformance.versions import program

CONFIGURATION = """\
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}

[settings]
# Longer than a tick of the kernel's clock.
naptime = 0.02
allow_remount = ALLOWED

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"""

_REMOUNTS = "::erofs"
"""What the names of the tests have in common that make the file system read-only for a while."""

_MOUNT = """\
#!/bin/sh
# mount.fuse would take the source of a mount for a program, and start it.
exec /bin/mount --internal-only "$@"
"""

_LIMIT_S = 1800
_TEST = re.compile(r"^([\w:]+) +(ok|FAILED|skipped)$", re.MULTILINE)
_STATUS = {"ok": PASSED, "FAILED": FAILED, "skipped": SKIPPED}
_SUMMARY = re.compile(
    r"^Summary: (\d+) failed, (\d+) skipped, (\d+) passed, 0 expected failures, (\d+) total$",
    re.MULTILINE,
)


def parsed(output: str) -> list[Outcome]:
    """Return the outcomes in the output of pjdfstest.

    :raises ValueError: the output has no summary, or another number of tests.
    """
    found = list(_TEST.finditer(output))
    ends = [match.start() for match in found[1:]] + [len(output)]
    outcomes = [
        Outcome(match[1], _STATUS[match[2]], output[match.end() : end].strip()[:2000])
        for match, end in zip(found, ends, strict=True)
    ]
    summary = _SUMMARY.search(output)
    if summary is None:
        raise ValueError(f"pjdfstest did not end: {output[-2000:]}")
    counts = [sum(o.status == status for o in outcomes) for status in (FAILED, SKIPPED, PASSED)]
    if [*counts, len(outcomes)] != [int(n) for n in summary.groups()]:
        raise ValueError(f"{counts} tests of pjdfstest were found, but: {summary[0]}")
    return [o._replace(detail="") if o.status == PASSED else o for o in outcomes]


def tests(place: Place, amount: Amount) -> Iterator[Outcome]:
    """Run all tests. The tests that remount the file system run in a process of their own.

    In the process of the others some descriptors stay open for writing, so that a file system
    cannot become read-only.
    """
    (place.scratch / "other").mkdir()
    mount = place.scratch / "bin" / "mount"
    mount.parent.mkdir()
    mount.write_text(_MOUNT)
    mount.chmod(0o755)
    others = _run(place, "false", *amount.patterns)
    remounts = {outcome.name: outcome for outcome in _run(place, "true", _REMOUNTS)}
    for outcome in others:
        yield remounts.pop(outcome.name, outcome)
    yield from remounts.values()


def _run(place: Place, allow_remount: str, *patterns: str) -> list[Outcome]:
    configuration = place.scratch / "pjdfstest.toml"
    configuration.write_text(CONFIGURATION.replace("ALLOWED", allow_remount))
    words: list[str | Path] = [program("pjdfstest"), "-c", configuration]
    words += ["-s", place.scratch / "other", "-p", place.root, *patterns]
    done = run(words, cwd=place.scratch, limit_s=_LIMIT_S, path=str(place.scratch / "bin"))
    return parsed(done.output)
