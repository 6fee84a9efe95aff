# SPDX-License-Identifier: LGPL-2.1-or-later
"""libbpf's low-level API through ctypes, one thin function for each call.

Each function raises OSError with the errno of the system call. Descriptors are plain ints and
belong to the caller. Debian 12's libbpf (1.1) is new enough, except for the struct_ops map of a
module: it is created with the system call itself.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from efuse import btf
from efuse.errors import NotSupportedError

__all__ = [
    "TRACE_FENTRY",
    "TRACE_FEXIT",
    "TRACE_RAW_TP",
    "MapInfo",
    "Ring",
    "btf_by_id",
    "btf_ids",
    "btf_load",
    "btf_name",
    "link_by_id",
    "link_create",
    "link_detach",
    "link_ids",
    "link_info",
    "link_update",
    "map_by_id",
    "map_create",
    "map_delete",
    "map_info",
    "map_lookup",
    "map_lookup_batch",
    "map_next_key",
    "map_update",
    "map_update_batch",
    "object_get",
    "object_pin",
    "possible_cpus",
    "program_by_id",
    "program_ids",
    "program_info",
    "program_load",
    "struct_ops_map_create",
    "tracing_attach",
    "tracing_load",
]

_MAP_STRUCT_OPS = 26
_ANY = 0
_LINK_STRUCT_OPS = 9

TRACE_RAW_TP, TRACE_FENTRY, TRACE_FEXIT = 23, 24, 25

_PROGRAM_TRACING = 26
_PROGRAM_STRUCT_OPS = 27
_ATTACH_STRUCT_OPS = 44
_F_VTYPE_BTF_OBJ_FD = 1 << 15
_F_LINK = 1 << 13
_BPF_MAP_CREATE = 0
_NAME_BYTES = 16

_SYSCALL_BPF = {"x86_64": 321, "aarch64": 280, "riscv64": 280, "ppc64le": 361, "s390x": 351}


class _MapCreateOpts(ctypes.Structure):
    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("btf_fd", ctypes.c_uint32),
        ("btf_key_type_id", ctypes.c_uint32),
        ("btf_value_type_id", ctypes.c_uint32),
        ("btf_vmlinux_value_type_id", ctypes.c_uint32),
        ("inner_map_fd", ctypes.c_uint32),
        ("map_flags", ctypes.c_uint32),
        ("map_extra", ctypes.c_uint64),
        ("numa_node", ctypes.c_uint32),
        ("map_ifindex", ctypes.c_uint32),
    )


class _ProgramLoadOpts(ctypes.Structure):
    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("attempts", ctypes.c_int),
        ("expected_attach_type", ctypes.c_int),
        ("prog_btf_fd", ctypes.c_uint32),
        ("prog_flags", ctypes.c_uint32),
        ("prog_ifindex", ctypes.c_uint32),
        ("kern_version", ctypes.c_uint32),
        ("attach_btf_id", ctypes.c_uint32),
        ("attach_prog_fd", ctypes.c_uint32),
        ("attach_btf_obj_fd", ctypes.c_uint32),
        ("fd_array", ctypes.c_void_p),
        ("func_info", ctypes.c_void_p),
        ("func_info_cnt", ctypes.c_uint32),
        ("func_info_rec_size", ctypes.c_uint32),
        ("line_info", ctypes.c_void_p),
        ("line_info_cnt", ctypes.c_uint32),
        ("line_info_rec_size", ctypes.c_uint32),
        ("log_level", ctypes.c_uint32),
        ("log_size", ctypes.c_uint32),
        ("log_buf", ctypes.c_char_p),
    )


class _BatchOpts(ctypes.Structure):
    _fields_ = (
        ("sz", ctypes.c_size_t),
        ("elem_flags", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
    )


# ring_buffer_sample_fn: context, record, size of the record. A negative result makes
# ring_buffer__consume() return.
_Sample = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@dataclass(frozen=True)
class MapInfo:
    """The kernel's description of a map."""

    id: int
    type: int
    key_bytes: int
    value_bytes: int
    max_entries: int
    flags: int
    name: str


@dataclass(frozen=True)
class ProgramInfo:
    """The kernel's description of a program."""

    id: int
    name: str
    map_ids: tuple[int, ...]
    verified_instructions: int
    recursion_misses: int


@dataclass(frozen=True)
class LinkInfo:
    """The kernel's description of a link. ``map_id`` is 0 unless it is a struct_ops link."""

    id: int
    type: int
    map_id: int


@functools.cache
def _library() -> ctypes.CDLL:
    library = btf.libbpf()
    library.ring_buffer__new.argtypes = [ctypes.c_int, _Sample, ctypes.c_void_p, ctypes.c_void_p]
    library.ring_buffer__new.restype = ctypes.c_void_p
    library.ring_buffer__free.argtypes = [ctypes.c_void_p]
    library.ring_buffer__free.restype = None
    library.ring_buffer__consume.argtypes = [ctypes.c_void_p]
    library.ring_buffer__epoll_fd.argtypes = [ctypes.c_void_p]
    return library


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
    return result


