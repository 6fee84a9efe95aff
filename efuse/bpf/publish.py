# SPDX-License-Identifier: LGPL-2.1-or-later
"""Put names and attributes into the maps before the first request for them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from efuse.bpf.maps import BpfMap
from efuse.bpf.values import FOR_IDS, NEVER_NS, Attributes, Entry, EntryKey, Stamp, caller_of
from efuse.errors import ControlError, reason

__all__ = ["Published", "publish", "read_epoch"]

_SYSFS = Path("/sys/fs/efuse/connections")


@dataclass(frozen=True)
class Published:
    """One name to publish.

    :param parent: nodeid of the directory.
    :param name: the name, up to 255 bytes.
    :param nodeid: nodeid that the name stands for; 0 if the name does not exist.
    :param generation: generation of that inode.
    :param attributes: attributes of the inode. None publishes the name alone, as for a name that
        does not exist.
    :param entry_valid_ns: how long the name is valid, in ns from now.
    :param attr_valid_ns: how long the attributes are valid, in ns from now.
    """

    parent: int
    name: bytes
    nodeid: int
    generation: int = 0
    attributes: Attributes | None = None
    entry_valid_ns: int = NEVER_NS
    attr_valid_ns: int = NEVER_NS


def read_epoch(connection: int) -> int:
    """Return the connection's current epoch. Call it *before* reading the data to publish.

    :raises ControlError: there is no such connection, or this user may not read its epoch.
    """
    path = _SYSFS / str(connection) / "epoch"
    try:
        return int(path.read_text())
    except OSError as error:
        raise ControlError(f"cannot read {path}: {reason(error)}") from error


def publish(
    maps: Mapping[str, BpfMap[Any, Any]],
    entries: Iterable[Published],
    *,
    epoch: int,
    uid: int = 0,
    gid: int = 0,
) -> int:
    """Store *entries* in the maps ``entries`` and ``attrs``, in batches.

    A value that is published after the underlying data changed does no harm: the change has ended
    its epoch.

    :param maps: maps of the connection's attachment.
    :param entries: the names to publish.
    :param epoch: result of `read_epoch`, read before the data.
    :param uid: user id that the values are for, if the connection's answers depend on the caller.
        They are for every process with this uid and *gid*, whatever groups and capabilities it has.
    :param gid: group id that the values are for, if the connection's answers depend on the caller.
    :returns: the number of names stored.
    :raises AttachError: a map is full.
    """
    names: list[tuple[EntryKey, Entry]] = []
    attributes: dict[int, Attributes] = {}
    now_ns = time.monotonic_ns()

    def stamp(valid_ns: int) -> Stamp:
        return Stamp(epoch, min(now_ns + valid_ns, NEVER_NS), caller_of(uid, gid), FOR_IDS)

    for entry in entries:
        key = EntryKey(entry.parent, entry.name)
        names.append((key, Entry(entry.nodeid, entry.generation, stamp(entry.entry_valid_ns))))
        if entry.attributes is not None and entry.nodeid:
            attributes[entry.nodeid] = replace(entry.attributes, stamp=stamp(entry.attr_valid_ns))
    maps["attrs"].write_all(attributes.items())
    return maps["entries"].write_all(names)
