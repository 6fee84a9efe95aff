# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the kernel may do in a handler's place, and what of it ends where a subclass overrides it.

A class that promises something to the kernel does so for its own handlers. Each says beside itself
what stands in its place (:func:`stands_for`). A handler that a subclass overrides, or that has
been replaced in the class itself, is asked each time: nothing that stands in its place is used. A
handler that says nothing ends all of it.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from efuse.fs.guard import HANDLERS
from efuse.fs.options import Options

__all__ = [
    "Shortcut",
    "Shortcuts",
    "applies_umask",
    "promises_for_subclasses",
    "shortcuts",
    "stands_for",
]

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


class Shortcut(enum.Flag):
    """What may stand in a handler's place, besides what FUSE keeps by the timeouts of replies."""

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
_OWN = "efuse_promising_handlers"
"""What a class has whose promises are its own handlers' alone: these, by name."""
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


def promises_for_subclasses(kind: C) -> C:
    """Declare that what a class promises, it promises for the handlers that it has now."""
    setattr(kind, _OWN, {name: getattr(kind, name, None) for name in HANDLERS})
    return kind


def _promising_class(kind: type) -> type:
    """Return the class whose promises *kind* inherits: one that is made to be subclassed.

    It is *kind* itself otherwise: the author of all handlers of a file system knows what its
    ``efuse_options`` mean.
    """
    return next((base for base in kind.__mro__ if _OWN in vars(base)), kind)


def _promising_handlers(operations: object) -> dict[str, Any]:
    """Return the handlers that the promises of *operations* are about, if not about any."""
    own: dict[str, Any] = vars(_promising_class(type(operations))).get(_OWN, {})
    return own


def _overridden(operations: object) -> frozenset[str]:
    """Return the handlers that *operations* has in place of those of the class that promises."""
    return frozenset(
        name
        for name, own in _promising_handlers(operations).items()
        if name in vars(operations) or getattr(type(operations), name, None) is not own
    )


def applies_umask(operations: object) -> bool:
    """Tell whether the handlers that create files apply the caller's umask themselves.

    It is what the nearest class says that says something of it, about its own handlers: where one
    of them is overridden, the kernel applies the umask before it asks.
    """
    nearer = [getattr(operations, "__dict__", {})]
    for kind in type(operations).__mro__:
        if _APPLIES_UMASK in vars(kind):
            says = bool(vars(kind)[_APPLIES_UMASK])
            own = vars(kind).get(_OWN, {})
            replaced = {name for name in own if getattr(kind, name, None) is not own[name]}
            return says and not any(_CREATING & set(names) for names in (*nearer, replaced))
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
    own = _promising_handlers(operations)
    ended = Shortcut.NONE
    without: set[str] = set()
    for name in names:
        what: Shortcut = getattr(own[name], _MARK, _EVERYTHING)
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
