# SPDX-License-Identifier: LGPL-2.1-or-later
"""Attach program sets to connections, replace them, detach them, and list them."""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from efuse.bpf import libbpf, pins
from efuse.bpf.compose import Handlers, compile_handlers
from efuse.bpf.load import (
    Target,
    create_maps,
    create_set,
    describe_cache,
    load_programs,
    open_target,
)
from efuse.bpf.maps import BpfMap, mapping
from efuse.bpf.members import EFUSE_OPS
from efuse.bpf.spec import MAP_RINGBUF, MapSpec, Spec
from efuse.bpf.struct_ops import struct_ops_links, value_of
from efuse.closing import Closing
from efuse.errors import AttachError, UsageError, reason
from efuse.kernel_fs import BPFFS, mount_bpffs

__all__ = [
    "Attached",
    "Attachment",
    "Verified",
    "attach",
    "check",
    "list_attached",
    "pin_directory",
    "unpin",
]

_LINK = "link"


@dataclass(frozen=True)
class Verified:
    """Size and verification cost of one member's program.

    :param member: member of ``struct efuse_ops``.
    :param instructions: number of instructions in the program.
    :param verified_instructions: number of instructions that the verifier processed. It measures
        the cost of loading the program.
    """

    member: str
    instructions: int
    verified_instructions: int


@dataclass(frozen=True)
class Attached:
    """One attached program set, of any process.

    :param connection: number of the connection that it is attached to.
    :param name: name of the set in sysfs.
    :param members: members of ``struct efuse_ops`` that it implements.
    :param maps: names of its maps.
    :param link_id: BPF link id.
    """

    connection: int
    name: str
    members: tuple[str, ...]
    maps: tuple[str, ...]
    link_id: int


def pin_directory(connection: int) -> Path:
    """Return the default directory for the pins of a connection's program set."""
    return BPFFS / "efuse" / str(connection)


