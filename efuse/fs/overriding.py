# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the kernel may do in a handler's place, and what of it ends where a subclass overrides it.

A class that promises something to the kernel does so for its own handlers. Each says beside itself
what stands in its place (:func:`stands_for`). A handler that a subclass overrides is asked each
time: nothing that stands in its place is used. A handler that says nothing ends all of it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from efuse.fs.guard import HANDLERS
from efuse.fs.options import Options

__all__ = ["Shortcut", "Shortcuts", "applies_umask", "shortcuts", "stands_for"]

F = TypeVar("F", bound=Callable[..., Any])


class Shortcut(enum.Flag):
    """What may stand in a handler's place, besides what FUSE keeps by the time-outs of replies."""

    NONE = 0
    ANSWERS = enum.auto()
    """Answers out of maps to the very same request."""
    HANDLES = enum.auto()
    """Files that the kernel opens by itself (``handleless``)."""
    FLUSH = enum.auto()
    """Closing what was not written (``flush_free``)."""
    READS = enum.auto()
    """Lower files that the kernel reads by itself, and the data cache."""
    WRITES = enum.auto()
    """Lower files that the kernel writes, and the data cache, which learns from writes."""


_EVERYTHING = ~Shortcut.NONE
_MARK = "efuse_stands_for"
_IS_BASE = "efuse_promises_for_subclasses"
"""What a class has, set, whose promises are its own handlers' alone."""
_APPLIES_UMASK = "efuse_applies_umask"
_CREATING = frozenset({"create", "mkdir", "mknod"})
# Members of the built-in set that answer READs, or learn what a WRITE has brought.
_DATA_MEMBERS = frozenset({"block", "read", "write"})


def stands_for(what: Shortcut) -> Callable[[F], F]:
    """Declare what the kernel may do in the place of a handler."""

    def mark(handler: F) -> F:
        setattr(handler, _MARK, what)
        return handler

    return mark


def _promising_class(kind: type) -> type:
    """Return the class whose promises *kind* inherits: one that is made to be subclassed.

    It is *kind* itself otherwise: the author of all handlers of a file system knows what its
    ``efuse_options`` mean.
    """
    return next((base for base in kind.__mro__ if vars(base).get(_IS_BASE)), kind)


def _overridden(operations: object) -> frozenset[str]:
    """Return the handlers that *operations* has in place of those of the class that promises."""
    base = _promising_class(type(operations))
    if not vars(base).get(_IS_BASE):
        return frozenset()
    return frozenset(
        name
        for name in HANDLERS
        if name in vars(operations)
        or getattr(type(operations), name, None) is not getattr(base, name, None)
    )


def applies_umask(operations: object) -> bool:
    """Tell whether the handlers that create files apply the caller's umask themselves.

    It is what the nearest class says that says something of it, about its own handlers: where one
    of them is overridden, the kernel applies the umask before it asks.
    """
    nearer = [getattr(operations, "__dict__", {})]
    for kind in type(operations).__mro__:
        if _APPLIES_UMASK in vars(kind):
            own = bool(vars(kind)[_APPLIES_UMASK])
            return own and not any(name in names for names in nearer for name in _CREATING)
        nearer.append(vars(kind))
    return False


@dataclass(frozen=True)
class Shortcuts:
    """What of a file system's promises is used.

    :ivar options: its promises, less what stands for an overridden handler.
    :ivar without: members of the built-in set that are not attached.
    :ivar reads: whether the kernel may read lower files by itself.
    :ivar writes: whether it may write them, too.
    :ivar overridden: the handlers, sorted.
    """

    options: Options
    without: frozenset[str] = frozenset()
    reads: bool = True
    writes: bool = True
    overridden: tuple[str, ...] = ()

    @property
    def said(self) -> str:
        """One sentence on what is not used and why, or nothing."""
        if not self.overridden:
            return ""
        ends = ["raised time-outs (exclusive)", *sorted(self.without)]
        if not self.reads:
            ends.append("lower files that the kernel reads")
        if not self.writes:
            ends.append("lower files that the kernel writes")
        return f"overrides {', '.join(self.overridden)}: without {', '.join(ends)}"


def shortcuts(options: Options, operations: object) -> Shortcuts:
    """Return what of *options*, which *operations* promises or has inherited, is used.

    Whatever is overridden, ``exclusive`` becomes ``ttl``: the kernel would keep what replies say,
    and what a change is known to do, for longer than the replies allow.
    """
    names = tuple(sorted(_overridden(operations)))
    base = _promising_class(type(operations))
    ended = Shortcut.NONE
    without: set[str] = set()
    for name in names:
        what: Shortcut = getattr(getattr(base, name, None), _MARK, _EVERYTHING)
        ended |= what
        if Shortcut.ANSWERS in what:
            without.add(name)
    if ended & (Shortcut.READS | Shortcut.WRITES):
        without |= _DATA_MEMBERS
    changes: dict[str, Any] = {}
    if names and options.consistency == "exclusive":
        changes["consistency"] = "ttl"
    if Shortcut.HANDLES in ended:
        changes["handleless"] = False
    if Shortcut.FLUSH in ended:
        changes["flush_free"] = False
    reads = Shortcut.READS not in ended
    return Shortcuts(
        replace(options, **changes),
        frozenset(without),
        reads,
        reads and Shortcut.WRITES not in ended,
        names,
    )
