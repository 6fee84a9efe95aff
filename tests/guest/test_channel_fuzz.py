# SPDX-License-Identifier: LGPL-2.1-or-later
"""Fuzz the kernel with a daemon that writes arbitrary bytes into the memory of its channels.

EFUSE_FUZZ_S is the duration in seconds. EFUSE_FUZZ_SEED repeats an earlier run, which printed it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import random
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.guest.support import wire
from tests.guest.support.channel import NO_SLOT, Channel, Message
from tests.guest.support.manual_daemon import DEADLINE_S, ManualDaemon, root_attributes
from tests.guest.support.wire import Request

SECONDS = float(os.environ.get("EFUSE_FUZZ_S", "20"))
SEED = int(os.environ.get("EFUSE_FUZZ_SEED", time.time_ns() % 1_000_000))
ROUND_S = 5
QUIET_S = 0.5
# A pause for the other threads, which share the interpreter lock, in seconds.
PAUSE_S = 0.0002
SLOTS = 8

_libc = ctypes.CDLL(None, use_errno=True)  # Its calls release the interpreter lock.

# A program that uses the mount again and again, whatever the daemon replies.
_LOAD = """
import os, random, signal, sys
path, seed = sys.argv[1], int(sys.argv[2])
chance = random.Random(seed)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.siginterrupt(signal.SIGALRM, True)
done = 0
def use(name):
    what = chance.randrange(10)
    if what == 0: os.listdir(os.path.dirname(name))
    elif what == 1: os.mkdir(name)
    elif what == 2: os.unlink(name)
    elif what == 3: os.setxattr(name, "user.x", b"v" * chance.randrange(12000))
    elif what == 4: os.statvfs(name)
    elif what == 5: os.getxattr(name, "user.y")
    elif what == 6: os.rename(name, name + "x")
    elif what == 7: os.readlink(name)
    else:
        fd = os.open(name, os.O_RDWR | os.O_CREAT)
        try:
            os.pread(fd, chance.randrange(1, 20000), 0)
            os.pwrite(fd, b"w" * chance.randrange(1, 20000), chance.randrange(100))
        finally:
            os.close(fd)
while True:
    signal.setitimer(signal.ITIMER_REAL, 2)
    try:
        use(f"{path}/{chance.choice('abc')}")
    except (OSError, ValueError):
        pass
