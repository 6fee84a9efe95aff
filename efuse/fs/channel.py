# SPDX-License-Identifier: LGPL-2.1-or-later
"""Gives pyfuse3's session a channel: see docs/channels.md and libefuse/python.c."""

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
"""pyfuse3's function by which a task waits for a request; its loop looks it up by name."""


class SessionChannel:
    """The channel of the session that :func:`pyfuse3.init` makes within :meth:`found`.

    :param wanted: whether it shall have one. ``EFUSE_CHANNELS=0`` in the environment says no.
    :ivar reason: why it has none although one was wanted, in one sentence; or empty.
    """

    def __init__(self, *, wanted: bool) -> None:
        self.reason = ""
        self._functions: Functions | None = None
        self._wait: Callable[[], Awaitable[bool]] | None = None
        if not wanted or os.environ.get("EFUSE_CHANNELS") == "0":
            return
        if not hasattr(pyfuse3, _WAIT):
            self.reason = "this pyfuse3 is not known"
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
        """Learn which session pyfuse3 makes within the block."""
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
        """Open it, in the thread that runs pyfuse3's loop; if it cannot be, `reason` says why."""
        if self._functions is None:
            return
        error = self._functions.open()
        if error:
            self._give_up(error)
            return
        self._wait = getattr(pyfuse3, _WAIT)
        setattr(pyfuse3, _WAIT, _waiting(self._functions, self._wait))

    def close(self) -> None:
        """Close it, before pyfuse3 ends the session; again is no error."""
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
    """Return a function that polls for a request before it waits as *wait* does."""
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

    While it polls, other threads of Python's run.
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
            f"{path.name} cannot be loaded: {reason(error)}", hint="apt-get install libfuse3-3"
        ) from error