def _name(name: str) -> bytes:
    return name.encode("ascii")[: _NAME_BYTES - 1]


def map_create(
    map_type: int, name: str, key_bytes: int, value_bytes: int, max_entries: int, flags: int = 0
) -> int:
    """Create a map. Return its descriptor."""
    opts = _MapCreateOpts(sz=ctypes.sizeof(_MapCreateOpts), map_flags=flags)
    return _checked(
        _library().bpf_map_create(
            map_type, _name(name), key_bytes, value_bytes, max_entries, ctypes.byref(opts)
        )
    )


def struct_ops_map_create(
    name: str, value_bytes: int, value_type_id: int, btf_fd: int, module_btf_fd: int
) -> int:
    """Create the map through which a struct_ops set is registered. Return its descriptor.

    :param value_bytes: size of ``struct bpf_struct_ops_<type>``, in bytes.
    :param value_type_id: BTF id of ``struct bpf_struct_ops_<type>`` in the module's BTF.
    :param btf_fd: any BTF object that the caller has loaded.
    :param module_btf_fd: BTF object of the module.
    """
    machine = os.uname().machine
    if machine not in _SYSCALL_BPF:
        raise NotSupportedError(f"cannot load BPF programs: {machine} is not supported")
    attr = bytearray(80)
    flags = _F_LINK | _F_VTYPE_BTF_OBJ_FD
    struct.pack_into("<IIIII", attr, 0, _MAP_STRUCT_OPS, 4, value_bytes, 1, flags)
    attr[28 : 28 + len(_name(name))] = _name(name)
    struct.pack_into("<I", attr, 48, btf_fd)
    struct.pack_into("<I", attr, 60, value_type_id)
    struct.pack_into("<i", attr, 72, module_btf_fd)
    buffer = (ctypes.c_char * len(attr)).from_buffer(attr)
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(_SYSCALL_BPF[machine], _BPF_MAP_CREATE, buffer, len(attr))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)


def possible_cpus() -> int:
    """Return the number of values that a per-CPU map holds for each key."""
    return _checked(_library().libbpf_num_possible_cpus())


def map_lookup(fd: int, key: bytes, value_bytes: int) -> bytes | None:
    """Return the value of *key*, or None if the map has no such key."""
    value = ctypes.create_string_buffer(value_bytes)
    result = _library().bpf_map_lookup_elem(fd, key, value)
    if result == -errno.ENOENT:
        return None
    _checked(result)
    return value.raw


def map_update(fd: int, key: bytes, value: bytes, flags: int = _ANY) -> None:
    """Store *value* for *key*."""
    _checked(_library().bpf_map_update_elem(fd, key, value, ctypes.c_uint64(flags)))


def map_delete(fd: int, key: bytes) -> bool:
    """Delete *key* and its value. Return False if the map has no such key."""
    result = _library().bpf_map_delete_elem(fd, key)
    if result == -errno.ENOENT:
        return False
    _checked(result)
    return True


def map_next_key(fd: int, key: bytes | None, key_bytes: int) -> bytes | None:
    """Return the key that follows *key* (for None, the first key), or None at the end."""
    following = ctypes.create_string_buffer(key_bytes)
    result = _library().bpf_map_get_next_key(fd, key, following)
    if result == -errno.ENOENT:
        return None
    _checked(result)
    return following.raw


def map_update_batch(fd: int, keys: bytes, values: bytes, count: int) -> int:
    """Store *count* values. Return how many were stored before an error, or *count*.

    :raises OSError: no value was stored; EINVAL or ENOTSUPP if the map has no batch operations.
    """
    opts = _BatchOpts(sz=ctypes.sizeof(_BatchOpts))
    number = ctypes.c_uint32(count)
    result = _library().bpf_map_update_batch(
        fd, keys, values, ctypes.byref(number), ctypes.byref(opts)
    )
    if result < 0 and number.value in (0, count):
        raise OSError(-result, os.strerror(-result))
    return number.value


