# SPDX-License-Identifier: LGPL-2.1-or-later
"""Shared parts of all tests: waiting for a condition, and skips that count as failures in CI."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from efuse import locations

Eventually = Callable[..., Any]

_IN_MEMORY = Path("/dev/shm")

FAILED_LIST = "EFUSE_FAILED_LIST"
"""Name of the variable with the file to which each failure adds a line (scripts/test)."""

pytest.register_assert_rewrite("tests.passthrough_operations")
# trio's plugin may warn, and warnings are errors. No test needs it.
os.environ.setdefault("HYPOTHESIS_NO_PLUGINS", "1")
# Hypothesis keeps its notes there instead of in the working directory.
os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(locations.cache() / "hypothesis"))


def wait_for(condition: Callable[[], Any], timeout: float = 60, what: str = "the condition") -> Any:
    """Poll until ``condition()`` is true, and return its value; fail after *timeout* seconds."""
    deadline = time.monotonic() + timeout
    pause = threading.Event()
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout:g} s in vain for {what}")
        pause.wait(0.02)
    return value


@pytest.fixture(scope="session")
def eventually() -> Eventually:
    """Wait for a condition: ``eventually(lambda: ..., timeout=60, what="...")``."""
    return wait_for


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """An empty directory, in memory where that is possible.

    A fake sysfs has a thousand small files, and takes a second on a disk.
    """
    where = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=where) as name:
        yield Path(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    """Make a skipped test a failed one in CI."""
    report = yield
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _add_to_failed_list(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _add_to_failed_list(report)


def _add_to_failed_list(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Add the test and the first line of its error to the list of failures, if one is kept."""
    path = os.environ.get(FAILED_LIST)
    if not path or not report.failed:
        return
    lines = report.longreprtext.splitlines()
    error = next((line[2:].strip() for line in lines if line.startswith("E ")), lines[-1])
    with Path(path).open("a") as file:
        file.write(f"{report.nodeid}: {error[:160]}\n")
