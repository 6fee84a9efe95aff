# SPDX-License-Identifier: LGPL-2.1-or-later
"""Commit faults in a guest whose kernel checks itself, and show that each is reported.

``scripts/test-debug --prove``. It prints the kernel's reports; the last line counts them.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from efuse.guest import kernel_log
from tests.debug import kernel
from tests.guest.support.running_kernel import KernelLog
from tests.guest.support.shell import run

_MODULE = "efuse_faults"
_FAULT = Path(f"/sys/module/{_MODULE}/parameters/fault")
_HUNG_S = 10
_DEADLINE_S = 60.0

# The last two turn lockdep off, so they come last.
_WORDS = {
    "list": "corruption",
    "hung": "efuse-hung",
    "lockdep": "circular locking dependency",
    "kasan": "KASAN: slab-out-of-bounds",
}


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


def _leak_found() -> bool:
    kernel.forget_leaks()
    _FAULT.write_text("leak")
    found = [leak for leak in kernel.find_leaks() if leak.of(_MODULE)]
    print("--- leak", *(leak.text for leak in found), sep="\n", flush=True)
    return bool(found)


def main() -> int:
    if missing := kernel.missing_checks():
        print(f"prove: this kernel does not check itself: no {', '.join(missing)}")
        return 2
    run("insmod", sys.argv[1])
    Path("/proc/sys/kernel/hung_task_timeout_secs").write_text(str(_HUNG_S))
    heard = {"leak": _leak_found()}
    log = KernelLog()
    heard |= {fault: _heard(log, fault, word) for fault, word in _WORDS.items()}
    print(f"prove: {sum(heard.values())} of {len(heard)} faults heard: {heard}")
    return 0 if all(heard.values()) and not kernel.lockdep_works() else 1


if __name__ == "__main__":
    sys.exit(main())
