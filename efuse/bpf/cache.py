# SPDX-License-Identifier: LGPL-2.1-or-later
"""Map the data cache into this process, and put blocks of files there without system calls."""

from __future__ import annotations

import ctypes
import functools
import mmap
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from efuse.blocks import BLOCK_BYTES, check_range
from efuse.bpf.maps import BpfMap
from efuse.bpf.values import NEVER_NS
from efuse.closing import Closing
from efuse.errors import AttachError, NotSupportedError, UsageError, reason
from efuse.libefuse import library

__all__ = ["DataCache", "PublishedBlocks"]


class _Cache(ctypes.Structure):
    """``struct efuse_cache``."""

    _fields_ = (
        ("tags", ctypes.c_void_p),
        ("blocks", ctypes.c_void_p),
        ("sets", ctypes.c_uint32),
    )


class _Data(ctypes.Structure):
    """``struct efuse_data``."""

    _fields_ = (
        ("nodeid", ctypes.c_uint64),
        ("block", ctypes.c_uint64),
        ("data", ctypes.c_char_p),
        ("size", ctypes.c_size_t),
        ("end", ctypes.c_int),
        ("epoch", ctypes.c_uint64),
        ("expires_ns", ctypes.c_uint64),
    )


class _Published(ctypes.Structure):
    """``struct efuse_published``."""

    _fields_ = (
        ("stored", ctypes.c_uint64),
        ("busy", ctypes.c_uint64),
        ("newer", ctypes.c_uint64),
    )


@dataclass(frozen=True)
class PublishedBlocks:
    """Number of blocks of a published range, by outcome.

    :ivar stored: blocks that are now in the cache.
    :ivar busy: blocks that were skipped because their slot was in use at that moment.
    :ivar newer: blocks that were skipped because the cache holds them with a later epoch.
    """

    stored: int
    busy: int
    newer: int


@functools.cache
def _publish() -> Any:
    """Return ``efuse_publish()``. ctypes releases the GIL during the call."""
    path = library("libefuse-publish.so")
    try:
        function = ctypes.CDLL(str(path)).efuse_publish
    except OSError as error:
        raise NotSupportedError(f"cannot load {path}: {error}") from error
    function.restype = None
    function.argtypes = [ctypes.POINTER(t) for t in (_Cache, _Data, _Published)]
    return function


class DataCache(Closing):
    """The data cache of one connection, mapped into this process. A context manager.

    Several threads and processes may publish at the same time. The kernel serves a published block
    only while nothing has changed since its epoch: see ``docs/coherence.md``.

    :param maps: maps of the connection's attachment. The attachment may be closed afterwards.
    :raises NotSupportedError: the attached programs have no data cache.
    :raises AttachError: the kernel refuses the mapping.
    :raises EfuseError: the C library cannot be built.
    """

    def __init__(self, maps: Mapping[str, BpfMap[Any, Any]]) -> None:
        if "tags" not in maps or "blocks" not in maps:
            raise NotSupportedError(
                "the attached programs have no data cache",
                hint="attach the built-in handlers as well",
            )
        self._publish = _publish()
        self._mappings: list[mmap.mmap] = []
        try:
            addresses = [self._map(maps[name]) for name in ("tags", "blocks")]
        except OSError as error:
            self.close()
            raise AttachError(f"cannot map the data cache: {reason(error)}") from error
        self._cache = _Cache(*addresses, maps["tags"].definition.max_entries)

    def _map(self, m: BpfMap[Any, Any]) -> int:
        mapping = mmap.mmap(m.fd, m.definition.max_entries * m.definition.value_bytes)
        self._mappings.append(mapping)
        return ctypes.addressof(ctypes.c_char.from_buffer(mapping))

    def publish(
        self,
        nodeid: int,
        offset: int,
        data: bytes | bytearray | memoryview,
        *,
        epoch: int,
        valid_ns: int,
        end: bool = False,
    ) -> PublishedBlocks:
        """Put a range of a file into the cache, block by block.

        :param nodeid: the inode.
        :param offset: start of the range in the file, in bytes: a multiple of `BLOCK_BYTES`.
        :param data: content of the range. Only the last block of the file may be incomplete.
        :param epoch: epoch of the connection (`efuse.control.Connection.epoch`), read *before* the
            data.
        :param valid_ns: how long the data is valid, in ns; ignored in ``exclusive`` mode.
        :param end: whether the file ends where *data* ends.
        :returns: how many blocks were stored and skipped.
        :raises UsageError: the range does not consist of whole blocks or cannot exist, or the cache
            is closed.
        """
        raw = data if isinstance(data, bytes) else bytes(data)
        check_range(nodeid, offset, len(raw), end=end)
        mappings = self._mappings  # keep them mapped during the call, even if another thread closes
        if not mappings:
            raise UsageError("data cannot be published: the cache is closed (EBADF)")
        expires_ns = min(time.monotonic_ns() + valid_ns, NEVER_NS)
        given = _Data(nodeid, offset // BLOCK_BYTES, raw, len(raw), end, epoch, expires_ns)
        done = _Published()
        self._publish(ctypes.byref(self._cache), ctypes.byref(given), ctypes.byref(done))
        return PublishedBlocks(done.stored, done.busy, done.newer)

    def close(self) -> None:
        """Unmap the cache, as soon as no thread publishes any more. Further calls do nothing."""
        self._mappings = []
