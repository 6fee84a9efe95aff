# SPDX-License-Identifier: LGPL-2.1-or-later
"""The kernel that a guest boots, where a command lets the user choose it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from efuse.module.kernel import Kernel

__all__ = ["chosen", "kernel_option"]

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
    # A directory may have the name of a series; a path contains a slash.
    if re.fullmatch(r"\d[^/]*", wanted):
        return kernel.unpacked(wanted)
    return kernel.from_tree(Path(wanted))
