# SPDX-License-Identifier: LGPL-2.1-or-later
"""Attach the built-in handlers to an eFuse mount, and declare its promises to the kernel.

``efuse.bpf`` and ``efuse.control`` are imported in functions, so only for an eFuse mount.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from efuse.errors import EfuseError, MountError
from efuse.fs.events import Events
from efuse.fs.options import Options
from efuse.fs.overriding import Shortcuts

if TYPE_CHECKING:
    from efuse.bpf import Attachment, DataCache, PublishedEntry
    from efuse.bpf.maps import BpfMap
    from efuse.bpf.spec import Spec
    from efuse.control import Connection

__all__ = ["Acceleration", "accelerate", "compile_set", "declare"]


class Acceleration:
    """The connection of an eFuse mount, and the handlers attached to it."""

    def __init__(self, connection: Connection, attachment: Attachment) -> None:
        self._connection = connection
        self._attachment = attachment
        self._events: weakref.ref[Events] | None = None
        self._cache: DataCache | None = None

    @property
    def connection(self) -> int:
        """The connection's number below /sys/fs/efuse."""
        return self._connection.id

    @property
    def maps(self) -> Mapping[str, BpfMap[Any, Any]]:
        """The typed maps by name."""
        return self._attachment.maps

    def invalidate_all(self) -> None:
        """Make everything void that the kernel has learned or that was published.

        :raises ControlError: the file system has been unmounted.
        """
        self._connection.invalidate()

    def withdraw(self, changes: Mapping[str, str | bool]) -> None:
        """Change declarations, and make everything void that the kernel has learned.

        :param changes: new values of fields of :class:`efuse.fs.options.Options`, by name.
        :raises ControlError: the file system has been unmounted.
        """
        for name, value in changes.items():
            setattr(self._connection, name, value)
        self._connection.invalidate()

    def epoch(self) -> int:
        """Return the connection's current epoch.

        :raises ControlError: the file system has been unmounted.
        """
        return self._connection.epoch

    def publish(self, entries: Iterable[PublishedEntry], *, epoch: int, uid: int, gid: int) -> int:
        """Write *entries* into the maps, and return how many were stored.

        See :func:`efuse.bpf.publish`.

        :raises AttachError: a map is full.
        """
        from efuse.bpf import publish

        return publish(self.maps, entries, epoch=epoch, uid=uid, gid=gid)

    def publish_data(
        self,
        inode: int,
        offset: int,
        data: bytes | bytearray | memoryview,
        *,
        epoch: int,
        valid_ns: int,
        end: bool,
    ) -> int:
        """Write blocks into the data cache, and return how many were stored.

        See :meth:`efuse.bpf.DataCache.publish`.
        """
        from efuse.bpf import DataCache

        if self._cache is None:
            self._cache = DataCache(self.maps)
        return self._cache.publish(
            inode, offset, data, epoch=epoch, valid_ns=valid_ns, end=end
        ).stored

    def events(self) -> Events:
        """Return the events from now on.

        :raises MountError: the events of an earlier call are still open.
        :raises AttachError: the kernel does not let this process read the events.
        """
        from efuse.bpf import Listener

        current = self._listening()
        if current is not None and not current.closed:
            raise MountError(
                "the events of a mount cannot be awaited twice at the same time (EBUSY)",
                hint="close() the first iterator, or forward its events",
            )
        events = Events(Listener(self.maps))
        self._events = weakref.ref(events)
        return events

    def close(self) -> None:
        """Detach the handlers. It does no harm if the mount is already gone."""
        current = self._listening()
        if current is not None:
            current.close()
        if self._cache is not None:
            self._cache.close()
        self._attachment.close()

    def _listening(self) -> Events | None:
        return self._events() if self._events is not None else None


def declare(connection: Connection, options: Options) -> None:
    """Declare the promises and the largest sizes of requests to the kernel.

    :raises ControlError: the kernel refused a value.
    """
    connection.consistency = options.consistency
    for name in options.declarations():
        setattr(connection, name, getattr(options, name))
    connection.revalidate = options.revalidate
    # The kernel refuses a smaller value: FUSE may be making a request of the old size.
    if options.max_request > connection.max_request:
        connection.max_request = options.max_request
    connection.max_readdir = options.max_readdir


_LONGEST_NAME = 31
"""Length of a program set's name, in bytes. The kernel cuts off the rest."""


def _set_name(overridden: tuple[str, ...]) -> str:
    if not overridden:
        return "efuse"
    name = f"efuse-less.{'.'.join(overridden)}"
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 3]}..."


def compile_set(used: Shortcuts, handlers: Mapping[str, str]) -> Spec:
    """Return the program set of a mount: the built-in handlers with *handlers* in front of them.

    This imports modules, and reads and compiles files. If a mount of this process covered them, the
    process would wait for its own answers. So call this before the mount.

    :param used: the built-in handlers to leave out.
    :param handlers: C texts of further handlers, by opcode.
    :raises EfuseError: a text does not compile, or defines no handler of its opcode.
    """
    from efuse import bpf, control  # noqa: F401  # accelerate() uses both

    return bpf.compile_handlers(handlers, without=used.without)


def accelerate(
    number: int,
    used: Shortcuts,
    programs: Spec,
    *,
    check: Callable[[], None] = lambda: None,
) -> Acceleration:
    """Declare the promises in *used* and attach *programs* to connection *number*.

    The name of the program set lists the overridden handlers. ``efuse stat`` shows this name.

    :param used: the promises to declare.
    :param programs: the result of `compile_set`.
    :param check: raises an `EfuseError` if connection *number* is not, or no longer, the connection
        of the intended mount. The kernel gives the number of an unmounted connection to the next
        one.
    :raises EfuseError: the kernel refused a declaration or a program, or *check* raised.
    """
    from efuse import bpf, control

    try:
        connection = control.Connection(number)
        connection.pin()
        # The pin comes first, so that the promises go to the connection that is checked now.
        check()
        declare(connection, used.options)
        attachment = bpf.attach(
            number,
            name=_set_name(used.overridden),
            capacity=dict(used.options.capacity),
            spec=programs,
        )
    except EfuseError:
        check()
        raise
    try:
        check()
    except EfuseError:
        attachment.close()
        raise
    return Acceleration(connection, attachment)
