# SPDX-License-Identifier: LGPL-2.1-or-later
"""A complete pass-through file system ("StackFS"), which shows another directory through FUSE."""

from efuse.fs.passthrough.operations import Passthrough

__all__ = ["Passthrough"]
