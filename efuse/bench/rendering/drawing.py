# SPDX-License-Identifier: LGPL-2.1-or-later
"""Figures drawn with matplotlib in a common style, as a PNG file or as SVG within a page.

matplotlib is an optional dependency; it is imported when something is drawn.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from efuse.bench.rendering.grid import number
from efuse.errors import NotSupportedError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["INK", "colours", "legend", "new_figure", "plain_ticks", "write_png", "write_svg"]

INK = "#16181d"
"""Colour of text and axes. Within a page it becomes the colour of the page's text."""

_STYLE: Any = {
    **dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
    ),
    "axes.axisbelow": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "font.size": 9,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "svg.fonttype": "none",
    # Names in a report are not formulas.
    "text.parse_math": False,
}

# Colours that are readable on white and on black.
_KNOWN = {
    "ext4": "#8a8f98",
    "fuse": "#d9822b",
    "fuse-tuned": "#c9a227",
    "fuse-clone-fd": "#c9a227",
    "efuse": "#2f7fd1",
    "efuse-queues": "#8c62c9",
    "efuse-direct": "#2a9d8f",
    "efuse-cache": "#6aa84f",
    "efuse-daemon": "#c94f7c",
    "efuse-device": "#8c62c9",
    "kernel": "#2f7fd1",
    "direct": "#2a9d8f",
    "cache": "#6aa84f",
    "daemon": "#c94f7c",
    "device": "#8c62c9",
}
_OTHERS = ("#5b8def", "#b5651d", "#4fa3a5", "#a3527a", "#7a8b2d", "#b04a4a")
# Width in the legend, in inches: of a letter, and of the mark with its margins.
_LETTER, _MARK = 0.08, 0.6
_IDS = re.compile(r' id="[\w.]+_\d+"')
_FOREIGN = re.compile(r"<metadata>.*?</metadata>| xmlns(?::\w+)?=\"[^\"]*\"", re.DOTALL)


def _figure_class() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NotSupportedError(
            "cannot draw: matplotlib is not installed", hint="pip install 'efuse[plot]'"
        ) from error
    return Figure


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; its size is in inches.

    :raises NotSupportedError: matplotlib is not installed.
    """
    return _figure_class()(figsize=(width, height), layout="constrained")


def colours(names: Iterable[str]) -> dict[str, str]:
    """Return a colour for each system or path. Known names have the same colour in all figures."""
    every = tuple(dict.fromkeys(names))
    others = [name for name in every if name not in _KNOWN]
    return {name: _KNOWN.get(name) or _OTHERS[others.index(name) % len(_OTHERS)] for name in every}


def legend(figure: Figure) -> None:
    """Put one legend for all axes below the figure, in as many columns as fit."""
    lines = {
        label: line
        for axis in figure.axes
        for line, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    wide = _LETTER * max(map(len, lines)) + _MARK
    rows = math.ceil(len(lines) / max(1, int(figure.get_figwidth() / wide)))
    columns = math.ceil(len(lines) / rows)
    figure.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=columns)


def plain_ticks(axis: Any, least: float, most: float) -> None:
    """Label a logarithmic axis with plain numbers: up to about ten between *least* and *most*."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    decades = most / least
    subs: tuple[float, ...] = (1.0, 2.0, 5.0) if decades < 200 else (1.0,)
    if decades < 4:
        subs = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)
    axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _position: number(value)))
    axis.set_minor_formatter(NullFormatter())


def _saved(draw: Callable[[], Figure], out: Any, **how: Any) -> None:
    _figure_class()
    import matplotlib

    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": how.pop("salt", None)}):
        draw().savefig(out, **how)


def write_png(draw: Callable[[], Figure], path: Path) -> None:
    """Draw a figure into a PNG file with a white background.

    :raises NotSupportedError: matplotlib is not installed.
    """
    _saved(draw, path, format="png", dpi=110, facecolor="white")


def write_svg(draw: Callable[[], Figure], salt: str) -> str:
    """Draw a figure as an ``<svg>`` element for HTML that refers to nothing outside itself.

    :param salt: seed of the element IDs; use another one for each figure of a page.
    :raises NotSupportedError: matplotlib is not installed.
    """
    out = io.StringIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    _saved(draw, out, format="svg", transparent=True, salt=salt, metadata=metadata)
    text = out.getvalue()
    text = _FOREIGN.sub("", text[text.index("<svg") :])
    # Nothing refers to the IDs of groups, which are the same in each figure.
    return _IDS.sub("", text).replace(INK, "currentColor")
