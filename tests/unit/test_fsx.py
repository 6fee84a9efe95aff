# SPDX-License-Identifier: LGPL-2.1-or-later
"""The file system exerciser of the guest's tests knows what files do, and notices faults."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.guest.support.fsx import Exerciser, MismatchError, View


class Careless(Exerciser):
    """An exerciser that loses the last byte of one write."""

    lost = False

    def _store(self, at: int, data: bytes) -> None:
        super()._store(at, data)
        if not self.lost and self._number > 200:
            self.lost = True
            fd = os.open(self._lower, os.O_WRONLY)
            os.pwrite(fd, bytes([data[-1] ^ 1]), at + len(data) - 1)
            os.close(fd)


def views(path: Path) -> list[View]:
    path.touch()
    return [View(path), View(path)]


@pytest.mark.parametrize("seed", range(3))
def test_ordinary_file_equals_the_model(tmp_path: Path, seed: int) -> None:
    file = tmp_path / "f"
    exerciser = Exerciser(views(file), file, seed)
    exerciser.run(3000)
    assert sum(exerciser.done.values()) >= 3000
    assert all(exerciser.done[name] for name in ("read", "write", "copy", "read_map", "fallocate"))


def test_runs_with_one_seed_are_equal(tmp_path: Path) -> None:
    file = tmp_path / "f"
    contents = []
    for _ in range(2):
        file.unlink(missing_ok=True)
        Exerciser(views(file), file, 7).run(500)
        contents.append(file.read_bytes())
    assert contents[0] == contents[1]


def test_a_lost_byte_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "f"
    with pytest.raises(MismatchError, match=r"seed 5, the last operations:\n\d+: "):
        Careless(views(file), file, 5).run(3000)
