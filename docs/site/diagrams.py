# SPDX-License-Identifier: LGPL-2.1-or-later
"""Draw the pictures of docs/design.md: ``python -m docs.site.diagrams``."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["PICTURES", "diagrams"]

PICTURES = Path(__file__).resolve().parents[1] / "pictures"

_LETTER = 7.3  # The width of a letter in px, at the font size of 13 px.
_PAPER, _INK, _QUIET = "#ffffff", "#1f2933", "#7b8794"
_USER, _KERNEL, _BPF, _DAEMON = "#e3f0ff", "#eef1f4", "#fdf0d5", "#e6f6e6"


@dataclass
class _Drawing:
    width: int
    height: int
    parts: list[str] = field(default_factory=list)

    def box(self, x: int, y: int, w: int, h: int, fill: str, *lines: str) -> None:
        """Draw a box with lines of text in its middle, or at its top if the box is high."""
        for line in lines:
            assert len(line) * _LETTER < w, f"{line!r} is too long for {w} px"
        self.parts.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="5" fill="{fill}" stroke="{_INK}"/>'
        )
        top = y + (h - 17 * len(lines)) / 2 + 13 if h < 120 else y + 19
        for number, line in enumerate(lines):
            self.text(x + w / 2, top + 17 * number, line, "middle")

    def text(self, x: float, y: float, line: str, anchor: str = "start", ink: str = _INK) -> None:
        self.parts.append(
            f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" fill="{ink}">'
            f"{html.escape(line)}</text>"
        )

    def arrow(self, *points: tuple[int, int], dashed: bool = False) -> None:
        """Draw a line through *points*, with an arrowhead at the last one."""
        path = " ".join(f"{x},{y}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(
            f'<polyline points="{path}" fill="none" stroke="{_INK}"{dash} marker-end="url(#head)"/>'
        )

    def line(self, x1: int, y1: int, x2: int, y2: int) -> None:
        self.parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{_QUIET}" '
            'stroke-dasharray="2 3"/>'
        )

    def svg(self, title: str) -> str:
        head = (
            "<!-- SPDX-License-Identifier: LGPL-2.1-or-later -->\n"
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" font-family="DejaVu Sans, Arial, sans-serif" font-size="13">\n'
            f"<title>{html.escape(title)}</title>\n"
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
            f'markerHeight="7" orient="auto"><path d="M0,0 L10,5 L0,10 z" fill="{_INK}"/>'
            "</marker></defs>\n"
            f'<rect width="{self.width}" height="{self.height}" fill="{_PAPER}"/>\n'
        )
        return head + "\n".join(self.parts) + "\n</svg>\n"


def _architecture() -> str:
    d = _Drawing(860, 470)
    d.text(16, 24, "user space", ink=_QUIET)
    d.text(16, 178, "kernel", ink=_QUIET)
    d.line(10, 160, 850, 160)
    d.box(30, 50, 170, 60, _USER, "programs", "ls, git, tar, cc ...")
    d.box(250, 50, 240, 60, _DAEMON, "the daemon", "Python, or C over libfuse")
    d.box(540, 50, 290, 60, _USER, "efuse", "loads, attaches, watches: CLI, Python")
    d.box(30, 200, 170, 50, _KERNEL, "VFS", "page and dentry caches")
    d.box(250, 190, 240, 250, _KERNEL)
    d.box(265, 205, 210, 50, _KERNEL, "queues and channels,", "one for each CPU")
    d.box(265, 265, 210, 40, _KERNEL, "call and check handlers")
    d.box(265, 315, 210, 40, _KERNEL, "epochs: void values")
    d.box(265, 365, 210, 40, _KERNEL, "paths: READ and WRITE")
    d.text(370, 428, "efuse.ko: fs/fuse, eFuse's files", "middle")
    d.box(560, 190, 270, 250, _BPF, "programs of the mount (BPF)")
    d.box(575, 225, 240, 50, _BPF, "handlers: built in, and yours", "lookup, getattr, read ...")
    d.box(575, 285, 240, 50, _BPF, "maps: entries, attrs, blobs,", "grants, blocks, events")
    d.box(575, 345, 240, 50, _BPF, "select_path, select_channel", "reply, learn, notify")
    d.box(30, 375, 170, 50, _KERNEL, "backing files", "ext4, xfs, a csd device")
    d.arrow((115, 110), (115, 200))
    d.arrow((200, 225), (250, 225))
    d.arrow((475, 280), (575, 255))
    d.arrow((575, 310), (475, 292), dashed=True)
    d.arrow((265, 388), (200, 396))
    d.arrow((330, 205), (330, 110))
    d.arrow((410, 110), (410, 205))
    d.text(318, 145, "requests", "end")
    d.text(422, 145, "replies")
    d.arrow((700, 110), (700, 190))
    d.text(708, 145, "BPF, sysfs")
    return d.svg("Programs, the kernel with its handlers, and the daemon")


def _request() -> str:
    d = _Drawing(860, 500)
    d.box(30, 20, 200, 44, _USER, "a program makes a call", "stat, open, read ...")
    d.box(30, 100, 200, 44, _BPF, "your handler")
    d.box(30, 180, 200, 44, _BPF, "the built-in handler", "looks in its map")
    d.box(
        30,
        260,
        200,
        60,
        _KERNEL,
        "the kernel checks it:",
        "complete? valid? in time?",
        "for this caller?",
    )
    d.box(310, 260, 200, 60, _USER, "answered", "the daemon is not asked")
    d.box(310, 100, 200, 44, _USER, "refused", "with the errno it returned")
    d.box(30, 380, 200, 44, _KERNEL, "queue or channel", "of a CPU")
    d.box(310, 380, 200, 44, _DAEMON, "the daemon", "answers as usual")
    d.box(600, 380, 220, 44, _BPF, "reply(), learn()", "store values in maps")
    d.box(600, 260, 220, 60, _USER, "the caller gets its answer")
    d.arrow((130, 64), (130, 100))
    d.arrow((130, 144), (130, 180))
    d.text(138, 167, "0: no opinion")
    d.arrow((230, 122), (310, 122))
    d.text(270, 114, "< 0", "middle")
    d.arrow((130, 224), (130, 260))
    d.text(138, 247, "an answer")
    d.arrow((230, 290), (310, 290))
    d.text(270, 282, "yes", "middle")
    d.arrow((130, 320), (130, 380))
    d.text(138, 345, "no: stale, expired, other_uid ...")
    d.arrow((30, 202), (14, 202), (14, 402), (30, 402))
    d.text(20, 450, "no value: miss")
    d.arrow((230, 402), (310, 402))
    d.arrow((510, 402), (600, 402))
    d.arrow((710, 380), (710, 320))
    d.text(
        20,
        484,
        "Each request that goes to the daemon has exactly one reason, which is counted.",
        ink=_QUIET,
    )
    return d.svg("The way of a request")


def _coherence() -> str:
    d = _Drawing(860, 504)
    columns = {"reader": 110, "kernel": 330, "daemon": 550, "writer": 760}
    for name, x in columns.items():
        d.box(x - 70, 16, 140, 32, _USER if name in ("reader", "writer") else _KERNEL, name)
        d.line(x, 48, x, 472)

    def step(y: int, start: str, end: str, label: str, dashed: bool = False) -> None:
        d.arrow((columns[start], y), (columns[end], y), dashed=dashed)
        d.text((columns[start] + columns[end]) / 2, y - 6, label, "middle")

    step(84, "reader", "kernel", "GETATTR")
    d.text(322, 104, "issued at epoch 7", "end")
    step(120, "kernel", "daemon", "GETATTR")
    d.text(560, 142, "the daemon reads size 10")
    step(176, "writer", "kernel", "WRITE")
    d.text(322, 194, "in flight: nothing of", "end")
    d.text(322, 210, "this file is answered", "end")
    step(226, "kernel", "daemon", "WRITE")
    step(262, "daemon", "kernel", "done")
    d.text(322, 280, "epoch 8, written into", "end")
    d.text(322, 296, "the file's bucket", "end")
    step(312, "kernel", "writer", "written: size is now 20")
    step(348, "daemon", "kernel", "size 10", dashed=True)
    d.text(340, 366, "of epoch 7, and 7 < 8: not kept")
    step(386, "kernel", "reader", "size 10, from before the WRITE")
    step(424, "reader", "kernel", "GETATTR, later")
    step(460, "kernel", "daemon", "GETATTR: the answer is 20")
    note = "A reply from before a change is void, whenever it arrives."
    d.text(16, 494, note, ink=_QUIET)
    return d.svg("A reply that crosses a change")


def diagrams() -> dict[str, str]:
    """Return the pictures as SVG, by file name."""
    return {
        "architecture.svg": _architecture(),
        "request.svg": _request(),
        "coherence.svg": _coherence(),
    }


def main() -> None:
    """Write all pictures."""
    for name, text in diagrams().items():
        (PICTURES / name).write_text(text)


if __name__ == "__main__":
    main()
