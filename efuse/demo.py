# SPDX-License-Identifier: LGPL-2.1-or-later
"""``make demo``: run programs on a Linux source tree, on plain FUSE and on eFuse, in one guest.

The Python pass-through file system serves thousands of files of the Linux source. Each program runs
once on plain FUSE, once on a fresh eFuse mount (which learns), and once more on the same mount. The
output of each run is compared with the output of the same program on ext4.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from efuse import locations, stats, tui
from efuse.bench.environment import machine, versions
from efuse.bench.lower import command, ext4
from efuse.bench.report import Report, Result, ratios
from efuse.bench.systems import System, mounted
from efuse.bench.usage import Usage
from efuse.control import Connection
from efuse.errors import EfuseError
from efuse.guest.run import INSIDE, Options, run
from efuse.module import kernel
from efuse.stats import Change, Counters, Sample
from efuse.stats.maps import usage
from efuse.units import share

__all__ = ["PROGRAMS", "Run", "report", "table"]

_FILE_SYSTEMS = ("btrfs", "ext4", "f2fs", "fuse", "jbd2", "nfs", "overlayfs", "smb", "xfs")
_PARTS = (
    *(f"fs/{name}" for name in _FILE_SYSTEMS),
    *("include/uapi", "tools/lib", "tools/include", "tools/arch/x86/include"),
)
_GIT = "git -c safe.directory=* -c user.name=efuse -c user.email=efuse@localhost"
_SOURCES = "str_error strset hashmap bpf_prog_linfo ringbuf nlattr"
_CFLAGS = "-O1 -w -D_GNU_SOURCE -Itools/include -Itools/include/uapi -Itools/lib -Itools/lib/bpf"

PROGRAMS = {
    "find": "find fs tools include -name '*.[ch]' -size +8k | sort",
    "ls": "ls -lR fs tools include",
    "tar": "tar c --sort=name fs tools include",
    "git-status": f"{_GIT} --no-optional-locks status --porcelain",
    "compile": (
        f"for f in {_SOURCES}; do"
        f" cc {_CFLAGS} -c tools/lib/bpf/$f.c -o build/$f.o || exit; done; cat build/*.o"
    ),
}
"""Shell command of each program, by name. It runs in the tree, and its output is compared."""

_LOWER, _FIRST, _WARM = "ext4", "efuse-first", "efuse"


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a program on one system."""

    program: str
    system: str
    seconds: float
    digest: str
    before: Usage
    after: Usage

    @property
    def counters(self) -> Counters:
        """The kernel's counters over this run; zeros on a system without eFuse."""
        if self.before.sample is None or self.after.sample is None:
            return Counters()
        return self.after.sample.total - self.before.sample.total

    def result(self, wanted: str) -> Result:
        return Result(
            workload=self.program,
            system=self.system,
            daemon="passthrough",
            value=self.seconds,
            unit="s",
            better="lower",
            rounds=(self.seconds,),
            daemon_requests=self.after.total - self.before.total,
            context_switches=self.after.switches - self.before.switches,
            verified=self.digest == wanted,
        )


def _say(line: str) -> None:
    print(f"demo: {line}", file=sys.stderr, flush=True)


def source_tree() -> Path:
    """Return an archive of the Linux source files that the demo uses. The first call makes it.

    :raises EfuseError: the kernel's source package is not installed, or another user can change
        the archive.
    """
    archive = kernel.source_archive()
    identity = f"{archive.resolve()} {archive.stat().st_mtime_ns} {_PARTS}"
    name = hashlib.sha256(identity.encode()).hexdigest()[:16]
    target = locations.cache() / "demo" / f"{name}.tar"
    if target.exists():
        return locations.check_private(target)
    _say(f"unpacking {', '.join(_PARTS)} of {archive.name} (once)")
    locations.make_directory(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent) as work:
        words = ["tar", "-xf", str(archive), "-C", work, "--strip-components=1"]
        words += ["--wildcards", "--no-wildcards-match-slash", "--anchored"]
        command(*words, *(f"*/{part}" for part in _PARTS))
        new = target.with_suffix(".new")
        command("tar", "-C", work, "-cf", new, ".")
        locations.make_private(new).replace(target)
    return locations.check_private(target)


