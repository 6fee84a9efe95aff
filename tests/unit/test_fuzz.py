# SPDX-License-Identifier: LGPL-2.1-or-later
"""The fuzzer's messages: what it changes, and what it must leave alone for its checks to hold."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import re
import resource
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import cast

import pytest

from efuse.errors import ModuleBuildError
from efuse.module.build import Source
from tests.debug import kernel, races
from tests.fuzz import __main__ as fuzz
from tests.fuzz import health, layouts, session, tree
from tests.fuzz.arguments import Descriptors, Memory
from tests.fuzz.attributes import AttributeWriter
from tests.fuzz.counts import NOTIFIED, REPLIED, Counts, FoundError
from tests.fuzz.daemon import Worker
from tests.fuzz.device import DeviceCaller, Target
from tests.fuzz.layouts import Part
from tests.fuzz.mutations import Mutator, ReplyMutator, notification
from tests.fuzz.run import Run
from tests.fuzz.session import MODES, Session
from tests.fuzz.threads import Fuzzer, Shared
from tests.fuzz.tree import Tree
from tests.guest.support import channel, wire
from tests.guest.support.channel import NO_SLOT, Channel
from tests.guest.support.wire import Request

_ROOT = Path(__file__).parents[2]
_TIMES = 400
_CHANNEL, _MOUNT = 3010, 3011
"""Numbers of descriptors that this process does not have."""


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
        (["--seconds", "abc"], 2, "--seconds needs a whole number, not abc"),
        (["--seconds", ".5"], 2, "--seconds needs a whole number, not .5"),
        (["--seconds", "-5"], 2, "--seconds needs a whole number, not -5"),
        (["--seed", "x"], 2, "--seed needs a number, not x"),
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
    channel = cast(Channel, SimpleNamespace(fd=_CHANNEL, slot_size=8192, memory=b""))
    caller = _caller(monkeypatch, [channel])
    slots: dict[int, set[int]] = {_CHANNEL: set(), _MOUNT: set()}

    def call(fd: int, name: str, number: int, part: Part, *, racy: bool = True) -> int:
        if name == "EFUSE_IOC_NEXT" and fd in slots:
            caller.calls.mutator.change(name, part, 4)
            slots[fd].add(part.values["slot"])
            assert racy == (fd == _MOUNT)
        return -1

    monkeypatch.setattr(caller.calls, "call", call)
    for _ in range(_TIMES * 40):
        caller.step()
    caller.close()
    assert slots[_CHANNEL] == {NO_SLOT, 1 << 16, 1 << 31}
    assert {*range(8)} < slots[_MOUNT]


def _caller(monkeypatch: pytest.MonkeyPatch, channels: list[Channel]) -> DeviceCaller:
    """Return a caller whose device is not there."""
    real = os.open
    monkeypatch.setattr(
        os, "open", lambda path, flags: real(os.devnull if path == "/dev/efuse" else path, flags)
    )
    monkeypatch.setattr(DeviceCaller, "_renew", lambda self: None)
    return DeviceCaller(Shared(), Target(_MOUNT, channels, {}), Random(5), Memory())


def test_device_caller_leaves_the_mount_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon's descriptor gets no channel, its backing files stay, and none gets the mount."""
    caller = _caller(monkeypatch, [])
    opened = set(range(7, 20))
    unopened = iter(opened)
    found: dict[str, set[int]] = {}

    def call(fd: int, name: str, number: int, part: Part, *, racy: bool = True) -> int:
        if name == "FUSE_DEV_IOC_CLONE" and fd in caller._own:
            found.setdefault("new", set()).add(part.values["fd"])
        caller.calls.mutator.change(name, part, 4)
        field = _FIELDS.get(name, "")
        if (name, fd == _MOUNT) == (
            "EFUSE_IOC_CHANNEL",
            True,
        ) or name == "FUSE_DEV_IOC_BACKING_CLOSE":
            assert not racy
            found.setdefault(name, set()).add(part.values[field])
        if (name, fd) == ("FUSE_DEV_IOC_CLONE", caller._unmounted):
            assert not racy
            found.setdefault(name, set()).add(part.values[field])
        return next(unopened, -1) if name == "FUSE_DEV_IOC_BACKING_OPEN" else -1

    monkeypatch.setattr(caller.calls, "call", call)
    for _ in range(_TIMES * 10):
        caller.step()
    wrong = {*caller._descriptors.wrong}
    caller.close()
    assert found["EFUSE_IOC_CHANNEL"] == {1 << 16}
    assert found["FUSE_DEV_IOC_CLONE"] <= wrong
    assert _MOUNT in found["new"]
    assert opened & found["FUSE_DEV_IOC_BACKING_CLOSE"]
    assert not found["FUSE_DEV_IOC_BACKING_CLOSE"] & set(range(1, 7))