def map_lookup_batch(
    fd: int,
    position: bytes | None,
    position_bytes: int,
    key_bytes: int,
    value_bytes: int,
    count: int,
) -> tuple[bytes | None, bytes, bytes, int]:
    """Read up to *count* elements. Return (next position or None, keys, values, count read).

    :param position: None to begin, else the position that the previous call returned.
    :param position_bytes: size of a position, in bytes.
    :raises OSError: ENOSPC if *count* is too small for one hash bucket.
    """
    opts = _BatchOpts(sz=ctypes.sizeof(_BatchOpts))
    keys = ctypes.create_string_buffer(key_bytes * count)
    values = ctypes.create_string_buffer(value_bytes * count)
    following = ctypes.create_string_buffer(max(position_bytes, 8))
    number = ctypes.c_uint32(count)
    result = _library().bpf_map_lookup_batch(
        fd, position, following, keys, values, ctypes.byref(number), ctypes.byref(opts)
    )
    if result < 0 and result != -errno.ENOENT:
        raise OSError(-result, os.strerror(-result))
    read = number.value
    at_end = result == -errno.ENOENT
    return (
        None if at_end else following.raw,
        keys.raw[: read * key_bytes],
        values.raw[: read * value_bytes],
        read,
    )


def program_load(
    name: str,
    code: bytes,
    *,
    member: int,
    struct_id: int,
    btf_fd: int,
    log_bytes: int = 0,
) -> tuple[int, str]:
    """Verify and load the program of one struct_ops member. Return its descriptor and the log.

    If the kernel refuses the program, the result is -errno instead of a descriptor.

    :param member: index of the member in its struct.
    :param struct_id: BTF id of the struct in the object *btf_fd*.
    :param btf_fd: BTF object of the module.
    :param log_bytes: size of the verifier's log in bytes; 0 for no log.
    """
    fds = (ctypes.c_int * 2)(btf_fd, btf_fd)
    opts = _ProgramLoadOpts(
        expected_attach_type=member,
        attach_btf_id=struct_id,
        attach_btf_obj_fd=btf_fd,
        fd_array=ctypes.addressof(fds),
    )
    return _load(_PROGRAM_STRUCT_OPS, name, code, opts, log_bytes)


def tracing_load(
    name: str, code: bytes, *, attach: int, btf_id: int, btf_fd: int, log_bytes: int = 0
) -> tuple[int, str]:
    """Verify and load a program for a hook. Return the same as `program_load`.

    :param attach: ``TRACE_*`` type of the hook.
    :param btf_id: BTF id of the function, or of the typedef ``btf_trace_*`` of the tracepoint.
    :param btf_fd: BTF object that *btf_id* belongs to; 0 for the kernel's own.
    :param log_bytes: size of the verifier's log in bytes; 0 for no log.
    """
    opts = _ProgramLoadOpts(
        expected_attach_type=attach, attach_btf_id=btf_id, attach_btf_obj_fd=btf_fd
    )
    return _load(_PROGRAM_TRACING, name, code, opts, log_bytes)


def _load(
    kind: int, name: str, code: bytes, opts: _ProgramLoadOpts, log_bytes: int
) -> tuple[int, str]:
    log = ctypes.create_string_buffer(log_bytes) if log_bytes else None
    opts.sz = ctypes.sizeof(opts)
    opts.log_level = 1 if log else 0
    opts.log_size = log_bytes
    opts.log_buf = ctypes.cast(log, ctypes.c_char_p) if log else None
    fd = _library().bpf_prog_load(
        kind, _name(name), b"GPL", code, len(code) // 8, ctypes.byref(opts)
    )
    return fd, log.value.decode(errors="replace") if log else ""


def tracing_attach(program_fd: int) -> int:
    """Attach a loaded program to its hook until the returned descriptor is closed."""
    return _checked(_library().bpf_raw_tracepoint_open(None, program_fd))


def btf_load(blob: bytes) -> int:
    """Load a BTF object. Return its descriptor."""
    return _checked(_library().bpf_btf_load(blob, len(blob), None))


def link_create(map_fd: int) -> int:
    """Register the struct_ops set in the map *map_fd*. Return the descriptor of the link."""
    return _checked(_library().bpf_link_create(map_fd, 0, _ATTACH_STRUCT_OPS, None))


def link_update(link_fd: int, map_fd: int) -> None:
    """Replace the link's struct_ops set atomically by the one in the map *map_fd*."""
    _checked(_library().bpf_link_update(link_fd, map_fd, None))


def link_detach(link_fd: int) -> None:
    """Detach the link, even if other processes hold it."""
    _checked(_library().bpf_link_detach(link_fd))


def object_pin(fd: int, path: Path) -> None:
    """Pin a map, program or link at *path*, on a bpffs."""
    _checked(_library().bpf_obj_pin(fd, os.fsencode(path)))


def object_get(path: Path) -> int:
    """Return a descriptor of the object that is pinned at *path*."""
    return _checked(_library().bpf_obj_get(os.fsencode(path)))


def _ids(function: str) -> Iterator[int]:
    following = ctypes.c_uint32(0)
    while True:
        result = getattr(_library(), function)(following.value, ctypes.byref(following))
        if result == -errno.ENOENT:
            return
        _checked(result)
        yield following.value


def _by_id(function: str, number: int) -> int | None:
    result = getattr(_library(), function)(number)
    return None if result == -errno.ENOENT else _checked(result)


