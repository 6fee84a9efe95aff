# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test that no torn, forged or misplaced value in the maps becomes an answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from efuse import bpf, opcodes
from efuse.bpf import libbpf
from tests.guest.support.daemons import Mount, force_stat, mounted

_NAMES = ("f", "g")
_LARGEFILE = 0o100000  # The kernel adds O_LARGEFILE to open(2) of a 64-bit program.


def _read(m: Mount, name: str) -> bytes:
    return Path(m / name).read_bytes()


@dataclass(frozen=True)
class Kind:
    """A map, the question that its values answer, and its keys."""

    name: str
    opcode: str
    ask: Callable[[Mount, str], Any]
    key: Callable[[Mount, int, str], bytes]
    checked_bytes: int | None = None


def _nodeid_key(_m: Mount, nodeid: int, _name: str) -> bytes:
    return nodeid.to_bytes(8, "little")


def _grant_key(m: Mount, nodeid: int, flags: int) -> bpf.GrantKey:
    """Return the key of the grant of an OPEN with *flags*.

    The key contains a number for the caller that only the kernel can compute.
    """
    assert m.attachment is not None
    wanted = nodeid, opcodes.number("open"), flags
    (key,) = (key for key in m.attachment.maps["grants"] if key[:3] == wanted)
    return bpf.GrantKey(*key)


KINDS = (
    Kind("attrs", "getattr", lambda m, name: force_stat(m.files[name]), _nodeid_key),
    Kind(
        "entries",
        "lookup",
        lambda m, name: os.stat(m / name).st_ino,
        lambda _m, _nodeid, name: bpf.EntryKey(1, name.encode()).encode(),
    ),
    Kind(
        "blobs",
        "getxattr",
        lambda m, name: os.getxattr(m / name, "user.x"),
        lambda _m, nodeid, _: bpf.XattrKey(nodeid, opcodes.number("getxattr"), b"user.x").encode(),
        41,  # A head and one byte.
    ),
    Kind(
        "grants",
        "open",
        _read,
        lambda m, nodeid, _: _grant_key(m, nodeid, os.O_RDONLY | _LARGEFILE).encode(),
    ),
    Kind("volumes", "statfs", lambda m, name: os.statvfs(m / name), _nodeid_key),
)


@pytest.fixture
def m(mountpoint: Path) -> Iterator[Mount]:
    """Mount two files. Each use of a name is a LOOKUP, because the answer depends on the caller."""
    with mounted(
        mountpoint,
        consistency="exclusive",
        declare=("no_open",),
        default_permissions=False,
        readdirplus=False,
    ) as made:
        for name in _NAMES:
            made.model.create(name, name.encode())
            made.model.set_xattr(name, b"user.x", name.encode())
            made.files[name] = os.open(made / name, os.O_RDONLY)
        yield made
        for fd in made.files.values():
            os.close(fd)


def _learned(m: Mount, kind: Kind, name: str) -> tuple[int, bytes, bytes, Any]:
    """Return the map, the key and the value by which the kernel answers, and the answer."""
    assert m.attachment is not None
    right = kind.ask(m, name)
    with m.answered(kind.opcode):
        assert kind.ask(m, name) == right
    mapping = m.attachment.maps[kind.name]
    key = kind.key(m, m.call("nodeid", name), name)
    raw = libbpf.map_lookup(mapping.fd, key, mapping.definition.value_bytes)
    assert raw is not None, "it was answered from somewhere else"
    return mapping.fd, key, raw, right


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_value_with_a_wrong_byte_is_not_used(m: Mount, kind: Kind) -> None:
    fd, key, raw, right = _learned(m, kind, "f")
    for at in range(kind.checked_bytes or len(raw)):
        fd, key, raw, right = _learned(m, kind, "f")
        wrong = bytearray(raw)
        wrong[at] ^= 0x11
        libbpf.map_update(fd, key, bytes(wrong))
        with m.passed(kind.opcode):
            assert kind.ask(m, "f") == right, f"byte {at}"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_value_under_another_key_is_not_used(m: Mount, kind: Kind) -> None:
    _, _, raw, _ = _learned(m, kind, "f")
    fd, key, _, right = _learned(m, kind, "g")
    libbpf.map_update(fd, key, raw)
    with m.passed(kind.opcode, "stale"):
        assert kind.ask(m, "g") == right


def test_grant_with_o_trunc_is_not_used(m: Mount) -> None:
    assert m.attachment is not None
    fd = os.open(m / "f", os.O_WRONLY)
    os.close(fd)
    grants = m.attachment.maps["grants"]
    nodeid, flags = m.call("nodeid", "f"), os.O_WRONLY | _LARGEFILE
    key = _grant_key(m, nodeid, flags)
    grants[key._replace(arg=flags | os.O_TRUNC)] = grants[key]
    with m.passed("open", "declined"):
        os.close(os.open(m / "f", os.O_WRONLY | os.O_TRUNC))
    assert m.call("inode", "f").data == b""
