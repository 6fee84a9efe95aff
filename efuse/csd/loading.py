# SPDX-License-Identifier: LGPL-2.1-or-later
"""Load and unload ``csd.ko``, and mount the configfs in which its devices are made."""

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

# The kernel frees the programs of unloaded functions only after their last possible use, and csd.ko
# cannot be unloaded before. Wait so many seconds for that.
_LET_GO_S = 5


def load(module: Path | None = None, *, say: Say = print) -> None:
    """Load the module and mount configfs. What is loaded or mounted already stays as it is.

    :param module: path of the module file; None: the installed one, or one that is built now for
        the running kernel.
    :param say: is called with each line about the progress.
    :raises NotSupportedError: the kernel takes no modules, or its headers are not installed.
    :raises ModuleBuildError: the module cannot be built or loaded, or configfs cannot be mounted.
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
    """Unload the module. Do nothing if it is not loaded.

    :raises ModuleBuildError: devices, functions or runs still exist, or the user lacks the right.
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
