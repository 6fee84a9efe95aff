# SPDX-License-Identifier: LGPL-2.1-or-later
"""BPF maps as Python mappings: typed for the built-in maps, ints and bytes for custom ones."""

from __future__ import annotations

import errno
import mmap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any, Generic, TypeVar

from efuse.bpf import libbpf
from efuse.bpf.spec import MAP_RINGBUF, WAYS, MapSpec
from efuse.bpf.values import (
    TAG_BYTES,
    Attributes,
    Entry,
    EntryKey,
    FileUse,
    Geometry,
    Grant,
    GrantKey,
    Tag,
    Volume,
    XattrKey,
    XattrValue,
)
from efuse.errors import AttachError, reason

__all__ = ["BpfMap", "Ring", "Tags", "mapping"]

K = TypeVar("K")
V = TypeVar("V")

_BATCH = 256
_BATCH_BYTES = 4 << 20  # for a map with a value per CPU, on a machine with many CPUs
_ENOTSUPP = 524
_PER_CPU = (5, 6, 10)  # BPF_MAP_TYPE_PERCPU_HASH, _PERCPU_ARRAY, _LRU_PERCPU_HASH
# Errors of a map type for which the kernel has no batch operations.
_NO_BATCH = (errno.EINVAL, errno.EOPNOTSUPP, _ENOTSUPP)