def _digest(program: str, directory: Path) -> tuple[float, str]:
    """Run *program* in *directory*; return the seconds it took and a digest of its output."""
    begin = time.perf_counter()
    output = hashlib.sha256()
    with subprocess.Popen(
        PROGRAMS[program], shell=True, cwd=directory, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout
        while block := child.stdout.read(1 << 20):
            output.update(block)
    if child.returncode:
        raise EfuseError(f"{program} failed in {directory}: exit status {child.returncode}")
    return time.perf_counter() - begin, output.hexdigest()


def _run_programs(system: System, name: str) -> list[Run]:
    runs = []
    for program in PROGRAMS:
        before = system.usage()
        seconds, digest = _digest(program, system.root)
        made = Run(program, name, seconds, digest, before, system.usage())
        result = made.result(digest)
        _say(f"{name}: {program}: {seconds:.1f} s, {result.daemon_requests} requests")
        runs.append(made)
    return runs


def _prepare(lower: Path, archive: Path) -> int:
    command("tar", "-xf", archive, "-C", lower)
    (lower / "build").mkdir()
    (lower / ".gitignore").write_text("/build\n/lost+found\n")
    for words in ("init -q", "add .", "commit -q -m source", "repack -a -d -q"):
        command("sh", "-c", f"cd {lower} && {_GIT} {words}")
    return sum(len(files) for _, _, files in os.walk(lower))


def _watch(connection: int) -> Sample:
    """Read all counters and map sizes. Reading makes the kernel measure latencies for a while."""
    sample = stats.read(Connection(connection))
    return replace(sample, maps=usage(connection), mountpoint="/mnt/linux")


def _measure(archive: Path) -> tuple[Report, list[stats.MountRates]]:
    """Run all programs. Return the report, and eFuse's rates over the warm run."""
    with ext4(512) as lower, tempfile.TemporaryDirectory(prefix="efuse-demo-") as base:
        count = _prepare(lower, archive)
        _say(f"{count} files")
        for program in PROGRAMS:
            _digest(program, lower)  # load the programs themselves into the page cache
        with mounted("fuse", lower, Path(base) / "fuse") as fuse:
            runs = _run_programs(fuse, "fuse")
        with mounted("efuse", lower, Path(base) / "efuse") as system:
            assert system.connection is not None
            runs += _run_programs(system, _FIRST)
            before = _watch(system.connection)
            runs += _run_programs(system, _WARM)
            frame = stats.between([before], [_watch(system.connection)])
        with mounted(_LOWER, lower, lower) as ext4_itself:
            runs += _run_programs(ext4_itself, _LOWER)
    return report(runs, count), frame


def report(runs: Iterable[Run], count: int) -> Report:
    """Return the report of *runs*. A run is verified if its output equals that on ext4."""
    known = list(runs)
    wanted = {r.program: r.digest for r in known if r.system == _LOWER}
    results = tuple(r.result(wanted[r.program]) for r in known)
    counters = {
        f"{r.program} {r.system}": {
            "requests": r.counters.requests,
            "hits": r.counters.hits,
            "daemon": r.counters.daemon,
        }
        for r in known
        if r.after.sample is not None
    }
    return Report(
        machine=machine(),
        kernel=platform.release(),
        versions=versions(),
        settings={
            "files": count,
            "programs": PROGRAMS,
            "clock": "time",
            "kernel_counters": counters,
        },
        results=results,
        ratios=ratios(results),
    )


def table(figures: dict[str, Any]) -> Table:
    """Return the printed table for the JSON form of a report."""
    made = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    made.add_column("PROGRAM")
    for title in (
        "EXT4",
        "FUSE",
        "requests",
        "EFUSE, 1st",
        "requests",
        "EFUSE",
        "requests",
        "HIT",
        "SPEED-UP",
    ):
        made.add_column(title, justify="right")
    made.add_column("OUTPUT")
    found = {(r["workload"], r["system"]): r for r in figures["results"]}
    speed = {r["workload"]: r["median"] for r in figures["ratios"] if r["over"] == "fuse"}
    counters = figures["settings"]["kernel_counters"]
    for program in figures["settings"]["programs"]:
        mine = [found[program, system] for system in ("fuse", _FIRST, _WARM)]
        cells = [f"{found[program, _LOWER]['value']:.1f} s"]
        cells += [c for r in mine for c in (f"{r['value']:.1f} s", str(r["daemon_requests"]))]
        kernel_saw = counters[f"{program} {_WARM}"]
        hit = kernel_saw["hits"] / kernel_saw["requests"] if kernel_saw["requests"] else None
        same = "same" if all(r["verified"] for r in mine) else "WRONG"
        made.add_row(program, *cells, share(hit), f"{speed[program]:.1f} x", same)
    return made


def _inside(out: Path, archive: Path) -> None:
    figures, frame = _measure(archive)
    value = json.loads(json.dumps(figures.json()))
    console = Console(highlight=False, markup=False, width=100)
    console.print()
    console.print(
        f"{value['settings']['files']} files, Linux source and its .git; the same Python daemon:"
    )
    console.print(table(value))
    console.print("\nWhat `efuse top` showed over the last column's run:\n")
    console.print(tui.plain(Change(tuple(frame)), width=80))
    out.write_text(json.dumps(value, indent=2) + "\n")
    if not all(result["verified"] for result in value["results"]):
        raise EfuseError("a program saw files that differ from the lower file system")


def main(arguments: list[str] | None = None) -> int:
    """Run the demo: in a new guest, or in place if this process already runs in one."""
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--tree", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    try:
        if os.environ.get(INSIDE) == "1":
            _inside(given.json, given.tree)
            return 0
        begin = time.monotonic()
        archive = given.tree or source_tree()
        out = locations.make_directory(locations.cache() / "demo") / f"{os.getpid()}.json"
        words = [sys.executable, "-m", "efuse.demo", "--json", str(out), "--tree", str(archive)]
        try:
            result = run(words, Options())
            if result.status == 0 and given.json:
                shutil.copyfile(out, given.json)
        finally:
            out.unlink(missing_ok=True)
        _say(f"done in {time.monotonic() - begin:.0f} s")
        return result.status
    except EfuseError as error:
        print(f"demo: {error}", file=sys.stderr)
        if error.hint:
            print(f"try: {error.hint}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
