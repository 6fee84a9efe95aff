# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test how crash replay reads the log of block writes, and what it takes for a loss."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from tests.crash.history import History
from tests.crash.log import DISCARD, FLUSH, FUA, MARK, Image, read_log

_SECTOR = 512


def _entry(sector: int, data: bytes, flags: int = 0, mark: str = "", sectors: int = 0) -> bytes:
    number = sectors or len(data) // _SECTOR
    head = struct.pack("<QQQQ", sector, number, flags, len(mark)) + mark.encode()
    return head.ljust(_SECTOR, b"\0") + data


def _log(path: Path, *entries: bytes, count: int | None = None) -> Path:
    number = len(entries) if count is None else count
    head = struct.pack("<QQQI", 0x6A736677736872, 1, number, _SECTOR).ljust(_SECTOR, b"\0")
    path.write_bytes(head + b"".join(entries))
    return path


def test_log_is_read_entry_by_entry(tmp_path: Path) -> None:
    log = _log(
        tmp_path / "log",
        _entry(3, b"a" * 2 * _SECTOR),
        _entry(0, b"", FLUSH),
        _entry(0, b"", MARK, "1"),
        _entry(4, b"", DISCARD, sectors=5),
        _entry(1, b"b" * _SECTOR, FUA),
    )
    found = read_log(log)
    assert [e.flags for e in found] == [0, FLUSH, MARK, DISCARD, FUA]
    assert [e.mark for e in found] == ["", "", "1", "", ""]
    assert [e.is_barrier for e in found] == [False, True, False, False, True]
    assert [(e.offset, e.length) for e in found] == [
        (3 * _SECTOR, 2 * _SECTOR),
        (0, 0),
        (0, 0),
        (4 * _SECTOR, 5 * _SECTOR),
        (_SECTOR, _SECTOR),
    ]


def test_incomplete_log_is_refused(tmp_path: Path) -> None:
    log = _log(tmp_path / "log", _entry(0, b"", FLUSH), count=2)
    with pytest.raises(ValueError, match="ends before entry 1"):
        read_log(log)
    (tmp_path / "other").write_bytes(b"no log")
    with pytest.raises(ValueError, match="is not a log"):
        read_log(tmp_path / "other")


def test_image_has_the_writes_of_a_prefix(tmp_path: Path) -> None:
    log = _log(
        tmp_path / "log",
        _entry(1, b"a" * 2 * _SECTOR),
        _entry(2, b"b" * _SECTOR),
        _entry(1, b"", DISCARD, sectors=1),
    )
    image = Image(log, tmp_path / "image", 8 * _SECTOR)
    copy = os.open(tmp_path / "copy", os.O_RDWR | os.O_CREAT)
    os.write(copy, b"x" * 10 * _SECTOR)
    empty, a, b = bytes(_SECTOR), b"a" * _SECTOR, b"b" * _SECTOR
    expected = [empty * 8, empty + a + a + empty * 5, empty + a + b + empty * 5]
    expected.append(empty * 2 + b + empty * 5)
    for length, content in enumerate(expected):
        image.advance(length)
        image.copy_to(copy)
        assert (tmp_path / "copy").read_bytes() == content
    image.close()
    os.close(copy)


def _acknowledged(content: bytes) -> History:
    history = History()
    history.change("f", content)
    assert history.is_pending("f")
    assert history.acknowledge("f") == 1
    return history


def test_acknowledged_content_must_be_there() -> None:
    history = _acknowledged(b"1234")
    assert history.violations({"f": b"1234"}, 1) == []
    assert history.violations({}, 1) == ["f is lost"]
    assert history.violations({"f": b"12345"}, 1) == ["f has 5 bytes, not 4"]
    assert history.violations({"f": b"1x34"}, 1) == ["f has another byte at 1"]
    assert history.violations({"f": b"1234", "g": b""}, 1) == ["g never existed"]


def test_content_before_its_mark_may_be_missing_or_partial() -> None:
    history = _acknowledged(b"1234")
    for found in ({}, {"f": b""}, {"f": b"12"}, {"f": b"\0\0003"}, {"f": b"1234"}):
        assert history.violations(found, 0) == []
    assert history.violations({"f": b"1x"}, 0) == ["f has a byte at 1 that was never written there"]


def test_change_after_a_mark_may_be_there_until_the_next_one() -> None:
    history = _acknowledged(b"1234")
    history.change("f", b"12XY56")
    for found in (b"1234", b"12XY56", b"12X4", b"12X4\0006", b"1234\0"):
        assert history.violations({"f": found}, 1) == []
    assert history.violations({"f": b"12XY56"}, 1, at_mark=True) != []
    assert history.violations({"f": b"\00034"}, 1) != []
    assert history.violations({"f": b"123"}, 1) == ["f has 3 bytes, not 4 to 6"]
    history.acknowledge("f")
    assert history.violations({"f": b"1234"}, 2) == ["f has 4 bytes, not 6"]


def test_rename_leaves_the_old_or_the_new_content() -> None:
    history = _acknowledged(b"old!")
    history.change("f", b"new?", whole=True)
    assert history.violations({"f": b"old!"}, 1) == history.violations({"f": b"new?"}, 1) == []
    assert history.violations({"f": b"old?"}, 1) == ["f has another byte at 3"]
    history.acknowledge("f")
    history.change("f", None, whole=True)
    assert history.violations({}, 2) == []
    history.acknowledge("f")
    assert history.violations({"f": b"new?"}, 3) == ["f is still there"]
    assert history.names() == []


def test_mix_of_two_files_through_a_rename_is_a_violation() -> None:
    """Also if the old file, or the new one, has changes that are not acknowledged."""
    old, new = b"old!" * 256, b"new?" * 256
    overwritten, appended = b"OLD!" * 128 + old[512:], new + b"more"
    history = _acknowledged(old)
    history.change("f", overwritten)
    history.change("f", new, whole=True)
    history.change("f", appended)
    allowed = (old, overwritten, b"OLD!" * 64 + old[256:], new, appended, new + b"mo\0\0")
    for found in allowed:
        assert history.violations({"f": found}, 1) == []
    for mixed in (old[:512] + new[512:], new[:512] + old[512:], overwritten + b"more"):
        assert history.violations({"f": mixed}, 1) != []
