# SPDX-License-Identifier: LGPL-2.1-or-later
"""Everything that the live loop knows, and how samples and keys change it. Pure: no terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from rich.console import RenderableType

from efuse.stats.snapshot import Snapshot
from efuse.tui.model import Model
from efuse.tui.render import render, shown
from efuse.tui.view import View, press

__all__ = ["State"]


@dataclass(frozen=True, slots=True)
class State:
    """The model, and the view of it."""

    view: View = field(default_factory=View)
    model: Model = field(default_factory=Model)

    def after(self, sample: Snapshot) -> State:
        """Return the state with one more sample."""
        return replace(self, model=self.model.after(sample))

    def press(self, keys: Iterable[str], *, width: int, height: int) -> State | None:
        """Return the state after some keys were pressed; None if one of them quits."""
        state = self
        for key in keys:
            there = shown(state.model, state.view, width=width, height=height)
            view = press(state.view, key, there)
            if view is None:
                return None
            state = replace(state, view=view)
        return state

    def render(self, *, interval_s: float, width: int, height: int) -> RenderableType:
        """Return the frame for the present state."""
        return render(self.model, self.view, interval_s=interval_s, width=width, height=height)
