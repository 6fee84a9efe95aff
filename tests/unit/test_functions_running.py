# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs that are closed, or whose status the kernel does not tell, fail with eFuse's errors."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from efuse.errors import EfuseError, UsageError
from efuse.functions import Count, begin
from efuse.functions.running import Run


def _run() -> Run:
    """Return a run of a module that knows no status: the descriptor is of /dev/null."""
    return Run(os.open("/dev/null", os.O_RDONLY), "count")


def test_status_that_the_module_does_not_tell_fails() -> None:
    why = r"cannot read the status of the storage function 'count': .* \(ENOTTY\)"
    with _run() as run, pytest.raises(EfuseError, match=why) as caught:
        run.status()
    assert caught.value.hint == "load the csd.ko of this version of eFuse: efuse module load --csd"


@pytest.mark.parametrize("use", [Run.status, Run.step, Run.restart])
def test_use_of_a_closed_run_fails(use: Callable[[Run], Any]) -> None:
    run = _run()
    run.close()
    why = r"the run of the storage function 'count' is closed \(EBADF\)"
    with pytest.raises(UsageError, match=why) as caught:
        use(run)
    assert caught.value.hint == "begin another run"


def test_status_of_a_run_in_this_process_fails_if_the_server_of_its_file_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(_fd: int) -> None:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    (tmp_path / "file").write_bytes(b"a\n")
    with begin(Count(), tmp_path / "file", "daemon") as execution:
        monkeypatch.setattr(os, "fstat", gone)
        with pytest.raises(EfuseError, match=r"cannot read the status .*'count': .*ENOTCONN"):
            execution.status()
        monkeypatch.undo()
        assert b"".join(execution) == Count().reference(b"a\n")


def test_use_of_a_closed_run_in_this_process_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"a\n")
    execution = begin(Count(), tmp_path / "file", "daemon")
    execution.close()
    for use in (execution.status, execution.step):
        with pytest.raises(UsageError, match=r"'count' is closed \(EBADF\)"):
            use()
