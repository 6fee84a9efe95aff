# SPDX-License-Identifier: LGPL-2.1-or-later
"""Keep a mistake in one handler from ending the whole mount.

In pyfuse3, an exception other than FUSEError or a result of the wrong type ends the main loop and
with it the mount. The guard is a wrapper between pyfuse3 and the file system. It also ends a
process that a handler has forked and that would go on as a second daemon of the mount.
"""

from __future__ import annotations

import errno
import functools
import linecache
import logging
import os
import sys
import textwrap
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn

import pyfuse3

from efuse.display import shown, shown_lines
from efuse.fs.forking import Maker
from efuse.fs.handing_out import HANDS_OUT, begin_reply

__all__ = ["HANDLERS", "Guard"]

_log = logging.getLogger("efuse.fs")

ACLS = frozenset({b"system.posix_acl_access", b"system.posix_acl_default"})
"""Extended attributes that hold access control lists."""

_UINT64 = 1 << 64
_LARGEST_ERRNO = 511
"""The largest errno in a reply of FUSE. Numbers from 512 on are internal to the kernel."""
_ENOTSUPP = 524
"""The kernel's internal ENOTSUPP. Some file systems return it by mistake instead of EOPNOTSUPP."""


def _nothing(result: Any) -> bool:
    return True


# isinstance(), without a function of Python.
_is_bytes: Callable[[Any], bool] = bytes.__instancecheck__
_is_entry: Callable[[Any], bool] = pyfuse3.EntryAttributes.__instancecheck__
_is_info: Callable[[Any], bool] = pyfuse3.FileInfo.__instancecheck__


def _is_handle(result: Any) -> bool:
    return isinstance(result, int) and 0 <= result < _UINT64


def _is_buffer(result: Any) -> bool:
    try:
        return memoryview(result).contiguous
    except TypeError:
        return False


def _is_created(result: Any) -> bool:
    return (
        isinstance(result, tuple)
        and len(result) == 2
        and _is_info(result[0])
        and _is_entry(result[1])
    )


def _is_names(result: Any) -> bool:
    return isinstance(result, list | tuple) and all(isinstance(name, bytes) for name in result)


# For each handler, a function that tells whether a result is valid.
HANDLERS: dict[str, Callable[[Any], bool]] = {
    "lookup": _is_entry,
    "getattr": _is_entry,
    "setattr": _is_entry,
    "readlink": lambda result: isinstance(result, bytes) and b"\0" not in result,
    "mknod": _is_entry,
    "mkdir": _is_entry,
    "unlink": _nothing,
    "rmdir": _nothing,
    "symlink": _is_entry,
    "rename": _nothing,
    "link": _is_entry,
    "open": _is_info,
    "read": _is_buffer,
    "write": _is_handle,
    "flush": _nothing,
    "release": _nothing,
    "fsync": _nothing,
    "poll": lambda result: result is None or (isinstance(result, int) and 0 <= result < 1 << 32),
    "opendir": _is_handle,
    "readdir": _nothing,
    "releasedir": _nothing,
    "fsyncdir": _nothing,
    "statfs": lambda result: isinstance(result, pyfuse3.StatvfsData),
    "setxattr": _nothing,
    "getxattr": _is_bytes,
    "listxattr": _is_names,
    "removexattr": _nothing,
    "access": _nothing,
    "create": _is_created,
}


