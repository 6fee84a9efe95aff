# SPDX-License-Identifier: LGPL-2.1-or-later
"""The members of ``struct efuse_ops`` that a program can implement."""

from __future__ import annotations

__all__ = ["MEMBERS", "REPLY", "REQUEST_MEMBERS"]

REQUEST_MEMBERS = (
    "lookup", "getattr", "setattr", "access", "readlink", "getxattr", "setxattr", "listxattr",
    "removexattr", "open", "release", "opendir", "releasedir", "readdir", "readdirplus", "read",
    "write", "flush", "fsync", "lseek", "fallocate", "copy_file_range", "statfs", "create",
    "mknod", "mkdir", "symlink", "link", "unlink", "rmdir", "rename", "ioctl", "request",
)  # fmt: skip
"""Those called before a request goes to the daemon."""

REPLY = "reply"
"""The only member with two arguments: its program is given the context, not the first of them."""

MEMBERS = (
    *REQUEST_MEMBERS,
    REPLY,
    "learn",
    "select_path",
    "path_done",
    "written",
    "block",
    "select_channel",
    "notify",
    "exit",
)
"""All, in the order of the struct."""
