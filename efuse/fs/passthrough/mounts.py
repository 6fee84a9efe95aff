# SPDX-License-Identifier: LGPL-2.1-or-later
"""The mounts below the source of a pass-through."""

from __future__ import annotations

import contextlib
import errno
import os

from efuse.fs.passthrough.syscalls import Status, file_system_type

__all__ = ["LowerMount", "LowerMounts"]


class LowerMount:
    """One mount, while nodes lie on it: its descriptor keeps its numbers from being used again.

    :ivar kind: of file system, see :func:`efuse.fs.passthrough.syscalls.file_system_type`.
    :ivar rights: whether it forbids to write, as it was when its first node was found. Nothing else
        that a mount forbids makes another inode of a file: two would each have pages of it, and
        the one that is written back last would win.
    :ivar nodes: how many lie on it.
    """

    __slots__ = ("_anchor", "_by_handle", "kind", "nodes", "number", "rights")

    def __init__(self, number: int, fd: int) -> None:
        """*fd*, an O_PATH descriptor of something on it, remains the caller's.

        :raises OSError: its file system does not answer.
        """
        self.number = number
        self.nodes = 0
        self.kind = file_system_type(fd)
        self.rights = os.fstatvfs(fd).f_flag & os.ST_RDONLY
        self._by_handle = -1
        self._anchor = os.dup(fd)

    @property
    def by_handle(self) -> int:
        """A descriptor that open_by_handle_at(2) takes for the mount, or -1."""
        return self._by_handle

    def open_by(self, directory: int) -> None:
        """Let handles be opened on the mount, which the O_PATH descriptor *directory* is on."""
        if self._by_handle < 0:
            with contextlib.suppress(OSError):
                self._by_handle = os.open(
                    b"/proc/self/fd/%d" % directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
                )

    def close(self) -> None:
        """Let go of the mount."""
        for fd in (self._by_handle, self._anchor):
            if fd >= 0:
                os.close(fd)
        self._by_handle = self._anchor = -1


class LowerMounts:
    """The mounts that nodes lie on.

    Not by the device: two mounts of one file system have the same, but neither the same rights nor
    the same mounts within. And the number of a device is given to the next file system.

    :ivar own: the device of the pass-through's own mount, which cannot be passed through.
    """

    def __init__(self) -> None:
        self._mounts: dict[int, LowerMount] = {}
        self.own = -1

    def of(self, fd: int, st: Status) -> LowerMount:
        """Return the mount that *fd* is on; give it to :meth:`let_go` if no node comes of it.

        :raises OSError: ELOOP if it is the pass-through's own: whoever asks that asks himself. Or
            its file system does not answer.
        """
        mount = self._mounts.get(st.mount)
        if mount is None:
            if st.device == self.own:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            mount = self._mounts[st.mount] = LowerMount(st.mount, fd)
        return mount

    def let_go(self, mount: LowerMount) -> None:
        """Forget *mount* if no node is left that lies on it."""
        if not mount.nodes and self._mounts.get(mount.number) is mount:
            del self._mounts[mount.number]
            mount.close()

    def close(self) -> None:
        """Let go of all mounts."""
        for mount in self._mounts.values():
            mount.close()
        self._mounts.clear()
