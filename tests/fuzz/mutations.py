# SPDX-License-Identifier: LGPL-2.1-or-later
"""Derive wrong messages from right ones: values of fields, lengths, errors, numbers of requests."""

from __future__ import annotations

import stat
import struct
from collections import Counter
from collections.abc import Callable
from random import Random

from tests.fuzz import layouts, tree
from tests.fuzz.layouts import Layout, Part
from tests.fuzz.tree import Answer
from tests.guest.support import wire
from tests.guest.support.wire import Request

_HEADER = struct.Struct("=IiQ")
_SPECIAL_LENGTHS = (0, 1, 15, 17, 1 << 16, 1 << 31, (1 << 32) - 1)
_ERRORS = (-1, -2, -4, -5, -11, -12, -38, -95, -116, -511, -512, -513, 1, 5, 1 << 30, -(1 << 31))
_KINDS = (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK)
_NAMES = (b"", b".", b"..", b"a/b", b"w0\0w1", b"\xff" * 255, b"n" * 256, b"n" * 1025)
MOST_TAIL = 1 << 17
"""Most bytes that a mutated message has after its fields."""

NAMES = (
    *("field", "fields", "short", "long", "header"),
    *("error", "unique", "twice", "late", "garbage"),
)
"""Names of the mutations of a reply."""


def value(chance: Random, name: str, bits: int, old: int) -> int:
    """Return a value for a field: a boundary, a neighbour of the old value, or one of its kind."""
    top = 1 << bits
    found = [0, 1, old - 1, old + 1, top - 1, top >> 1, (top >> 1) - 1, old ^ (top >> 1)]
    found += [1 << 12, (1 << 31) - 1, 1 << 31, 1 << 32, chance.getrandbits(bits)]
    if name in ("nodeid", "child", "ino", "d_ino"):
        found += [*tree.NODEIDS, *tree.OPEN] * 2
    elif name == "mode":
        found += [chance.choice(_KINDS) | chance.getrandbits(12) for _ in range(8)]
        found += [0o170000, 0o130000, 0o777, 0]
    elif name in ("open_flags", "flags", "flags2", "revents", "attr_flags"):
        found += [1 << chance.randrange(bits) for _ in range(8)] + [old | chance.getrandbits(bits)]
    elif name == "size":
        found += [tree.SIZE, 4096, 4095, 1 << 40, (1 << 63) - 4096]
    elif name in ("namelen", "d_type"):
        found += [0, 1, 255, 256, 1024, 1025, 4096]
    return chance.choice(found) % top


