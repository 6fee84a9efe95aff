# SPDX-License-Identifier: LGPL-2.1-or-later
"""Data, names and links through the pass-through on plain FUSE: `tests.passthrough_operations`."""

from __future__ import annotations

from tests import passthrough_operations

globals().update(
    {name: test for name, test in vars(passthrough_operations).items() if name.startswith("test_")}
)
