# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mount a file system on eFuse or on plain FUSE, serve it, and unmount it."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import shlex
import signal
import stat
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyfuse3
import trio

from efuse.control import MOST_RECOVERY_S, ROOT, Connection, Mount, find
from efuse.control.fusectl import FUSECTL
from efuse.display import shown
from efuse.errors import (
    ControlError,
    EfuseError,
    MountError,
    NotSupportedError,
    UsageError,
    reason,
)
from efuse.fs.channel import SessionChannel
from efuse.fs.ending import GRACE_S, Ending
from efuse.fs.guard import Guard
from efuse.fs.marking import marked
from efuse.fs.mountpoint import (
    MountOptions,
    for_plain_fuse,
    kernel_lacks_efuse,
    mount_efuse,
    needs_libfuse,
    with_stack_depth,
)
from efuse.fs.options import Options
from efuse.fs.overriding import applies_umask, shortcuts
from efuse.fs.own_mount import Before, OwnMount, devices, find_own, is_served
from efuse.fs.state import State
from efuse.fs.waiting import served_again, waiting_at

if TYPE_CHECKING:
    from efuse.bpf.spec import Spec

__all__ = ["DEFAULT_OPTIONS", "serve"]

_log = logging.getLogger("efuse.fs")

DEFAULT_OPTIONS: frozenset[str] = frozenset({"default_permissions"})
"""The default mount options. With ``default_permissions`` the kernel checks permissions."""

_in_use = threading.Lock()