class Attachment(Closing):
    """A program set on a connection: its link and its maps. A context manager.

    Closing it detaches the set, unless the link is pinned or another process holds it.
    """

    def __init__(
        self, connection: int, name: str, link_fd: int, maps: Mapping[str, BpfMap[Any, Any]]
    ) -> None:
        self.connection = connection
        """Number of the connection: the name of its directory in sysfs, as a decimal number."""
        self.name = name
        """Name of the set in sysfs."""
        self._link_fd = link_fd
        self._maps = dict(maps)
        self._pins: Path | None = None

    @property
    def maps(self) -> Mapping[str, BpfMap[Any, Any]]:
        """The maps by name: ``entries``, ``attrs``, ..., and those of custom handlers."""
        return MappingProxyType(self._maps)

    @classmethod
    def open(cls, connection: int) -> Self:
        """Open the program set of a connection, whichever process attached it.

        :raises AttachError: the connection has no program set, or this process may not open it.
        """
        with open_target() as target:
            for _, link_fd, value in struct_ops_links(EFUSE_OPS):
                found, name, programs = target.describe(value)
                if found == connection:
                    return cls._open_link(connection, name, link_fd, programs.values())
        raise AttachError(
            f"cannot find the programs of connection {connection}: none are attached",
            hint="efuse prog list",
        )

    @classmethod
    def _open_link(
        cls, connection: int, name: str, link_fd: int, program_ids: Iterable[int]
    ) -> Self:
        """Return the attachment of a set, with a descriptor of its own for the link.

        :raises AttachError: this process may not open its maps or its pins, or has no descriptor
            left.
        """
        with ExitStack() as undo:
            maps = _maps_of(program_ids)
            undo.callback(_close, maps)
            directory = pin_directory(connection)
            try:
                pinned = directory if directory.is_dir() else None
                own_fd = os.dup(link_fd)
            except OSError as error:
                is_full = error.errno in (errno.EMFILE, errno.ENFILE)
                raise AttachError(
                    f"cannot open the programs of connection {connection}: {reason(error)}",
                    hint="raise the limit of open files: ulimit -n" if is_full else "run as root",
                ) from error
            undo.pop_all()
        attachment = cls(connection, name, own_fd, maps)
        attachment._pins = pinned
        return attachment

    @classmethod
    def open_pinned(cls, directory: Path | str) -> Self:
        """Open the program set that is pinned in *directory*.

        :raises AttachError: no eFuse program set is pinned there, or another user than root, this
            user and the package's owner can change the directory.
        """
        directory = Path(directory)
        pins.check(directory)
        with open_target() as target, ExitStack() as undo:
            try:
                link_fd = libbpf.object_get(directory / _LINK)
                undo.callback(os.close, link_fd)
                maps = {}
                for path in sorted(directory.iterdir()):
                    if path.name != _LINK:
                        fd = libbpf.object_get(path)
                        undo.callback(os.close, fd)
                        maps[path.name] = _mapping_of(fd, path.name)
                value = value_of(link_fd, EFUSE_OPS)
            except OSError as error:
                raise AttachError(
                    f"cannot open the programs pinned in {directory}: {reason(error)}",
                    hint="efuse prog list",
                ) from error
            if value is None:
                raise AttachError(
                    f"the objects pinned in {directory} are not a program set of eFuse"
                )
            connection, name, _ = target.describe(value)
            undo.pop_all()
            attachment = cls(connection, name, link_fd, maps)
            attachment._pins = directory
            return attachment

    def pin(self, directory: Path | str | None = None) -> Path:
        """Pin the link and the maps, so that the set outlives this process. Return the directory.

        :param directory: a new directory on a bpffs. By default `pin_directory`, where the pins of
            an earlier set with this connection number are removed first.
        :raises AttachError: the directory is not on a bpffs, or it already holds pins, or another
            user can change it, or the pins of an earlier set cannot be removed.
        """
        try:
            mount_bpffs()
        except OSError as error:
            raise AttachError(
                f"cannot mount a bpffs on {BPFFS}: {reason(error)}", hint="run as root"
            ) from error
        if directory is None:
            directory = pin_directory(self.connection)
            unpin(directory)
        directory = Path(directory)
        try:
            pins.make_directory(directory)
            libbpf.object_pin(self._link_fd, directory / _LINK)
            for name, m in self._maps.items():
                libbpf.object_pin(m.fd, directory / name)
        except OSError as error:
            hint = f"use a new directory below {BPFFS}"
            if error.errno != errno.EEXIST:
                try:
                    unpin(directory)
                except AttachError as left:
                    hint = f"{left.hint} ({left}); then {hint}"
            raise AttachError(
                f"cannot pin the programs in {directory}: {reason(error)}", hint=hint
            ) from error
        self._pins = directory
        return directory

    def replace(
        self,
        handlers: Handlers | None = None,
        *,
        name: str | None = None,
        capacity: Mapping[str, int] | None = None,
        with_builtin: bool = True,
        spec: Spec | None = None,
    ) -> None:
        """Replace this set atomically by another: each request meets the old or the new one.

        A map keeps its content if both sets have a map of that name, type and sizes, and *capacity*
        does not change its size. If the set is pinned, the pins are updated.

        :param handlers: custom handlers, as for `attach`.
        :param name: new name of the set; by default the old one.
        :param capacity: entries per map, by name; by default the present capacities.
        :param with_builtin: False to leave out the built-in handlers.
        :param spec: a compiled set, in place of *handlers*.
        :raises VerifierError: the kernel refused a program. The old set stays attached.
        :raises AttachError: a map could not be created, the link could not be updated, or the new
            maps could not be pinned. In the last case the new set is attached.
        """
        name = self.name if name is None else name
        spec = spec or compile_handlers(handlers, with_builtin=with_builtin)
        kept_capacity = {
            m: self._maps[m].definition.max_entries
            for m, definition in spec.maps.items()
            if m in self._maps and _agree(definition, self._maps[m].definition)
        }
        spec = spec.with_capacity(kept_capacity | dict(capacity or {}))
        kept = {
            m: self._maps[m].fd
            for m, definition in spec.maps.items()
            if m in self._maps and self._maps[m].definition == definition
        }
        with open_target() as target, ExitStack() as undo:
            created = create_maps(spec.maps, kept)
            for fd in created.values():
                undo.callback(os.close, fd)
            set_fd = _load_set(target, spec, kept | created, self.connection, name)
            try:
                libbpf.link_update(self._link_fd, set_fd)
            except OSError as error:
                raise AttachError(
                    f"cannot replace the programs of connection {self.connection}: {reason(error)}",
                    hint="detach them, then attach the new ones",
                ) from error
            finally:
                os.close(set_fd)
            undo.pop_all()
        gone = [m.fd for n, m in self._maps.items() if n not in kept]
        self._maps = {n: mapping((kept | created)[n], n, m) for n, m in spec.maps.items()}
        self.name = name
        for fd in gone:
            os.close(fd)
        if self._pins:
            self._pin_again(self._pins, kept, created)

    def _pin_again(
        self, directory: Path, kept: Collection[str], created: Mapping[str, int]
    ) -> None:
        """Remove the pins of maps that are not in *kept*, and pin those in *created*."""
        try:
            with pins.opened(directory) as found:
                for path in directory.iterdir():
                    if path.name != _LINK and path.name not in kept:
                        os.unlink(path.name, dir_fd=found)
            for name, fd in created.items():
                libbpf.object_pin(fd, directory / name)
        except OSError as error:
            raise AttachError(
                f"cannot pin the new maps in {directory}: {reason(error)}",
                hint=f"the new programs are attached: efuse prog detach {self.connection},"
                " then attach and pin them again",
            ) from error

    def detach(self) -> None:
        """Detach the set even if other processes hold the link. Remove the pins, and close.

        :raises AttachError: the kernel refused to detach it; or it is detached and closed, but its
            pins cannot be removed.
        """
        try:
            libbpf.link_detach(self._link_fd)
        except OSError as error:
            raise AttachError(
                f"cannot detach the programs of connection {self.connection}: {reason(error)}",
                hint="run as root; efuse prog list shows what is attached",
            ) from error
        try:
            if self._pins:
                unpin(self._pins)
        finally:
            self.close()

    def close(self) -> None:
        """Close the descriptors of the link and the maps. Further calls do nothing."""
        _close(self._maps)
        self._maps = {}
        if self._link_fd >= 0:
            os.close(self._link_fd)
            self._link_fd = -1

    def __repr__(self) -> str:
        return f"<Attachment {self.name!r} of connection {self.connection}>"


