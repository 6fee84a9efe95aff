# SPDX-License-Identifier: LGPL-2.1-or-later
"""A function over any file: at the device or in the kernel where that can be, else in this process.

What this process does it does by the function's twin in Python.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from efuse.closing import Closing
from efuse.errors import (
    EfuseError,
    NoFunctionError,
    NotSupportedError,
    UnreadableError,
    UsageError,
    reason,
)
from efuse.functions.catalog import Shipped
from efuse.functions.loading import Loaded, function_text, load
from efuse.functions.running import CONTROL, Place, Run, Status, Why, run
from efuse.functions.twin import InPieces, Walking

__all__ = ["WHERE", "Outcome", "Work", "begin", "begin_loaded"]

WHERE = ("auto", "device", "kernel", "daemon")
"""Where a person may want it; ``daemon`` is this process."""

_BLOCK = 4096
_PIECE = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """Which way was taken.

    :ivar device: blocks that the device looked at.
    :ivar kernel: blocks that the kernel looked at.
    :ivar daemon: blocks that this process looked at.
    :ivar why: they were not the device's, in words; None: they were.
    :ivar loaded: the function was loaded for this alone.
    """

    device: int
    kernel: int
    daemon: int
    why: str | None
    loaded: bool

    def __str__(self) -> str:
        parts = [
            f"{count} {'block' if count == 1 else 'blocks'} {where}"
            for count, where in (
                (self.device, "at the device"),
                (self.kernel, "in the kernel"),
                (self.daemon, "in this process"),
            )
            if count
        ]
        said = ", ".join(parts) or "no blocks"
        return f"{said}: {self.why}" if self.why else said


class Work(Closing):
    """A function on its way through a file, wherever it is; an iterator of what it emits.

    :param run: of it.
    :param why_here: why it is in this process; None: it is in the kernel.
    :param loaded: what is to be unloaded behind it.
    """

    def __init__(
        self, run: Run | _TwinRun, why_here: str | None = None, loaded: Loaded | None = None
    ) -> None:
        self._run = run
        self._why_here = why_here
        self._loaded = loaded

    def go_on(self) -> bytes | None:
        """Take it on by some blocks; as `Run.go_on`."""
        return self._run.go_on()

    def __iter__(self) -> Iterator[bytes]:
        while (some := self.go_on()) != b"":
            if some is not None:
                yield some

    def status(self) -> Status:
        """Return how far it is."""
        return self._run.status()

    def outcome(self) -> Outcome:
        """Return which way it has taken so far."""
        status = self.status()
        if isinstance(self._run, _TwinRun):
            return Outcome(0, 0, self._run.blocks, self._why_here, False)
        why = None if status.why is Why.NOT else status.why.said
        return Outcome(status.device_steps, status.kernel_steps, 0, why, self._loaded is not None)

    def close(self) -> None:
        """End it."""
        self._run.close()
        if self._loaded is not None:
            self._loaded.close()


def begin(call: Shipped, file: str | os.PathLike[str], where: str = "auto") -> Work:
    """Begin to run a function that is shipped over a file.

    A function that is not in the kernel is loaded for this alone, if that can be.

    :param call: of the function.
    :param file: any that can be read.
    :param where: one of `WHERE`. What the device cannot do, the kernel does; with ``auto``, what
        the kernel cannot do, this process does.
    :raises EfuseError: the file cannot be read, or the function not be begun.
    """
    fd = _open(call.name, file)
    try:
        why_here = _why_here(fd, where)
        if why_here is None:
            try:
                return _begin_in_kernel(call, fd, where)
            except UnreadableError:
                if where != "auto":
                    raise
                why_here = "the kernel cannot read the file, only read(2) can"
            except NotSupportedError as error:
                if where != "auto":
                    raise
                why_here = f"{call.name} is not loaded, and cannot be: {error}"
        return Work(_TwinRun(call, os.dup(fd)), why_here)
    finally:
        os.close(fd)


def begin_loaded(name: str, args: bytes, file: str | os.PathLike[str], where: str = "auto") -> Work:
    """Begin to run any function that is in the kernel over a file.

    :param name: of the function.
    :param args: what it wants.
    :raises UsageError: it is wanted in this process: only functions that are shipped have a twin.
    :raises EfuseError: as `begin`.
    """
    if where == "daemon":
        raise UsageError(
            f"the storage function {name!r} cannot run in this process: it has no twin in Python",
            hint="--place kernel",
        )
    fd = _open(name, file)
    try:
        return Work(run(name, fd, args, place=_PLACES[where]))
    finally:
        os.close(fd)


_PLACES = {"auto": Place.AUTO, "device": Place.DEVICE, "kernel": Place.KERNEL}


def _open(name: str, file: str | os.PathLike[str]) -> int:
    try:
        # With this mode a directory is refused.
        with Path(file).open("rb", buffering=0) as opened:
            return os.dup(opened.fileno())
    except OSError as error:
        raise EfuseError(
            f"cannot run the storage function {name!r} over {os.fspath(file)}: {reason(error)}"
        ) from error


def _why_here(fd: int, where: str) -> str | None:
    """Return why the kernel is not even asked, if it is not."""
    if where == "daemon":
        return Why.ASKED.said
    if where == "auto":
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            return "it is no regular file"
        if not Path(CONTROL).exists():
            return "csd.ko is not loaded"
    return None


def _begin_in_kernel(call: Shipped, fd: int, where: str) -> Work:
    args, place = call.encode(), _PLACES[where]
    try:
        return Work(run(call.name, fd, args, place=place))
    except NoFunctionError:
        pass
    # Under a name of its own: nobody else uses it, who would miss it at the end.
    loaded = load(f"{call.name}.{os.getpid()}", function_text(call.name))
    try:
        return Work(run(loaded.name, fd, args, place=place), loaded=loaded)
    except BaseException:
        loaded.close()
        raise


class _TwinRun(Closing):
    """A twin on its way through a file, as `Run` is in the kernel.

    :ivar blocks: that it has looked at.
    """

    def __init__(self, call: Shipped, fd: int) -> None:
        self._name = call.name
        self._file = os.fdopen(fd, "rb")
        if isinstance(call, Walking):
            self._parts = self._walk(call)
        else:
            assert isinstance(call, InPieces)
            self._parts = self._read(call)
        self._position = 0
        self._emitted = 0
        self._done = False
        self.blocks = 0

    def go_on(self) -> bytes | None:
        try:
            some = next(self._parts, None)
        except OSError as error:
            raise EfuseError(
                f"the storage function {self._name!r} failed: {reason(error)}"
            ) from error
        if some is None:
            self._done = True
            return b""
        self._emitted += len(some)
        return some or None

    def status(self) -> Status:
        end = max(os.fstat(self._file.fileno()).st_size, self._position)
        return Status(self._position, end, 0, 0, self._emitted, self._done, Why.NOT)

    def close(self) -> None:
        self._file.close()

    def _read(self, call: InPieces) -> Iterator[bytes]:
        """Iterate what the twin emits over one piece of the file after the other."""
        twin = call.twin()
        while data := self._file.read(_PIECE):
            self._position += len(data)
            self.blocks += -(-len(data) // _BLOCK)
            yield twin.step(data)
        yield twin.finish()

    def _walk(self, call: Walking) -> Iterator[bytes]:
        """Iterate what the twin emits as it goes from block to block."""

        def read(number: int) -> bytes:
            self._position = number * _BLOCK
            self.blocks += 1
            return os.pread(self._file.fileno(), _BLOCK, self._position)

        yield call.walk(read)
