# SPDX-License-Identifier: LGPL-2.1-or-later
"""The fuzzer's messages: what it changes, and what it must leave alone for its checks to hold."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import re
import struct
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from tests.debug import races
from tests.fuzz import layouts, tree
from tests.fuzz.arguments import Memory
from tests.fuzz.counts import REPLIED
from tests.fuzz.device import DeviceCaller, Target
from tests.fuzz.layouts import Part
from tests.fuzz.mutations import Mutator, ReplyMutator, notification
from tests.fuzz.threads import Shared
from tests.fuzz.tree import Tree
from tests.guest.support import channel, wire
from tests.guest.support.channel import NO_SLOT, Channel
from tests.guest.support.wire import Request

_ROOT = Path(__file__).parents[2]
_TIMES = 400


def _request(opcode: str, nodeid: int, name: bytes = b"", **fields: int) -> Request:
    every = {key: 0 for key in wire._FIXED.get(opcode, ("", ()))[1] if key}
    return Request(opcode, 100, nodeid, 0, 0, every | fields, name + b"\0other\0")


def _replies(request: Request, seed: int = 1) -> list[bytes]:
    """Return the messages that are sent in place of many replies to *request*."""
    chance = Random(seed)
    answers, mutator = Tree(chance), ReplyMutator(chance, lambda: None)
    found = []
    for _ in range(_TIMES):
        messages, _ = mutator.mutated(request, answers.answer(request))
        found += messages
    return found


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        (layouts.ENTRY, 128),
        (layouts.ATTR_OUT, 104),
        (layouts.OPEN_OUT, 16),
        (layouts.CREATE_OUT, 144),
        (layouts.DIRENT, 24),
        (layouts.DIRENTPLUS, 152),
        (layouts.STATFS_OUT, 80),
        (layouts.LK_OUT, 24),
        (layouts.STATX_OUT, 288),
        (layouts.INIT_OUT, 64),
        *((layout, number >> 16 & 0x3FFF) for number, layout in layouts.DEVICE_IOCTLS.values()),
        *((layout, number >> 16 & 0x3FFF) for number, layout in layouts.STORAGE_IOCTLS.values()),
    ],
)
def test_structures_have_the_sizes_of_the_kernels(layout: layouts.Layout, size: int) -> None:
    assert layout.size == size == len(layout.encode({}))


@pytest.mark.parametrize("opcode", sorted(REPLIED - {"init", "lookup"}))
def test_reply_to_each_opcode_is_mutated_in_every_field(opcode: str) -> None:
    chance = Random(1)
    request = _request(opcode, 16, b"w1", size=200, length=100, out_size=8)
    answers, mutator = Tree(chance), ReplyMutator(chance, lambda: 7)
    names: set[str] = set()
    for _ in range(_TIMES):
        answer = answers.answer(request)
        names |= {name for part in answer.parts for name in part.layout.names}
        messages, _ = mutator.mutated(request, answer)
        assert messages
    assert {field for _, field in mutator.fields} == names
    assert len(mutator.done) >= 9


@pytest.mark.parametrize(
    ("directory", "name", "nodeid"), [(d, n, nodeid) for (d, n), nodeid in tree.SETTLED.items()]
)
def test_settled_name_leads_to_its_own_inode_in_every_reply(
    directory: int, name: bytes, nodeid: int
) -> None:
    found = 0
    for raw in _replies(_request("lookup", directory, name)):
        length, error, unique = struct.unpack_from("=IiQ", raw.ljust(16, b"\0"))
        if len(raw) >= 24 and (length, error, unique) == (len(raw), 0, 100):
            found += 1
            assert struct.unpack_from("=Q", raw, 16) == (nodeid,)
    assert found > 100


def test_data_in_every_reply_is_that_of_the_file() -> None:
    lengths = set()
    for raw in _replies(_request("read", 3, size=20000)):
        assert not tree.foreign(3, raw[16:])
        lengths.add(len(raw))
    assert len(lengths) > 10


def test_data_of_a_store_is_that_of_the_inode_that_it_names() -> None:
    chance = Random(2)
    mutator = Mutator(chance)
    nodeids = set()
    for _ in range(_TIMES):
        raw = notification(chance, mutator, 4, [])
        nodeid, _, size, _ = struct.unpack_from("=QQII", raw, 16)
        assert not tree.foreign(nodeid, raw[40:])
        nodeids.add((nodeid, size))
    assert len(nodeids) > 50


def test_field_gets_boundaries_and_loses_bits_that_do_not_fit() -> None:
    mutator = Mutator(Random(3))
    values = set()
    for _ in range(_TIMES):
        part = Part(layouts.WRITE_OUT, {"written": 4096}, fixed=frozenset(("padding",)))
        assert mutator.change("write", part)
        values.add(part.values["written"])
        assert "padding" not in part.values
    assert values >= {0, 1, 4095, 4097, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF}
    assert layouts.WRITE_OUT.encode({"written": -1, "padding": 1 << 40}) == b"\xff" * 4 + bytes(4)


def test_foreign_bytes_are_those_of_other_files_alone() -> None:
    assert tree.foreign(2, tree.fill(2, 10) + bytes(5)) == b""
    assert tree.foreign(2, tree.fill(2, 10) + tree.fill(3, 2)) == b"\3\3"
    assert len({tree.byte_of(nodeid) for nodeid in tree.FILES.values()}) == len(tree.FILES)


def test_run_of_one_seed_repeats_its_choices() -> None:
    request = _request("getattr", 16)
    assert _replies(request, 5) == _replies(request, 5) != _replies(request, 6)


def test_known_races_name_a_function_and_a_reason() -> None:
    for each in races.known():
        assert each.function and len(each.reason) > 20


@pytest.mark.parametrize(
    ("words", "status", "printed"),
    [
        (["--help"], 0, "usage: scripts/fuzz"),
        (["--kernel", "unknown"], 2, "there is no kernel unknown"),
        (["--seed"], 2, "--seed needs a value"),
        (["--wrong"], 2, "--wrong is no option"),
    ],
)
def test_script_explains_its_options(words: list[str], status: int, printed: str) -> None:
    command = [_ROOT / "scripts/fuzz", *words]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == status
    assert printed in done.stdout + done.stderr


def test_commands_of_the_document_have_options_of_the_script() -> None:
    text = (_ROOT / "docs/verification.md").read_text()
    helped = subprocess.run([_ROOT / "scripts/fuzz", "--help"], capture_output=True, text=True)
    options = set(re.findall(r"--\w+", helped.stdout.partition("\n")[0]))
    lines = re.findall(r"^# scripts/fuzz(.*?)(?: {2,}#.*)?$", text, re.MULTILINE)
    assert len(lines) >= 3
    for line in lines:
        words = line.split()
        assert set(words[::2]) <= options
        assert not set(words[1::2]) & options


def test_slot_that_a_worker_may_have_is_named_by_no_other_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the next request would be written where the worker reads."""
    real = os.open
    monkeypatch.setattr(os, "open", lambda path, flags: real(os.devnull, flags))
    monkeypatch.setattr(DeviceCaller, "_renew", lambda self: None)
    channel = cast(Channel, SimpleNamespace(fd=10, slot_size=8192, memory=b""))
    caller = DeviceCaller(Shared(), Target(11, [channel], {}), Random(5), Memory())
    slots: dict[int, set[int]] = {10: set(), 11: set()}

    def call(fd: int, name: str, number: int, part: Part, *, racy: bool = True) -> int:
        if name == "EFUSE_IOC_NEXT" and fd in slots:
            caller.calls.mutator.change(name, part, 4)
            slots[fd].add(part.values["slot"])
            assert racy == (fd == 11)
        return -1

    monkeypatch.setattr(caller.calls, "call", call)
    for _ in range(_TIMES * 10):
        caller.step()
    caller.close()
    assert slots[10] == {NO_SLOT, 1 << 16, 1 << 31}
    assert {*range(8)} < slots[11]


