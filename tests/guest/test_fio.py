# SPDX-License-Identifier: LGPL-2.1-or-later
"""Let fio write, read and verify: each block carries a checksum and its own place.

The lower files are compared with the files of the mount, too.
"""

from __future__ import annotations

import filecmp
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from efuse import bpf
from tests.guest.support.forced import WORDS, Forced, forced

GLOBAL = """
[global]
verify=crc32c
verify_fatal=1
verify_state_save=0
group_reporting=0
randseed=20261121
ioengine=psync
fallocate=none
directory={directory}
"""
SHAPES = {
    "single": "rw=randrw bs=4k direct=1 size=1m",
    "small": "rw=randrw bs=4k direct=1 size=512k numjobs=4 ioengine=libaio iodepth=8",
    "small_buffered": "rw=randrw bs=4k size=512k numjobs=2 verify_backlog=32",
    "uring": "rw=randrw bs=4k direct=1 size=512k numjobs=2 ioengine=io_uring iodepth=8",
    "uring_buffered": "rw=randrw bs=16k size=2m ioengine=io_uring iodepth=8",
    "uneven": "rw=randrw bsrange=512-40k bs_unaligned=1 size=1m numjobs=2",
    "large": "rw=randrw bs=1m direct=1 size=8m numjobs=2 verify_backlog=4",
    "large_buffered": "rw=randrw bs=512k size=8m numjobs=2",
    "sequential": "rw=write bs=128k direct=1 size=4m numjobs=2",
    "sequential_buffered": "rw=write bs=128k size=2m numjobs=8",
}
TOGETHER = {
    "single": "rw=randrw bs=4k direct=1 size=512k",
    "small": "rw=randrw bs=4k direct=1 size=256k numjobs=4 ioengine=libaio iodepth=8",
    "uneven": "rw=randrw bsrange=512-40k bs_unaligned=1 size=512k numjobs=2",
    "large_buffered": "rw=randrw bs=512k size=4m numjobs=2",
}
"""Shapes that run at the same time, on each path."""


def job_file(directory: Path, shapes: dict[str, str]) -> str:
    text = GLOBAL.format(directory=directory)
    for name, options in shapes.items():
        text += f"[{name}]\n" + options.replace(" ", "\n") + "\n"
    return text


class Fio:
    """A running fio. Its output goes into files, so that it never waits for a reader."""

    def __init__(self, m: Forced, directory: Path, shapes: dict[str, str]) -> None:
        jobs = directory / "jobs.fio"
        jobs.write_text(job_file(m.point, shapes))
        self._report, self._printed = directory / "report", directory / "printed"
        with self._printed.open("wb") as printed:
            self._process = subprocess.Popen(
                ["fio", "--output-format=json", f"--output={self._report}", str(jobs)],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
            )

    def running(self) -> bool:
        return self._process.poll() is None

    def show_that_it_verified(self) -> None:
        """Check that each job has read at least all that it wrote, without an error."""
        status = self._process.wait(timeout=600)
        report = self._report.read_text()
        assert status == 0, report + self._printed.read_text()
        # There are warnings before and after the JSON.
        found: dict[str, Any] = json.JSONDecoder().raw_decode(report, report.index("{"))[0]
        for job in found["jobs"]:
            assert job["error"] == 0, report
            written, read = (job[way]["io_bytes"] for way in ("write", "read"))
            assert read >= written > 0, f"{job['jobname']}: {written} written, {read} read"


def show_that_it_is_below(m: Forced, lower: Path) -> None:
    """Check that the lower files are equal to the files of the mount."""
    names = os.listdir(lower)
    assert names
    assert sorted(os.listdir(m.point)) == sorted(names)
    same, *others = filecmp.cmpfiles(m.point, lower, names, shallow=False)
    assert sorted(same) == sorted(names), others


@pytest.mark.parametrize("shape", sorted(SHAPES.keys() - TOGETHER.keys()))
def test_fio_reads_back_what_it_wrote(
    lower: Path, mountpoint: Path, tmp_path: Path, shape: str
) -> None:
    with forced(lower, mountpoint, "auto") as m:
        Fio(m, tmp_path, {shape: SHAPES[shape]}).show_that_it_verified()
        show_that_it_is_below(m, lower)
        m.show_that_it_ran(40)


@pytest.mark.parametrize("path", WORDS)
def test_fio_reads_back_what_jobs_of_all_shapes_wrote_together(
    lower: Path, mountpoint: Path, tmp_path: Path, path: str
) -> None:
    with forced(lower, mountpoint, path) as m:
        Fio(m, tmp_path, TOGETHER).show_that_it_verified()
        show_that_it_is_below(m, lower)
        m.show_that_it_ran(300)


def test_fio_reads_back_what_it_wrote_while_programs_are_attached_and_detached(
    lower: Path, mountpoint: Path, tmp_path: Path
) -> None:
    """Handlers are attached and detached again and again while fio runs."""
    shapes = {name: SHAPES[name] for name in ("small", "uneven", "large_buffered")}
    with forced(lower, mountpoint, "auto") as m:
        with bpf.Attachment.open(m.connection.id) as daemons:
            daemons.detach()
        fio = Fio(m, tmp_path, shapes)
        rounds = 0
        while fio.running():
            with bpf.attach(m.connection.id):
                rounds += 1
        fio.show_that_it_verified()
        assert rounds > 3
        show_that_it_is_below(m, lower)
        m.show_that_it_ran(100)