def attach(
    connection: int,
    handlers: Handlers | None = None,
    *,
    name: str = "efuse",
    capacity: Mapping[str, int] | None = None,
    with_builtin: bool = True,
    without: Collection[str] = (),
    spec: Spec | None = None,
) -> Attachment:
    """Attach the built-in handlers to a connection, with custom handlers in front of them.

    :param connection: number of the connection: the name of its directory in sysfs, and the minor
        number of the mount's st_dev.
    :param handlers: C text by member: ``{"lookup": "int lookup(struct efuse_req *req) {...}"}``.
    :param name: name of the set in sysfs, 1 to 31 bytes.
    :param capacity: entries per map, by name, for maps that need another than the default.
    :param with_builtin: False to leave out the built-in handlers.
    :param without: members of the built-in set to leave out.
    :param spec: a compiled set, in place of *handlers*.
    :raises CompileError: a text does not compile.
    :raises VerifierError: the kernel refused a program; ``log`` holds the verifier's log.
    :raises AttachError: there is no such connection (ENOENT), or it has a program set (EBUSY).
    :raises NotSupportedError: the module is not loaded.
    """
    if not 0 <= connection < 1 << 32:
        raise UsageError(f"cannot attach to connection {connection}: the number is out of range")
    spec = spec or compile_handlers(handlers, with_builtin=with_builtin, without=without)
    spec = spec.with_capacity(capacity or {})
    with open_target() as target, ExitStack() as undo:
        map_fds = create_maps(spec.maps, {})
        for fd in map_fds.values():
            undo.callback(os.close, fd)
        set_fd = _load_set(target, spec, map_fds, connection, name)
        try:
            link_fd = libbpf.link_create(set_fd)
        except OSError as error:
            raise _not_attached(connection, error) from error
        finally:
            os.close(set_fd)
        undo.pop_all()
    maps = {n: mapping(map_fds[n], n, definition) for n, definition in spec.maps.items()}
    return Attachment(connection, name, link_fd, maps)


def check(
    handlers: Handlers | None = None,
    *,
    with_builtin: bool = True,
    spec: Spec | None = None,
) -> tuple[Verified, ...]:
    """Load and verify a program set without attaching it.

    :param handlers: custom handlers, as for `attach`.
    :param with_builtin: False to leave out the built-in handlers.
    :param spec: a compiled set, in place of *handlers*.
    :returns: size and verification cost of each program.
    :raises CompileError: a text does not compile.
    :raises VerifierError: the kernel refused a program.
    :raises NotSupportedError: the module is not loaded.
    """
    spec = spec or compile_handlers(handlers, with_builtin=with_builtin)
    small = {n: min(m.max_entries, 64) for n, m in spec.maps.items() if m.type != MAP_RINGBUF}
    spec = spec.with_capacity(small)
    with open_target() as target, ExitStack() as stack:
        map_fds = create_maps(spec.maps, {})
        for fd in map_fds.values():
            stack.callback(os.close, fd)
        fds = stack.enter_context(load_programs(target, spec.programs, map_fds))
        return tuple(
            Verified(
                member,
                len(spec.programs[member].code) // 8,
                libbpf.program_info(fd).verified_instructions,
            )
            for member, fd in fds.items()
        )


