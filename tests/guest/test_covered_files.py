# SPDX-License-Identifier: LGPL-2.1-or-later
"""A file system that is mounted over files which its own daemon needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from efuse import locations

_ROOT = Path(__file__).parents[2]
_SERVE = """
import sys
import trio
import efuse

async def main():
    async with trio.open_nursery() as nursery:
        state = await nursery.start(
            lambda task_status: efuse.serve(
                efuse.Passthrough(sys.argv[1]),
                sys.argv[1],
                channels=False,
                task_status=task_status,
            )
        )
        print(efuse.__file__, state.accelerated)
        nursery.cancel_scope.cancel()

trio.run(main)
"""


def test_mount_over_the_package_and_its_cache_is_accelerated(mountpoint: Path) -> None:
    """A daemon that read one of these files after the mount would wait for its own answer."""
    for name in ("efuse", "bpf_programs", "kernel_patches"):
        shutil.copytree(
            _ROOT / name, mountpoint / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    shutil.copytree(locations.cache() / "specs", mountpoint / "cache/efuse/specs")
    environment = {
        **os.environ,
        "PYTHONPATH": str(mountpoint),
        "PYTHONDONTWRITEBYTECODE": "1",
        "XDG_CACHE_HOME": str(mountpoint / "cache"),
    }
    environment.pop("PYTHONPYCACHEPREFIX", None)
    done = subprocess.run(
        [sys.executable, "-c", _SERVE, mountpoint],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == f"{mountpoint}/efuse/__init__.py True\n", done.stderr
