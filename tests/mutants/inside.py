# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run the command of one broken build after the other, within a guest.

``python -m tests.mutants.inside DIRECTORY``, see `tests.mutants.batch`. It ends when none is left,
or when the last one has left the guest in a state in which the next could not be judged: the kernel
has complained, or mounts, disks or processes are there that were not there before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from efuse.errors import ModuleBuildError
from efuse.guest import kernel_log
from efuse.guest.run import MODULE
from efuse.module import live
from efuse.module.build import CSD, EFUSE
from tests.guest.support.running_kernel import KernelLog
from tests.mutants.batch import (
    KERNEL_COMPLAINED,
    LONGEST_S,
    OUT_OF_TIME,
    OUTPUT,
    STARTED,
    STATUS,
    TAINTED,
    WORK,
    store,
)

_END_S = 5
"""How long processes that are ending may take."""


def _unloaded() -> bool:
    """Unload the modules; return whether nothing holds them."""
    try:
        for of in (CSD, EFUSE):
            live.unload(of)
    except ModuleBuildError:
        return False
    return True


def _run(root: Path) -> int:
    """Run the command of one build. Return its exit status."""
    work = json.loads((root / WORK).read_text())
    environment = {**os.environ, **work["modules"], "PYTHONPATH": work["sources"]}
    live.load(Path(work["modules"][MODULE]))
    with (root / OUTPUT).open("w") as output:
        child = subprocess.Popen(
            work["command"],
            cwd=work["sources"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            return child.wait(LONGEST_S)
        except subprocess.TimeoutExpired:
            child.kill()  # not waited for: a broken kernel may keep it for ever
            output.write(f"\n{OUT_OF_TIME}\n")
            return 1


def _complaint(log: KernelLog) -> str | None:
    """Return the first line of what the kernel complained about outside of tests, or None."""
    found = kernel_log.complaints(log.new_text())
    if found:
        return f"{KERNEL_COMPLAINED}: {found[0].splitlines()[0]}"
    new = log.taint() & ~kernel_log.MODULE_TAINTS
    return f"{TAINTED}: {', '.join(kernel_log.taint_names(new))}" if new else None


def _state() -> set[str]:
    """Return the guest's mounts, disks with content, and processes."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = {line.split()[4] for line in lines}
    disks = {disk.name for disk in Path("/sys/block").iterdir() if int((disk / "size").read_text())}
    processes = {task.name for task in Path("/proc").iterdir() if _is_process(task)}
    # Tests mount bpffs below /sys, and leave it mounted.
    return {mount for mount in mounts if not mount.startswith("/sys/")} | disks | processes


def _is_process(task: Path) -> bool:
    """Return whether a directory in /proc is that of a process, and not of a kernel thread."""
    try:
        return task.name.isdigit() and bool((task / "cmdline").read_bytes())
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended


def _left_behind(before: set[str]) -> bool:
    """Return whether the guest has more than it had; processes get some time to end."""
    deadline = time.monotonic() + _END_S
    while _state() - before:
        if time.monotonic() > deadline:
            return True
        time.sleep(0.1)
    return False


def main(directory: Path) -> int:
    log, before = KernelLog(), _state()
    for root in sorted(directory.iterdir()):
        if (root / STATUS).exists():
            continue
        if not _unloaded():
            return 1
        store(root / STARTED, "")
        status = _run(root)
        complaint = _complaint(log)
        if complaint:
            with (root / OUTPUT).open("a") as output:
                output.write(f"\n{complaint}")
        store(root / STATUS, "1" if complaint else str(status))
        if complaint or _left_behind(before):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