class Guard:
    """Pass pyfuse3's requests to *operations*, and turn any mistake in a handler into EIO.

    :param operations: the file system, of any class with pyfuse3's handlers.
    :param failed: called with the handler's name for each exception that became EIO.
    :param called: called with the handler's name for each request.
    """

    def __init__(
        self,
        operations: pyfuse3.Operations,
        *,
        failed: Callable[[str], None],
        called: Callable[[str], None],
    ) -> None:
        self._operations = operations
        self._failed = failed
        self._called = called
        self._logged: set[tuple[str, str]] = set()
        self._maker = Maker()
        for name, valid in HANDLERS.items():
            handler = getattr(operations, name, None)
            if handler is not None:
                setattr(self, name, self._guarded(name, handler, valid))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operations, name)

    async def forget(self, inode_list: Sequence[tuple[int, int]]) -> None:
        """Pass on a FORGET, which has no reply that could carry an error."""
        self._called("forget")
        try:
            await self._operations.forget(inode_list)
        except Exception as error:  # noqa: BLE001 - counted and logged, the mount goes on
            self._report("forget", error)
        finally:
            if not self._maker.is_this_process():
                _end_forked("forget")

    def _guarded(
        self, name: str, handler: Callable[..., Awaitable[Any]], valid: Callable[[Any], bool]
    ) -> Callable[..., Awaitable[Any]]:
        called = self._called
        is_this_process = self._maker.is_this_process
        hands_out = name in HANDS_OUT

        @functools.wraps(handler)
        async def guarded(*arguments: Any) -> Any:
            called(name)
            reply = None
            try:
                if hands_out:
                    reply = begin_reply()
                result = await handler(*arguments)
                if valid(result):
                    return result
                raise TypeError(f"{name} returned {result!r}")
            except pyfuse3.FUSEError as error:
                if (
                    name == "getxattr"
                    and arguments[1] in ACLS
                    and error.errno in (errno.EOPNOTSUPP, _ENOTSUPP)
                ):
                    # A kernel that checks ACLs would refuse every user except the owner.
                    raise pyfuse3.FUSEError(errno.ENODATA) from None
                if 0 <= error.errno <= _LARGEST_ERRNO:
                    raise
                raise pyfuse3.FUSEError(self._meant(name, error.errno)) from None
            except Exception as error:  # noqa: BLE001 - counted, logged, and EIO to the caller
                self._report(name, error)
                raise pyfuse3.FUSEError(errno.EIO) from None
            finally:
                if reply is not None:
                    reply.to_come = False
                if not is_this_process():
                    _end_forked(name)

        return guarded

    def _meant(self, name: str, number: int) -> int:
        """Return a valid errno for *number*, which FUSE refuses. Log the replacement once."""
        meant = errno.EOPNOTSUPP if number == _ENOTSUPP else errno.EIO
        if (name, str(number)) not in self._logged:
            self._logged.add((name, str(number)))
            _log.warning(
                "%s failed with errno %d, which is unknown to programs: the caller gets %s",
                name,
                number,
                errno.errorcode[meant],
            )
        return meant

    def _report(self, name: str, error: Exception) -> None:
        """Count and log *error*, with the traceback only once for each place and type."""
        self._failed(name)
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        line = place.tb_lineno if place is not None else 0
        key = (name, f"{type(error).__qualname__}:{line}")
        trace = "" if key in self._logged else _traceback(error)
        self._logged.add(key)
        _log.error(
            "%s failed: %s: %s (EIO to the caller)%s",
            name,
            type(error).__name__,
            shown(_text(error)),
            trace,
        )


def _end_forked(name: str) -> NoReturn:
    """End a process that a handler has forked, when it returns from the handler or raises.

    Such a process has the daemon's descriptors. It would reply a second time, take further
    requests, and unmount the file system at its end.
    """
    error = sys.exception()
    status = 1
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        status = error.code or 0
    else:
        _log.error("a process that %s has forked is ended: it must call os._exit()", name)
    os._exit(status)


def _text(error: Exception) -> str:
    """Return the message of *error*, even if its ``__str__`` fails."""
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 - the file system's own code, too
        return f"<its __str__ failed: {type(failure).__name__}>"


def _traceback(error: Exception) -> str:
    """Return the traceback for a log, with control characters escaped.

    It has no lines of source: the files may lie below the mount that this thread serves, so that
    it would wait for itself.
    """
    linecache.clearcache()  # the module traceback looks whether known files have changed
    described = traceback.TracebackException.from_exception(error, lookup_lines=False)
    _leave_out_source(described)
    trace = "".join(described.format()).rstrip()
    return "\n" + textwrap.indent(shown_lines(trace), "    ")


def _leave_out_source(described: traceback.TracebackException) -> None:
    """Replace the frames of *described*, which read lines of source when they are formatted."""
    left = [described]
    while left:
        one = left.pop()
        one.stack = traceback.StackSummary.from_list(
            [(frame.filename, frame.lineno or 0, frame.name, "") for frame in one.stack]
        )
        related = (one.__cause__, one.__context__, *(one.exceptions or ()))
        left += [other for other in related if other is not None]