async def serve(
    operations: pyfuse3.Operations,
    mountpoint: str | os.PathLike[str],
    options: Collection[str] = DEFAULT_OPTIONS,
    *,
    plain: bool = False,
    required: bool = False,
    channels: bool = True,
    recovery: int = 0,
    task_status: trio.TaskStatus[State] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Mount *operations* on *mountpoint* and serve it until it is unmounted.

    On a kernel with eFuse, the mount is of type ``efuse`` and has the built-in handlers. Otherwise
    it is plain FUSE, and the log has the reason (``operations.efuse.reason``).

    SIGINT, SIGTERM, SIGHUP and a cancellation unmount the file system, lazily if it is in use. If
    a handler does not return for 5 s after the signal, or if a second signal comes, the remaining
    requests are aborted.

    Within a nursery, ``await nursery.start(efuse.serve, operations, mountpoint)`` returns once the
    file system is mounted. A process can serve only one file system at a time, because pyfuse3 has
    one session.

    :param operations: an :class:`efuse.Operations`, or any ``pyfuse3.Operations``.
    :param mountpoint: path of the directory to mount on.
    :param options: mount options, each ``name`` or ``name=value`` (allow_other, ro, fsname=...).
    :param plain: whether to mount plain FUSE even if the kernel has eFuse.
    :param required: whether to fail if the mount cannot be accelerated.
    :param channels: whether requests come through shared memory, if the kernel and libfuse support
        it (``operations.efuse.channels``). ``EFUSE_CHANNELS=0`` in the environment prevents it.
    :param recovery: how long callers wait for a successor if this process dies, in seconds. Not on
        plain FUSE. If a mount at *mountpoint* waits for a successor, this process takes it over.
    :raises UsageError: *recovery* is out of its range.
    :raises MountError: the file system cannot be mounted, or this process already serves one.
    :raises NotSupportedError: *required* is set, and the kernel has no eFuse.
    :raises EfuseError: *required* is set, and the handlers cannot be attached.
    """
    if not 0 <= recovery <= MOST_RECOVERY_S:
        raise UsageError(
            f"recovery cannot be {recovery!r} (EINVAL)",
            hint=f"it is a number of seconds from 0 to {MOST_RECOVERY_S}",
        )
    if not _in_use.acquire(blocking=False):
        raise MountError(
            "a second file system cannot be served by one process (EBUSY)",
            hint="use efuse.mount(), which serves each in a process of its own",
        )
    try:
        session = _Session(
            operations, os.fspath(mountpoint), options, channels=channels, recovery=recovery
        )
        with Ending(session.abort) as ending:
            try:
                session.mount(ending, plain=plain, required=required)
                await session.run(ending, task_status)
            finally:
                with trio.CancelScope(shield=True):
                    await session.close()
    finally:
        _in_use.release()


class _Session:
    """One mounted file system."""

    def __init__(
        self,
        operations: pyfuse3.Operations,
        mountpoint: str,
        options: Collection[str],
        *,
        channels: bool,
        recovery: int = 0,
    ) -> None:
        self._operations, self._recovery = operations, recovery
        self._mountpoint = str(Path(mountpoint).absolute())
        self._options = options
        self._channels = channels
        self._channel: SessionChannel | None = None
        promised = getattr(operations, "efuse_options", None)
        self._shortcuts = shortcuts(
            promised if isinstance(promised, Options) else Options(), operations
        )
        self._unmasked = applies_umask(operations)
        self._waiting: Mount | None = None  # the mount that this process takes over
        state = getattr(operations, "efuse", None)
        self._state = state if isinstance(state, State) else State()
        self._resolved = self._mountpoint
        self._pid = os.getpid()
        self._own: OwnMount | None = None
        self._token = trio.lowlevel.current_trio_token()
        self._marked = contextlib.ExitStack()
        self._fd = -1  # the descriptor of the mount if this process, not libfuse, mounted it
        self._device = -1  # the descriptor on which requests arrive, in both cases
        self._abort_fd = -1
        self._aborting = threading.Lock()  # another thread may abort while this one closes
        self._unmounting = threading.Lock()
        self._is_initialized = False
        self._ended = trio.Event()
        self._answering = trio.CancelScope(shield=True)
        self._guard = cast(
            pyfuse3.Operations,  # it has all members that pyfuse3 uses
            Guard(operations, failed=self._state.count_error, called=self._state.count_request),
        )

    def mount(self, ending: Ending, *, plain: bool, required: bool) -> None:
        """Mount the file system. The kernel's requests wait until :meth:`run` takes them.

        If something fails after the mount, :meth:`close` unmounts it.
        """
        self._find_place(plain=plain)
        if Path("/proc") in (Path(self._resolved), *Path(self._resolved).parents):
            raise MountError(
                f"{self._mountpoint} cannot be mounted on: this process reads /proc (EBUSY)",
                hint="mount it on another directory",
            )
        self._state.shortcuts = self._shortcuts
        self._state.mountpoint = self._mountpoint
        self._state.mount_options = frozenset(self._options)
        why = "plain FUSE was requested" if plain else kernel_lacks_efuse()
        if why is None:
            self._mount_efuse(ending, required=required)
        elif required:
            raise NotSupportedError(
                f"{self._mountpoint} cannot be accelerated: {why}", hint="efuse doctor"
            )
        else:
            ending.check()
            self._mount_plain(why)
        if self._recovery:
            self._let_outlive()
        ending.check()

    def _find_place(self, *, plain: bool) -> None:
        """Find the place of the mount, or the mount there that this process is to take over."""
        self._waiting = waiting_at(self._mountpoint)
        if self._waiting is None:
            self._check_mountpoint()
            # Before the mount: afterwards this process would wait for its own reply.
            self._resolved = os.path.realpath(self._mountpoint)
        elif self._recovery and not plain:
            self._resolved = self._waiting.mountpoint
        else:
            raise MountError(
                f"{self._mountpoint} cannot be mounted on: a mount there waits for its daemon"
                " (EBUSY)",
                hint="recovery=SECONDS takes it over; umount ends it",
            )

    def _let_outlive(self) -> None:
        """Let the mount outlive this process, and log why not otherwise."""
        from efuse.control.takeover import why_it_ends

        why = "it mounts plain FUSE"
        if self._state.mounted_type == "efuse" and self._own is not None:
            connection = Connection(self._own.connection)
            connection.pin()
            self._check_served()
            connection.recovery = self._recovery
            why = why_it_ends(connection)
        if why:
            _log.warning("%s ends with its daemon: %s", shown(self._mountpoint), why)

    def _check_mountpoint(self) -> None:
        try:
            mode = Path(self._mountpoint).stat().st_mode
        except FileNotFoundError:
            mode = 0
        except OSError as error:
            hint = None
            if error.errno in (errno.ENOTCONN, errno.ECONNABORTED):
                # A mount there, or on the way there, has lost its daemon.
                with contextlib.suppress(ControlError):
                    dead = find(os.path.realpath(self._mountpoint), fuse=True).mountpoint
                    hint = f"umount -l {shlex.quote(dead)}"
            raise MountError(
                f"{self._mountpoint} cannot be mounted on: {reason(error)}", hint=hint
            ) from error
        if not stat.S_ISDIR(mode):
            raise MountError(
                f"{self._mountpoint} cannot be mounted on: it is not a directory (ENOTDIR)",
                hint=f"mkdir -p {shlex.quote(self._mountpoint)}",
            )

    def _mount_plain(self, why: str) -> None:
        before = Before.now()
        # With libfuse's mount(2), the kernel applies umasks. mount_efuse() avoids this, but needs
        # root.
        if self._unmasked and os.geteuid() == 0 and not needs_libfuse(self._options):
            parsed = MountOptions.parse(for_plain_fuse(self._options), source=self._source())
            self._fd = mount_efuse(self._mountpoint, parsed, plain=True, unmasked=True)
            self._state.mounted_type = "fuse"
            self._identify(self._fd, FUSECTL, before)
            self._start_session(self._fd, set(parsed.library))
        else:
            others = devices()
            try:
                pyfuse3.init(self._guard, self._mountpoint, for_plain_fuse(self._options))
            except RuntimeError as error:
                raise self._not_mounted(error) from error
            self._is_initialized = True
            self._state.mounted_type = "fuse"
            opened = devices() - others
            # The set is empty if /proc does not show the descriptor. It has more than one if
            # another thread mounts, too.
            if len(opened) == 1:
                (device,) = opened
                with contextlib.suppress(ControlError):
                    self._identify(device, FUSECTL, before)
        self._state.reason = why
        if self._channels:
            self._state.channels_reason = "the mount is plain FUSE"
        _log.warning("%s is plain FUSE: %s", shown(self._mountpoint), why)

    def _mount_efuse(self, ending: Ending, *, required: bool) -> None:
        depth = getattr(self._operations, "efuse_stack_depth", 1)
        parsed = MountOptions.parse(with_stack_depth(self._options, depth))
        # Before the mount: the library may have to be built, and callers would wait for that.
        channel = SessionChannel(wanted=self._channels)
        programs = self._compile(required=required)
        ending.check()
        self._marked.enter_context(marked())
        if self._waiting is not None:
            before = Before.nothing()
            self._fd = served_again(self._waiting, parsed)
        else:
            before = Before.now()
            self._fd = mount_efuse(self._mountpoint, parsed, unmasked=self._unmasked)
        self._state.mounted_type = "efuse"
        self._identify(self._fd, ROOT / "connections", before)
        with channel.found():
            self._start_session(self._fd, set(parsed.library))
        self._state.device = self._fd
        ending.check()
        if self._waiting is None:
            self._open(channel)
        else:  # it cannot have channels before it serves
            self._state.channels_reason = "the mount was taken over"
        ending.check()
        if programs is not None:
            with self._log_unless(required):
                self._accelerate(programs)

    @contextlib.contextmanager
    def _log_unless(self, required: bool) -> Iterator[None]:
        """Log an error instead of raising it, unless the acceleration is *required*."""
        try:
            yield
        except EfuseError as error:
            if required:
                raise
            self._state.reason = str(error)
            _log.warning("%s is not accelerated: %s", shown(self._mountpoint), shown(str(error)))

    def _compile(self, *, required: bool) -> Spec | None:
        """Return the program set to attach; None if there is none, which has been logged."""
        from efuse.fs.acceleration import compile_set

        with self._log_unless(required):
            handlers = getattr(self._operations, "efuse_handlers", {})
            return compile_set(self._shortcuts, handlers)
        return None

    def _source(self) -> str:
        """Return the source of a mount as libfuse sets it, if no option does."""
        subtypes = [o.partition("=")[2] for o in self._options if o.startswith("subtype=")]
        return subtypes[-1] if subtypes else "/dev/fuse"

    def _identify(self, device: int, connections: Path, before: Before) -> None:
        """Record the identity of this mount, and open the file that aborts its connection.

        :param device: descriptor on which the requests arrive.
        :param connections: directory in sysfs that has a directory for the connection.
        :param before: the mounts that existed before this one.
        :raises MountError: the mount is already gone.
        :raises ControlError: the mounts cannot be listed.
        """
        self._device = device
        self._own = find_own(device, self._resolved, before)
        if self._own is None:
            return
        self._state.mounted_connection = self._own.connection
        with contextlib.suppress(OSError):
            abort = connections / str(self._own.connection) / "abort"
            fd = os.open(abort, os.O_WRONLY | os.O_CLOEXEC)
            if is_served(device):
                self._abort_fd = fd
            else:
                # The mount is gone. The file may be that of a later connection with its number.
                os.close(fd)

    def _start_session(self, fd: int, options: set[str]) -> None:
        """Start pyfuse3's session on the mounted descriptor *fd*."""
        try:
            pyfuse3.init(self._guard, f"/dev/fd/{fd}", options)
        except RuntimeError as error:
            raise self._not_mounted(error) from error
        self._is_initialized = True

    def _not_mounted(self, error: RuntimeError) -> MountError:
        return MountError(
            f"{self._mountpoint} cannot be mounted: {error}",
            hint="libfuse's message above gives the reason",
        )

    def _open(self, channel: SessionChannel) -> None:
        channel.open()
        self._channel = channel
        self._state.channels = channel.is_open
        self._state.channels_reason = channel.reason
        if channel.reason:
            _log.warning("%s has no channels: %s", shown(self._mountpoint), channel.reason)

    def _accelerate(self, programs: Spec) -> None:
        from efuse.fs.acceleration import accelerate

        used = self._shortcuts
        if used.description:
            _log.warning("%s: %s", shown(self._mountpoint), used.description)
        if self._own is None:
            raise MountError(
                f"{self._mountpoint} cannot be accelerated: its mount cannot be distinguished"
                " from another one",
                hint="mount it again",
            )
        self._state.acceleration = accelerate(
            self._own.connection, used, programs, check=self._check_served
        )
        self._state.reason = ""

    def _check_served(self) -> None:
        """Fail if the mount is gone, because a later connection may have the same number.

        :raises MountError: the mount is gone.
        """
        if not is_served(self._device):
            raise MountError(
                f"{self._mountpoint} cannot be accelerated: it was unmounted, or aborted, before"
                " the handlers were attached",
                hint="mount it again",
            )

    async def run(self, ending: Ending, task_status: trio.TaskStatus[State]) -> None:
        """Answer requests until the file system is unmounted. A cancellation unmounts it."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._unmount_on_signal, ending)
            nursery.start_soon(self._answer)
            task_status.started(self._state)
            try:
                await self._ended.wait()
            except trio.Cancelled:
                with trio.CancelScope(shield=True):
                    await self._unmount()
                    with trio.move_on_after(GRACE_S):
                        await self._ended.wait()
                    # A copy of the mount, in another namespace, has it go on.
                    self._answering.cancel()
                    await self._ended.wait()
                raise
            nursery.cancel_scope.cancel()

    async def _answer(self) -> None:
        try:
            with self._answering:
                await pyfuse3.main()
        except* ConnectionAbortedError:
            # read(2) returns ECONNABORTED if the mount ends while a request is being read.
            # Otherwise it returns ENODEV, which libfuse treats as the end.
            _log.info("%s ended while a request was being read", shown(self._mountpoint))
        finally:
            self._ended.set()

    async def _unmount_on_signal(self, ending: Ending) -> None:
        await ending.asked.wait()
        assert ending.number is not None
        name = signal.Signals(ending.number).name
        _log.info("%s: unmounting %s", name, shown(self._mountpoint))
        await self._unmount()

    def abort(self) -> None:
        """Make every request fail, and stop answering. Any thread may call this."""
        _log.warning("%s is aborted: a handler does not return", shown(self._mountpoint))
        with self._aborting:
            if self._abort_fd >= 0:
                with contextlib.suppress(OSError):  # the connection has ended
                    os.write(self._abort_fd, b"1")
        self._unmount_what_is_left()
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._answering.cancel)

    async def _unmount(self) -> None:
        """Unmount while requests are still answered, so that the kernel can write pages back."""
        if os.getpid() != self._pid:
            self._answering.cancel()
            return
        try:
            await trio.to_thread.run_sync(self._unmount_own)
        except ControlError as error:
            _log.warning("%s cannot be unmounted: %s", shown(self._mountpoint), shown(str(error)))
            self._answering.cancel()
        except OSError as error:
            if error.errno == errno.EBUSY:
                _log.warning(
                    "%s is in use: it was detached, and its users get ENOTCONN",
                    shown(self._mountpoint),
                )
            elif error.errno not in (errno.EINVAL, errno.ENOENT):
                _log.warning("%s cannot be unmounted: %s", shown(self._mountpoint), reason(error))
            self._answering.cancel()

    def _unmount_own(self) -> None:
        """Unmount this mount, and no other one at the same path.

        :raises OSError: the kernel refused it.
        :raises ControlError: mountinfo cannot be read.
        """
        with self._unmounting:
            if self._own is None:
                raise OSError(errno.EINVAL, "it is not known which mount it is", self._mountpoint)
            self._own.unmount(self._device)

    async def close(self) -> None:
        """Detach the handlers, and unmount the file system if it is still mounted.

        Each step is made even if an earlier one fails. A process that was forked meanwhile does
        nothing, because the mount belongs to its parent.
        """
        if os.getpid() != self._pid:
            return
        self._marked.close()
        if self._state.mounted_type is None:
            return
        with contextlib.ExitStack() as steps:  # in reverse order
            steps.callback(self._forget)
            steps.callback(self._close_device)
            if self._channel is not None:
                steps.callback(self._channel.close)
            steps.callback(self._unmount_what_is_left)
            if self._state.acceleration is not None:
                steps.callback(self._state.acceleration.close)

    def _close_device(self) -> None:
        is_hidden = self._is_hidden
        self._forget_device()
        if self._is_initialized:
            # libfuse unmounts whatever is at the path, so it unmounts only a hidden mount.
            pyfuse3.close(unmount=is_hidden)
        else:
            os.close(self._fd)

    def _forget_device(self) -> None:
        """Forget the number of the descriptor, which another file may get when it is closed.

        The lock keeps out another thread that is unmounting by this number. If that thread waits
        for an answer of this process, it goes on when the descriptor is closed.
        """
        is_free = self._unmounting.acquire(timeout=GRACE_S)
        self._device = -1
        self._state.device = None
        if is_free:
            self._unmounting.release()

    def _forget(self) -> None:
        self._close_abort()
        self._state.acceleration = None
        self._state.channels = False
        self._state.mounted_type = self._state.mounted_connection = None
        self._state.reason = "it is not mounted"

    def _close_abort(self) -> None:
        """Close the file that aborts the connection, once.

        Its number may be that of another file as soon as it is closed, even if close(2) fails.
        """
        with self._aborting:
            fd, self._abort_fd = self._abort_fd, -1
            if fd >= 0:
                os.close(fd)

    @property
    def _is_hidden(self) -> bool:
        """Whether the mount exists but is not visible to this process.

        In a container, a user's program may mount by a fusermount3 that runs outside. That
        fusermount3 unmounts only FUSE mounts of the same user.
        """
        is_seen = self._fd >= 0 or (self._own is not None and self._own.number is not None)
        return os.geteuid() != 0 and not is_seen and self._may_be_served

    @property
    def _may_be_served(self) -> bool:
        return self._device < 0 or is_served(self._device)

    def _unmount_what_is_left(self) -> None:
        """Unmount the mount of this process lazily, but nothing that was mounted there since.

        The lock keeps out another thread that is unmounting: after that, the path leads to the
        mount below. An aborted connection lets that thread go on, so the lock becomes free.
        """
        if not self._unmounting.acquire(timeout=GRACE_S):
            return
        try:
            if self._own is not None:
                self._own.detach(self._device)
            elif self._may_be_served and not self._is_hidden:
                _log.warning(
                    "%s stays mounted: it cannot be distinguished from another mount",
                    shown(self._mountpoint),
                )
        except ControlError as error:
            _log.warning("%s cannot be unmounted: %s", shown(self._mountpoint), shown(str(error)))
        except OSError as error:
            if error.errno != errno.EINVAL:
                _log.warning("%s cannot be unmounted: %s", shown(self._mountpoint), reason(error))
        finally:
            self._unmounting.release()