def list_attached() -> tuple[Attached, ...]:
    """Return all attached program sets, ordered by connection.

    :raises NotSupportedError: the module is not loaded.
    """
    found = []
    with open_target() as target:
        for link_id, _, value in struct_ops_links(EFUSE_OPS):
            connection, name, programs = target.describe(value)
            maps = _maps_of(programs.values())
            _close(maps)
            found.append(Attached(connection, name, tuple(programs), tuple(sorted(maps)), link_id))
    return tuple(sorted(found, key=lambda attached: attached.connection))


def unpin(directory: Path) -> None:
    """Remove the pins in *directory* and the directory itself, if it exists.

    :raises AttachError: they cannot be removed, or another user than root, this user and the
        package's owner can change the directory. Symbolic links are not followed.
    """
    try:
        with pins.opened(directory) as found:
            for path in directory.iterdir():
                with suppress(FileNotFoundError):
                    os.unlink(path.name, dir_fd=found)
            directory.rmdir()
    except FileNotFoundError:
        return  # there are none, or another process has removed them meanwhile
    except OSError as error:
        raise AttachError(
            f"cannot remove the pins in {directory}: {reason(error)}",
            hint=f"as root: rm -r {shlex.quote(str(directory))}",
        ) from error


def _load_set(
    target: Target, spec: Spec, map_fds: Mapping[str, int], connection: int, name: str
) -> int:
    describe_cache(spec, map_fds)
    with load_programs(target, spec.programs, map_fds) as fds:
        return create_set(target, fds, {"connection": connection}, name)


def _not_attached(connection: int, error: OSError) -> AttachError:
    hints = {
        errno.ENOENT: "efuse stat lists the connections",
        errno.EBUSY: f"efuse prog replace {connection}, or efuse prog detach {connection}",
        errno.EPERM: "run as root",
    }
    whys = {
        errno.ENOENT: "no such connection exists (ENOENT)",
        errno.EBUSY: "programs are already attached to it (EBUSY)",
    }
    number = error.errno or 0
    return AttachError(
        f"cannot attach programs to connection {connection}: {whys.get(number, reason(error))}",
        hint=hints.get(number),
    )


def _agree(one: MapSpec, other: MapSpec) -> bool:
    return replace(one, max_entries=1) == replace(other, max_entries=1)


def _maps_of(program_ids: Iterable[int]) -> dict[str, BpfMap[Any, Any]]:
    """Return all maps that the programs use, by name. The caller closes their descriptors.

    :raises AttachError: the kernel does not let this process open them.
    """
    found: dict[str, BpfMap[Any, Any]] = {}
    with ExitStack() as undo:
        undo.callback(_close, found)
        try:
            for map_id in sorted(_map_ids(program_ids)):
                m = _open_map(map_id)
                if m is None:
                    continue
                if m.name in found:  # a set of another loader may have two maps of one name
                    os.close(found.pop(m.name).fd)
                found[m.name] = m
        except OSError as error:
            raise AttachError(
                f"cannot open the maps of the programs: {reason(error)}", hint="run as root"
            ) from error
        undo.pop_all()
    return found


def _close(maps: Mapping[str, BpfMap[Any, Any]]) -> None:
    for m in maps.values():
        os.close(m.fd)


def _open_map(map_id: int) -> BpfMap[Any, Any] | None:
    fd = libbpf.map_by_id(map_id)
    if fd is None:
        return None
    try:
        return _mapping_of(fd, libbpf.map_info(fd).name)
    except BaseException:
        os.close(fd)
        raise


def _map_ids(program_ids: Iterable[int]) -> set[int]:
    """Return the ids of all maps that the programs use."""
    found: set[int] = set()
    for program_id in program_ids:
        fd = libbpf.program_by_id(program_id)
        if fd is not None:
            try:
                found.update(libbpf.program_info(fd).map_ids)
            finally:
                os.close(fd)
    return found


def _mapping_of(fd: int, name: str) -> BpfMap[Any, Any]:
    info = libbpf.map_info(fd)
    return mapping(
        fd,
        name,
        MapSpec(info.type, info.key_bytes, info.value_bytes, info.max_entries, info.flags),
    )
