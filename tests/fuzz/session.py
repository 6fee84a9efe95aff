# SPDX-License-Identifier: LGPL-2.1-or-later
"""One mount that is fuzzed: its daemon, its callers, and the threads that do the rest."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from random import Random

from efuse import bpf
from efuse.control import Connection
from efuse.fs.mountpoint import MountOptions, mount_efuse, unmount
from tests.fuzz import layouts, tree
from tests.fuzz.arguments import Memory
from tests.fuzz.attributes import AttributeWriter
from tests.fuzz.callers import Callers
from tests.fuzz.counts import Counts, FoundError
from tests.fuzz.daemon import Worker
from tests.fuzz.device import DeviceCaller, Target
from tests.fuzz.layouts import Part
from tests.fuzz.mutations import Mutator
from tests.fuzz.notifier import Notifier
from tests.fuzz.successor import Successor
from tests.fuzz.threads import Fuzzer, Shared
from tests.fuzz.tree import Tree
from tests.guest.support import wire
from tests.guest.support.channel import Channel

CALLERS = 4
LIES = 0.35
"""Share of the replies that are mutated."""
_SLOTS = 8
_DEADLINE_S = 60.0
_POLL_S = 0.1
_ORDERLY_S = 5.0
"""Time that callers have to end by themselves, before the mount is aborted."""
_USUAL = (
    *(wire.FUSE_ASYNC_READ, wire.FUSE_ATOMIC_O_TRUNC, wire.FUSE_BIG_WRITES),
    *(wire.FUSE_AUTO_INVAL_DATA, wire.FUSE_PARALLEL_DIROPS),
    *(wire.FUSE_MAX_PAGES, wire.FUSE_POSIX_LOCKS, wire.FUSE_FLOCK_LOCKS, wire.FUSE_INIT_EXT),
)
_POSIX_ACL, _RESEND = 1 << 20, 1 << 39
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Mode:
    """How a mount is served.

    :ivar consistency: mode of the connection.
    :ivar handlers: whether the built-in handlers are attached.
    :ivar channels: whether requests come by channels.
    :ivar init_flags: flags of the reply to INIT in addition to the usual ones.
    :ivar options: mount options.
    :ivar block: whether the mount has a block device, as that of ntfs-3g.
    :ivar open_flags: flags with which files may be opened.
    :ivar unmounts: whether it ends by umount(2), while the daemon goes on. Others are aborted.
    :ivar lies_at_init: whether the reply to INIT is mutated.
    """

    name: str
    consistency: str = "ttl"
    handlers: bool = False
    channels: bool = False
    init_flags: int = 0
    options: tuple[str, ...] = ()
    block: bool = False
    open_flags: tuple[int, ...] = (0, 0, wire.FOPEN_KEEP_CACHE, wire.FOPEN_DIRECT_IO)
    unmounts: bool = False
    lies_at_init: bool = False


MODES = (
    Mode("device"),
    Mode(
        "channels",
        "exclusive",
        handlers=True,
        channels=True,
        init_flags=wire.FUSE_DO_READDIRPLUS,
    ),
    Mode(
        "write-back",
        "cto",
        handlers=True,
        init_flags=wire.FUSE_WRITEBACK_CACHE | wire.FUSE_DO_READDIRPLUS | _POSIX_ACL,
        options=("default_permissions",),
        unmounts=True,
    ),
    Mode(
        "passthrough",
        init_flags=wire.FUSE_PASSTHROUGH,
        open_flags=(0, wire.FOPEN_PASSTHROUGH, wire.FOPEN_PASSTHROUGH),
    ),
    Mode("block device", "ttl", handlers=True, block=True, unmounts=True),
)
INIT_MODE = Mode("INIT", lies_at_init=True)


def _mount(mountpoint: Path, mode: Mode, device: Path | None) -> int:
    """Mount, and return the daemon's descriptor."""
    if not mode.block:
        fd = mount_efuse(str(mountpoint), MountOptions.parse(mode.options))
    else:
        fd = os.open("/dev/efuse", os.O_RDWR | os.O_CLOEXEC)
        data = f"fd={fd},rootmode=40755,user_id=0,group_id=0,blksize=512"
        failed = _libc.mount(
            str(device).encode(), str(mountpoint).encode(), b"efuseblk", ctypes.c_ulong(0),
            data.encode(),
        )  # fmt: skip
        assert not failed, os.strerror(ctypes.get_errno())
    os.set_blocking(fd, False)
    return fd


