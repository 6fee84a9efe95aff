# SPDX-License-Identifier: LGPL-2.1-or-later
"""File systems in Python: the base class, mounting, and a complete pass-through."""

from efuse.fs.background import Mounted, mount, start
from efuse.fs.events import Events
from efuse.fs.operations import Operations
from efuse.fs.options import Options
from efuse.fs.passthrough import Passthrough
from efuse.fs.session import DEFAULT_OPTIONS, serve
from efuse.fs.state import State, Statistics

__all__ = [
    "DEFAULT_OPTIONS",
    "Events",
    "Mounted",
    "Operations",
    "Options",
    "Passthrough",
    "State",
    "Statistics",
    "mount",
    "serve",
    "start",
]