def test_large_requests_of_two_threads_of_a_channel_are_not_mixed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread may be suspended between the system call and reading what it brought."""
    monkeypatch.setattr(channel, "tied", lambda fd: os.open(os.devnull, os.O_RDWR))
    monkeypatch.setattr(channel, "make", lambda *args: None)
    monkeypatch.setattr(mmap, "mmap", functools.partial(_anonymous, mmap.mmap))
    shared = Channel(3, 0)
    requests = [_write_request(2, 70000), _write_request(3, 20000)]
    in_turn, both_came = threading.Lock(), threading.Barrier(2)

    def ioctl(fd: int, number: int, raw: bytearray) -> None:
        _, _, address, size, _ = struct.unpack("=IIQII", raw)
        with in_turn:
            request = requests.pop(0)
            ctypes.memmove(address, request, len(request))
        raw[:] = struct.pack("=IIQII", NO_SLOT, len(request), address, size, 0)
        both_came.wait(10)

    monkeypatch.setattr(channel.fcntl, "ioctl", ioctl)
    with ThreadPoolExecutor(2) as pool:
        found = [each.result().request for each in [pool.submit(shared.next) for _ in range(2)]]
    shared.close()
    for request in found:
        assert set(request.rest) == {request.nodeid}


def _anonymous(real: type[mmap.mmap], fd: int, length: int) -> mmap.mmap:
    return real(-1, length)


def _write_request(nodeid: int, size: int) -> bytes:
    body = struct.pack("=QQIIQII", nodeid, 0, size, 0, 0, 0, 0) + bytes([nodeid]) * size
    return struct.pack("=IIQQIIIHH", 40 + len(body), 16, 10, nodeid, 0, 0, 1, 0, 0) + body
