# SPDX-License-Identifier: LGPL-2.1-or-later
"""A complete pass-through ("StackFS"): another directory, seen through FUSE."""

from efuse.fs.passthrough.operations import Passthrough

__all__ = ["Passthrough"]
