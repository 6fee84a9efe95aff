# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel that a guest boots, or that a module is built for, as an option names it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from efuse.module.kernel import Kernel

__all__ = ["buildable", "chosen", "kernel_option"]

kernel_option = click.option(
    "--kernel",
    metavar="SERIES|TREE",
    help="Boot a kernel that scripts/setup-kernel has unpacked, such as 7, or the one "
    "built in a source tree.",
)


def chosen(wanted: str | None) -> Kernel | None:
    """Return the kernel that the option names, or None for the default kernel.

    :raises NotSupportedError: this kernel is not on this machine.
    """
    from efuse.module import kernel

    if wanted is None:
        return None
    return kernel.from_tree(Path(wanted)) if _is_tree(wanted) else kernel.unpacked(wanted)


def buildable(wanted: str) -> Kernel:
    """Return the kernel that an option names for which a module is to be built.

    :param wanted: what :func:`chosen` takes, or a release whose headers are installed.
    :raises NotSupportedError: this kernel is not on this machine.
    """
    from efuse.module import kernel

    return kernel.from_tree(Path(wanted)) if _is_tree(wanted) else kernel.find(release=wanted)


def _is_tree(wanted: str) -> bool:
    # A directory may have the name of a series; a path contains a slash.
    return not re.fullmatch(r"\d[^/]*", wanted)
