# SPDX-License-Identifier: LGPL-2.1-or-later
"""Mount options: those that are passed to a file system, those of mount(8), and unknown ones."""

from __future__ import annotations

from efuse.errors import UsageError
from efuse.fs.mountpoint import VFS_OPTIONS

__all__ = ["check", "complete", "is_for_mount"]

# Options of eFuse itself.
_OWN = {"no_channels", "no_default_permissions", "plain", "require"}
_OWN_WITH_VALUE = {"arg", "consistency", "data_cache", "max_readdir", "max_request", "recovery"}

# What /etc/fstab may hold besides the file system's own options.
_FOR_MOUNT = {
    *("auto", "noauto", "defaults", "fail", "nofail", "_netdev", "loud", "silent"),
    *("user", "nouser", "users", "nousers", "owner", "noowner", "group", "nogroup"),
}
_FOR_MOUNT_WITH_VALUE = {"comment", "helper", "uhelper", "user"}

# What libfuse and the kernel's FUSE accept besides the options of the VFS.
_FUSE = {"allow_other", "allow_root", "auto_unmount", "debug", "default_permissions"}
_FUSE_WITH_VALUE = {
    *("context", "defcontext", "fscontext", "fsname", "rootcontext", "subtype"),
    "stack_depth",  # of efuse.ko
}


def is_for_mount(option: str) -> bool:
    """Return whether *option* is for mount(8), systemd or people, not for file systems."""
    name, equals, _ = option.partition("=")
    if equals and name in _FOR_MOUNT_WITH_VALUE:
        return True
    return option in _FOR_MOUNT or option.startswith(("x-", "X-"))


def complete(incomplete: str) -> list[str]:
    """Return the completions of *incomplete*, a list of options separated by commas."""
    before, comma, last = incomplete.rpartition(",")
    names = VFS_OPTIONS | _FUSE | _OWN
    names |= {f"{name}=" for name in _FUSE_WITH_VALUE | _OWN_WITH_VALUE}
    return [f"{before}{comma}{name}" for name in sorted(names) if name.startswith(last)]


def check(option: str) -> None:
    """Check that *option* is a known mount option with the right form.

    :raises UsageError: it is not.
    """
    name, equals, value = option.partition("=")
    if option in VFS_OPTIONS or option in _FUSE or (name in _FUSE_WITH_VALUE and value):
        return
    if name == "max_read":
        raise UsageError(
            "max_read cannot be used: pyfuse3 has its own (EINVAL)",
            hint="max_request=SIZE, which is for reads and writes",
        )
    if name in _FUSE_WITH_VALUE:
        raise UsageError(f"{name} cannot be used: it takes a value (EINVAL)", hint=f"{name}=VALUE")
    if equals and (name in VFS_OPTIONS or name in _FUSE):
        raise UsageError(f"{option} cannot be used: {name} has no value (EINVAL)", hint=name)
    raise UsageError(
        f"{name} cannot be used: there is no such mount option (EINVAL)",
        hint="mount.efuse --help lists eFuse's own options, mount(8) those of all file systems",
    )
