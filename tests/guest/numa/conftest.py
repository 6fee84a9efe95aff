# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run these tests in a guest of their own, with four CPUs on two nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = any(HERE in item.path.parents for item in items)
    if ours and not Path("/sys/devices/system/cpu/cpu3/node1").exists():
        raise pytest.UsageError(f"{HERE} needs a guest with two nodes: make test-guest")
