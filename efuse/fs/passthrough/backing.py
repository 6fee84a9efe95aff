# SPDX-License-Identifier: LGPL-2.1-or-later
"""Hand open lower files over to the kernel, which then reads and writes them by itself."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from efuse.errors import MountError, StaleError
from efuse.fs.overriding import Shortcuts
from efuse.fs.passthrough.handles import reopen
from efuse.fs.passthrough.inodes import Node

__all__ = ["BackingFiles"]

_log = logging.getLogger("efuse.fs")


class BackingFiles:
    """The lower files that were handed over to the kernel, and whether for writing, too.

    A file that is opened only for reading is handed over for reading only, because a writable
    descriptor would prevent its execution. The kernel lets go of a file when it forgets the inode.

    :param tell: :meth:`efuse.Operations.backing`.
    :param used: returns whether the kernel may read lower files by itself, and whether it may write
        them.
    """

    def __init__(self, tell: Callable[..., bool], used: Callable[[], Shortcuts]) -> None:
        self._tell = tell
        self._used = used
        self._told: dict[int, bool] = {}
        self._refused = False

    def opened(self, node: Node, fd: int, flags: int) -> None:
        """Hand over the lower file of *node*, which has been opened as *fd* with *flags*."""
        used = self._used()
        write = used.writes and flags & os.O_ACCMODE != os.O_RDONLY
        if self._refused or not used.reads or self._told.get(node.nodeid, -1) >= write:
            return
        if not write and flags & os.O_ACCMODE == os.O_WRONLY:
            return
        both = fd
        try:
            if flags & os.O_ACCMODE == os.O_WRONLY:
                both = reopen(fd, os.O_RDWR)
            self._refused = not self._tell(node.nodeid, both, write=write)
            self._told[node.nodeid] = write
        except StaleError as error:
            # This failure concerns only this file, and the next open tries again.
            _log.debug("%r is read and written by the daemon: %s", node, error)
        except (MountError, OSError) as error:
            self._refused = isinstance(error, MountError)
            _log.info("%r is read and written by the daemon: %s", node, error)
        finally:
            if both != fd:
                os.close(both)

    def forget(self, nodeid: int) -> None:
        """Note that the kernel has let go of the file."""
        self._told.pop(nodeid, None)
