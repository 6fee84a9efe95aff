# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse top`` on a terminal: a pure view, a pure ``render``, and a small loop."""

from efuse.tui.loop import run
from efuse.tui.render import render
from efuse.tui.view import SORTS, View, press

__all__ = ["SORTS", "View", "press", "render", "run"]
