# SPDX-License-Identifier: LGPL-2.1-or-later
"""All exceptions of the package.

The text of an error is one sentence, ``what failed: why (ERRNO)``. Its ``hint`` says what to try.
"""

from __future__ import annotations

import errno
import os
from typing import ClassVar

__all__ = [
    "AttachError",
    "CompileError",
    "ControlError",
    "EfuseError",
    "EmulatorError",
    "GuestError",
    "ModuleBuildError",
    "MountError",
    "NoFunctionError",
    "NoPolicyError",
    "NotSupportedError",
    "StaleError",
    "UnreadableError",
    "UsageError",
    "VerifierError",
    "reason",
]


def reason(error: OSError | int) -> str:
    """Return the reason why a system call failed, as ``text (ERRNO)``.

    :param error: the exception, or an errno; the sign of the errno does not matter.
    """
    number = abs(error) if isinstance(error, int) else error.errno
    if number is None:
        return str(error)
    return f"{os.strerror(number)} ({errno.errorcode.get(number, f'errno {number}')})"


class EfuseError(Exception):
    """Base class of all errors of the package.

    :param message: one sentence: what failed, and why.
    :param hint: what the user can try, without "try:".
    """

    exit_code: ClassVar[int] = 1
    """Exit status of the command line for this error."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(EfuseError, ValueError):
    """The caller asked for something impossible or contradictory, and has to change the call."""

    exit_code = 2


class NotSupportedError(EfuseError):
    """This machine, kernel or installation lacks something that the call needs."""

    exit_code = 3


class ModuleBuildError(EfuseError):
    """The kernel module could not be built, installed, loaded or unloaded."""


class GuestError(EfuseError):
    """A guest did not boot, died, timed out, or its kernel complained."""


class EmulatorError(GuestError):
    """A guest died because of a fault of the emulator, not because of an error in the guest.

    :ivar began: whether the guest's command had started.
    """

    def __init__(self, message: str, *, began: bool = False, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.began = began


class CompileError(EfuseError):
    """The text of a BPF program does not compile, or uses something that the kernel does not have.

    :param log: complete output of the compiler.
    """

    def __init__(self, message: str, *, hint: str | None = None, log: str = "") -> None:
        super().__init__(message, hint=hint)
        self.log = log


class VerifierError(EfuseError):
    """The kernel's verifier refused a BPF program.

    :param log: complete log of the verifier. The message holds the decisive line of it.
    """

    def __init__(self, message: str, *, hint: str | None = None, log: str = "") -> None:
        super().__init__(message, hint=hint)
        self.log = log


class AttachError(EfuseError):
    """A loaded program set could not be attached, replaced or detached."""


class NoFunctionError(EfuseError):
    """No storage function with that name is loaded in the kernel."""


class UnreadableError(NotSupportedError):
    """A storage function cannot run in the kernel, because only user space can read the file."""


class NoPolicyError(EfuseError):
    """No policy for storage functions is loaded in the kernel."""


class MountError(EfuseError):
    """A file system could not be mounted or unmounted."""


class StaleError(MountError, OSError):
    """The kernel no longer holds an inode, or knows a later version of its content."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.errno = errno.ESTALE


class ControlError(EfuseError):
    """A file of the module's sysfs tree could not be read or written."""
