# SPDX-License-Identifier: LGPL-2.1-or-later
"""Load and unload ``csd.ko``, with the configfs that its devices are made in."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from efuse.csd.devices import devices
from efuse.errors import ModuleBuildError, NotSupportedError, reason
from efuse.kernel_fs import CONFIGFS, mount_configfs

if TYPE_CHECKING:
    from efuse.module.build import Say

__all__ = ["load", "unload"]

# The kernel frees an unloaded function's program behind what may still be running it.
_LET_GO_S = 5


def load(module: Path | None = None, *, say: Say = print) -> None:
    """Load the module, and mount a configfs; what is there already stays.

    :param module: the file; by default the installed one, or one built now for this kernel.
    :raises NotSupportedError: this kernel takes no modules, or has no headers here.
    :raises ModuleBuildError: it cannot be built or loaded, or configfs not mounted.
    """
    from efuse.module import live  # slow to import
    from efuse.module.build import CSD

    live.load(module, CSD, say=say)
    try:
        mount_configfs()
    except OSError as error:
        raise ModuleBuildError(
            f"cannot mount a configfs on {CONFIGFS}: {reason(error)}", hint="run as root"
        ) from error


def unload() -> None:
    """Unload the module; nothing happens if it is not loaded.

    :raises ModuleBuildError: there are devices, functions or runs, or this user may not.
    """
    from efuse.module import live
    from efuse.module.build import CSD

    if not _has_devices():
        end = time.monotonic() + _LET_GO_S
        while live.status(CSD).users and time.monotonic() < end:
            threading.Event().wait(0.02)
    live.unload(CSD)


def _has_devices() -> bool:
    try:
        return bool(devices())
    except NotSupportedError:
        return False
