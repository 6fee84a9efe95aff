# SPDX-License-Identifier: LGPL-2.1-or-later
"""Runs of storage functions over a file, at the device on which it lies or in the kernel."""

from __future__ import annotations

import ctypes
import enum
import errno
import fcntl
import os
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass

from efuse.closing import Closing
from efuse.errors import (
    EfuseError,
    NoFunctionError,
    NotSupportedError,
    UnreadableError,
    UsageError,
    reason,
)

__all__ = [
    "CONTROL",
    "Place",
    "Run",
    "Status",
    "Unchained",
    "Why",
    "closed",
    "failure",
    "run",
    "unknown_status",
]

CONTROL = "/dev/csd"
"""The device node through which runs begin, while csd.ko is loaded."""

_SETUP = struct.Struct("<32siIQQQQII")
_STATUS = struct.Struct("<QQ3QQIIQII")
_RESTART = struct.Struct("<QII")
_IOC_RUN = 1 << 30 | _SETUP.size << 16 | 0xC5 << 8
_IOC_STATUS = 2 << 30 | _STATUS.size << 16 | 0xC5 << 8 | 1
_IOC_RESTART = 1 << 30 | _RESTART.size << 16 | 0xC5 << 8 | 2
_READ_BYTES = 256 << 10


class Place(enum.IntEnum):
    """A place where a function runs (``enum csd_place``)."""

    AUTO = 0
    DEVICE = 1
    KERNEL = 2


class Why(enum.IntEnum):
    """Why the kernel looks at blocks instead of the device (``enum csd_why``)."""

    NOT = 0
    NO_DEVICE = 1
    FILESYSTEM = 2
    BLOCK_SIZE = 3
    CONTENT = 4
    UNMAPPED = 5
    FAILED = 6
    ASKED = 7
    DAEMON = 8
    SLOWER = 9

    @property
    def description(self) -> str:
        """The reason in words."""
        return _DESCRIPTIONS[self]


_DESCRIPTIONS = {
    Why.NOT: "the device runs it",
    Why.NO_DEVICE: "the file lies on no device of csd.ko",
    Why.FILESYSTEM: "its file system may move blocks",
    Why.BLOCK_SIZE: "its file system has no blocks of 4096 bytes",
    Why.CONTENT: "the blocks do not contain the file's bytes as they are",
    Why.UNMAPPED: "the file has a hole or shared blocks",
    Why.FAILED: "the device failed",
    Why.ASKED: "it was requested",
    Why.DAEMON: "it is on a FUSE mount, and only the daemon knows where its bytes are",
    Why.SLOWER: "the device was predicted to be slower, or its file forced chose the kernel",
}


class Unchained(enum.IntEnum):
    """Why the kernel reads blocks through the file system (``enum csd_unchained``).

    Otherwise it reads them in a chain, below the file system: as soon as a block has named the next
    one, the kernel submits the read of that block to the device.
    """

    NOT = 0
    FIRST = 1
    FOLLOWS = 2
    FILESYSTEM = 3
    WRITTEN = 4
    CACHED = 5
    WARMS = 6
    UNMAPPED = 7
    FAILED = 8


@dataclass(frozen=True)
class Status:
    """Progress of a run.

    :ivar position: offset in the file of the next block, bytes.
    :ivar end: end of the range, or of the file if that comes first, bytes. For a file whose size
        is 0: where reading has ended so far.
    :ivar device_steps: number of blocks that the device looked at.
    :ivar kernel_steps: number of blocks that the kernel looked at.
    :ivar emitted: bytes of output.
    :ivar done: whether the function has finished.
    :ivar why: why the kernel looked at the last block that it looked at.
    :ivar chained: how many of `kernel_steps` were read in a chain, below the file system.
    :ivar unchained: why the last block that was not read in a chain was not.
    """

    position: int
    end: int
    device_steps: int
    kernel_steps: int
    emitted: int
    done: bool
    why: Why
    chained: int = 0
    unchained: Unchained = Unchained.NOT