"""


class Liar:
    """A worker of a channel that answers every request, most of them correctly."""

    def __init__(
        self,
        channel: Channel,
        chance: random.Random,
        stop: threading.Event,
        asked: threading.Event,
    ) -> None:
        self.channel = channel
        self.chance = chance
        self.stop = stop
        self.asked = asked
        self.requests = 0
        self.garbled = 0

    def work(self) -> None:
        while not self.stop.is_set():
            try:
                message = self.channel.next()
            except OSError as error:
                assert error.errno == errno.ENODEV, error  # The connection has ended.
                return
            except struct.error:  # Another thread freed the slot, which is being filled again.
                continue
            self.requests += 1
            self.asked.set()
            with suppress(OSError):  # The reply may be garbage.
                self._answer(message)
            self._give_up(message.request)

    def _answer(self, message: Message) -> None:
        raw = self._reply(message.request)
        if message.slot == NO_SLOT:
            os.write(self.channel.fd, raw)
            return
        raw = raw[: self.channel.slot_size]
        self.channel.put(message.slot, raw)
        if self.chance.random() < 0.3:
            # The daemon works, and other threads may interfere.
            self.stop.wait(0.001)
        self.channel.reply(message.slot, len(raw))

    def _give_up(self, request: Request) -> None:
        """Fail the request, in case it has not been answered."""
        try:
            os.write(self.channel.fd, wire.reply(request.unique, errno.EIO))
        except OSError as error:
            assert error.errno in (errno.ENOENT, errno.ENODEV, errno.EINVAL), error

    def _reply(self, request: Request) -> bytes:
        if self.chance.random() < 0.15:
            self.garbled += 1
            return self._garbage(request)
        if self.chance.random() < 0.2:
            return wire.reply(request.unique, self.chance.choice((errno.ENOENT, errno.EIO)))
        return wire.reply(request.unique, 0, self._body(request))

    def _garbage(self, request: Request) -> bytes:
        body = self.chance.randbytes(self.chance.choice((0, 16, 40, 104, 128, 144, 4096)))
        unique = self.chance.choice(
            (request.unique, request.unique ^ 1, self.chance.getrandbits(64))
        )
        error = self.chance.choice((0, 0, -1, -512, 5))
        length = 16 + len(body) + self.chance.choice((0, 0, 1, -1))
        return struct.pack("=IiQ", length, error, unique) + body

    def _body(self, request: Request) -> bytes:
        nodeid = self.chance.choice((1, 2, 3, 4, self.chance.getrandbits(64)))
        mode = self.chance.choice((0o040755, 0o100644, 0o100644, 0o120777))
        attributes = wire.attributes(nodeid, 8192, (0, 0, 0), mode, 1, 0, 0)
        match request.opcode:
            case "lookup" | "mknod" | "mkdir" | "symlink":
                return wire.entry(nodeid, 0, 0.1, 0.1, attributes)
            case "create":
                return wire.entry(nodeid, 0, 0.1, 0.1, attributes) + wire.open_out(nodeid, 0)
            case "getattr" | "setattr":
                return (
                    root_attributes(4096) if request.nodeid == 1 else wire.attr_out(0.1, attributes)
                )
            case "open" | "opendir":
                return wire.open_out(nodeid, self.chance.getrandbits(3))
            case "read":
                return self.chance.randbytes(self.chance.randrange(request.size + 2))
            case "readdir":
                return wire.dirent(nodeid, 1, b"a", 8) if request.offset == 0 else b""
            case "write":
                return struct.pack("=II", request.size, 0)
        return b""


def scribble(channel: Channel, chance: random.Random, stop: threading.Event) -> int:
    """Write random bytes over replies, mostly over their headers. Return the number of writes."""
    start = ctypes.addressof(ctypes.c_char.from_buffer(channel.memory))
    times = 0
    while not stop.wait(PAUSE_S):
        at = (2 * chance.randrange(SLOTS) + 1) * channel.slot_size
        length = chance.choice((1, 4, 8, 16, 144, channel.slot_size))
        first = chance.choice((0, 4, 8, 16)) if length < 144 else 0
        length = min(length, channel.slot_size - first)
        assert _libc.getrandom(ctypes.c_void_p(start + at + first), length, 0) == length
        times += 1
    return times


def give_back(channel: Channel, chance: random.Random, stop: threading.Event) -> int:
    """Give back arbitrary slots and lengths. Return the number of calls that had an effect."""
    taken = 0
    while not stop.wait(PAUSE_S):
        slot = chance.choice(
            (chance.randrange(SLOTS), chance.randrange(SLOTS), chance.getrandbits(32))
        )
        length = chance.choice((0, 16, 120, 8192, 8193, chance.getrandbits(32)))
        try:
            channel.reply(slot, length)
            taken += 1
        except OSError as error:
            taken += error.errno == errno.EBADMSG  # The slot was in use.
    return taken


class Steady:
    """Another mount of the same process, whose answers all have to be right."""

    def __init__(self, mountpoint: Path) -> None:
        self.manual_daemon = ManualDaemon(mountpoint)
        self.channel = Channel(self.manual_daemon.fd, 0)
        self.answered = 0

    def ask(self) -> None:
        size = self.manual_daemon.ask(self.answered % 2)
        message = self.channel.next()
        raw = wire.reply(message.request.unique, 0, root_attributes(self.answered))
        self.channel.reply(message.slot, self.channel.put(message.slot, raw))
        assert size.result(DEADLINE_S) == self.answered
        self.answered += 1

    def close(self) -> None:
        self.channel.close()
        self.manual_daemon.close()


@contextmanager
def load(mountpoint: Path, count: int, seed: int) -> Iterator[None]:
    """Run programs that use the mount until the context ends."""
    programs = [
        subprocess.Popen([sys.executable, "-c", _LOAD, str(mountpoint), str(seed + number)])
        for number in range(count)
    ]
    try:
        yield
    finally:
        for program in programs:
            program.send_signal(signal.SIGKILL)
        for program in programs:
            program.wait(DEADLINE_S)


@dataclass
class Counts:
    """Counts of what the fuzzer did."""

    requests: int = 0
    garbled: int = 0
    scribbled: int = 0
    given_back: int = 0

    def tried_all(self) -> bool:
        return min(self.garbled, self.scribbled, self.given_back) > 0


def fuzz(mountpoint: Path, steady: Steady, seed: int, counts: Counts) -> None:
    """Lie to the programs that use a mount, until it is aborted in the middle of it all."""
    stop, asked = threading.Event(), threading.Event()
    manual_daemon = ManualDaemon(mountpoint)
    channels = [Channel(manual_daemon.fd, cpu, SLOTS) for cpu in (0, 1)]
    liars = [Liar(c, random.Random(seed + n), stop, asked) for n, c in enumerate(channels * 2)]
    with ThreadPoolExecutor(8) as pool:
        worked = [pool.submit(liar.work) for liar in liars]
        scribbled = [pool.submit(scribble, c, random.Random(seed + 4), stop) for c in channels]
        given = [pool.submit(give_back, c, random.Random(seed + 5), stop) for c in channels]
        try:
            end = time.monotonic() + ROUND_S
            while time.monotonic() < end and asked.wait(QUIET_S):
                asked.clear()
                steady.ask()
            manual_daemon.connection.abort()  # This wakes the workers, and the programs that wait.
        finally:
            stop.set()
        for each in worked:
            each.result(DEADLINE_S)
        counts.scribbled += sum(each.result(DEADLINE_S) for each in scribbled)
        counts.given_back += sum(each.result(DEADLINE_S) for each in given)
    counts.requests += sum(liar.requests for liar in liars)
    counts.garbled += sum(liar.garbled for liar in liars)
    for channel in channels:
        channel.close()
    manual_daemon.close(lazy=True)


def test_kernel_survives_random_bytes_in_shared_memory(
    mountpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel stays intact, and another mount notices nothing."""
    # What pytest keeps back is lost if the guest dies.
    with capsys.disabled():
        print(f"EFUSE_FUZZ_SEED={SEED}", flush=True)
    beside = tmp_path / "beside"
    beside.mkdir()
    steady = Steady(beside)
    counts = Counts()
    end = time.monotonic() + SECONDS
    rounds = 0
    # A mount ends early, since one wrong answer about its root is enough. On a slow kernel it may
    # end before everything was tried.
    with load(mountpoint, 3, SEED):
        while time.monotonic() < end or rounds < 2 or (not counts.tried_all() and rounds < 50):
            fuzz(mountpoint, steady, SEED + 100 * rounds, counts)
            rounds += 1
    steady.ask()
    print(f"{rounds} mounts, {counts}, {steady.answered} answers beside them")
    steady.close()
    assert counts.requests > 2 * rounds
    assert counts.tried_all()
