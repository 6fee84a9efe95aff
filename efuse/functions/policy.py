# SPDX-License-Identifier: LGPL-2.1-or-later
"""A policy's C text into the kernel: where functions run whose callers leave that open."""

from __future__ import annotations

import errno
import os

from efuse.bpf import libbpf
from efuse.bpf.members import CSD_POLICY
from efuse.errors import AttachError, reason
from efuse.functions.loading import Linked, compiled_set, link

__all__ = ["Policy", "load_policy"]


class Policy(Linked):
    """A policy in the kernel; when this is closed, the kernel decides as before."""

    def replace(self, text: str) -> None:
        """Put another one in its place; each batch is asked one of the two about.

        :raises EfuseError: as `load_policy`; the one that was there stays.
        """
        set_fd = compiled_set(CSD_POLICY, text, self.name)
        try:
            libbpf.link_update(self._link_fd, set_fd)
        except OSError as error:
            raise AttachError(
                f"cannot replace the policy {self.name!r}: {reason(error)}"
            ) from error
        finally:
            os.close(set_fd)


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
