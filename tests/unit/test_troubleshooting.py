# SPDX-License-Identifier: LGPL-2.1-or-later
"""docs/troubleshooting.md has exactly the messages that the source has."""

from __future__ import annotations

import re

from efuse.stats.model import REASONS
from tests.documents import ROOT
from tests.messages import ERRORS, in_c, in_python

_TEXT = (ROOT / "docs/troubleshooting.md").read_text()
_ROWS = dict(re.findall(r"^\| `(.+?)` \| (.+) \|$", _TEXT, re.MULTILINE))
_SOURCES = [*(ROOT / "libefuse").glob("*.c"), *(ROOT / "kernel_patches/src").rglob("*.c")]
_SOURCES += (ROOT / "csd/src").rglob("*.c")
_MESSAGES = {
    output: place
    for output, place in {**in_python(), **in_c(*_SOURCES)}.items()
    if output.strip("…")
}


def test_every_message_has_an_entry() -> None:
    missing = {output: place for output, place in _MESSAGES.items() if output not in _ROWS}
    assert missing == {}


def test_every_entry_is_of_a_message() -> None:
    others = {*ERRORS, *REASONS}
    assert [output for output in _ROWS if output not in _MESSAGES and output not in others] == []


def test_no_entry_is_there_twice() -> None:
    entries = re.findall(r"^\| `(.+?)` \|", _TEXT, re.MULTILINE)
    twice = {entry for entry in entries if entries.count(entry) > 1}
    assert twice == set()


def test_every_exception_and_every_reason_has_an_entry() -> None:
    assert set(_ROWS) >= ERRORS
    assert set(_ROWS) >= set(REASONS)


def test_messages_are_found() -> None:
    """One message of each kind: plain, with values, of click, of a log, of a result, in C."""
    for output in (
        "the attached programs have no data cache",
        "inode … cannot be invalidated: …",
        "give a number and M or G, such as 4G",
        "… is plain FUSE: …",
        "the guest did not boot within … s",
        "efuse: no channels: …",
        "the structures of efuse are read-only",
    ):
        assert output in _MESSAGES
