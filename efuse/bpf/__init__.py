# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compile C handlers, load them, and attach them to a mount as one program set.

>>> with efuse.bpf.attach(43, {"lookup": text}) as attachment:
...     attachment.maps["denied"][1000] = 1
"""

from __future__ import annotations

from efuse.bpf.attach import (
    Attached,
    Attachment,
    Verified,
    attach,
    check,
    list_attached,
    pin_directory,
)
from efuse.bpf.cache import DataCache, PublishedBlocks
from efuse.bpf.compose import compile_handlers
from efuse.bpf.events import Event, EventKind, Listener
from efuse.bpf.members import MEMBERS
from efuse.bpf.publish import PublishedEntry, publish
from efuse.bpf.spec import MapSpec, ProgramSpec, Spec
from efuse.bpf.values import (
    Attributes,
    Entry,
    EntryKey,
    Grant,
    GrantKey,
    Stamp,
    Volume,
    XattrKey,
    XattrValue,
)

__all__ = [
    "MEMBERS",
    "Attached",
    "Attachment",
    "Attributes",
    "DataCache",
    "Entry",
    "EntryKey",
    "Event",
    "EventKind",
    "Grant",
    "GrantKey",
    "Listener",
    "MapSpec",
    "ProgramSpec",
    "PublishedBlocks",
    "PublishedEntry",
    "Spec",
    "Stamp",
    "Verified",
    "Volume",
    "XattrKey",
    "XattrValue",
    "attach",
    "check",
    "compile_handlers",
    "list_attached",
    "pin_directory",
    "publish",
]
