# SPDX-License-Identifier: LGPL-2.1-or-later
"""Load and unload the modules in the running kernel, and report their state."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from efuse.errors import EfuseError, ModuleBuildError, NotSupportedError
from efuse.module import build, kernel
from efuse.module.build import EFUSE, Source

__all__ = ["load", "loaded", "status", "unload"]

_LOADABLE = Path("/proc/modules")


@dataclass(frozen=True)
class Status:
    """State of a module on this machine.

    :ivar kernel: release of the running kernel.
    :ivar loaded: whether the module is loaded.
    :ivar version: version of the loaded module.
    :ivar users: number of references to the loaded module, for example from mounts and open
        devices; None if it is not loaded.
    :ivar built: path of the module built for this kernel from the present sources.
    :ivar installed: path of the module that modprobe would load.
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


def _users(of: Source) -> int | None:
    if not _LOADABLE.is_file():
        return None
    for line in _LOADABLE.read_text().splitlines():
        name, _size, users, *_ = line.split()
        if name == of.name:
            return int(users)
    return None


def loaded(of: Source = EFUSE) -> bool:
    """Return whether a module is loaded in the running kernel."""
    return of.sysfs.is_dir()


def _installed(of: Source) -> str | None:
    if shutil.which("modinfo", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
        return None
    result = _run("modinfo", "-n", of.name)
    return result.stdout.strip() or None if result.returncode == 0 else None


def status(of: Source = EFUSE) -> Status:
    """Return the present state of a module on this machine."""
    release = _release()
    try:
        found = build.built(kernel.find(release=release), of)
    except EfuseError:
        found = None
    version = of.sysfs / "version"
    return Status(
        kernel=release,
        loaded=loaded(of),
        version=version.read_text().strip() if version.is_file() else None,
        users=_users(of),
        built=str(found) if found else None,
        installed=_installed(of),
    )


def load(module: Path | None = None, of: Source = EFUSE, *, say: build.Say = print) -> None:
    """Load a module. Do nothing if it is loaded.

    :param module: path of the module; by default the installed one, or else one built now.
    :param of: the module.
    :param say: function that is called with each progress message of a build.
    :raises NotSupportedError: this kernel has no loadable modules, or its headers are missing.
    :raises ModuleBuildError: the module cannot be built, or the kernel refuses it.
    """
    if loaded(of):
        return
    if not _LOADABLE.is_file():
        raise NotSupportedError(
            f"{of.name}.ko cannot be loaded: kernel {_release()} is built without modules",
            hint="efuse guest run -- COMMAND",
        )
    if module is None and _installed(of):
        result = _run("modprobe", of.name)
    else:
        file = module or build.build(kernel.find(release=_release()), of, say=say)
        # modprobe may fail for a built-in module. If one is really missing, insmod reports it.
        for needed in of.needs:
            _run("modprobe", needed)
        result = _run("insmod", str(file))
    if result.returncode != 0:
        raise ModuleBuildError(
            f"{of.name}.ko could not be loaded: {result.stderr.strip()}", hint="dmesg | tail"
        )


def unload(of: Source = EFUSE) -> None:
    """Unload a module. Do nothing if it is not loaded.

    :raises ModuleBuildError: the module is in use, or this user may not unload it.
    """
    if not loaded(of):
        return
    result = _run("rmmod", of.name)
    if result.returncode != 0:
        raise ModuleBuildError(
            f"{of.name}.ko could not be unloaded: {result.stderr.strip()}", hint=of.let_go
        )
