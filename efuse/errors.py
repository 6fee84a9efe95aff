# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every exception of the package.

The text of an error is one sentence, ``what failed: why (ERRNO)``; its ``hint`` says what to try.
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
    """Return why a system call failed, as ``text (ERRNO)``.

    :param error: the exception, or an errno (a negative one is taken as its absolute value).
    """
    number = abs(error) if isinstance(error, int) else error.errno
    if number is None:
        return str(error)
    return f"{os.strerror(number)} ({errno.errorcode.get(number, f'errno {number}')})"


class EfuseError(Exception):
    """The base of all: something that eFuse was asked to do has failed.

    :param message: one sentence, what failed and why.
    :param hint: what the person may try, without "try:".
    """

    exit_code: ClassVar[int] = 1
    """The exit status of the command line."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(EfuseError, ValueError):
    """What was asked for makes no sense: the caller has to change it."""

    exit_code = 2


class NotSupportedError(EfuseError):
    """This machine, kernel or installation cannot do it."""

    exit_code = 3


class ModuleBuildError(EfuseError):
    """The kernel module could not be built, installed, loaded or unloaded."""


class GuestError(EfuseError):
    """A guest did not boot, died, timed out, or its kernel complained."""


class EmulatorError(GuestError):
    """A guest died of a fault of the emulator that ran it, not of its own.

    :ivar began: the guest's command had begun.
    """

    def __init__(self, message: str, *, began: bool = False, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.began = began


class CompileError(EfuseError):
    """A BPF program's text does not compile, or uses what the kernel does not have.

    :param log: what the compiler said, whole.
    """

    def __init__(self, message: str, *, hint: str | None = None, log: str = "") -> None:
        super().__init__(message, hint=hint)
        self.log = log


class VerifierError(EfuseError):
    """The kernel's verifier refused a BPF program.

    :param log: the verifier's log, whole; the message holds its one line that matters.
    """

    def __init__(self, message: str, *, hint: str | None = None, log: str = "") -> None:
        super().__init__(message, hint=hint)
        self.log = log


class AttachError(EfuseError):
    """A loaded program set could not be attached, replaced or detached."""


class NoFunctionError(EfuseError):
    """No storage function of that name is in the kernel."""


class UnreadableError(NotSupportedError):
    """A storage function cannot run in the kernel: only user space can read the file."""


class NoPolicyError(EfuseError):
    """No policy of storage functions is in the kernel."""


class MountError(EfuseError):
    """A file system could not be mounted or unmounted."""


class StaleError(MountError, OSError):
    """The kernel does not hold an inode (any more), or knows a later version of its content."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.errno = errno.ESTALE


class ControlError(EfuseError):
    """A value of the module's sysfs tree could not be read or written."""
