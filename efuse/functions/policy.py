# SPDX-License-Identifier: LGPL-2.1-or-later
"""Load a policy: a BPF program that chooses the place of runs whose callers do not ask for one."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from efuse.bpf import libbpf, pins
from efuse.bpf.members import CSD_POLICY
from efuse.bpf.struct_ops import struct_ops_links
from efuse.errors import AttachError, NoPolicyError, reason
from efuse.functions.loading import Linked, compiled_set, link
from efuse.kernel_fs import BPFFS

__all__ = ["Policy", "load_policy", "replace_policy", "unload_policy"]

_PIN = BPFFS / "efuse-csd-policy"


class Policy(Linked):
    """A policy in the kernel. After it is closed, the kernel chooses places itself again."""

    def pin(self) -> Path:
        """Pin the policy, so that it stays until `unload_policy`; return the path.

        :raises AttachError: bpffs cannot be mounted, this process lacks the right to pin, or
            another user can change the directory of the pin.
        """
        return self._pin(_PIN)

    def replace(self, text: str) -> None:
        """Replace the policy atomically: each batch is decided by the old one or the new one.

        :param text: C text of the new policy; see `load_policy`.
        :raises EfuseError: for the same reasons as `load_policy`; the old policy stays.
        """
        _replace(self._link_fd, text, self.name)


def load_policy(text: str, name: str = "policy") -> Policy:
    """Load a policy into the kernel; compile it first if its compiled form is not cached.

    :param text: C text with ``choose()``; see policy.bpf.h.
    :param name: name of the policy, for people and error messages.
    :raises UsageError: the name is not valid.
    :raises CompileError: the text does not compile, or has no ``choose()``.
    :raises VerifierError: the kernel's verifier rejects the policy.
    :raises AttachError: a policy is loaded already, or this process lacks the right to load.
    :raises NotSupportedError: csd.ko is not loaded.
    """
    hint = "close the loaded policy, or replace it"
    return Policy(name, link(CSD_POLICY, text, name, errno.EBUSY, hint))


def replace_policy(text: str, name: str = "policy") -> None:
    """Replace the policy in the kernel, even if another process loaded it; see `load_policy`.

    :raises NoPolicyError: no policy is loaded.
    :raises EfuseError: for the same reasons as `load_policy`; the old policy stays.
    """
    for _, fd, _ in struct_ops_links(CSD_POLICY):
        _replace(fd, text, name)
        return
    raise _none("replace")


def unload_policy() -> None:
    """Unload the policy, even if another process loaded it. The kernel chooses places itself again.

    :raises NoPolicyError: no policy is loaded.
    :raises AttachError: this process lacks the right to unload it.
    """
    for _, fd, _ in struct_ops_links(CSD_POLICY):
        try:
            libbpf.link_detach(fd)
            pins.remove(_PIN)
        except OSError as error:
            raise AttachError(
                f"cannot unload the policy: {reason(error)}", hint="run as root"
            ) from error
        return
    raise _none("unload")


def _none(what: str) -> NoPolicyError:
    return NoPolicyError(
        f"cannot {what} the policy: none is loaded (ENOENT)", hint="efuse csd policy load FILE.c"
    )


def _replace(link_fd: int, text: str, name: str) -> None:
    set_fd = compiled_set(CSD_POLICY, text, name)
    try:
        libbpf.link_update(link_fd, set_fd)
    except OSError as error:
        raise AttachError(f"cannot replace the policy {name!r}: {reason(error)}") from error
    finally:
        os.close(set_fd)
