# SPDX-License-Identifier: LGPL-2.1-or-later
"""Decide what the kernel may do instead of calling a handler, even if a subclass overrides some.

The promises of a class are about its own handlers. The decorator :func:`stands_for` at a handler
declares what the kernel may do instead of calling it. If a subclass overrides the handler, or the
class itself has it replaced, the kernel does none of that, so the handler gets every request. A
handler without the decorator counts as one that declares everything in :class:`Shortcut`.
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
    """What the kernel may do instead of calling a handler.

    FUSE's caches, which obey the timeouts of replies, are not part of it.
    """

    NONE = 0
    ANSWERS = enum.auto()
    """Answer the same request from a map."""
    HANDLES = enum.auto()
    """Open files by itself (``no_open``)."""
    FLUSH = enum.auto()
    """Answer FLUSH of a file that was not written (``no_flush``)."""
    READS = enum.auto()
    """Read lower files by itself, and use the data cache."""
    WRITES = enum.auto()
    """Write lower files by itself, and use the data cache, which learns from WRITEs."""


_EVERYTHING = ~Shortcut.NONE
_MARK = "efuse_stands_for"
_OWN = "efuse_promising_handlers"
"""Attribute of a class whose promises are about its own handlers only: those handlers, by name."""
_APPLIES_UMASK = "efuse_applies_umask"
_CREATING = frozenset({"create", "mkdir", "mknod"})
# Members of the built-in set that answer READs or learn from WRITEs.
_DATA_MEMBERS = frozenset({"block", "read", "write"})


def stands_for(what: Shortcut) -> Callable[[F], F]:
    """Return a decorator that declares what the kernel may do instead of calling a handler."""

    def mark(handler: F) -> F:
        setattr(handler, _MARK, what)
        return handler

    return mark


def promises_for_subclasses(kind: C) -> C:
    """Declare that the promises of class *kind* are about its present handlers. A decorator."""
    setattr(kind, _OWN, {name: getattr(kind, name, None) for name in HANDLERS})
    return kind


def _promising_class(kind: type) -> type:
    """Return the decorated class (`promises_for_subclasses`) whose promises *kind* inherits.

    If there is none, return *kind* itself: the author of all its handlers also wrote its
    ``efuse_options``.
    """
    return next((base for base in kind.__mro__ if _OWN in vars(base)), kind)


def _promising_handlers(operations: object) -> dict[str, Any]:
    """Return the handlers that the promises of *operations* are about, by name.

    The result is empty if the promises are about any handlers that *operations* has.
    """
    own: dict[str, Any] = vars(_promising_class(type(operations))).get(_OWN, {})
    return own


def _overridden(operations: object) -> frozenset[str]:
    """Return the names of the handlers that *operations* overrides in the promising class."""
    return frozenset(
        name
        for name, own in _promising_handlers(operations).items()
        if name in vars(operations) or getattr(type(operations), name, None) is not own
    )


def applies_umask(operations: object) -> bool:
    """Tell whether the handlers that create files apply the caller's umask themselves.

    The first class in the method resolution order that sets ``efuse_applies_umask`` decides, for
    its own handlers. If one of these is overridden, the kernel applies the umask before it sends
    the request.
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
    """The promises of a file system that are used.

    :ivar options: the promises, without those that an overridden handler ends.
    :ivar without: members of the built-in set that are not attached.
    :ivar reads: whether the kernel may read lower files by itself.
    :ivar writes: whether the kernel may write lower files by itself.
    :ivar overridden: names of the overridden handlers, sorted.
    """

    options: Options
    without: frozenset[str] = frozenset()
    reads: bool = True
    writes: bool = True
    overridden: tuple[str, ...] = ()

    @property
    def description(self) -> str:
        """What is not used and why, in one sentence; empty if everything is used."""
        if not self.overridden:
            return ""
        ends = ["extended timeouts (exclusive)", *sorted(self.without)]
        if not self.reads:
            ends.append("reads of lower files in the kernel")
        if not self.writes:
            ends.append("writes of lower files in the kernel")
        return f"overrides {', '.join(self.overridden)}: without {', '.join(ends)}"


def shortcuts(options: Options, operations: object) -> Shortcuts:
    """Return the part of *options* that is used for *operations*.

    If any handler is overridden, ``exclusive`` becomes ``ttl``. Otherwise the kernel would keep
    replies, and the known effects of changes, for longer than the timeouts of the replies allow.

    :param options: the promises of *operations*, which it may have inherited.
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
        changes["no_open"] = False
    if Shortcut.FLUSH in ended:
        changes["no_flush"] = False
    reads = Shortcut.READS not in ended
    return Shortcuts(
        replace(options, **changes),
        frozenset(without),
        reads,
        reads and Shortcut.WRITES not in ended,
        names,
    )
