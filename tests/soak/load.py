# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mixed load on eFuse: files, mounts that come and go, programs, channels, memory pressure."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import efuse
from efuse import bpf
from efuse.bench.lower import ext4
from efuse.bench.programs import command
from efuse.control import CONSISTENCY, Connection, find
from efuse.errors import ControlError, EfuseError
from efuse.fs.mountpoint import unmount
from tests.commands import EFUSE
from tests.guest.support import wire
from tests.guest.support.channel import Channel
from tests.guest.support.manual_daemon import ManualDaemon, root_attributes
from tests.soak.files import Files

_DEADLINE_S = 600.0
_LOWER_MIB = 64


class _Lasting:
    """A mount that lasts for the whole run.

    :ivar process: the process that was started.
    :ivar daemon: ID of the process that serves the mount.
    """

    def __init__(self, process: subprocess.Popen[bytes], point: Path, lower: Path) -> None:
        self.process = process
        self.daemon = process.pid
        self.connection = Connection(find(point).connection)
        self.files = Files(point, lower, seed=process.pid)
        self._point = point

    def end(self) -> None:
        unmount(str(self._point))
        if status := self.process.wait(_DEADLINE_S):
            raise EfuseError(f"a daemon ended with exit status {status}")


def _started(words: list[str], point: Path, lower: Path) -> _Lasting:
    process = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    end = time.monotonic() + _DEADLINE_S
    while True:
        try:
            lasting = _Lasting(process, point, lower)
            if lasting.connection.ops != "none":
                return lasting
        except ControlError:
            if process.poll() is not None or time.monotonic() > end:
                raise
        time.sleep(0.1)


class Load:
    """The load of a run; see `loaded`.

    :ivar done: how often each kind of work was done.
    """

    def __init__(self, base: Path, lower: Path, steady: _Lasting, run: _Lasting) -> None:
        self._base = base
        self._lower = lower
        self._steady = steady
        self._run = run
        self._random = random.Random(1)
        self.done: Counter[str] = Counter()
        children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text()
        run.daemon = int(children.split()[0])

    @property
    def watched(self) -> Mapping[str, int]:
        """The processes whose descriptors and memory are sampled, by name."""
        return {
            "mount_daemon": self._steady.daemon,
            "run_daemon": self._run.daemon,
            "supervisor": self._run.process.pid,
            "soak": os.getpid(),
        }

    @property
    def compared(self) -> int:
        """Number of compared bytes on the mounts that last."""
        return self._steady.files.compared + self._run.files.compared

    def hits(self) -> int:
        """Return how many requests the kernel has answered on the mounts that last."""
        found = 0
        for one in (self._steady, self._run):
            stats = (one.connection.counts(f"stats/{n}") for n in one.connection.opcodes())
            found += sum(counts["hits"] for counts in stats)
        return found

    def round(self) -> None:
        """Do some work of each kind."""
        number = self.done["rounds"]
        self._steady.files.work()
        self._run.files.work()
        self._replace_programs()
        self._mount_and_unmount(killed=number % 4 == 3)
        self._resize_channels()
        if number % 8 == 7:
            self._need_memory()
        self.done["rounds"] += 1

    def _replace_programs(self) -> None:
        for one in (self._steady, self._run):
            before = one.connection.enable_seq
            with bpf.Attachment.open(one.connection.id) as attachment:
                attachment.replace(capacity={"attrs": self._random.choice((4096, 8192))})
            assert one.connection.enable_seq > before, "no programs were replaced"
            one.files.compare()
            self.done["replacements"] += 1

    def _mount_and_unmount(self, *, killed: bool) -> None:
        with tempfile.TemporaryDirectory(dir=self._lower) as source:
            point = self._base / "passing"
            point.mkdir(exist_ok=True)
            operations = efuse.Passthrough(
                source,
                consistency=self._random.choice(CONSISTENCY),
                writeback=self._random.random() < 0.5,
            )
            try:
                mounted = efuse.mount(operations, point, required=True)
                with mounted as one:
                    Files(point, Path(source), seed=self.done["rounds"]).work()
                    if killed:
                        os.kill(one.pid, signal.SIGKILL)
                        self.done["killed daemons"] += 1
            except EfuseError:
                # The context reports that its daemon was killed.
                if not killed:
                    raise
            finally:
                operations.close()
            if killed:
                with contextlib.suppress(OSError):
                    unmount(str(point), lazy=True)
        self.done["mounts"] += 1

    def _resize_channels(self) -> None:
        """Serve a mount by channels of one size after the other."""
        point = self._base / "channels"
        point.mkdir(exist_ok=True)
        daemon = ManualDaemon(point, cpus=(0,))
        try:
            for _ in range(3):
                slots, slot_size = (
                    self._random.choice((1, 4, 16)),
                    self._random.choice((8, 64, 256)),
                )
                channel = Channel(daemon.fd, 0, slots, slot_size << 10)
                size = daemon.ask(0)
                message = channel.next()
                answer = wire.reply(message.request.unique, 0, root_attributes(slots))
                channel.reply(message.slot, channel.put(message.slot, answer))
                assert size.result(_DEADLINE_S) == slots
                channel.close()
                self.done["channels"] += 1
        finally:
            daemon.close()

    def _need_memory(self) -> None:
        """Touch most of the free memory in a process, so that the kernel reclaims its caches."""
        text = Path("/proc/meminfo").read_text()
        free = int(text.partition("MemFree:")[2].split()[0]) << 10
        pid = os.fork()
        if not pid:
            status = 1
            try:
                with mmap.mmap(-1, free + (16 << 20), mmap.MAP_PRIVATE) as memory:
                    for at in range(0, len(memory), mmap.PAGESIZE):
                        memory[at] = 1
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "no memory was left"
        for one in (self._steady, self._run):
            one.files.compare()
        self.done["times of memory pressure"] += 1


def _directory(parent: Path, name: str) -> Path:
    path = parent / name
    path.mkdir()
    return path


@contextlib.contextmanager
def loaded() -> Iterator[Load]:
    """Mount what lasts, and yield the load. All is unmounted at the end."""
    with contextlib.ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="efuse-soak-")))
        lower = stack.enter_context(ext4(_LOWER_MIB))
        words: dict[str, Callable[[Path, Path], list[str]]] = {
            "steady": lambda source, point: [
                *(*EFUSE, "mount", "passthrough", "--consistency", "exclusive", "--require", "-f"),
                *(str(source), str(point)),
            ],
            "run": lambda source, point: [
                *(*EFUSE, "run", "--"),
                *command("passthrough_ll", "efuse", source, point),
            ],
        }
        lasting = []
        for name, its_words in words.items():
            source, point = _directory(lower, name), _directory(base, name)
            one = _started(its_words(source, point), point, source)
            stack.callback(one.end)
            lasting.append(one)
        yield Load(base, lower, *lasting)
