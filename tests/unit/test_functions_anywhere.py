# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where a function runs over a file, with a fake kernel that refuses."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from efuse.errors import AttachError, EfuseError, NoFunctionError, NotSupportedError, UsageError
from efuse.functions import Count, Grep, Outcome, anywhere, begin, begin_loaded

DATA = b"a\n" * 700_000
"""Larger than the pieces that a reference implementation gets."""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


class Kernel:
    """A fake csd.ko without functions, which refuses to load any.

    :ivar asked: names of the functions that were to be run.
    """

    def __init__(self, refusal: EfuseError) -> None:
        self._refusal = refusal
        self.asked: list[str] = []

    def run(self, name: str, *_: object, **_more: object) -> None:
        self.asked.append(name)
        raise NoFunctionError("none")

    def load(self, name: str, _text: str) -> None:
        assert name == f"count.{os.getpid()}"
        raise self._refusal


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel(NotSupportedError("not you (EPERM)"))
    (tmp_path / "csd").touch()
    monkeypatch.setattr(anywhere, "CONTROL", str(tmp_path / "csd"))
    monkeypatch.setattr(anywhere, "run", made.run)
    monkeypatch.setattr(anywhere, "load", made.load)
    return made


def test_run_without_permission_to_load_uses_the_reference_implementation(
    kernel: Kernel, file: Path
) -> None:
    call = Count(b"a\na")
    with begin(call, file) as work:
        assert b"".join(work) == call.reference(DATA)
        assert work.status().done
        assert work.outcome() == Outcome(
            0, 0, 342, "count is not loaded, and cannot be: not you (EPERM)", False
        )
    assert kernel.asked == ["count"]


def test_run_in_the_kernel_without_permission_to_load_fails(kernel: Kernel, file: Path) -> None:
    for where in ("kernel", "device"):
        with pytest.raises(NotSupportedError, match="EPERM"):
            begin(Count(), file, where)


def test_a_function_that_the_kernel_refuses_fails(
    kernel: Kernel, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(anywhere, "load", Kernel(AttachError("refused")).load)
    with pytest.raises(AttachError):
        begin(Count(), file)


def test_run_in_the_daemon_asks_no_kernel(kernel: Kernel, file: Path) -> None:
    with begin(Grep(b"b"), file, "daemon") as work:
        assert b"".join(work) == b""
        assert work.outcome() == Outcome(0, 0, 342, "it was requested", False)
    assert kernel.asked == []
    with pytest.raises(UsageError):
        begin_loaded("mine", b"", file, "daemon")


def test_run_over_a_fifo_happens_in_this_process(kernel: Kernel, tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(DATA,))
    writer.start()
    with begin(Count(b"a"), path) as work:
        assert Count().decode(b"".join(work)).matches == 700_000
        assert work.outcome().why == "it is not a regular file"
    writer.join()


def test_run_over_an_unreadable_file_fails(kernel: Kernel, tmp_path: Path) -> None:
    with pytest.raises(EfuseError, match="ENOENT"):
        begin(Count(), tmp_path / "none")
    for where in anywhere.WHERE:
        with pytest.raises(EfuseError, match="EISDIR"):
            begin(Count(), tmp_path, where)
