# SPDX-License-Identifier: LGPL-2.1-or-later
"""What programs can implement: the struct_ops types of our modules, and their members."""

from __future__ import annotations

from dataclasses import dataclass, replace

__all__ = [
    "CSD_FUNCTION",
    "CSD_POLICY",
    "EFUSE_OPS",
    "MEMBERS",
    "REPLY",
    "REQUEST_MEMBERS",
    "TRACING",
    "Interface",
]

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


@dataclass(frozen=True)
class Interface:
    """A struct_ops type.

    :param module: the kernel module that has it.
    :param load: what loads the module.
    :param struct: its name.
    :param members: those that a program can implement, in the struct's order; none: any.
    :param constants: its numbers that a text gives, each by a function that returns it.
    :param data: which of the package's data it belongs to.
    :param uapi: which of them has the types that programs and kernel share.
    :param include: below that: the directory of the headers.
    :param header: in that: declares what the programs may call.
    :param example: of a member, for who has written none.
    """

    module: str
    load: str
    struct: str
    members: tuple[str, ...]
    constants: tuple[str, ...]
    data: str
    uapi: str
    include: str
    header: str
    example: str


EFUSE_OPS = Interface(
    module="efuse",
    load="efuse module load",
    struct="efuse_ops",
    members=MEMBERS,
    constants=(),
    data="bpf_programs",
    uapi="kernel_patches",
    include="include",
    header="efuse.bpf.h",
    example="int lookup(struct efuse_req *req)",
)
"""Handlers of the requests of a mount."""

CSD_FUNCTION = Interface(
    module="csd",
    load="efuse module load --csd",
    struct="csd_function",
    members=("step", "finish"),
    constants=("scratch_size", "args_size", "flags"),
    data="csd",
    uapi="csd",
    include="functions/include",
    header="csd.bpf.h",
    example="int step(struct csd_run *run)",
)
"""A function that is run over the blocks of a file."""

CSD_POLICY = replace(
    CSD_FUNCTION,
    struct="csd_policy",
    members=("choose",),
    constants=(),
    header="policy.bpf.h",
    example="int choose(struct csd_batch *batch)",
)
"""Where functions run whose callers leave that open."""

TRACING = Interface(
    module="efuse",
    load="efuse module load",
    struct="",
    members=(),
    constants=(),
    data="bpf_programs",
    uapi="kernel_patches",
    include="tracing/include",
    header="tracing.bpf.h",
    example="int sent(u64 *ctx)",
)
"""Programs of hooks in the kernel, of any names: see `efuse.bpf.tracing`."""
