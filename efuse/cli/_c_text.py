# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read the C text of a file that is an argument of a command."""

from __future__ import annotations

from pathlib import Path

from efuse.errors import UsageError

__all__ = ["c_text"]


def c_text(path: Path, what: str) -> str:
    """Return the text of a file.

    :param what: what the file holds, for the error message, such as "the handler".
    :raises UsageError: the file cannot be read.
    """
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {what} in {path}: {error}") from error
