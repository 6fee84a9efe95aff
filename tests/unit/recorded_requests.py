# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests in the layout that ``trace.c`` records, with their arguments and answers."""

from __future__ import annotations

import struct
from typing import Any

from efuse import opcodes
from efuse.tracing import Request

ATTR = b"a" * 88
"""A ``struct fuse_attr``."""


def raw(opcode: str, nodeid: int = 1, *names: bytes, **more: Any) -> bytes:
    """Return a request in the layout of ``trace.c``."""
    value = {
        "time_ns": 5_000, "ns": 1_200_000, "digest": 0, "ret": 0, "connection": 40, "pid": 77,
        "thread": 78, "uid": 1000, "answered_by": 1, "reason": 0, "flags": 0, "comm": b"cat",
        "arguments": b"", "answer": b"", **more,
    }  # fmt: skip
    first, second = ([len(name) for name in names] + [0, 0])[:2]
    return struct.pack(
        "=QQQQqIIIIIBBBBHHHH16s64s128s", value["time_ns"], value["ns"], nodeid, value["digest"],
        value["ret"], value["connection"], opcodes.number(opcode), value["pid"], value["thread"],
        value["uid"], value["answered_by"], value["reason"], value["flags"], 0, first, second,
        len(value["arguments"]), len(value["answer"]), value["comm"], value["arguments"],
        value["answer"],
    ) + b"".join(names)  # fmt: skip


def request(opcode: str, nodeid: int = 1, *names: bytes, **more: Any) -> Request:
    return Request.decode(raw(opcode, nodeid, *names, **more))


def entry(nodeid: int, attributes: bytes = b"") -> bytes:
    """Return a ``struct fuse_entry_out``."""
    return (struct.pack("=QQ", nodeid, 0) + bytes(24) + attributes).ljust(128, b"\0")


def attr_out(attributes: bytes, valid: int = 1) -> bytes:
    return struct.pack("=QII", valid, 0, 0) + attributes


def getattr_(nodeid: int = 2, attributes: bytes = ATTR, **more: Any) -> Request:
    return request("getattr", nodeid, answer=attr_out(attributes), **more)


def lookup(name: bytes = b"f", nodeid: int = 2, attributes: bytes = ATTR, **more: Any) -> Request:
    return request("lookup", 1, name, answer=entry(nodeid, attributes), **more)
