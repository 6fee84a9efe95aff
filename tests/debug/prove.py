# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commit faults in a guest whose kernel checks itself, and show that each is reported.

``scripts/test-debug --prove`` runs it in both kernels of ``scripts/debug-kernel``. Its arguments
are the kind of the kernel and the module that commits the faults. It prints the kernel's reports;
the last line counts them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path

from efuse.guest import kernel_log
from tests.debug import kernel, races
from tests.guest.support.running_kernel import KernelLog
from tests.guest.support.shell import run

_MODULE = "efuse_faults"
_FAULT = Path(f"/sys/module/{_MODULE}/parameters/fault")
_HUNG_S = 10
_DEADLINE_S = 60.0

# The last two turn lockdep off, so they come last.
_KASAN = {
    "list": "corruption",
    "hung": "efuse-hung",
    "lockdep": "circular locking dependency",
    "kasan": "KASAN: slab-out-of-bounds",
}
_KCSAN = {"race": "KCSAN: data-race in count_unlocked"}


def _heard(log: KernelLog, fault: str, word: str) -> bool:
    log.new_text()
    _FAULT.write_text(fault)
    end = time.monotonic() + _DEADLINE_S
    text = ""
    while not (heard := any(word in c for c in kernel_log.complaints(text))):
        remaining_s = end - time.monotonic()
        if remaining_s < 0:
            break
        log.wait(remaining_s)
        text += log.new_text() + "\n"
    print(f"--- {fault}\n{text}", flush=True)
    return heard


def _all_heard(words: Mapping[str, str]) -> dict[str, bool]:
    log = KernelLog()
    return {fault: _heard(log, fault, word) for fault, word in words.items()}


def _leak_found() -> bool:
    kernel.forget_leaks()
    _FAULT.write_text("leak")
    found = [leak for leak in kernel.find_leaks() if leak.of(_MODULE)]
    print("--- leak", *(leak.text for leak in found), sep="\n", flush=True)
    return bool(found)


def _kasan() -> dict[str, bool]:
    """Commit the faults that the kernel with KASAN, lockdep and kmemleak reports."""
    Path("/proc/sys/kernel/hung_task_timeout_secs").write_text(str(_HUNG_S))
    heard = {"leak": _leak_found(), **_all_heard(_KASAN)}
    return {**heard, "lockdep": heard["lockdep"] and not kernel.lockdep_works()}


def _kcsan() -> dict[str, bool]:
    """Commit the fault that the kernel with KCSAN reports."""
    races.detect()
    heard = _all_heard(_KCSAN)
    print(f"{races.watched()} accesses were watched for data races")
    return heard


_PROOFS = {"kasan": _kasan, "kcsan": _kcsan}


def main() -> int:
    kind, module = sys.argv[1:]
    if missing := kernel.missing(kind):
        print(f"prove: this kernel does not check itself: no {', '.join(missing)}")
        return 2
    run("insmod", module)
    heard = _PROOFS[kind]()
    print(f"prove: {sum(heard.values())} of {len(heard)} faults heard: {heard}")
    return 0 if all(heard.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
