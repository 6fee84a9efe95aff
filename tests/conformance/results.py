# SPDX-License-Identifier: LGPL-2.1-or-later
"""Results of suites, kept one by one so that a run can be continued."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from efuse import locations
from tests.conformance.outcome import FAILED, PASSED, SKIPPED, Outcome
from tests.documents import ROOT

_SOURCES = ("efuse", "bpf_programs", "kernel_patches", "libefuse", "tests/conformance")
_HERE = Path(__file__).parent
_MODULES = {
    suite: _HERE / f"{suite.replace('-', '_')}.py"
    for suite in ("pjdfstest", "fsx", "stress-ng", "fs_mark", "dbench", "sqlite")
}
"""The module of each suite. A change of it affects the results of that suite alone."""

_NOT_SOURCES = (
    *("__main__.py", "compare.py", "differences.toml", "document.py", "least.py"),
    *(module.name for module in _MODULES.values()),
)
"""Files of tests/conformance that have no effect on all results."""


class Result(NamedTuple):
    """The result of a suite on a system.

    :ivar suite: name of the suite.
    :ivar system: name of the system.
    :ivar outcomes: the result of each test.
    :ivar answers: number of requests that the kernel answered instead of the daemon.
    :ivar took_s: how long it took, in seconds of the guest's clock.
    :ivar kernel: release of the kernel.
    """

    suite: str
    system: str
    outcomes: tuple[Outcome, ...]
    answers: int
    took_s: int
    kernel: str

    def count(self, status: str) -> int:
        """Return how many tests have a status."""
        return sum(outcome.status == status for outcome in self.outcomes)

    def counts(self) -> str:
        """Return the numbers of tests in words."""
        return ", ".join(f"{self.count(s)} {s}" for s in (PASSED, FAILED, SKIPPED))

    def json(self) -> dict[str, Any]:
        """Return the result as JSON's types."""
        return {**self._asdict(), "outcomes": [list(outcome) for outcome in self.outcomes]}

    @classmethod
    def of_json(cls, fields: dict[str, Any]) -> Result:
        """Return the result that :meth:`json` has turned into *fields*."""
        outcomes = tuple(Outcome(*words) for words in fields["outcomes"])
        return cls(**{**fields, "outcomes": outcomes})


def directory() -> Path:
    """Return where the results are kept. It is another directory when the sources change."""
    names = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z", "--cached", "--others"]
    names += [
        "--exclude-standard",
        "--",
        *_SOURCES,
        *(f":!tests/conformance/{name}" for name in _NOT_SOURCES),
    ]
    listed = subprocess.run(names, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    digest = hashlib.sha256()
    for name in sorted(filter(None, listed.split("\0"))):
        if (ROOT / name).is_file():
            digest.update(f"{name}\0".encode() + (ROOT / name).read_bytes())
    return locations.cache() / "conformance" / digest.hexdigest()[:16]


def file_of(kept: Path, suite: str, system: str) -> Path:
    """Return the file in the directory *kept* that has the result of a suite on a system."""
    version = hashlib.sha256(_MODULES[suite].read_bytes()).hexdigest()[:8]
    return kept / f"{suite}-{version}-{re.sub(r'[^a-z_0-9]', '-', system.lower())}.json"


def save(kept: Path, result: Result) -> None:
    """Keep a result."""
    kept.mkdir(parents=True, exist_ok=True)
    path = file_of(kept, result.suite, result.system)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(result.json()))
    new.rename(path)


def load(kept: Path, suite: str, system: str) -> Result | None:
    """Return a kept result, or None."""
    path = file_of(kept, suite, system)
    return Result.of_json(json.loads(path.read_text())) if path.exists() else None
