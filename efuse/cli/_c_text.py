# SPDX-License-Identifier: LGPL-2.1-or-later
"""C text that a command is given the file of."""

from __future__ import annotations

from pathlib import Path

from efuse.errors import UsageError

__all__ = ["c_text"]


def c_text(path: Path, what: str) -> str:
    """Return the text in a file.

    :param what: an error says that it is: "the handler".
    :raises UsageError: it cannot be read.
    """
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {what} in {path}: {error}") from error
