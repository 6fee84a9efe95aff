# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make a file of the cache one that another user could have written, or no file at all."""

from __future__ import annotations

import os
from pathlib import Path

NOBODY = 65534


def link(file: Path) -> None:
    file.rename(file.with_suffix(".elsewhere"))
    file.symlink_to(file.with_suffix(".elsewhere"))


def fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def of_another_user(file: Path) -> None:
    os.chown(file, NOBODY, -1)


def writable_by_others(file: Path) -> None:
    file.chmod(0o646)


def writable_by_another_group(file: Path) -> None:
    os.chown(file, -1, NOBODY)
    file.chmod(0o664)


def in_a_directory_of_others(file: Path) -> None:
    file.parent.chmod(0o777)
