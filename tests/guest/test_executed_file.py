# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test that a file that is being executed is not truncated by an open(2) that fails."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

import efuse
from tests.guest.support.daemons import fails


@pytest.mark.parametrize("consistency", ["exclusive", "ttl"])
@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDONLY | os.O_CREAT, os.O_WRONLY])
def test_open_that_would_truncate_a_running_program_leaves_it_whole(
    mountpoint: Path, lower: Path, consistency: str, flags: int
) -> None:
    program = shutil.copy("/usr/bin/sleep", lower / "program")
    data = program.read_bytes()
    path = mountpoint / "program"
    operations = efuse.Passthrough(lower, consistency=consistency)
    with efuse.mount(operations, mountpoint, required=True):
        with subprocess.Popen([path, "infinity"]) as running:
            fails(errno.ETXTBSY, os.open, path, flags | os.O_TRUNC)
            assert program.read_bytes() == path.read_bytes() == data
            assert running.poll() is None
            running.kill()
        os.close(os.open(path, flags | os.O_TRUNC))
        assert program.read_bytes() == path.read_bytes() == b""
    operations.close()