class Mutator:
    """Mutates messages. Of the fields of a structure it changes the one that it changed least.

    :ivar fields: how often each field was changed: keys are the message's name and the field's.
    """

    def __init__(self, chance: Random) -> None:
        self._chance = chance
        self.fields: Counter[tuple[str, str]] = Counter()

    def change(self, message: str, part: Part, number: int = 1) -> bool:
        """Change *number* fields of a structure; return whether it has any that may be changed."""
        names = [name for name in part.layout.names if name not in part.fixed]
        for _ in range(number if names else 0):
            least = min(self.fields[message, name] for name in names)
            name = self._chance.choice([n for n in names if self.fields[message, n] == least])
            self.fields[message, name] += 1
            old, bits = part.values.get(name, 0), part.layout.bits[name]
            part.values[name] = value(self._chance, name, bits, old)
        return bool(names)

    def change_name(self, part: Part) -> None:
        """Change the name after a structure, often without its length."""
        part.tail = self._chance.choice(_NAMES)
        if self._chance.random() < 0.6:
            part.values["namelen"] = len(part.tail)

    def size(self, length: int) -> int:
        """Return another length for data of *length* bytes."""
        near = (0, 1, length - 1, length + 1, length // 2, 2 * length, length + 4096, 1 << 16)
        return max(0, min(MOST_TAIL, self._chance.choice(near)))


def _stretched(data: bytes, length: int) -> bytes:
    """Return *length* bytes that begin as *data* does and go on with its last byte."""
    return data[:length] + (data[-1:] or b"\0") * (length - len(data))


class ReplyMutator(Mutator):
    """Mutates replies.

    :param other: returns the number of another unanswered request, or None.
    :ivar done: number of the mutations of each kind, by opcode and name of the mutation.
    """

    def __init__(self, chance: Random, other: Callable[[], int | None]) -> None:
        super().__init__(chance)
        self._other = other
        self.done: Counter[tuple[str, str]] = Counter()

    def mutated(self, request: Request, answer: Answer) -> tuple[list[bytes], bool]:
        """Return messages in place of the right reply, and whether they are to be sent late."""
        name = self._chance.choice(NAMES)
        mutate: Callable[[Request, Answer], list[bytes]] = getattr(self, f"_{name}")
        messages = mutate(request, answer)
        self.done[request.opcode, name] += 1
        return messages, name == "late"

    def _field(self, request: Request, answer: Answer, number: int = 1) -> list[bytes]:
        if not answer.parts or answer.is_data:
            return self._short(request, answer)
        part = self._chance.choice(answer.parts)
        if part.layout in (layouts.DIRENT, layouts.DIRENTPLUS) and self._chance.random() < 0.2:
            self.change_name(part)
        elif not self.change(request.opcode, part, number):
            return self._long(request, answer)
        return [wire.reply(request.unique, 0, answer.encode())]

    def _fields(self, request: Request, answer: Answer) -> list[bytes]:
        return self._field(request, answer, self._chance.randrange(2, 6))

    def _short(self, request: Request, answer: Answer) -> list[bytes]:
        body = answer.encode()
        return [wire.reply(request.unique, 0, body[: self._chance.randrange(len(body) + 1)])]

    def _long(self, request: Request, answer: Answer) -> list[bytes]:
        body = answer.encode()
        length = max(self.size(len(body)), len(body) + 1)
        if answer.is_data:
            return [wire.reply(request.unique, 0, _stretched(body, length))]
        more = bytes(length - len(body))
        return [wire.reply(request.unique, 0, body + more)]

    def _header(self, request: Request, answer: Answer) -> list[bytes]:
        body = answer.encode()
        length = _HEADER.size + len(body)
        wrong = self._chance.choice((*_SPECIAL_LENGTHS, length - 1, length + 1))
        raw = _HEADER.pack(wrong, 0, request.unique) + body
        return [raw[: self._chance.choice((len(raw), len(raw), 4, 8, 15))]]

    def _error(self, request: Request, answer: Answer) -> list[bytes]:
        body = self._chance.choice((b"", b"", answer.encode()))
        error = self._chance.choice((*_ERRORS, -self._chance.randrange(1, 512)))
        return [_HEADER.pack(_HEADER.size + len(body), error, request.unique) + body]

    def _unique(self, request: Request, answer: Answer) -> list[bytes]:
        """Answer a request that does not exist, an interrupt, a repeated or another request."""
        flipped = request.unique ^ 1, request.unique ^ (1 << 63)
        other = None if answer.is_data or answer.settled else self._other()
        unique = self._chance.choice((*flipped, self._chance.getrandbits(64), other or flipped[0]))
        body = self._chance.choice((b"", answer.encode()))
        error = self._chance.choice((0, 0, -11, -38, -5))
        return [_HEADER.pack(_HEADER.size + len(body), error, unique or 2) + body]

    def _twice(self, request: Request, answer: Answer) -> list[bytes]:
        return [wire.reply(request.unique, 0, answer.encode())] * 2

    def _late(self, request: Request, answer: Answer) -> list[bytes]:
        return [wire.reply(request.unique, 0, answer.encode())]

    def _garbage(self, request: Request, answer: Answer) -> list[bytes]:
        if answer.is_data:
            return self._long(request, answer)
        if answer.settled:
            return self._fields(request, answer)
        length = self._chance.choice((len(answer.encode()), 8, 40, 104, 128, 144, 4096))
        return [wire.reply(request.unique, 0, self._chance.randbytes(length))]


def notification(chance: Random, mutator: Mutator, code: int, known: list[int]) -> bytes:
    """Return a notification with mutated fields.

    :param known: handles of polled files.
    """
    name, layout = layouts.NOTIFICATIONS.get(code, (f"code {code}", Layout(())))
    nodeid = chance.choice((*tree.NODEIDS, *tree.OPEN))
    values = {"nodeid": nodeid, "offset": 4096 * chance.randrange(4), "size": 4096}
    values |= {"length": chance.choice((0, 4096)), "child": chance.choice(tree.OPEN), "count": 2}
    values |= {"kh": chance.choice(known) if known else 1, "unique": chance.getrandbits(32)}
    part = Part(layout, values)
    if name in ("inval_entry", "delete"):
        # Mostly a name that the kernel knows.
        settled = [each.encode() for each in tree.FILES if "/" not in each]
        if chance.random() < 0.7:
            part.values["nodeid"] = tree.ROOT
        part.tail = chance.choice([*settled, *map(str.encode, tree.NAMES)]) + b"\0"
        part.values["namelen"] = len(part.tail) - 1
        if chance.random() < 0.2:
            mutator.change_name(part)
    if chance.random() < 0.6:
        mutator.change(name, part, chance.choice((1, 1, 3)))
    if name == "store":
        # The data is always that of the inode that is named in the end.
        length = min(part.values["size"], MOST_TAIL)
        wanted = length if chance.random() < 0.8 else mutator.size(length)
        part.tail = tree.fill(part.values["nodeid"], wanted)
    if name == "prune":
        part.tail = struct.pack("=2Q", nodeid, chance.getrandbits(64))
    body = part.encode()
    if chance.random() < 0.1 and name != "store":
        body = body[: chance.randrange(len(body) + 1)] + bytes(chance.choice((0, 0, 1, 8)))
    raw = wire.notification(code, body)
    if chance.random() < 0.05:
        raw = _HEADER.pack(chance.choice(_SPECIAL_LENGTHS), code, 0) + body
    return raw