class BpfMap(MutableMapping[K, V], Generic[K, V]):
    """A live BPF map. The kernel and other processes may change it at any time.

    Each access raises AttachError if the kernel refuses it.

    Iteration yields each element that stays in the map once. An element that is added or deleted
    during the iteration may be missing. ``len()`` iterates over all elements: O(n).

    :param fd: descriptor of the map. The mapping does not close it.
    :param name: name of the map in error messages.
    :param definition: type, sizes and capacity of the map.
    """

    def __init__(self, fd: int, name: str, definition: MapSpec) -> None:
        self.fd = fd
        self.name = name
        self.definition = definition
        self._value_bytes = definition.value_bytes

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self.definition.max_entries} entries>"

    def _encode_key(self, key: K) -> bytes:
        raise TypeError(f"{type(self).__name__} has no keys")

    def _decode_key(self, raw: bytes) -> K:
        raise TypeError(f"{type(self).__name__} has no keys")

    def _encode(self, key: K, value: V) -> bytes:
        raise TypeError(f"{type(self).__name__} has no values")

    def _decode(self, key: K, raw: bytes) -> V:
        """Return the decoded value.

        :raises ValueError: the kernel changed the value while it was read.
        """
        raise TypeError(f"{type(self).__name__} has no values")

    def __getitem__(self, key: K) -> V:
        try:
            raw = libbpf.map_lookup(self.fd, self._encode_key(key), self._value_bytes)
        except OSError as error:
            raise self._unreadable(error) from error
        if raw is None:
            raise KeyError(key)
        try:
            return self._decode(key, raw)
        except ValueError as error:
            raise KeyError(key) from error

    def __setitem__(self, key: K, value: V) -> None:
        try:
            libbpf.map_update(self.fd, self._encode_key(key), self._encode(key, value))
        except OSError as error:
            raise self._unchangeable(error) from error

    def __delitem__(self, key: K) -> None:
        try:
            found = libbpf.map_delete(self.fd, self._encode_key(key))
        except OSError as error:
            raise self._unchangeable(error) from error
        if not found:
            raise KeyError(key)

    def __iter__(self) -> Iterator[K]:
        for raw in self._raw_keys():
            yield self._decode_key(raw)

    def __len__(self) -> int:
        return sum(1 for _ in self._raw_keys())

    def __contains__(self, key: object) -> bool:
        try:
            self[key]  # type: ignore[index]
        except KeyError:
            return False
        return True

    def read_all(self) -> dict[K, V]:
        """Return a copy of all elements. They are read in batches."""
        found: dict[K, V] = {}
        for raw_key, raw in self._raw_items():
            key = self._decode_key(raw_key)
            try:
                found[key] = self._decode(key, raw)
            except ValueError:
                continue  # the element was deleted or replaced while it was read
        return found

    def write_all(self, items: Iterable[tuple[K, V]]) -> int:
        """Store all *items*, in batches, and return how many there were.

        :raises AttachError: the map is full (E2BIG, if it does not evict).
        """
        encoded = [(self._encode_key(key), self._encode(key, value)) for key, value in items]
        done = 0
        while done < len(encoded):
            batch = encoded[done : done + _BATCH]
            keys = b"".join(key for key, _ in batch)
            values = b"".join(value for _, value in batch)
            try:
                done += libbpf.map_update_batch(self.fd, keys, values, len(batch))
            except OSError as error:
                if error.errno not in _NO_BATCH:
                    raise self._unchangeable(error) from error
                self._write_singly(batch)
                done += len(batch)
        return done

    def _write_singly(self, items: Iterable[tuple[bytes, bytes]]) -> None:
        try:
            for key, value in items:
                libbpf.map_update(self.fd, key, value)
        except OSError as error:
            raise self._unchangeable(error) from error

    def clear(self) -> None:
        """Delete all elements that are in the map at this moment.

        :raises AttachError: the map cannot be read, or an element cannot be deleted.
        """
        try:
            for raw in list(self._raw_keys()):
                libbpf.map_delete(self.fd, raw)
        except OSError as error:
            raise self._unchangeable(error) from error

    def _raw_keys(self) -> Iterator[bytes]:
        for key, _ in self._raw_items():
            yield key

    def _raw_items(self) -> Iterator[tuple[bytes, bytes]]:
        key_bytes, value_bytes = self.definition.key_bytes, self._value_bytes
        room = max(1, _BATCH_BYTES // (key_bytes + value_bytes))
        count = min(_BATCH, room, self.definition.max_entries)
        position: bytes | None = None
        while True:
            try:
                position, keys, values, read = libbpf.map_lookup_batch(
                    self.fd, position, key_bytes, key_bytes, value_bytes, count
                )
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    count *= 2  # the next bucket holds more elements than that
                    continue
                if error.errno not in _NO_BATCH:
                    raise self._unreadable(error) from error
                yield from self._raw_items_singly()
                return
            for i in range(read):
                yield (
                    keys[i * key_bytes : (i + 1) * key_bytes],
                    values[i * value_bytes : (i + 1) * value_bytes],
                )
            if position is None:
                return

    def _raw_items_singly(self) -> Iterator[tuple[bytes, bytes]]:
        key: bytes | None = None
        while True:
            try:
                key = libbpf.map_next_key(self.fd, key, self.definition.key_bytes)
                if key is None:
                    return
                value = libbpf.map_lookup(self.fd, key, self._value_bytes)
            except OSError as error:
                raise self._unreadable(error) from error
            if value is not None:
                yield key, value

    def _unchangeable(self, error: OSError) -> AttachError:
        return AttachError(f"cannot change map {self.name!r}: {reason(error)}")

    def _unreadable(self, error: OSError) -> AttachError:
        return AttachError(f"cannot read map {self.name!r}: {reason(error)}")


class Entries(BpfMap[EntryKey, Entry]):
    """``entries``: the inode, or none, that a name in a directory stands for."""

    def _encode_key(self, key: EntryKey) -> bytes:
        return EntryKey(*key).encode()

    def _decode_key(self, raw: bytes) -> EntryKey:
        return EntryKey.decode(raw)

    def _encode(self, key: EntryKey, value: Entry) -> bytes:
        return value.encode(EntryKey(*key).seed())

    def _decode(self, key: EntryKey, raw: bytes) -> Entry:
        return Entry.decode(raw, EntryKey(*key).seed())


class _ByNodeid(BpfMap[int, V]):
    def _encode_key(self, key: int) -> bytes:
        return key.to_bytes(8, "little")

    def _decode_key(self, raw: bytes) -> int:
        return int.from_bytes(raw, "little")


class Attrs(_ByNodeid[Attributes]):
    """``attrs``: attributes by nodeid."""

    def _encode(self, key: int, value: Attributes) -> bytes:
        return value.encode(self._encode_key(key))

    def _decode(self, key: int, raw: bytes) -> Attributes:
        return Attributes.decode(raw, self._encode_key(key))


class Volumes(_ByNodeid[Volume]):
    """``volumes``: answers to STATFS, by nodeid."""

    def _encode(self, key: int, value: Volume) -> bytes:
        return value.encode(self._encode_key(key))

    def _decode(self, key: int, raw: bytes) -> Volume:
        return Volume.decode(raw, self._encode_key(key))


class XattrValues(BpfMap[XattrKey, XattrValue]):
    """``blobs``: answers to READLINK, GETXATTR and LISTXATTR."""

    def _encode_key(self, key: XattrKey) -> bytes:
        return XattrKey(*key).encode()

    def _decode_key(self, raw: bytes) -> XattrKey:
        return XattrKey.decode(raw)

    def _encode(self, key: XattrKey, value: XattrValue) -> bytes:
        return value.encode(XattrKey(*key).seed())

    def _decode(self, key: XattrKey, raw: bytes) -> XattrValue:
        return XattrValue.decode(raw, XattrKey(*key).seed())


class Grants(BpfMap[GrantKey, Grant]):
    """``grants``: permissions of callers to open or access an inode."""

    def _encode_key(self, key: GrantKey) -> bytes:
        return GrantKey(*key).encode()

    def _decode_key(self, raw: bytes) -> GrantKey:
        return GrantKey.decode(raw)

    def _encode(self, key: GrantKey, value: Grant) -> bytes:
        return value.encode(GrantKey(*key).seed())

    def _decode(self, key: GrantKey, raw: bytes) -> Grant:
        return Grant.decode(raw, GrantKey(*key).seed())


class Tags(BpfMap[int, tuple[Tag, ...]]):
    """``tags``: for each set of the data cache, what its slots of ``blocks`` hold."""

    def _encode_key(self, key: int) -> bytes:
        return key.to_bytes(4, "little")

    def _decode_key(self, raw: bytes) -> int:
        return int.from_bytes(raw, "little")

    def _decode(self, key: int, raw: bytes) -> tuple[Tag, ...]:
        return Tag.decode_set(raw)

    def slots(self) -> Iterator[Tag]:
        """Yield the tags of all slots that hold a block."""
        for tags in self.read_all().values():
            yield from (tag for tag in tags if tag.nodeid)

    def held(self) -> Counter[int]:
        """Count the cached blocks of each nodeid, reading the map through a memory mapping.

        :raises AttachError: the map cannot be mapped.
        """
        length = self.definition.max_entries * self.definition.value_bytes
        try:
            view = mmap.mmap(self.fd, length, prot=mmap.PROT_READ)
        except OSError as error:
            raise self._unreadable(error) from error
        with view:
            return Counter(Tag.nodeids(view))


class GeometryMap(BpfMap[int, Geometry]):
    """``geometry``: one element, 0: the shape of the data cache, and until when use is counted."""

    def _encode_key(self, key: int) -> bytes:
        return key.to_bytes(4, "little")

    def _decode_key(self, raw: bytes) -> int:
        return int.from_bytes(raw, "little")

    def _encode(self, key: int, value: Geometry) -> bytes:
        return value.encode()

    def _decode(self, key: int, raw: bytes) -> Geometry:
        return Geometry.decode(raw)


class Files(_ByNodeid[FileUse]):
    """``files``: by nodeid, how often the blocks of a file were found in the cache."""

    def _encode(self, key: int, value: FileUse) -> bytes:
        return value.encode()

    def _decode(self, key: int, raw: bytes) -> FileUse:
        return FileUse.decode(raw)


class Ring(BpfMap[Any, Any]):
    """``events``: a ring buffer without elements to look up. `efuse.bpf.Listener` reads it."""

    def _raw_items(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(())


class RawMap(BpfMap[Any, Any]):
    """A custom map. Keys and values of 1, 2, 4 or 8 bytes are ints; others are bytes."""

    def _encode_key(self, key: int | bytes) -> bytes:
        return _to_bytes(key, self.definition.key_bytes)

    def _decode_key(self, raw: bytes) -> int | bytes:
        return _to_word(raw)

    def _encode(self, key: int | bytes, value: int | bytes) -> bytes:
        return _to_bytes(value, self.definition.value_bytes)

    def _decode(self, key: int | bytes, raw: bytes) -> int | bytes:
        return _to_word(raw)


class PerCpu(BpfMap[Any, tuple[Any, ...]]):
    """A custom map with one value per possible CPU, each represented as by `RawMap`."""

    def __init__(self, fd: int, name: str, definition: MapSpec) -> None:
        super().__init__(fd, name, definition)
        # The kernel copies the values of all CPUs in one call, padding each to a multiple of 8
        # bytes.
        self._stride = -(-definition.value_bytes // 8) * 8
        self._value_bytes = self._stride * libbpf.possible_cpus()

    def _encode_key(self, key: int | bytes) -> bytes:
        return _to_bytes(key, self.definition.key_bytes)

    def _decode_key(self, raw: bytes) -> int | bytes:
        return _to_word(raw)

    def _encode(self, key: int | bytes, value: tuple[Any, ...]) -> bytes:
        size = self.definition.value_bytes
        raw = b"".join(_to_bytes(word, size).ljust(self._stride, b"\0") for word in value)
        if len(raw) != self._value_bytes:
            raise ValueError(f"expected {self._value_bytes // self._stride} values")
        return raw

    def _decode(self, key: int | bytes, raw: bytes) -> tuple[Any, ...]:
        size = self.definition.value_bytes
        return tuple(_to_word(raw[i : i + size]) for i in range(0, len(raw), self._stride))


def _to_bytes(word: int | bytes, size: int) -> bytes:
    if isinstance(word, int):
        return word.to_bytes(size, "little", signed=word < 0)
    if len(word) != size:
        raise ValueError(f"expected {size} bytes, not {len(word)}")
    return word


def _to_word(raw: bytes) -> int | bytes:
    return int.from_bytes(raw, "little") if len(raw) in (1, 2, 4, 8) else raw


_TYPES: Mapping[str, tuple[type[BpfMap[Any, Any]], int, int]] = {
    "entries": (Entries, 264, Entry.value_bytes),
    "attrs": (Attrs, 8, Attributes.value_bytes),
    "blobs": (XattrValues, 272, XattrValue.value_bytes),
    "grants": (Grants, 24, Grant.value_bytes),
    "volumes": (Volumes, 8, Volume.value_bytes),
    "tags": (Tags, 4, TAG_BYTES * WAYS),
    "geometry": (GeometryMap, 4, 16),
    "files": (Files, 8, 16),
}


def mapping(fd: int, name: str, definition: MapSpec) -> BpfMap[Any, Any]:
    """Return the mapping for the map *fd*.

    A map with one value per CPU becomes a `PerCpu`, whose values are tuples. A ring buffer becomes
    a `Ring`, a built-in map its own type, and any other map a `RawMap`.
    """
    if definition.type in _PER_CPU:
        return PerCpu(fd, name, definition)
    if definition.type == MAP_RINGBUF:
        return Ring(fd, name, definition)
    known = _TYPES.get(name)
    if known and known[1:] == (definition.key_bytes, definition.value_bytes):
        return known[0](fd, name, definition)
    return RawMap(fd, name, definition)
