# SPDX-License-Identifier: LGPL-2.1-or-later
"""Load and unload the module in the running kernel, and say what there is of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from efuse.errors import EfuseError, ModuleBuildError, NotSupportedError
from efuse.module import build, kernel

__all__ = ["Status", "load", "loaded", "status", "unload"]

_LOADABLE = Path("/proc/modules")
_SYSFS = Path("/sys/fs/efuse")


@dataclass(frozen=True)
class Status:
    """What there is of the module.

    :ivar kernel: the running kernel's release.
    :ivar loaded: whether the module is in it.
    :ivar version: the loaded module's.
    :ivar users: how many mounts and open devices hold it; None: not loaded.
    :ivar built: the module built for this kernel from the present sources.
    :ivar installed: the module that modprobe would load.
    """

    kernel: str
    loaded: bool
    version: str | None
    users: int | None
    built: str | None
    installed: str | None


def _release() -> str:
    return os.uname().release


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    path = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PATH": path, "LC_ALL": "C"},
    )


def _users() -> int | None:
    if not _LOADABLE.is_file():
        return None
    for line in _LOADABLE.read_text().splitlines():
        name, _size, users, *_ = line.split()
        if name == "efuse":
            return int(users)
    return None


def loaded() -> bool:
    """Return whether the module is in the running kernel."""
    return _SYSFS.is_dir()


def _installed() -> str | None:
    if shutil.which("modinfo", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
        return None
    result = _run("modinfo", "-n", "efuse")
    return result.stdout.strip() or None if result.returncode == 0 else None


def status() -> Status:
    """Return what there is of the module, here and now."""
    release = _release()
    try:
        found = build.built(kernel.find(release=release))
    except EfuseError:
        found = None
    version = _SYSFS / "version"
    return Status(
        kernel=release,
        loaded=loaded(),
        version=version.read_text().strip() if version.is_file() else None,
        users=_users(),
        built=str(found) if found else None,
        installed=_installed(),
    )


def load(module: Path | None = None, *, say: build.Say = print) -> None:
    """Load the module; nothing happens if it is loaded.

    :param module: the file; by default the installed one, or one built now for this kernel.
    :raises NotSupportedError: this kernel takes no modules, or has no headers here.
    :raises ModuleBuildError: it cannot be built, or the kernel refuses it.
    """
    if loaded():
        return
    if not _LOADABLE.is_file():
        raise NotSupportedError(
            f"efuse.ko cannot be loaded: kernel {_release()} is built without modules",
            hint="efuse guest run -- COMMAND",
        )
    if module is None and _installed():
        result = _run("modprobe", "efuse")
    else:
        file = module or build.build(kernel.find(release=_release()), say=say)
        result = _run("insmod", str(file))
    if result.returncode != 0:
        raise ModuleBuildError(
            f"efuse.ko could not be loaded: {result.stderr.strip()}", hint="dmesg | tail"
        )


def unload() -> None:
    """Unload the module; nothing happens if it is not loaded.

    :raises ModuleBuildError: it is in use, or this user may not.
    """
    if not loaded():
        return
    result = _run("rmmod", "efuse")
    if result.returncode != 0:
        raise ModuleBuildError(
            f"efuse.ko could not be unloaded: {result.stderr.strip()}",
            hint="umount -a -t efuse; end the daemons that hold /dev/efuse",
        )