def _number(mountpoint: Path) -> int:
    """Return the number of the connection: that of the mount's device, in the kernel's form."""
    words = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    major, minor = next(w[2] for w in reversed(words) if w[4] == str(mountpoint)).split(":")
    return int(major) << 20 | int(minor)


def _serves(fuzzer: Fuzzer) -> bool:
    return isinstance(fuzzer, Worker)


def _has_failed(working: Future[None]) -> bool:
    return working.done() and working.exception() is not None


class Errors:
    """The exceptions of a session, whose other parts go on to their ends.

    :ivar found: the exceptions, in their order.
    """

    def __init__(self) -> None:
        self.found: list[Exception] = []

    @property
    def first(self) -> Exception | None:
        return self.found[0] if self.found else None

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note an exception of the block, and go on after the block."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the session raises it in the end
            self.found.append(error)


@contextlib.contextmanager
def loop_device(directory: Path) -> Iterator[Path]:
    """Make a block device of 1 MiB."""
    image = directory / "block-image"
    image.write_bytes(bytes(1 << 20))
    words = ["losetup", "--find", "--show", str(image)]
    made = Path(subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip())
    try:
        yield made
    finally:
        subprocess.run(["losetup", "--detach", str(made)], check=True)
        image.unlink()


class Session:
    """A mount with its daemon and everything that fuzzes it.

    :param mountpoint: an empty directory.
    :param lower: a directory for backing files.
    :param seed: seed of all random choices.
    :param device: block device of a mount that has one.
    """

    def __init__(
        self, mountpoint: Path, lower: Path, mode: Mode, seed: str, device: Path | None = None
    ) -> None:
        self._mountpoint, self._mode, self._seed = mountpoint, mode, seed
        self._second = lower / "second"
        self.counts = Counts(mounts=1)
        self._shared = Shared()
        self._backing = {} if mode.lies_at_init else _backing_files(lower, "backing", tree.full)
        self._through: dict[int, int] = {}
        if mode.init_flags & wire.FUSE_PASSTHROUGH:
            self._through = _backing_files(lower, "through", tree.through)
        self.fd = _mount(mountpoint, mode, device)
        self._mounted = True
        self._connection: Connection | None = None
        self._attachment: bpf.Attachment | None = None
        self._channels: list[Channel] = []
        try:
            self._answer_init()
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _chance(self, name: str) -> Random:
        return Random(f"{self._seed} {name}")

    def _answer_init(self) -> None:
        request = wire.parse(os.read(self.fd, 1 << 20))
        assert request.opcode == "init"
        flags = sum((*_USUAL, _RESEND)) | self._mode.init_flags
        values = {"major": 7, "minor": 36, "max_readahead": 131072, "max_background": 64}
        values |= {"flags": flags & 0xFFFFFFFF, "flags2": flags >> 32, "max_write": 131072}
        values |= {"congestion_threshold": 48, "time_gran": 1, "max_pages": 32}
        values |= {"max_stack_depth": int(bool(self._mode.init_flags & wire.FUSE_PASSTHROUGH))}
        part = Part(layouts.INIT_OUT, values)
        body = part.encode()
        self.counts.requests["init"] += 1
        if self._mode.lies_at_init:
            chance = self._chance("init")
            mutator = Mutator(chance)
            mutator.change("init", part, chance.choice((1, 1, 3)))
            body = part.encode()
            length = chance.choice((len(body), len(body), 8, 24, chance.randrange(len(body))))
            body = body[:length]
            self.counts.mutated["init", "field" if length == part.layout.size else "short"] += 1
            self.counts.fields += mutator.fields
        try:
            os.write(self.fd, wire.reply(request.unique, 0, body))
        except OSError as error:
            assert self._mode.lies_at_init and error.errno == errno.EINVAL, error

    def _prepare(self) -> None:
        """Attach handlers, set attributes, and make channels."""
        self._connection = Connection(_number(self._mountpoint))
        self._connection.consistency = self._mode.consistency
        if self._mode.handlers:
            self._attachment = bpf.attach(self._connection.id)
        if self._mode.channels:
            self._channels = [Channel(self.fd, cpu, _SLOTS) for cpu in (0, 1)]

    def run(self, seconds: float, is_content: Callable[[], bool] = lambda: True) -> None:
        """Fuzz for some time, or until *is_content* returns false. End everything.

        :raises FoundError: the kernel did what it must never do, or a thread has failed.
        """
        # Before there are threads: a fork copies only the one that forks.
        callers = Callers(self._mountpoint, CALLERS, self._chance("callers").getrandbits(32))
        fuzzers = self._fuzzers()
        with ThreadPoolExecutor(len(fuzzers)) as pool:
            working = [pool.submit(fuzzer.work) for fuzzer in fuzzers]
            serving = [w for w, fuzzer in zip(working, fuzzers, strict=True) if _serves(fuzzer)]
            errors = Errors()
            with errors.noted():
                end = time.monotonic() + seconds
                # Once the daemon has ended, or a thread has failed, nothing more comes.
                while time.monotonic() < end and callers.alive() and is_content():
                    if all(map(Future.done, serving)) or any(map(_has_failed, working)):
                        break
                    wait(working, _POLL_S, FIRST_EXCEPTION)
            callers.tell_to_end()
            with errors.noted():
                self._end(callers)
            for each in working:
                with errors.noted():
                    each.result(_DEADLINE_S)
        with errors.noted():
            callers.end()
        self._count(callers, fuzzers)
        faults = [*self._shared.faults, *callers.faults, *map(repr, errors.found)]
        if faults:
            where = f"seed {self._seed}, {self._mode.name}: "
            raise FoundError(where + "; ".join(faults[:5])) from errors.first

    def _count(self, callers: Callers, fuzzers: list[Fuzzer]) -> None:
        """Add up what the callers and the threads have done, which have ended."""
        self.counts.calls, self.counts.checked = callers.calls, callers.checked
        self.counts.through = callers.through
        for fuzzer in fuzzers:
            fuzzer.add_to(self.counts)
            fuzzer.close()

    def _fuzzers(self) -> list[Fuzzer]:
        assert self._connection
        backing_ids = self._backing_ids()
        sources: list[Channel | None] = [*self._channels, *self._channels] or [None] * 4
        workers: list[Fuzzer] = [
            Worker(
                self._shared,
                Tree(self._chance(f"tree {number}"), self._mode.open_flags, backing_ids),
                self._chance(f"worker {number}"),
                self.fd,
                channel,
                LIES,
            )
            for number, channel in enumerate(sources)
        ]
        if self._mode.lies_at_init:
            return workers
        common, target = Memory(), Target(self.fd, self._channels, self._backing)
        self._second.mkdir(exist_ok=True)
        return [
            *workers,
            *(
                DeviceCaller(self._shared, target, self._chance(f"device {number}"), common)
                for number in range(2)
            ),
            Successor(self._shared, self._second, self._chance("successor"), common),
            Notifier(self._shared, self.fd, self._chance("notifier")),
            AttributeWriter(self._shared, self._connection.path, self._chance("attributes")),
        ]

    def _backing_ids(self) -> dict[int, int]:
        """Hand over the files for FUSE's passthrough; return their IDs by nodeid."""
        number, _ = layouts.DEVICE_IOCTLS["FUSE_DEV_IOC_BACKING_OPEN"]
        return {
            nodeid: fcntl.ioctl(self.fd, number, bytearray(struct.pack("=iIQ", fd, 0, 0)))
            for nodeid, fd in self._through.items()
        }

    def _end(self, callers: Callers) -> None:
        """Unmount, or end the connection. Then every request fails, and so each call returns."""
        assert self._connection
        stats = (self._connection.counts(f"stats/{n}") for n in self._connection.opcodes())
        self.counts.hits = sum(counts["hits"] for counts in stats)
        try:
            if self._mode.unmounts and callers.wait(_ORDERLY_S):
                unmount(str(self._mountpoint))
                self._mounted = False
        finally:
            if self._mounted:
                self._connection.abort()
            self._shared.stop.set()

    def close(self) -> None:
        """Unmount, and close everything."""
        for channel in self._channels:
            channel.close()
        os.close(self.fd)
        for fd in (*self._backing.values(), *self._through.values()):
            os.close(fd)
        if self._mounted:
            unmount(str(self._mountpoint), lazy=True)
        if self._attachment:
            self._attachment.close()


def _backing_files(lower: Path, name: str, content: Callable[[int], bytes]) -> dict[int, int]:
    """Make a backing file of each settled file; return their descriptors by nodeid."""
    found = {}
    for nodeid in tree.FILES.values():
        path = lower / f"{name}-{nodeid}"
        path.write_bytes(content(nodeid))
        found[nodeid] = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    return found
