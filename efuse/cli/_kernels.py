# SPDX-License-Identifier: LGPL-2.1-or-later
"""Which kernel a guest boots, where one is asked for."""

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
    """Return the kernel of that option; None: the one that is booted by default.

    :raises NotSupportedError: it is not here.
    """
    from efuse.module import kernel

    if wanted is None:
        return None
    # A directory may be called as a series is: a path has a slash.
    if re.fullmatch(r"\d[^/]*", wanted):
        return kernel.unpacked(wanted)
    return kernel.from_tree(Path(wanted))
