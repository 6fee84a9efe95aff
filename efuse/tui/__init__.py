# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse top``: pure state and rendering, a small terminal loop, and plain output."""

from efuse.tables.grid import Order
from efuse.tui.loop import run
from efuse.tui.model import Model
from efuse.tui.plain import plain
from efuse.tui.render import render
from efuse.tui.state import State
from efuse.tui.view import SORTS, TAB_NAMES, View

__all__ = ["SORTS", "TAB_NAMES", "Model", "Order", "State", "View", "plain", "render", "run"]
