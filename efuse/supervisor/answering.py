# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find the answer to one system call of a daemon, in a process made for it.

The daemon mounts the type ``fuse`` or ``fuseblk`` with a descriptor of /dev/fuse. Here the type
``efuse`` or ``efuseblk`` is mounted, the descriptor becomes one of /dev/efuse under the same
number, and the supervisor attaches the handlers before the mount can be reached by its path.

A call that is not about a FUSE mount is left to the kernel. A call of the 32-bit interface means
the same as one of the 64-bit interface.

A process of its own, because it may have to wait: for the daemon of a file system on the way to a
mount point, which may be the very daemon that waits for the answer to another call. It reports what
the answer is. The supervisor answers when the process has ended, so that nothing of it is left in
the way of the caller.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from efuse.control import Connection
from efuse.control.mounts import MOUNTINFO, mounts, number_at
from efuse.errors import ControlError
from efuse.fs.marking import is_marked
from efuse.supervisor import reports
from efuse.supervisor.ancestry import is_confined
from efuse.supervisor.asking import Asked
from efuse.supervisor.caller import AT_FDCWD, FUSE_DEVICE, Caller, is_device
from efuse.supervisor.detached import (
    FLAGS,
    LONGEST,
    DetachedMount,
    mounted_detached,
    opened,
    pass_device,
    without_mark,
)
from efuse.supervisor.entering import Place
from efuse.supervisor.notifications import (
    FUSE_DEV_IOC_CLONE,
    Notification,
    is_clone,
)
from efuse.supervisor.sharing import is_same_file, own
from efuse.supervisor.succeeding import Known, device_of, known_at, take_over, unmount
from efuse.supervisor.swapping import Swap, is_in_use, obstacle_of
from efuse.supervisor.uncovering import namespace_of

__all__ = ["Answering", "Situation"]

# Flags of mount(2) for a change of a mount: MS_REMOUNT, MS_BIND, MS_MOVE, and propagation.
_NOT_NEW = 32 | 1 << 12 | 1 << 13 | 1 << 17 | 1 << 18 | 1 << 19 | 1 << 20
_FD = re.compile(r"(^|,)fd=([^,]*)")
# As kstrtouint() of the kernel.
_NUMBER = re.compile(r"\+?(?:0[xX]0*([0-9a-fA-F]{1,8})|(0[0-7]*)|([1-9][0-9]{0,9}))\n?")
_NEW_API = "a mount by fsopen(2)"
_BY_PROC = "the path of its mount point leads through a link of /proc, or through too many links"
_Found = tuple[reports.Report, *tuple[int, ...]]
_OF_CALLER = (errno.EFAULT, errno.ENAMETOOLONG, errno.ENOENT, errno.ESRCH, errno.EBADF)
# A daemon opens one. What is wrong with further ones is found when they are passed to the context.
_MOST_DEVICES = 16
_FSOPEN_CLOEXEC = 1
_SET_STRING, _SET_FD = 1, 5  # commands of fsconfig(2)
# Flags of move_mount(2).
_FROM_EMPTY, _TO_SYMLINKS, _TO_AUTOMOUNTS, _TO_EMPTY = 0x04, 0x10, 0x20, 0x40
_UMOUNT_NOFOLLOW = 8  # flag of umount2(2)
_UNDERSTOOD = _FROM_EMPTY | _TO_SYMLINKS | _TO_AUTOMOUNTS | _TO_EMPTY


@dataclass(frozen=True, slots=True)
class Situation:
    """What the supervisor knows when it lets an answer be found.

    :ivar device: its descriptor of /dev/efuse, open with O_PATH.
    :ivar device_number: number of /dev/efuse, as in ``st_rdev``.
    :ivar supervisor: id of its process.
    :ivar first: id of the first process of the daemon.
    :ivar confined: the processes that have confined themselves by Landlock and had the right to
        mount; False: there is none; True: every process counts as one.
    :ivar restricted: the processes that had set no_new_privs, and then confined themselves.
    :ivar contexts: its descriptors of the contexts of ``efuse`` that fsopen(2) has returned, and
        that have got no descriptor of /dev/efuse yet.
    :ivar namespace: name of the mount namespace that was made for the daemon, a successor, so that
        its mount points are uncovered; empty if there is none.
    :ivar mounts: the mounts of the daemon and its predecessors.
    :ivar left: the mounts that have another supervisor by now, whose daemon has replaced this one.
    :ivar ignores_umounts: whether the daemon is being ended, and its mounts are to stay.
    """

    device: int
    device_number: int
    supervisor: int
    first: int
    confined: frozenset[tuple[int, int]] | bool
    restricted: frozenset[tuple[int, int]] | bool
    contexts: tuple[int, ...]
    namespace: str = ""
    mounts: tuple[Known, ...] = ()
    left: tuple[Known, ...] = ()
    ignores_umounts: bool = False