_FIELDS = {
    "EFUSE_IOC_CHANNEL": "cpu",
    "FUSE_DEV_IOC_CLONE": "fd",
    "FUSE_DEV_IOC_BACKING_CLOSE": "backing_id",
}


def test_closed_descriptor_stays_closed() -> None:
    descriptors = Descriptors()
    more = [os.dup(0) for _ in range(5)]
    closed = descriptors.wrong[len(descriptors.all)]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(closed)
    assert closed < resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    for fd in more:
        os.close(fd)
    descriptors.close()


def test_bytes_of_passthrough_are_told_from_those_of_the_daemon() -> None:
    whole = tree.through(3)
    assert not tree.foreign(3, whole)
    assert abs(len(whole) - tree.SIZE) < 4
    assert tree.is_through(3, whole[5:12])
    # A short reply and a hole have zeros, too.
    for data in (tree.full(3), tree.fill(3, 9) + bytes(5), bytes(2) + tree.fill(3, 7), b""):
        assert not tree.is_through(3, data)


def test_file_that_a_connection_no_longer_has_is_not_made(tmp_path: Path) -> None:
    """sysfs refuses that with EACCES, which no other write there fails with."""
    file = tmp_path / "no_flush"
    file.touch(0o600)
    writer = AttributeWriter(Shared(), tmp_path, Random(5))
    file.unlink()
    assert writer.step()
    assert not file.exists()
    assert (writer.written["no_flush"], writer.accepted["no_flush"]) == (1, 0)


def test_run_is_content_only_if_calls_succeeded_in_each_mode(tmp_path: Path) -> None:
    run = Run(tmp_path, tmp_path, 1)
    counts = run.counts
    counts.mutated.update((opcode, "field") for opcode in REPLIED)
    counts.notified.update(NOTIFIED)
    counts.ioctls.update(layouts.DEVICE_IOCTLS)
    assert counts.missing(layouts.DEVICE_IOCTLS) == []
    assert "success of EFUSE_IOC_MAP" in run.untried()
    assert "success of store" in run.untried()
    counts.succeeded.update(layouts.DEVICE_IOCTLS)
    counts.carried_out.update(NOTIFIED)
    assert "compared bytes in 'device'" in run.untried()
    for mode in MODES:
        run.by_mode[mode.name].add(Counts(checked=1, hits=mode.name != "channels"))
    left = ["answers of the kernel in 'channels'", "reads by FUSE's passthrough in 'passthrough'"]
    assert run.untried() == left
    run.by_mode["channels"].hits = run.by_mode["passthrough"].through = 1
    assert run.untried() == []


class _Callers:
    """Callers that have found a fault."""

    calls = checked = through = 0
    faults = ("a read has bytes {9}",)
    ended = False

    def alive(self) -> bool:
        return True

    def tell_to_end(self) -> None:
        pass

    def end(self) -> None:
        self.ended = True


class _Part(Fuzzer):
    """A part of a session that takes one step, and fails in it if it is to."""

    fails = False

    def step(self) -> bool:
        assert not self.fails, "an unexpected error"
        return False

    def add_to(self, counts: Counts) -> None:
        counts.requests["closed"] += 1


