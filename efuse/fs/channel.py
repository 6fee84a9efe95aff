# SPDX-License-Identifier: LGPL-2.1-or-later
"""Give pyfuse3's session a channel. See docs/channels.md and libefuse/python.c."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pyfuse3

from efuse.errors import EfuseError, NotSupportedError, reason
from efuse.libefuse import library

__all__ = ["SessionChannel"]

_WAIT = "_wait_fuse_readable"
"""Name of pyfuse3's function that waits for a request. Its loop looks the function up by name."""


class SessionChannel:
    """The channel of a pyfuse3 session.

    The session is the one that :func:`pyfuse3.init` makes within :meth:`found`.

    :param wanted: whether the session gets a channel. ``EFUSE_CHANNELS=0`` in the environment
        prevents this, too.
    :ivar reason: why the session has no channel although one was wanted, in one sentence; otherwise
        empty.
    """

    def __init__(self, *, wanted: bool) -> None:
        self.reason = ""
        self._functions: Functions | None = None
        self._wait: Callable[[], Awaitable[bool]] | None = None
        if not wanted or os.environ.get("EFUSE_CHANNELS") == "0":
            return
        if not hasattr(pyfuse3, _WAIT):
            self.reason = "this version of pyfuse3 is not known"
            return
        try:
            self._functions = functions()
        except EfuseError as error:
            self.reason = str(error)

    @property
    def is_open(self) -> bool:
        return self._wait is not None

    @contextlib.contextmanager
    def found(self) -> Iterator[None]:
        """Find the session that pyfuse3 makes within the block."""
        if self._functions is None:
            yield
            return
        error = self._functions.watch(os.fsencode(pyfuse3.__file__))
        if error:
            self._give_up(error)
            yield
            return
        try:
            yield
        finally:
            self._functions.unwatch()

    def open(self) -> None:
        """Open the channel. Call this in the thread that runs pyfuse3's loop.

        If the channel cannot be opened, `reason` says why.
        """
        if self._functions is None:
            return
        error = self._functions.open()
        if error:
            self._give_up(error)
            return
        self._wait = getattr(pyfuse3, _WAIT)
        setattr(pyfuse3, _WAIT, _waiting(self._functions, self._wait))

    def close(self) -> None:
        """Close the channel, before pyfuse3 ends the session. Further calls do nothing."""
        if self._wait is not None:
            setattr(pyfuse3, _WAIT, self._wait)
            self._wait = None
        if self._functions is not None:
            self._functions.close()

    def _give_up(self, error: int) -> None:
        assert self._functions is not None
        self.reason = self._functions.reason(error).decode()
        self._functions = None


def _waiting(library: Functions, wait: Callable[[], Awaitable[bool]]) -> Any:
    """Return a function that polls for a request and then, if there is none, calls *wait*."""
    look, rested = library.look, library.rested

    async def look_and_wait() -> bool:
        if look():
            return True
        try:
            return await wait()
        finally:
            rested()

    return look_and_wait


class Functions:
    """The functions of ``libefuse/python.h``.

    ``open``, ``look`` and ``close`` release the GIL, so that other Python threads run while
    ``look`` polls.
    """

    def __init__(self, path: str) -> None:
        others_run, others_wait = ctypes.CDLL(path), ctypes.PyDLL(path)

        def function(library: ctypes.CDLL, name: str, result: Any, *arguments: Any) -> Any:
            found = library[f"efuse_python_{name}"]
            found.restype = result
            found.argtypes = arguments
            return found

        self.watch: Callable[[bytes], int] = function(
            others_wait, "watch", ctypes.c_int, ctypes.c_char_p
        )
        self.unwatch: Callable[[], None] = function(others_wait, "unwatch", None)
        self.open: Callable[[], int] = function(others_run, "open", ctypes.c_int)
        self.look: Callable[[], int] = function(others_run, "look", ctypes.c_int)
        self.rested: Callable[[], None] = function(others_wait, "rested", None)
        self.close: Callable[[], None] = function(others_run, "close", None)
        self.reason: Callable[[int], bytes] = function(
            others_wait, "reason", ctypes.c_char_p, ctypes.c_int
        )


@functools.cache
def functions() -> Functions:
    path = library("libefuse-python.so")
    try:
        return Functions(str(path))
    except OSError as error:
        raise NotSupportedError(
            f"{path.name} cannot be loaded: {reason(error)}", hint="apt-get install fuse3"
        ) from error
