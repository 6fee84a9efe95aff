# SPDX-License-Identifier: LGPL-2.1-or-later
"""Plot throughput and p99 over the number of CPUs as an SVG, with both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from docs.model.systems import Result

_WIDTH, _HEIGHT, _MARGIN = 450, 300, 82
_COLOURS = ("#b03030", "#3060b0", "#308030")


def _decades(values: Sequence[float]) -> range:
    return range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)


def _text(x: float, y: float, text: str, **more: str) -> str:
    attributes = "".join(f' {key.replace("_", "-")}="{value}"' for key, value in more.items())
    return f'<text x="{x:.0f}" y="{y:.0f}"{attributes}>{text}</text>'


def _panel(
    left: float, top: float, title: str, cpus: Sequence[int], lines: Mapping[str, Sequence[float]]
) -> list[str]:
    decades = _decades([v for values in lines.values() for v in values])
    inner = (_WIDTH - 2 * _MARGIN, _HEIGHT - 2 * _MARGIN)

    def x(number: float) -> float:
        return left + _MARGIN + inner[0] * math.log2(number) / math.log2(cpus[-1])

    def y(value: float) -> float:
        part = (math.log10(value) - decades[0]) / (decades[-1] - decades[0])
        return top + _MARGIN + inner[1] * (1 - part)

    out = [_text(left + _MARGIN, top + _MARGIN - 14, title, font_weight="bold")]
    for decade in decades:
        at = y(10.0**decade)
        out.append(f'<path d="M{x(1):.0f} {at:.0f}H{x(cpus[-1]):.0f}" stroke="#ccc"/>')
        out.append(_text(x(1) - 6, at + 4, f"{10**decade:,}", text_anchor="end"))
    for number in cpus:
        if number & (number - 1) == 0:
            out.append(
                _text(x(number), top + _HEIGHT - _MARGIN + 18, str(number), text_anchor="middle")
            )
    out.append(_text(x(12), top + _HEIGHT - _MARGIN + 36, "CPUs", text_anchor="middle"))
    for row, (colour, (name, values)) in enumerate(zip(_COLOURS, lines.items(), strict=True)):
        points = " ".join(f"{x(n):.1f},{y(v):.1f}" for n, v in zip(cpus, values, strict=True))
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out.append(_text(x(1) + 80 * row, top + _MARGIN - 32, name, fill=colour))
    return out


def plot(cpus: Sequence[int], panels: Mapping[str, Mapping[str, Sequence[Result]]]) -> str:
    """Return an SVG with two panels for each of *panels*: requests per second, and p99."""
    out = [
        "<!-- SPDX-License-Identifier: LGPL-2.1-or-later -->",
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * _WIDTH}" '
        f'height="{len(panels) * _HEIGHT}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for row, (title, systems) in enumerate(panels.items()):
        rates = {name: [r.rate for r in results] for name, results in systems.items()}
        p99 = {name: [r.p99 / 1000 for r in results] for name, results in systems.items()}
        out += _panel(0, row * _HEIGHT, f"requests/s, {title}", cpus, rates)
        out += _panel(_WIDTH, row * _HEIGHT, f"p99 in us, {title}", cpus, p99)
    return "\n".join([*out, "</svg>", ""])
