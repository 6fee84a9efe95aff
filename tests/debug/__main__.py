# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run pytest in a guest whose kernel checks itself; ``make test-debug``.

KASAN, lockdep, list debugging and the hung-task detector report in the kernel's log. The test that
runs at the time fails, and so does the guest (efuse.guest.kernel_log). kmemleak reports only on
demand, at the end. It is a failure if the code of efuse.ko, csd.ko or a module that is no longer
loaded took part in the allocation; other leaks are only printed.
"""

from __future__ import annotations

import subprocess
import sys

from efuse.module import live
from tests.debug import kernel

_LEFT_OUT = (
    # These commands load the module, which needs a kernel whose headers are installed as a package.
    "--deselect",
    "tests/guest/test_documents.py::test_commands_of_the_documents_print_what_they_show[docs/storage-functions.md]",
    # tests/debug/kernel.config has no suspend.
    "--deselect",
    "tests/guest/test_succession.py::test_waiting_caller_does_not_keep_the_machine_from_suspending",
)


def main() -> int:
    if missing := kernel.missing_checks():
        print(f"test-debug: this kernel does not check itself: no {', '.join(missing)}")
        return 2
    kernel.forget_leaks()
    words = [sys.executable, "-u", "-m", "pytest", *_LEFT_OUT, *sys.argv[1:]]
    status = subprocess.run(words).returncode
    leaks = kernel.find_leaks()
    ours = [leak for leak in leaks if leak.of("efuse") or leak.of("csd") or leak.of_unloaded]
    for leak in leaks:
        print(leak.text)
    print(f"test-debug: {len(ours)} leaks of the modules, {len(leaks) - len(ours)} of others")
    if not kernel.lockdep_works():
        print("test-debug: lockdep has turned itself off")
    # The modules' slab caches complain about objects that remain in them.
    live.unload()
    return status or int(bool(ours) or not kernel.lockdep_works())


if __name__ == "__main__":
    sys.exit(main())
