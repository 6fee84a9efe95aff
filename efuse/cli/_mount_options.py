# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which mount options a file system is told, which are mount(8)'s own, and which nobody knows."""

from __future__ import annotations

from efuse.errors import UsageError
from efuse.fs.mountpoint import VFS_OPTIONS

__all__ = ["check", "complete", "is_for_mount"]

# eFuse's own.
_OWN = {"no_channels", "no_default_permissions", "plain", "require"}
_OWN_WITH_VALUE = {"arg", "consistency", "data_cache", "max_readdir", "max_request"}

# What /etc/fstab may hold beside the file system's own options.
_FOR_MOUNT = {
    *("auto", "noauto", "defaults", "fail", "nofail", "_netdev", "loud", "silent"),
    *("user", "nouser", "users", "nousers", "owner", "noowner", "group", "nogroup"),
}
_FOR_MOUNT_WITH_VALUE = {"comment", "helper", "uhelper", "user"}

# What libfuse and the kernel's FUSE know beside the VFS's.
_FUSE = {"allow_other", "allow_root", "auto_unmount", "debug", "default_permissions"}
_FUSE_WITH_VALUE = {
    *("context", "defcontext", "fscontext", "fsname", "rootcontext", "subtype"),
    "stack_depth",  # the module's
}


def is_for_mount(option: str) -> bool:
    """Return whether *option* is read by mount(8), systemd or a person, not by file systems."""
    name, equals, _ = option.partition("=")
    if equals and name in _FOR_MOUNT_WITH_VALUE:
        return True
    return option in _FOR_MOUNT or option.startswith(("x-", "X-"))


def complete(incomplete: str) -> list[str]:
    """Return what *incomplete*, options with commas between them, may become."""
    before, comma, last = incomplete.rpartition(",")
    names = VFS_OPTIONS | _FUSE | _OWN
    names |= {f"{name}=" for name in _FUSE_WITH_VALUE | _OWN_WITH_VALUE}
    return [f"{before}{comma}{name}" for name in sorted(names) if name.startswith(last)]


def check(option: str) -> None:
    """Check that somebody knows *option*.

    :raises UsageError: nobody does.
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
        hint="mount.efuse --help names eFuse's own, mount(8) those of all file systems",
    )
