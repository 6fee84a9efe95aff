# SPDX-License-Identifier: LGPL-2.1-or-later
"""The pass-through does the same on eFuse as on plain FUSE, while the kernel answers for it.

These are the tests of tests/host, on one mount for all. Tests that change a file behind the mount,
count requests, or need a mount of their own are left out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import efuse
from efuse import stats
from efuse.control import Connection
from tests import passthrough_operations

_LEFT_OUT = {
    "test_change_below_the_mount_is_seen_with_zero_timeouts",
    "test_files_and_directories_can_be_synced",
    "test_writeback_cache_loses_nothing",
}
globals().update(
    {
        name: test
        for name, test in vars(passthrough_operations).items()
        if name.startswith("test_") and name not in _LEFT_OUT
    }
)


@dataclass(frozen=True)
class Place:
    """An empty directory of a mount, and the same directory in the lower file system."""

    path: Path
    source: Path


@pytest.fixture(scope="module", params=["exclusive", "ttl"])
def mount(request: pytest.FixtureRequest, lower_root: Path) -> Iterator[Place]:
    """Yield the pass-through on eFuse. At the end, the kernel must have answered many requests."""
    with tempfile.TemporaryDirectory(prefix="efuse-test-") as name:
        source, path = lower_root / f"operations-{request.param}", Path(name)
        source.mkdir()
        path.chmod(0o755)
        operations = efuse.Passthrough(
            source, consistency=request.param, entry_timeout=3600, attr_timeout=3600
        )
        options = ("default_permissions", "allow_other")
        with efuse.mount(operations, path, options, required=True) as mounted:
            yield Place(path, source)
            assert mounted.connection is not None
            assert stats.read(Connection(mounted.connection)).total.hits > 100
        operations.close()


@pytest.fixture
def mounted(mount: Place) -> Place:
    """Return a directory for one test, below another directory."""
    above = Path(tempfile.mkdtemp(dir=mount.path))
    above.chmod(0o755)
    (above / "mnt").mkdir(mode=0o755)
    return Place(above / "mnt", mount.source / above.name / "mnt")
