# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run fio and parse its results."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from efuse.errors import EfuseError, NotSupportedError

__all__ = ["VERIFY", "Rates", "fio"]

# Threads instead of processes: starting processes takes longer than a short round.
_COMMON = (
    "--ioengine=psync",
    "--thread",
    "--group_reporting",
    "--disk_util=0",
    "--fallocate=none",
    "--output-format=json",
)
VERIFY = ("--verify=crc32c", "--verify_fatal=1", "--verify_state_save=0")


@dataclass(frozen=True, slots=True)
class Rates:
    """Reads and writes of all jobs together: operations per second, and MiB per second."""

    iops: float
    mib_s: float


def fio(name: str, directory: Path, options: Sequence[str]) -> Rates:
    """Run the job *name* in *directory* and return its rates.

    :raises NotSupportedError: fio is not installed.
    :raises EfuseError: fio failed, or read other data than it had written.
    """
    with tempfile.NamedTemporaryFile(prefix="efuse-fio-") as output:
        words = ["fio", f"--name={name}", f"--directory={directory}", *_COMMON, *options]
        try:
            done = subprocess.run(
                [*words, f"--output={output.name}"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
            )
        except FileNotFoundError:
            raise NotSupportedError(
                "the data workloads cannot run: fio is not installed", hint="apt-get install fio"
            ) from None
        text = Path(output.name).read_text()
    if done.returncode:
        lines = [line for line in (done.stderr + text).splitlines() if line.strip()]
        why = lines[0].strip() if lines else "it printed nothing"
        raise EfuseError(f"fio failed with status {done.returncode} in {directory}: {why}")
    return rates(text)


def rates(text: str) -> Rates:
    """Parse fio's JSON, which fio may precede with notes.

    :raises EfuseError: the text is not fio's output, or a job failed.
    """
    try:
        jobs = json.loads(text[text.index("{") :])["jobs"]
        halves = [job[half] for job in jobs for half in ("read", "write")]
        failed = [job["error"] for job in jobs if job["error"]]
        found = Rates(
            iops=sum(float(half["iops"]) for half in halves),
            mib_s=sum(float(half["bw_bytes"]) for half in halves) / (1 << 20),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise EfuseError(f"fio's output cannot be read: {error!r}") from error
    if failed:
        raise EfuseError(f"a job of fio failed with error {failed[0]}")
    return found
