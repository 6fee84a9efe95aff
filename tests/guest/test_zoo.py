# SPDX-License-Identifier: LGPL-2.1-or-later
"""Daemons that other people wrote: the short form of ``make test-zoo``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.zoo.daemons import DAEMONS
from tests.zoo.run import both


@pytest.mark.parametrize("name", ["bindfs", "squashfuse", "gocryptfs"])
def test_daemon_shows_the_same_on_efuse_as_on_plain_fuse(name: str, tmp_path: Path) -> None:
    (daemon,) = (each for each in DAEMONS if each.program == name)
    plain, ours = both(daemon, tmp_path)
    assert ours.seen == plain.seen
    assert sum(ours.requests.values()) <= sum(plain.requests.values())
    assert ours.reads["again"] == 0, "a READ reached the daemon though nothing had changed"