class Run(Closing):
    """A run of a function over a file; an iterator of the function's output.

    :param fd: descriptor of the run. This object takes it over and closes it.
    :param name: name of the function, for error messages.
    """

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self._name = name
        os.set_blocking(fd, False)

    def step(self) -> bytes | None:
        """Look at some more blocks and return what the function has emitted.

        :returns: the output; None if there is none yet; ``b""`` when the run is done.
        :raises EfuseError: the function failed, or the file could not be read.
        :raises UsageError: the run is closed.
        """
        self._check_open()
        try:
            return os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise failure(self._name, error.errno or 0) from error

    def __iter__(self) -> Iterator[bytes]:
        while (some := self.step()) != b"":
            if some is not None:
                yield some

    async def stream(self) -> AsyncIterator[bytes]:
        """Iterate over the output. The run proceeds in a thread of trio, and can be cancelled."""
        import trio  # slow to import

        while (some := await trio.to_thread.run_sync(self.step)) != b"":
            if some is not None:
                yield some

    def result(self, progress: Callable[[Status], None] | None = None) -> bytes:
        """Run to the end and return the whole output.

        :param progress: is called with the status now and then.
        :raises EfuseError: the function failed, or the file could not be read.
        """
        parts = []
        while (some := self.step()) != b"":
            if some is not None:
                parts.append(some)
            if progress is not None:
                progress(self.status())
        return b"".join(parts)

    def status(self) -> Status:
        """Return the progress of the run.

        :raises UsageError: the run is closed.
        :raises EfuseError: the loaded csd.ko does not tell it, because it has another version.
        """
        self._check_open()
        raw = bytearray(_STATUS.size)
        try:
            fcntl.ioctl(self._fd, _IOC_STATUS, raw)
        except OSError as error:
            raise unknown_status(self._name, error) from error
        position, end, _, device, kernel, emitted, done, why, chained, because, _ = _STATUS.unpack(
            raw
        )
        place, chain = Why(why), Unchained(because)
        return Status(position, end, device, kernel, emitted, bool(done), place, chained, chain)

    def restart(self, args: bytes = b"") -> None:
        """Restart the run with other arguments. Output that has not been read is lost.

        This is for many small queries of one file: the run keeps what the kernel has found out
        about the file's blocks, so that it can go from block to block below the file system.

        :param args: arguments as the function takes them.
        :raises EfuseError: the function does not take these arguments, or the file cannot be
            looked at.
        :raises UsageError: the run is closed.
        """
        self._check_open()
        buffer = bytearray(args)
        try:
            fcntl.ioctl(self._fd, _IOC_RESTART, _RESTART.pack(_address(buffer), len(args), 0))
        except OSError as error:
            raise _not_begun(self._name, len(args), error) from error

    def _check_open(self) -> None:
        if self._fd < 0:
            raise closed(self._name)

    def close(self) -> None:
        """End the run, even if it is not done."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def run(
    name: str,
    file: int | str | os.PathLike[str],
    args: bytes = b"",
    *,
    offset: int = 0,
    length: int = 0,
    place: Place = Place.AUTO,
    max_steps: int = 0,
) -> Run:
    """Begin a run of a function that is in the kernel.

    :param name: name of the function.
    :param file: a path, or a descriptor that is open for reading.
    :param args: arguments as the function takes them.
    :param offset: beginning of the range in the file, bytes: a multiple of 4096.
    :param length: bytes of the range; 0: to the end of the file.
    :param place: where to run. The kernel does what the device cannot do.
    :param max_steps: most blocks that the run may look at; 0: as many as the range has.
    :raises NoFunctionError: the kernel has no function of this name.
    :raises NotSupportedError: csd.ko is not loaded.
    :raises UnreadableError: only user space can read the file.
    :raises EfuseError: the file cannot be opened, or the run cannot begin for another reason.
    """
    if isinstance(file, int):
        return Run(_begin(name, file, args, offset, length, place, max_steps), name)
    try:
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise EfuseError(
            f"cannot run the storage function {name!r} over {os.fspath(file)}: {reason(error)}",
            hint="name a file that you may read",
        ) from error
    try:
        return Run(_begin(name, fd, args, offset, length, place, max_steps), name)
    finally:
        os.close(fd)


def _begin(
    name: str, fd: int, args: bytes, offset: int, length: int, place: Place, max_steps: int
) -> int:
    raw = name.encode()
    if not 0 < len(raw) < 32:
        raise UsageError(f"cannot run the storage function {name!r}: not a valid name")
    buffer = bytearray(args)
    setup = _SETUP.pack(raw, fd, place, offset, length, max_steps, _address(buffer), len(args), 0)
    try:
        control = os.open(CONTROL, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotSupportedError(
            f"cannot run the storage function {name!r}: csd.ko is not loaded",
            hint="efuse module load --csd",
        ) from error
    except OSError as error:
        raise EfuseError(
            f"cannot run the storage function {name!r}: {CONTROL} cannot be opened:"
            f" {reason(error)}",
            hint=f"ls -l {CONTROL}",
        ) from error
    try:
        return int(fcntl.ioctl(control, _IOC_RUN, bytearray(setup)))
    except FileNotFoundError as error:
        raise NoFunctionError(
            f"cannot run the storage function {name!r}: no such function is loaded (ENOENT)",
            hint=f"efuse csd load {name}",
        ) from error
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            raise UnreadableError(
                f"cannot run the storage function {name!r}: the kernel cannot read the file, only"
                " read(2) can (EOPNOTSUPP)",
                hint=f"efuse csd run {name} --place daemon",
            ) from error
        raise _not_begun(name, len(args), error) from error
    finally:
        os.close(control)


def _not_begun(name: str, args_bytes: int, error: OSError) -> EfuseError:
    hints = {
        errno.EACCES: "it is private to the user who loaded it",
        errno.EMSGSIZE: f"it got {args_bytes} bytes of arguments, but expects another number",
        errno.EBADF: "open the file for reading",
        errno.EISDIR: "name a file",
    }
    return EfuseError(
        f"cannot run the storage function {name!r}: {reason(error)}",
        hint=hints.get(error.errno or 0),
    )


def _address(buffer: bytearray) -> int:
    return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer)) if buffer else 0


_WHYS = {
    errno.ELOOP: "it has read the maximum number of blocks",
    errno.ENOSPC: "it emitted more in one call than it may",
    errno.EOVERFLOW: "a part of the file is longer than the function's memory",
    errno.EUCLEAN: "the file has another format, or is damaged",
    errno.ERANGE: "it asked for a block outside its range",
    errno.EPROTO: "it returned an invalid verdict",
    errno.ESTALE: "it was unloaded meanwhile",
}


def closed(name: str) -> UsageError:
    """Return the exception for a run that was used after it was closed.

    :param name: name of the function.
    """
    return UsageError(
        f"the run of the storage function {name!r} is closed (EBADF)", hint="begin another run"
    )


def unknown_status(name: str, error: OSError) -> EfuseError:
    """Return the exception for a run whose status cannot be read.

    :param name: name of the function.
    :param error: why the status cannot be read.
    """
    hints = {errno.ENOTTY: "load the csd.ko of this version of eFuse: efuse module load --csd"}
    return EfuseError(
        f"cannot read the status of the storage function {name!r}: {reason(error)}",
        hint=hints.get(error.errno or 0, "begin another run"),
    )


def failure(name: str, number: int) -> EfuseError:
    """Return the exception for a function that failed.

    :param name: name of the function.
    :param number: errno with which the function failed.
    """
    why = _WHYS.get(number)
    code = errno.errorcode.get(number, str(number))
    description = f"{why} ({code})" if why else reason(number)
    return EfuseError(f"the storage function {name!r} failed: {description}")
