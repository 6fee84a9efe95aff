# SPDX-License-Identifier: LGPL-2.1-or-later
"""Memory that a caller can make the modules allocate is charged to the caller's memory cgroup."""

from __future__ import annotations

import re
from pathlib import Path

from tests.documents import ROOT

_ALLOCATION = re.compile(
    r"\b(\w*alloc\w*|xa_store|mtree_store_range)\(([^;]*?\bGFP_KERNEL\b[^;]*);"
)
_FUNCTION = re.compile(r"^\w[^;\n]*?\b(\w+)\([^;{}]*\)\n\{", re.MULTILINE)

_UNCHARGED = {
    # Only root reaches these: it mounts, loads the module or a function, or makes a device.
    "efuse_conn_add": "a mount",
    "efuse_nodes_add": "a mount",
    "efuse_queue_alloc": "a mount",
    "efuse_queues_add": "a mount",
    "efuse_channel_sysfs_init": "the module",
    "csd_function_reg": "a function",
    "csd_device_alloc": "a device",
    "csd_device_on": "a device",
    # The flags of the xarray charge it.
    "efuse_backed_get": "XA_FLAGS_ACCOUNT",
    "csd_layout_add_page": "XA_FLAGS_ACCOUNT",
    # A maple tree cannot charge; see docs/limits.md.
    "efuse_backed_store": "limits",
    "csd_lease_note": "limits",
}


def _sources() -> list[Path]:
    found = [*(ROOT / "kernel_patches/src").rglob("*.[ch]"), *(ROOT / "csd/src").rglob("*.[ch]")]
    return [path for path in sorted(found) if path.parent.name != "probes"]


def _uncharged(text: str) -> list[str]:
    """Return the functions with an allocation that is not charged, in the order of the text."""
    starts = [(found.start(), found.group(1)) for found in _FUNCTION.finditer(text)]
    found = []
    for allocation in _ALLOCATION.finditer(text):
        names = [name for start, name in starts if start < allocation.start()]
        found.append(names[-1] if names else "?")
    return found


def test_every_allocation_is_charged_or_has_a_reason_not_to_be() -> None:
    functions = {name for path in _sources() for name in _uncharged(path.read_text())}
    assert functions == set(_UNCHARGED)


def test_uncharged_allocations_are_found() -> None:
    text = "static int f(int a)\n{\n\treturn kzalloc(4, GFP_KERNEL);\n}\n"
    text += "int g(void)\n{\n\tx = alloc_pages(a ? GFP_KERNEL | __GFP_NOWARN :\n\t\tb, 0);\n"
    text += "\ty = kmalloc(4, GFP_KERNEL_ACCOUNT);\n\tif (flags == GFP_KERNEL)\n\t\tz();\n}\n"
    assert _uncharged(text) == ["f", "g"]
