# SPDX-License-Identifier: LGPL-2.1-or-later
"""A policy's C text into the kernel: where functions run whose callers leave that open."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from efuse.bpf import libbpf
from efuse.bpf.links import struct_ops_links
from efuse.bpf.members import CSD_POLICY
from efuse.errors import AttachError, NoPolicyError, reason
from efuse.functions.loading import Linked, compiled_set, link
from efuse.kernel_fs import BPFFS

__all__ = ["Policy", "load_policy", "replace_policy", "unload_policy"]

_PIN = BPFFS / "efuse-csd-policy"


class Policy(Linked):
    """A policy in the kernel; when this is closed, the kernel decides as before."""

    def pin(self) -> Path:
        """Let the policy outlive this task, until `unload_policy`; return its pin.

        :raises AttachError: there is no bpffs, or this task may not.
        """
        return self._pin(_PIN)

    def replace(self, text: str) -> None:
        """Put another one in its place; each batch is asked one of the two about.

        :raises EfuseError: as `load_policy`; the one that was there stays.
        """
        _replace(self._link_fd, text, self.name)


def load_policy(text: str, name: str = "policy") -> Policy:
    """Compile a policy, unless that was done before, and put it into the kernel.

    :param text: C text with ``choose()``: see policy.bpf.h.
    :param name: of it, for those who look.
    :raises CompileError: it does not compile.
    :raises VerifierError: the kernel refuses it.
    :raises AttachError: there is a policy already, or no right to load one.
    :raises NotSupportedError: csd.ko is not loaded.
    """
    hint = "close the one that is there, or replace it"
    return Policy(name, link(CSD_POLICY, text, name, errno.EBUSY, hint))


def replace_policy(text: str, name: str = "policy") -> None:
    """Put a policy in the place of the one in the kernel, whoever loaded that; see `load_policy`.

    :raises NoPolicyError: there is none.
    :raises EfuseError: as `load_policy`; the one that was there stays.
    """
    for _, fd, _ in struct_ops_links(CSD_POLICY):
        _replace(fd, text, name)
        return
    raise _none("replace")


def unload_policy() -> None:
    """Take the policy out of the kernel, whoever loaded it; the kernel decides as before.

    :raises NoPolicyError: there is none.
    :raises AttachError: this task may not.
    """
    for _, fd, _ in struct_ops_links(CSD_POLICY):
        try:
            libbpf.link_detach(fd)
            _PIN.unlink(missing_ok=True)
        except OSError as error:
            raise AttachError(
                f"cannot unload the policy: {reason(error)}", hint="run as root"
            ) from error
        return
    raise _none("unload")


def _none(what: str) -> NoPolicyError:
    return NoPolicyError(
        f"cannot {what} the policy: there is none (ENOENT)", hint="efuse csd policy load FILE.c"
    )


def _replace(link_fd: int, text: str, name: str) -> None:
    set_fd = compiled_set(CSD_POLICY, text, name)
    try:
        libbpf.link_update(link_fd, set_fd)
    except OSError as error:
        raise AttachError(f"cannot replace the policy {name!r}: {reason(error)}") from error
    finally:
        os.close(set_fd)