class _Server(_Part, Worker):
    def __init__(self, shared: Shared, chance: Random) -> None:
        Fuzzer.__init__(self, shared, chance)


def _session(monkeypatch: pytest.MonkeyPatch, *kinds: type[_Part]) -> tuple[Session, _Callers]:
    callers = _Callers()
    monkeypatch.setattr(session, "Callers", lambda *_: callers)
    monkeypatch.setattr(Session, "__init__", lambda self: None)
    one = Session()  # type: ignore[call-arg]
    one.counts, one._shared = Counts(), Shared()
    one._mountpoint, one._mode, one._seed = Path(), MODES[0], "7 device 0"
    fuzzers = [kind(one._shared, Random(1)) for kind in kinds]
    monkeypatch.setattr(one, "_fuzzers", lambda: fuzzers)
    monkeypatch.setattr(one, "_end", lambda _: one._shared.stop.set())
    return one, callers


def test_failure_of_a_thread_hides_no_fault_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    one, callers = _session(monkeypatch, _Server, _Part)
    monkeypatch.setattr(_Part, "fails", True)
    with pytest.raises(FoundError) as raised:
        one.run(60)
    assert "seed 7 device 0" in str(raised.value)
    assert "a read has bytes {9}" in str(raised.value)
    assert "an unexpected error" in str(raised.value)
    assert callers.ended
    assert one.counts.requests["closed"] == 2


def test_session_ends_when_its_daemon_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    one, callers = _session(monkeypatch, _Server, _Server)
    callers.faults = ()
    begin = time.monotonic()
    one.run(60)
    assert time.monotonic() - begin < 30


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


@pytest.mark.parametrize(
    ("watched", "untried", "complaints", "status"),
    [(7, [], [], 0), (0, [], [], 1), (7, ["x"], [], 1), (7, [], ["BUG: KCSAN: data-race"], 1)],
)
def test_run_in_the_kernel_that_finds_races_fails_if_it_watched_nothing(
    monkeypatch: pytest.MonkeyPatch,
    watched: int,
    untried: list[str],
    complaints: list[str],
    status: int,
) -> None:
    monkeypatch.setattr(sys, "argv", ["fuzz", "--kernel", "kcsan"])
    monkeypatch.setattr(fuzz, "KernelLog", lambda: _Log(complaints))
    monkeypatch.setattr(fuzz, "_fuzz", lambda *_: untried)
    monkeypatch.setattr(fuzz.health, "unload", lambda *_: None)
    monkeypatch.setattr(races, "detectable", lambda: True)
    monkeypatch.setattr(races, "detect", lambda: None)
    monkeypatch.setattr(races, "watched", lambda: watched)
    assert fuzz.main() == status


def test_module_is_unloaded_when_its_last_mount_has_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = [ModuleBuildError("it is in use"), ModuleBuildError("it is in use")]

    def unload(_: Source) -> None:
        if busy:
            raise busy.pop()

    monkeypatch.setattr(health.live, "unload", unload)
    health.unload()
    assert not busy


class _Log:
    """A kernel log with some lines."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def new_text(self) -> str:
        return self._lines.pop() if self._lines else ""


@pytest.mark.parametrize("kind", ["kasan", "kcsan"])
def test_run_in_a_kernel_without_its_checks_fails(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["fuzz", "--kernel", kind])
    monkeypatch.setattr(races, "detectable", lambda: False)
    monkeypatch.setattr(kernel, "missing_checks", lambda: ["KASAN"])
    assert fuzz.main() == 2


def _anonymous(real: type[mmap.mmap], fd: int, length: int) -> mmap.mmap:
    return real(-1, length)


def _write_request(nodeid: int, size: int) -> bytes:
    body = struct.pack("=QQIIQII", nodeid, 0, size, 0, 0, 0, 0) + bytes([nodeid]) * size
    return struct.pack("=IIQQIIIHH", 40 + len(body), 16, 10, nodeid, 0, 0, 1, 0, 0) + body
