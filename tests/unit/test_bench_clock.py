# SPDX-License-Identifier: LGPL-2.1-or-later
from pathlib import Path

import pytest

from efuse.bench import clock
from efuse.bench.clock import CLOCKS

STAT = """version 16
timestamp 4294893004
cpu0 0 0 0 0 0 0 2544657652 3792518401 4265
domain0 00000003 10 0 0 0
cpu1 0 0 0 0 0 0 55 1 2
"""


def test_instructions_are_the_task_run_times_of_all_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "schedstat"
    file.write_text(STAT)
    monkeypatch.setattr(clock, "_SCHEDSTAT", file)
    assert CLOCKS["instructions"]() == 2544657652 + 55
