# SPDX-License-Identifier: LGPL-2.1-or-later
"""Entries to publish into the maps of a mount."""

from __future__ import annotations

from typing import Any

from pyfuse3 import EntryAttributes

from efuse.bpf import PublishedEntry


def published(name: bytes, nodeid: int, **attributes: Any) -> PublishedEntry:
    """Return an entry of the root.

    :param nodeid: inode of the entry; 0 if the name does not exist.
    :param attributes: fields of ``pyfuse3.EntryAttributes`` that differ from the defaults.
    """
    entry = EntryAttributes()
    entry.st_ino = nodeid
    for field, value in attributes.items():
        setattr(entry, field, value)
    return PublishedEntry(1, name, entry)
