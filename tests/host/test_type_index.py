# SPDX-License-Identifier: LGPL-2.1-or-later
"""The cached answers about kernel types where the cache is on a FUSE mount."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

from tests.host.conftest import Served
from tests.unit.btf_builder import write_types

_NOTES = struct.pack("=III4s20s", 4, 20, 3, b"GNU\0", b"\1" * 20)
_SCRIPT = """
import sys
from pathlib import Path
from efuse.bpf.kernel_types import KernelTypes
with KernelTypes("efuse", sysfs=Path(sys.argv[1])) as types:
    print(types.offset("fuse_req", "args"))
"""


def test_answers_do_not_wait_for_a_daemon_that_serves_the_cache_and_hangs(
    mounted: Served, place: Path
) -> None:
    """efuse.serve attaches after it has mounted: then the daemon is the process that asks."""
    sysfs = place / "sys"
    write_types(sysfs)
    (sysfs / "notes").write_bytes(_NOTES)
    mounted.process.send_signal(signal.SIGSTOP)
    try:
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, sysfs],
            env={**os.environ, "XDG_CACHE_HOME": str(mounted.path)},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    finally:
        mounted.process.send_signal(signal.SIGCONT)
    assert done.stdout == "40\n"
    assert list(mounted.source.iterdir()) == []