class Answering:
    """Finds the answer to a call, in a process that ends with it, and its descriptors with it.

    :param supervisor: socket to the supervisor, for the objects of `efuse.supervisor.reports`.
    """

    def __init__(self, call: Notification, situation: Situation, supervisor: socket.socket) -> None:
        self._call, self._situation = call, situation
        self._caller, self._supervisor = Caller(call.thread), supervisor

    def find(self) -> None:
        """Find the answer, and report it."""
        found = {
            "mount": self._mount,
            "ioctl": self._ioctl,
            "fsopen": self._fsopen,
            "fsconfig": self._fsconfig,
            "move_mount": self._move_mount,
            "umount": self._umount,
            "umount2": self._umount,
        }
        uncovered = False
        try:
            uncovered = self._is_uncovered
            report, *fds = found[self._call.name]()
        except PermissionError:
            report, fds = self._unreadable(), []
        except OSError as error:
            # The caller has ended, or its arguments cannot be read: the kernel tells it. With any
            # other error the call fails, because it may be about a mount of FUSE.
            if error.errno not in _OF_CALLER:
                raise
            report, fds = reports.Leave(), []
        if uncovered:
            report = _outside(report)
        reports.send(self._supervisor, report, fds)

    def _unreadable(self) -> reports.Report:
        """Return the answer to a caller that this process may not look into."""
        if self._call.name in ("mount", "fsopen"):
            try:
                may_be_of_fuse = bool(self._caller.devices())
            except OSError:
                may_be_of_fuse = True
            if may_be_of_fuse:
                return reports.Plain("a mount", "its memory cannot be read (EACCES)")
        return reports.Leave()

    def _mount(self) -> _Found:
        source, target, fstype, flags, data, _ = self._call.arguments
        flags = without_mark(flags)
        if flags & _NOT_NEW:
            return (reports.Leave(),)
        kind, options = self._caller.optional_text(fstype), ""
        if _is_of(kind, "fuse", "fuseblk"):
            options = self._caller.optional_text(data, cut=True)
        named = [*_FD.finditer(options)]
        at = _number(named[-1][2]) if named else -1
        if not self._caller.has_device(at):
            return (reports.Leave(uses_efuse=_is_of(kind, "efuse", "efuseblk")),)
        path, name = self._caller.text(target), self._caller.optional_text(source)
        if not path:
            return (reports.Failed(errno.ENOENT),)
        other = self._instead(path)
        if other is not None:
            return (other,)
        why = _why_not_passed_on(flags, kind, name, options)
        if why:
            return (reports.Plain(path, why),)
        obstacle = obstacle_of(self._caller, at, self._situation.supervisor)
        if obstacle:
            return (reports.Plain(path, obstacle),)
        try:
            swap = self._swap(at)
            if is_in_use(swap.before):
                return (reports.Leave(),)  # the kernel refuses it
            changed = _FD.sub(rf"\g<1>fd={swap.ours}", options)
            place = self._place(path)
            facts = self._facts(Asked.by_call(kind, flags, options))
            place.enter()
            where = place.opened()
            known = self._known_at(where)
            if known is not None:
                return _unfit(known, facts, path) or take_over(known, swap, where)
            mount = mounted_detached(f"e{kind}", name, flags, changed.split(","))
            self._ask(facts, mount, where, swap)
            return (_attached(mount, where, of_mount=True),)
        except LookupError:
            return (reports.Plain(path, _BY_PROC),)
        except OSError as error:
            return (reports.Failed(error.errno or errno.EIO),)

    def _ioctl(self) -> _Found:
        fd, _, address = self._call.arguments[:3]
        if is_clone(self._call):
            return self._clone(fd, address)
        # The thread that would then wait for INIT has the wrong file. Libraries do without.
        if self._caller.has_device(fd) and not self._why_plain():
            return (reports.Failed(errno.ENOTTY),)
        return (reports.Leave(),)

    def _clone(self, fd: int, address: int) -> _Found:
        """Clone the device of a mount for the caller, whose own /dev/fuse has the wrong type.

        If the kernel carried the call out with a descriptor that was replaced, a caller that makes
        it fail would have got an open /dev/efuse, which it may have no right to open. So the call
        is carried out here, with the very file that was looked at.

        A caller without the right to mount is left to the kernel, which refuses the call (EINVAL).
        Another of its threads may meanwhile put any file where its /dev/fuse was. The kernel closes
        that file when it is replaced, and lets all calls wait until the daemon has answered.
        """
        source, number = self._caller.number(address), self._situation.device_number
        if not (self._caller.has_device(fd) and self._caller.has_device(source, number)):
            return (reports.Leave(),)
        if not self._caller.shares("user"):
            return (reports.Leave(),)
        device = self._caller.descriptor(source)
        swap = self._swap(fd)
        if is_in_use(swap.before) or not is_device("", number, device):
            return (reports.Leave(),)
        try:
            if not swap.has_room:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            fcntl.ioctl(swap.ours, FUSE_DEV_IOC_CLONE, struct.pack("=I", device))
        except OSError as error:
            return (reports.Failed(error.errno or errno.EIO),)
        return reports.Replaced(swap.places), swap.ours, swap.before

    def _fsopen(self) -> _Found:
        """Answer by a context of ``efuse``."""
        name, flags = self._call.arguments[:2]
        kind = self._caller.text(name)
        if not _is_of(kind, "fuse", "fuseblk"):
            return (reports.Leave(uses_efuse=_is_of(kind, "efuse", "efuseblk")),)
        other = self._instead(_NEW_API)
        if other is not None:
            return (other,)
        obstacle = self._obstacle_of_any()
        if obstacle:
            return (reports.Plain(_NEW_API, obstacle),)
        try:
            context = opened(f"e{kind.partition('.')[0]}")
        except OSError as error:
            return (reports.Failed(error.errno or errno.EIO),)
        return reports.Opened(cloexec=bool(flags & _FSOPEN_CLOEXEC)), context

    def _obstacle_of_any(self) -> str:
        """Return why a descriptor of /dev/fuse cannot be replaced; empty if each can.

        The context of fsopen(2) has one type, and which descriptor it gets is not known yet.
        """
        left = {fd for fd in self._caller.devices() if not is_in_use(self._caller.descriptor(fd))}
        for _ in range(_MOST_DEVICES):
            if not left:
                break
            fd = left.pop()
            obstacle = obstacle_of(self._caller, fd, self._situation.supervisor)
            if obstacle:
                return obstacle
            left -= {*own(self._call.thread, fd)}
        return ""

    def _fsconfig(self) -> _Found:
        """Pass /dev/efuse to a context of ``efuse`` in place of the caller's /dev/fuse."""
        context, command, key, value, aux, _ = self._call.arguments
        context, command = _signed(context), command & 0xFFFFFFFF
        if command not in (_SET_STRING, _SET_FD) or not self._caller.has_context(context):
            return (reports.Leave(),)
        if self._caller.text(key, LONGEST + 1) != "fd":
            return (reports.Leave(),)
        is_text = command == _SET_STRING
        text = self._caller.text(value, LONGEST + 1) if is_text else ""
        at = _number(text) if is_text else _signed(aux)
        ours = self._context_of(context)
        if ours < 0 or not self._caller.has_device(at):
            return (reports.Leave(),)
        if not self._caller.shares("user"):
            return (reports.Leave(),)
        obstacle = obstacle_of(self._caller, at, self._situation.supervisor)
        if obstacle:
            return (reports.Refused(_NEW_API, obstacle),)
        try:
            swap = self._swap(at)
            if is_in_use(swap.before):
                return (reports.Failed(errno.EINVAL),)
            pass_device(self._caller.descriptor(context), swap.ours, text)
        except OSError as error:
            return (reports.Failed(error.errno or errno.EIO),)
        return reports.Replaced(swap.places, ours), swap.ours, swap.before

    def _context_of(self, context: int) -> int:
        """Return the supervisor's descriptor of a context of the caller; -1 if it has none."""
        thread, supervisor = self._call.thread, self._situation.supervisor
        for ours in self._situation.contexts:
            if is_same_file(thread, context, supervisor, ours):
                return ours
        return -1

    def _move_mount(self) -> _Found:
        """Let handlers be attached to a new mount of eFuse before it is attached."""
        moved, name, directory, target, flags, _ = self._call.arguments
        if not flags & _FROM_EMPTY or self._caller.text(name):
            return (reports.Leave(),)
        mount = DetachedMount(self._caller.descriptor(moved))
        if not self._is_new(mount):
            return (reports.Leave(),)
        path = self._caller.text(target)
        other = self._instead(path)
        if other is not None:
            return (other,)
        if flags & ~_UNDERSTOOD:
            return (reports.Plain(path, f"move_mount(2) has flags {flags & ~_UNDERSTOOD:#x}"),)
        if not path and not flags & _TO_EMPTY:
            return (reports.Failed(errno.ENOENT),)
        follow = bool(flags & _TO_SYMLINKS)
        try:
            place = self._place(path, _signed(directory), follow=follow)
            facts = self._facts()
            place.enter()
            where = place.opened()
            known = self._known_at(where)
            if known is not None:
                return self._take_over_instead(known, mount.connection, where)
            self._ask(facts, mount, where, None)
            return (_attached(mount, where),)
        except LookupError:
            return (reports.Plain(path, _BY_PROC),)
        except OSError as error:
            return (reports.Failed(error.errno or errno.EIO),)

    def _take_over_instead(self, known: Known, connection: int, where: int) -> _Found:
        """Let a successor take over a mount in place of one that it has made by fsopen(2).

        That one ends with its only descriptors, which are replaced.
        """
        number = self._situation.device_number
        at = device_of(self._caller, connection, number)
        return take_over(known, Swap(self._caller, at, self._situation.device, number), where)

    def _umount(self) -> _Found:
        """Unmount for a successor, whose mount is not in its namespace.

        The mounts stay if the daemon is being ended so that another one takes its place, and when
        another one has taken it: a daemon closes its descriptors before it unmounts. They also stay
        if `fusermount3` wants to unmount because a daemon that mounts with the option
        ``auto_unmount`` has ended.
        """
        target, flags = self._call.arguments[:2]
        flags = 0 if self._call.name == "umount" else flags & 0xFFFFFFFF
        path = self._caller.text(target)
        by_helper = Path("".join(self._caller.words[:1])).name.startswith("fusermount")
        stays = self._situation.ignores_umounts or (by_helper and self._mounts_with("auto_unmount"))
        replaced = {known for known in self._situation.mounts if known.is_being_replaced}
        uncovered = self._is_uncovered
        try:
            place = self._place(path, follow=not flags & _UMOUNT_NOFOLLOW)
            place.enter()
            where = place.opened()
            known = known_at(where, (*self._situation.mounts, *self._situation.left))
            left = {*replaced, *self._situation.left}
            if known is not None and (stays or known in left):
                return (reports.Done(),)
            if known is None or not uncovered:
                return (reports.Leave(),)
            unmount(where, flags)
            return (reports.Done(),)
        except LookupError:
            return (reports.Leave(),)
        except OSError as error:
            return (reports.Failed(error.errno or errno.EIO),)

    @property
    def _is_uncovered(self) -> bool:
        """Whether the caller is in the mount namespace that was made for the daemon."""
        namespace = self._situation.namespace
        return bool(namespace) and namespace_of(self._caller.process) == namespace

    def _place(self, path: str, directory: int = AT_FDCWD, *, follow: bool = True) -> Place:
        here = self._is_uncovered
        return Place(self._caller, path, directory, follow=follow, here=here)

    def _known_at(self, where: int) -> Known | None:
        """Return the mount that a successor is to take over in place of one that it asks for."""
        return known_at(where, self._situation.mounts) if self._situation.namespace else None

    def _is_new(self, mount: DetachedMount) -> bool:
        """Tell whether it is the first mount of a connection of eFuse, and has no handlers."""
        connection = mount.connection
        with contextlib.suppress(ControlError):  # it is none of eFuse
            if Connection(connection).state == "plain":
                tables = (MOUNTINFO, self._caller.proc / "mountinfo")
                attached = {m.connection for table in tables for m in mounts(mountinfo=table)}
                return connection not in attached
        return False

    def _instead(self, path: str) -> reports.Report | None:
        """Return the answer to the caller if its mount is not to be one of eFuse.

        A program that knows eFuse has its reason to mount plain FUSE.

        :param path: where it is to be attached, for the report.
        """
        if is_marked(self._caller.process):
            return reports.Leave(uses_efuse=True)
        why = self._why_plain()
        return reports.Plain(path, why) if why else None

    def _why_plain(self) -> str:
        """Return in one sentence why the caller's mounts stay plain; empty if they do not."""
        if not self._caller.shares("user"):
            return "the daemon mounts it in a user namespace of its own"
        if not self._caller.shares("pid"):
            return "the daemon mounts it in a PID namespace of its own"
        if not self._caller.has_our_label():
            return "a security module confines the daemon in its own way (/proc/PID/attr/current)"
        if self._is_confined():
            return "a process of the daemon has confined itself by Landlock"
        if self._caller.serves_automounts():
            return "the daemon serves a mount of autofs, and no other process may pass it meanwhile"
        return ""

    def _is_confined(self) -> bool:
        if self._is_among(self._situation.confined):
            return True
        return self._caller.has_no_new_privileges and self._is_among(self._situation.restricted)

    def _is_among(self, confined: frozenset[tuple[int, int]] | bool) -> bool:
        if isinstance(confined, bool):
            return confined
        return is_confined(self._caller.process, self._situation.first, confined)

    def _swap(self, at: int) -> Swap:
        return Swap(self._caller, at, self._situation.device, FUSE_DEVICE)

    def _mounts_with(self, option: str) -> bool:
        """Tell whether an argument of the caller's program has an option, separated by commas."""
        return any(option in word.split(",") for word in self._caller.words)

    def _facts(self, asked: Asked | None = None) -> reports.Facts:
        return reports.Facts(
            shared=self._caller.shares("mnt") or self._is_uncovered,
            # Only fusermount sees this option. For the kernel, it does not exist.
            auto_unmount=self._mounts_with("auto_unmount"),
            user=self._caller.user,
            asked=asked,
        )

    def _ask(
        self, facts: reports.Facts, mount: DetachedMount, where: int, swap: Swap | None
    ) -> None:
        """Tell the supervisor about a mount, and wait until the handlers are attached.

        :raises OSError: the mount is refused, with this errno.
        """
        number = number_at(directory=mount.fd) or 0
        places: Mapping[int, bool] = {} if swap is None else swap.places
        fds = [where] if swap is None else [where, swap.ours, swap.before]
        reports.send(self._supervisor, reports.Made(mount.connection, number, facts, places), fds)
        refused, _ = reports.receive(self._supervisor)
        if refused != 0:
            told = refused if isinstance(refused, int) else errno.EIO
            raise OSError(told, os.strerror(told))


