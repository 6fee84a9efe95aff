# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test splice(2) and sendfile(2) into a file that the daemon mapped to a backing file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.guest.support.backing_files import backing, make, whole
from tests.guest.support.daemons import mounted
from tests.guest.support.data_cache import path_count
from tests.guest.support.file_data import BLOCK, fill
from tests.guest.support.splices import DATA, sendfile, splice

each_call = pytest.mark.parametrize("call", [splice, sendfile])


@each_call
def test_spliced_bytes_go_into_the_backing_file_without_the_daemon(
    mountpoint: Path, lower: Path, tmp_path: Path, call: Callable[[int, Path], int]
) -> None:
    path = backing(lower, fill("b", 8 * BLOCK))
    with mounted(mountpoint) as m:
        make(m, "f", fill("d", 8 * BLOCK))
        whole(m, path, write=True)
        fd = os.open(m / "f", os.O_WRONLY)
        m.log()
        done = path_count(m, "requests", "direct")
        assert call(fd, tmp_path / "source") == len(DATA)
        assert path_count(m, "requests", "direct") > done
        assert "write" not in m.asked()
        os.close(fd)
        assert Path(path).read_bytes() == DATA + fill("b", 8 * BLOCK)[len(DATA) :]


@each_call
def test_spliced_bytes_go_through_two_mounts_without_their_daemons(
    mountpoint: Path, lower: Path, tmp_path: Path, call: Callable[[int, Path], int]
) -> None:
    path = backing(lower, fill("b", 8 * BLOCK))
    first, second = mountpoint / "1", mountpoint / "2"
    first.mkdir()
    second.mkdir()
    with mounted(second) as below, mounted(first, stack_depth=2) as above:
        for m, file in ((below, path), (above, below / "f")):
            make(m, "f", fill("d", 8 * BLOCK))
            whole(m, file, write=True)
        fd = os.open(above / "f", os.O_WRONLY)
        for m in (below, above):
            m.log()
        done = path_count(above, "requests", "direct")
        assert call(fd, tmp_path / "source") == len(DATA)
        assert path_count(above, "requests", "direct") > done
        assert "write" not in above.asked() + below.asked()
        os.close(fd)
        assert Path(path).read_bytes() == DATA + fill("b", 8 * BLOCK)[len(DATA) :]
        above.call("unmap_extents", "f")
