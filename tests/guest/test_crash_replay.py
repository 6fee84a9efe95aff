# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test that a crash leaves what fsync(2) acknowledged; scripts/crash-replay does more."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyfuse3
import pytest

import efuse
from tests.crash.run import SHORT, Setting, replayed


@pytest.fixture
def memory() -> Iterator[Path]:
    """An empty directory in memory."""
    with tempfile.TemporaryDirectory(prefix="efuse-crash-") as name:
        yield Path(name)


@pytest.mark.parametrize("setting", SHORT, ids=lambda s: str(s).replace(", ", "-"))
def test_crash_leaves_what_fsync_acknowledged(memory: Path, setting: Setting) -> None:
    result = replayed(memory, setting, steps=16, prefixes=24)
    print(result)
    assert result.prefixes >= 20 and result.acknowledged >= 10
    assert not result.violations


class _Forgetful(efuse.Passthrough):
    """A file system that acknowledges fsync(2) without writing anything to the disk."""

    async def fsync(self, fh: pyfuse3.FileHandleT, datasync: bool) -> None:
        pass


def test_lost_fsync_is_noticed(memory: Path) -> None:
    setting = Setting("ttl", "direct", False)
    result = replayed(memory, setting, steps=16, prefixes=24, make=_Forgetful)
    assert any("has 0 bytes" in violation for violation in result.violations), result
