# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run a function over any file: at the device or in the kernel if possible, else in this process.

This process runs the function's reference implementation, which is in Python.
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
from efuse.functions.loading import Loaded, function_text, load
from efuse.functions.reference import RandomAccess, Streaming
from efuse.functions.running import (
    CONTROL,
    Place,
    Run,
    Status,
    Why,
    closed,
    run,
    unknown_status,
)
from efuse.functions.shipped import Shipped

__all__ = ["WHERE", "Execution", "Outcome", "begin", "begin_loaded"]

WHERE = ("auto", "device", "kernel", "daemon")
"""The places that a user can ask for; ``daemon`` is the calling process."""

_BLOCK = 4096
_PIECE = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """Where a run looked at the blocks.

    :ivar device: number of blocks that the device looked at.
    :ivar kernel: number of blocks that the kernel looked at.
    :ivar daemon: number of blocks that this process looked at.
    :ivar why: why the device did not look at all of them, in words; None: it did.
    :ivar loaded: whether the function was loaded for this run only.
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
        places = ", ".join(parts) or "no blocks"
        return f"{places}: {self.why}" if self.why else places


class Execution(Closing):
    """The execution of a function over a file at any place; an iterator of the function's output.

    :param run: the run, in the kernel or in this process. Closed with this object.
    :param why_here: why the run is in this process, in words; None: it is in the kernel.
    :param loaded: a function that was loaded for this run only. Unloaded with this object.
    """

    def __init__(
        self, run: Run | _ReferenceRun, why_here: str | None = None, loaded: Loaded | None = None
    ) -> None:
        self._run = run
        self._why_here = why_here
        self._loaded = loaded

    def step(self) -> bytes | None:
        """Look at some more blocks and return their output; see `Run.step`."""
        return self._run.step()

    def __iter__(self) -> Iterator[bytes]:
        while (some := self.step()) != b"":
            if some is not None:
                yield some

    def status(self) -> Status:
        """Return the progress of the run; see `Run.status`."""
        return self._run.status()

    def outcome(self) -> Outcome:
        """Return where the run has looked at blocks so far."""
        status = self.status()
        if isinstance(self._run, _ReferenceRun):
            return Outcome(0, 0, self._run.blocks, self._why_here, False)
        why = None if status.why is Why.NOT else status.why.description
        return Outcome(status.device_steps, status.kernel_steps, 0, why, self._loaded is not None)

    def close(self) -> None:
        """End the run, and unload the function if it was loaded for this run only."""
        self._run.close()
        if self._loaded is not None:
            self._loaded.close()


def begin(call: Shipped, file: str | os.PathLike[str], where: str = "auto") -> Execution:
    """Begin to run a shipped function over a file.

    A function that is not in the kernel is loaded for this run only, if possible.

    :param call: the function and its arguments.
    :param file: path of any readable file.
    :param where: one of `WHERE`. The kernel does what the device cannot do. With ``auto``, this
        process does what the kernel cannot do.
    :raises EfuseError: the file cannot be read, or the run cannot begin.
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
        return Execution(_ReferenceRun(call, os.dup(fd)), why_here)
    finally:
        os.close(fd)


def begin_loaded(
    name: str, args: bytes, file: str | os.PathLike[str], where: str = "auto"
) -> Execution:
    """Begin to run a function that is in the kernel over a file; it need not be a shipped one.

    :param name: name of the function.
    :param args: arguments as the function takes them.
    :param file: path of any readable file.
    :param where: one of `WHERE`, except ``daemon``.
    :raises UsageError: *where* is ``daemon``: only shipped functions have a reference
        implementation.
    :raises EfuseError: the file cannot be read, or the run cannot begin.
    """
    if where == "daemon":
        raise UsageError(
            f"the storage function {name!r} cannot run in this process: it has no reference"
            " implementation",
            hint="--place kernel",
        )
    fd = _open(name, file)
    try:
        return Execution(run(name, fd, args, place=_PLACES[where]))
    finally:
        os.close(fd)


_PLACES = {"auto": Place.AUTO, "device": Place.DEVICE, "kernel": Place.KERNEL}


def _open(name: str, file: str | os.PathLike[str]) -> int:
    try:
        # open() in this mode refuses directories.
        with Path(file).open("rb", buffering=0) as opened:
            return os.dup(opened.fileno())
    except OSError as error:
        raise EfuseError(
            f"cannot run the storage function {name!r} over {os.fspath(file)}: {reason(error)}"
        ) from error


def _why_here(fd: int, where: str) -> str | None:
    """Return why the kernel need not be asked, in words, or None if it is to be asked."""
    if where == "daemon":
        return Why.ASKED.description
    if where == "auto":
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            return "it is not a regular file"
        if not Path(CONTROL).exists():
            return "csd.ko is not loaded"
    return None


def _begin_in_kernel(call: Shipped, fd: int, where: str) -> Execution:
    args, place = call.encode(), _PLACES[where]
    try:
        return Execution(run(call.name, fd, args, place=place))
    except NoFunctionError:
        pass
    # A private name: no other process can depend on it, so that unloading it hurts nothing.
    loaded = load(f"{call.name}.{os.getpid()}", function_text(call.name))
    try:
        return Execution(run(loaded.name, fd, args, place=place), loaded=loaded)
    except BaseException:
        loaded.close()
        raise


class _ReferenceRun(Closing):
    """A run of a reference implementation over a file, with the methods of `Run`.

    :ivar blocks: number of blocks that it has looked at.
    """

    def __init__(self, call: Shipped, fd: int) -> None:
        self._name = call.name
        self._file = os.fdopen(fd, "rb")
        if isinstance(call, RandomAccess):
            self._parts = self._walk(call)
        else:
            assert isinstance(call, Streaming)
            self._parts = self._read(call)
        self._position = 0
        self._emitted = 0
        self._done = False
        self.blocks = 0

    def step(self) -> bytes | None:
        self._check_open()
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
        self._check_open()
        try:
            size = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise unknown_status(self._name, error) from error
        end = max(size, self._position)
        return Status(self._position, end, 0, 0, self._emitted, self._done, Why.NOT)

    def _check_open(self) -> None:
        if self._file.closed:
            raise closed(self._name)

    def close(self) -> None:
        self._file.close()

    def _read(self, call: Streaming) -> Iterator[bytes]:
        """Iterate over the output of a reference implementation that takes the file in order."""
        reference = call.stream()
        while data := self._file.read(_PIECE):
            self._position += len(data)
            self.blocks += -(-len(data) // _BLOCK)
            yield reference.step(data)
        yield reference.finish()

    def _walk(self, call: RandomAccess) -> Iterator[bytes]:
        """Iterate over the output of a reference implementation that goes from block to block."""

        def read(number: int) -> bytes:
            self._position = number * _BLOCK
            self.blocks += 1
            return os.pread(self._file.fileno(), _BLOCK, self._position)

        yield call.walk(read)