def _is_of(fstype: str, *kinds: str) -> bool:
    """Tell whether a type, with or without a subtype, is one of these."""
    return fstype.partition(".")[0] in kinds


def _number(text: str) -> int:
    """Return the descriptor that an option names, as the kernel reads it; -1 if it names none."""
    found = _NUMBER.fullmatch(text)
    if found is None:
        return -1
    hexadecimal, octal, decimal = found.groups()
    number = int(hexadecimal, 16) if hexadecimal else int(octal, 8) if octal else int(decimal)
    return number if number < 1 << 31 else -1


def _why_not_passed_on(flags: int, kind: str, source: str, options: str) -> str:
    """Return in one sentence why the arguments of mount(2) cannot be passed on; empty if so."""
    if flags & ~FLAGS:
        return f"its mount has flags that eFuse does not pass on: {flags & ~FLAGS:#x}"
    if _is_of(kind, "fuseblk") and not source.startswith("/"):
        return "its block device is a path relative to the working directory"
    values = (kind, source, *(option.partition("=")[2] for option in options.split(",")))
    if any(len(os.fsencode(value)) > LONGEST for value in values):
        return f"its source, or the value of an option, is longer than {LONGEST} bytes"
    return ""


def _attached(mount: DetachedMount, where: int, *, of_mount: bool = False) -> reports.Attached:
    """Attach a mount to a directory or file.

    :param of_mount: whether an error is one of mount(2), not of move_mount(2).
    :raises OSError: the kernel refused it.
    """
    try:
        mount.attach(where)
    except OSError as error:
        is_directory = DetachedMount(where).is_directory
        if error.errno == errno.EINVAL and of_mount and mount.is_directory != is_directory:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)) from error
        raise
    return reports.Attached()


def _outside(report: reports.Report) -> reports.Report:
    """Return the answer to a successor: what the kernel mounts, only it would see."""
    if isinstance(report, reports.Plain):
        return reports.Unfit(report.path, report.reason)
    if isinstance(report, reports.Leave) and report.uses_efuse:
        return reports.Unfit("the mount", "the program mounts eFuse by itself")
    return report


def _unfit(known: Known, facts: reports.Facts, path: str) -> tuple[reports.Unfit] | None:
    """Return the answer to a successor that asks for other options than its predecessor."""
    if known.asked is None or facts.asked is None:
        return None
    change = known.asked.change(facts.asked)
    reason = f"the daemon asks for other options: {change}"
    return (reports.Unfit(path, reason),) if change else None


def _signed(number: int) -> int:
    """Return the descriptor that the low half of a register holds."""
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number >> 31 else number
