# SPDX-License-Identifier: LGPL-2.1-or-later
"""Put names and attributes into the maps before the first request for them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from efuse.bpf.maps import BpfMap
from efuse.bpf.values import FOR_IDS, NEVER_NS, Attributes, Entry, EntryKey, Stamp, caller_of

if TYPE_CHECKING:  # only a file system in Python needs pyfuse3
    from pyfuse3 import EntryAttributes

__all__ = ["PublishedEntry", "publish"]


@dataclass(frozen=True)
class PublishedEntry:
    """A directory entry to publish before the kernel asks for it."""

    parent: int
    """Inode number of the directory."""

    name: bytes
    """Name of the entry, up to 255 bytes."""

    attributes: EntryAttributes
    """Attributes of the inode, as in a reply to LOOKUP: ``st_ino`` is 0 if the name does not exist,
    and ``entry_timeout`` and ``attr_timeout`` are the times for which the values are valid."""


def publish(
    maps: Mapping[str, BpfMap[Any, Any]],
    entries: Iterable[PublishedEntry],
    *,
    epoch: int,
    uid: int = 0,
    gid: int = 0,
) -> int:
    """Store *entries* in the maps ``entries`` and ``attrs``, in batches.

    A value that is published after the underlying data changed does no harm: the change has ended
    its epoch.

    :param maps: maps of the connection's attachment.
    :param entries: the entries to publish.
    :param epoch: epoch of the connection (`efuse.control.Connection.epoch`), read before the data.
    :param uid: user id that the values are for, if the connection's answers depend on the caller.
        They are for every process with this uid and *gid*, whatever groups and capabilities it has.
    :param gid: group id that the values are for, if the connection's answers depend on the caller.
    :returns: the number of entries stored.
    :raises AttachError: a map is full.
    """
    names: list[tuple[EntryKey, Entry]] = []
    attributes: dict[int, Attributes] = {}
    now_ns = time.monotonic_ns()

    def stamp(valid_s: float) -> Stamp:
        expires_ns = min(now_ns + int(valid_s * 10**9), NEVER_NS)
        return Stamp(epoch, expires_ns, caller_of(uid, gid), FOR_IDS)

    for entry in entries:
        given = entry.attributes
        value = Entry(given.st_ino, given.generation, stamp(given.entry_timeout))
        names.append((EntryKey(entry.parent, entry.name), value))
        if given.st_ino:
            attributes[given.st_ino] = Attributes.from_stat(given, stamp=stamp(given.attr_timeout))
    maps["attrs"].write_all(attributes.items())
    return maps["entries"].write_all(names)
