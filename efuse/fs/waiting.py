# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mounts whose daemon has died and that wait for the next one, which may be this process."""

from __future__ import annotations

import contextlib
import os
import shlex

from efuse.control import Connection, Mount, all_mounts, find
from efuse.control.mounts import resolve
from efuse.control.takeover import take_over
from efuse.errors import ControlError, MountError, reason
from efuse.fs.mountpoint import DEVICE, MountOptions

__all__ = ["served_again", "waiting_at"]

# Options of FUSE that mountinfo shows if a mount has them.
_SHOWN = ("allow_other", "default_permissions")


def waiting_at(mountpoint: str) -> Mount | None:
    """Return the mount at *mountpoint* if it waits for a daemon, without asking any daemon."""
    with contextlib.suppress(ControlError):  # there is no eFuse mount, or it has just ended
        mount = find(mountpoint)
        is_there = mount.mountpoint == resolve(mountpoint, all_mounts())
        if is_there and Connection(mount.connection).daemon == "dead":
            return mount
    return None


def served_again(mount: Mount, options: MountOptions) -> int:
    """Take over a mount, and return the descriptor on which its requests arrive.

    :param options: the options with which this process would mount. They have to be those of the
        mount, so that the file system is the same.
    :raises MountError: they differ, or the kernel refuses the takeover.
    """
    wanted = (
        f"efuse.{options.subtype}" if options.subtype else "efuse",
        options.source,
        {option for option in _SHOWN if option in options.kernel},
    )
    there = mount.options.split(",")
    found = mount.fstype, mount.source, {option for option in _SHOWN if option in there}
    if found != wanted:
        raise _refused(mount, f"it has other options: {_text(*found)}, not {_text(*wanted)}")
    device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    try:
        target = os.open(mount.mountpoint, os.O_PATH | os.O_CLOEXEC)
        try:
            take_over(device, target)
        finally:
            os.close(target)
    except OSError as error:
        os.close(device)
        raise _refused(mount, reason(error)) from error
    return device


def _text(fstype: str, source: str, options: set[str]) -> str:
    return ",".join((fstype, f"fsname={source}", *sorted(options)))


def _refused(mount: Mount, why: str) -> MountError:
    return MountError(
        f"{mount.mountpoint} waits for its daemon, and cannot be taken over: {why}",
        hint=f"umount {shlex.quote(mount.mountpoint)} ends the mount",
    )