def _info(fd: int, size: int, fill: bytes = b"") -> bytes:
    buffer = ctypes.create_string_buffer(fill, size)
    length = ctypes.c_uint32(size)
    _checked(_library().bpf_obj_get_info_by_fd(fd, buffer, ctypes.byref(length)))
    return buffer.raw


def _text(raw: bytes) -> str:
    return raw.partition(b"\0")[0].decode(errors="replace")


def btf_ids() -> Iterator[int]:
    """Yield the ids of all BTF objects."""
    return _ids("bpf_btf_get_next_id")


def link_ids() -> Iterator[int]:
    """Yield the ids of all links."""
    return _ids("bpf_link_get_next_id")


def program_ids() -> Iterator[int]:
    """Yield the ids of all programs."""
    return _ids("bpf_prog_get_next_id")


def btf_by_id(number: int) -> int | None:
    """Return a descriptor of the BTF object with id *number*, or None if it no longer exists."""
    return _by_id("bpf_btf_get_fd_by_id", number)


def link_by_id(number: int) -> int | None:
    """Return a descriptor of the link with id *number*, or None if it no longer exists."""
    return _by_id("bpf_link_get_fd_by_id", number)


def map_by_id(number: int) -> int | None:
    """Return a descriptor of the map with id *number*, or None if it no longer exists."""
    return _by_id("bpf_map_get_fd_by_id", number)


def program_by_id(number: int) -> int | None:
    """Return a descriptor of the program with id *number*, or None if it no longer exists."""
    return _by_id("bpf_prog_get_fd_by_id", number)


def btf_name(fd: int) -> str:
    """Return the name of a BTF object: a module's name, ``vmlinux``, or an empty string."""
    name = ctypes.create_string_buffer(64)
    # struct bpf_btf_info: btf, btf_size, id, name, name_len, kernel_btf
    fill = struct.pack("<QIIQII", 0, 0, 0, ctypes.addressof(name), len(name), 0)
    _info(fd, len(fill), fill)
    return _text(name.raw)


def map_info(fd: int) -> MapInfo:
    """Return the kernel's description of a map."""
    # struct bpf_map_info: type, id, key_size, value_size, max_entries, map_flags, name[16]
    fields = struct.unpack_from("<IIIIII16s", _info(fd, 64))
    map_type, number, key_bytes, value_bytes, max_entries, flags, name = fields
    return MapInfo(number, map_type, key_bytes, value_bytes, max_entries, flags, _text(name))


def program_info(fd: int) -> ProgramInfo:
    """Return the kernel's description of a program."""
    maps = (ctypes.c_uint32 * 64)()
    # struct bpf_prog_info: nr_map_ids at 52, map_ids at 56, name at 64, recursion_misses at 208,
    # verified_insns at 216
    fill = bytearray(232)
    struct.pack_into("<IQ", fill, 52, len(maps), ctypes.addressof(maps))
    raw = _info(fd, len(fill), bytes(fill))
    (number,) = struct.unpack_from("<I", raw, 4)
    (count,) = struct.unpack_from("<I", raw, 52)
    missed, verified = struct.unpack_from("<QI", raw, 208)
    return ProgramInfo(number, _text(raw[64:80]), tuple(maps[:count]), verified, missed)


def link_info(fd: int) -> LinkInfo:
    """Return the kernel's description of a link."""
    # struct bpf_link_info: type, id, prog_id; for struct_ops, then map_id
    link_type, number, _program, _pad, map_id = struct.unpack_from("<IIIII", _info(fd, 64))
    return LinkInfo(number, link_type, map_id if link_type == _LINK_STRUCT_OPS else 0)


class Ring:
    """A BPF ring buffer with this process as its only reader: ``struct ring_buffer``.

    :param fd: descriptor of the map. It has to stay open until the ring is closed.
    :param take: function that is called with each record. It returns whether to continue with the
        next record.
    """

    def __init__(self, fd: int, take: Callable[[bytes], bool]) -> None:
        def sample(_context: int | None, data: int, size: int) -> int:
            return 0 if take(ctypes.string_at(data, size)) else -errno.ECANCELED

        self._sample = _Sample(sample)
        self._ring = _library().ring_buffer__new(fd, self._sample, None, None)
        if not self._ring:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def fileno(self) -> int:
        """Return a descriptor that is readable while there are records."""
        return _checked(_library().ring_buffer__epoll_fd(self._ring))

    def consume(self) -> None:
        """Pass the records that are there to ``take``, without waiting for more."""
        result = _library().ring_buffer__consume(self._ring)
        if result != -errno.ECANCELED:
            _checked(result)

    def close(self) -> None:
        """Free the ring. No method may be called after this."""
        _library().ring_buffer__free(self._ring)
