# SPDX-License-Identifier: LGPL-2.1-or-later
"""The table and the figure of a stored run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from efuse.bench.rendering.drawing import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WORDS = {
    "efuse_inode_bytes": "slab cache `efuse_inode`",
    "efuse_request_bytes": "slab cache `efuse_request`",
    "slab_bytes": "all slab caches",
    "percpu_bytes": "per-CPU memory",
    "kernel_stack_bytes": "kernel stacks",
    "page_table_bytes": "page tables",
    "bpf_programs": "BPF programs",
    "bpf_maps": "BPF maps",
    "bpf_links": "BPF links",
    "connections": "connections in sysfs",
    "module_references": "references to the module",
    "kernel_threads": "kernel threads",
    "processes": "processes",
    "mounts": "mounts",
    "pins": "pins in bpffs",
    "mount_daemon_fds": "descriptors of `efuse mount`",
    "mount_daemon_rss_bytes": "memory of `efuse mount`",
    "run_daemon_fds": "descriptors of the C daemon",
    "run_daemon_rss_bytes": "memory of the C daemon",
    "supervisor_fds": "descriptors of `efuse run`",
    "supervisor_rss_bytes": "memory of `efuse run`",
    "soak_fds": "descriptors of the load",
    "soak_rss_bytes": "memory of the load",
}
_KIB = 1 << 10


def _amount(name: str, value: float, sign: str = "") -> str:
    if name.endswith("_bytes"):
        return f"{value / _KIB:{sign},.0f} KiB"
    return f"{value:{sign}.1f}" if sign else f"{value:.0f}"


def table(report: dict[str, Any]) -> str:
    """Return the table in Markdown: each quantity with its growth in the second half."""
    lines = [
        "| quantity | at half time | at the end | growth | bound |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, samples in report["series"].items():
        cells = [
            _amount(name, samples[len(samples) // 2]),
            _amount(name, samples[-1]),
            _amount(name, report["growth"][name], "+"),
            _amount(name, report["bounds"][name], "+"),
        ]
        lines.append(f"| {_WORDS[name]} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def draw(report: dict[str, Any]) -> Figure:
    """Draw the course of each quantity of memory over the time of the run."""
    names = [name for name in report["series"] if name.endswith("_bytes")]
    columns = 2
    rows = -(-len(names) // columns)
    figure = new_figure(8.0, 1.5 * rows)
    hours = [at / 3600 for at in report["at_s"]]
    axes = list(figure.subplots(rows, columns, sharex=True, squeeze=False).flat)
    for axis, name in zip(axes, names, strict=False):
        axis.plot(hours, [value / (1 << 20) for value in report["series"][name]], linewidth=1)
        axis.set_title(_WORDS[name].replace("`", ""))
        axis.set_ylabel("MiB")
        axis.set_ylim(bottom=0)
        axis.grid(True)
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    for axis in axes[-columns:]:
        axis.set_xlabel("hours of the guest's clock")
    return figure
