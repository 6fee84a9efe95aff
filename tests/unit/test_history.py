# SPDX-License-Identifier: LGPL-2.1-or-later
"""The checker of random schedules allows what overlapping calls may see, and nothing else."""

from __future__ import annotations

import pytest

from tests.guest.support.history import FOREVER, Bytes, Change, Register, ViolationError


def one_write(*, applied: int | None = 12) -> Bytes:
    """Return a file of ten bytes 255 whose bytes 2 to 5 a write from 10 to 14 sets to 1."""
    file = Bytes(10, 255)
    file.add(Change(2, 6, 1, 10, applied, 14))
    return file


@pytest.mark.parametrize("applied", [12, None])
def test_read_after_a_write_sees_it(applied: int | None) -> None:
    file = one_write(applied=applied)
    file.check(0, b"\xff\xff\1\1\1\1\xff\xff", 15, 16)
    with pytest.raises(ViolationError, match="byte 0x2 is 255"):
        file.check(0, b"\xff\xff\xff\1\1\1\xff\xff", 15, 16)


def test_read_during_a_write_sees_any_part_of_it() -> None:
    one_write().check(0, b"\xff\xff\1\xff\1\xff", 11, 13)
    with pytest.raises(ViolationError):
        one_write().check(0, b"\xff\1", 11, 13)


def test_read_before_a_write_does_not_see_it() -> None:
    with pytest.raises(ViolationError):
        one_write().check(2, b"\1", 5, 8)


def test_later_write_hides_an_earlier_one() -> None:
    file = one_write()
    file.add(Change(4, 8, 2, 11, 13, 15))
    file.check(2, b"\1\1\2\2\2\2\xff", 20, 21)
    with pytest.raises(ViolationError, match="byte 0x4"):
        file.check(2, b"\1\1\1\1", 20, 21)


def test_writes_that_overlap_in_time_may_have_either_order() -> None:
    file = one_write(applied=None)
    file.add(Change(4, 8, 2, 11, None, 15))
    file.check(2, b"\1\1\1\1\2\2", 20, 21)
    file.check(2, b"\1\1\2\2\2\2", 20, 21)


def test_bytes_of_an_unfinished_write_may_be_old_or_new() -> None:
    file = one_write()
    file.add(Change(2, 6, 2, 16, 17))
    file.check(2, b"\1\2\1\2", 20, 21)


def test_change_that_was_overtaken_before_its_end_may_be_seen_until_then() -> None:
    """A page may show the bytes of a WRITE until the WRITE is answered."""
    file = one_write()
    file.add(Change(2, 6, 2, 13, 13, 13))
    file.changes[-2].ended = 30
    file.check(2, b"\1\1\2\2", 20, 21)
    with pytest.raises(ViolationError):
        file.check(2, b"\1\1\2\2", 31, 32)


def test_bytes_behind_the_end_of_a_truncation_are_zeros() -> None:
    file = one_write()
    file.add(Change(4, FOREVER, 0, 20, 21, 22))
    file.check(0, b"\xff\xff\1\1\0\0\0", 23, 24)
    with pytest.raises(ViolationError, match="byte 0x4 is 1"):
        file.check(0, b"\xff\xff\1\1\1", 23, 24)


def test_value_that_was_seen_hides_older_ones_from_later_calls() -> None:
    """Also while the change is under way."""
    register: Register[str] = Register()
    register.set("a", 1).ended = 2
    register.set("b", 5)
    register.set("c", 6)
    assert register.allowed(8, 9) == ["a", "b", "c"]
    register.see("b", 7)
    assert register.allowed(8, 9) == ["b", "c"]
    assert register.allowed(7, 9) == ["a", "b", "c"]
    with pytest.raises(ViolationError, match="it is a"):
        register.check("it", "a", 8, 9)


def test_value_that_two_versions_have_hides_nothing() -> None:
    register: Register[str] = Register()
    for applied, value in enumerate("aba"):
        register.set(value, applied)
    register.see("a", 5)
    assert register.allowed(8, 9) == ["a", "b", "a"]


def test_register_allows_the_last_finished_version_and_unfinished_ones() -> None:
    register: Register[str] = Register()
    register.set("a", 1).ended = 2
    register.set("b", 5).ended = 8
    register.set("c", 10)
    assert register.allowed(3, 4) == ["a"]
    assert register.allowed(3, 6) == ["a", "b"]
    assert register.allowed(9, 12) == ["b", "c"]
    assert register.value == "c"
    register.check("it", "b", 9, 12)
    with pytest.raises(ViolationError, match="it is a"):
        register.check("it", "a", 9, 12)
