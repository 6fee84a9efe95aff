# SPDX-License-Identifier: LGPL-2.1-or-later
"""The interfaces that programs can implement: the modules' struct_ops types and their members."""

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
"""Members that are called before a request goes to the daemon."""

REPLY = "reply"
"""The only member with two arguments. Its program gets the context, not the first argument."""

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
"""All members, in the order of the struct."""


@dataclass(frozen=True)
class Interface:
    """An interface: a struct_ops type, or a set of tracing programs.

    :param module: kernel module that defines it.
    :param load: command that loads the module.
    :param struct: name of the struct; empty for tracing programs.
    :param members: members that a program can implement, in the order of the struct. Empty: the
        names of programs are free.
    :param constants: number members that a text sets, each with a function that returns it.
    :param data: name of the package data that the interface belongs to.
    :param uapi: name of the package data with the types that programs and kernel share.
    :param include: directory of the headers, relative to *data*.
    :param header: header in that directory that declares what the programs may call.
    :param example: declaration of a member, for error messages.
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
"""Handlers of a mount's requests."""

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
"""A storage function, which runs over the blocks of a file."""

CSD_POLICY = replace(
    CSD_FUNCTION,
    struct="csd_policy",
    members=("choose",),
    constants=(),
    header="policy.bpf.h",
    example="int choose(struct csd_batch *batch)",
)
"""The policy that chooses where a storage function runs if its caller leaves that open."""

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
"""Programs for hooks in the kernel, with any names: see `efuse.bpf.tracing`."""
