# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse exporter``: export the counters of mounts and devices to Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from functools import lru_cache

import click

from efuse import locations
from efuse.cli._output import echo
from efuse.errors import NotSupportedError
from efuse.stats import PlainMounts

__all__ = ["cli"]


@click.command()
@click.option(
    "--listen",
    default="127.0.0.1:9435",
    show_default=True,
    metavar="HOST:PORT",
    help="Address for Prometheus; :PORT means every IPv4 address of this machine.",
)
@click.option(
    "--times/--no-times",
    default=False,
    show_default=True,
    help="Export times: each scrape lets the kernel time every request for 10 s.",
)
@click.option(
    "--maps/--no-maps",
    default=False,
    show_default=True,
    help="Export how full the BPF maps are: each scrape reads all of them. Needs root.",
)
@click.option(
    "--plain/--no-plain",
    default=False,
    show_default=True,
    help="Export plain FUSE mounts: each of their requests is counted while this runs. Needs root.",
)
@click.option("--once", is_flag=True, help="Print the metrics and end.")
@click.option("--dashboard", is_flag=True, help="Print a dashboard for Grafana and end.")
def cli(listen: str, times: bool, maps: bool, plain: bool, once: bool, dashboard: bool) -> None:
    """Export the counters of all eFuse mounts and emulated devices to Prometheus.

    The exporter reads the counters at each scrape, and ends on SIGINT or SIGTERM. While the module
    is not loaded, efuse_up is 0. Mount points are exported as labels: all that can reach the port
    can read them.

    \b
    efuse exporter --listen 127.0.0.1:9435 --times
    efuse exporter --plain
    efuse exporter --once > /var/lib/node_exporter/efuse.prom
    efuse exporter --dashboard > efuse.json
    """
    if plain and once:
        raise click.UsageError(
            "--plain counts from the start of the exporter, so --once would show nothing: use one"
        )
    if dashboard:
        click.echo((locations.package() / "exporter" / "dashboard.json").read_text(), nl=False)
        return
    try:
        from efuse import exporter
    except ImportError as error:
        raise NotSupportedError(
            f"metrics cannot be exported: {error}", hint="pip install 'efuse[exporter]'"
        ) from error
    address = exporter.Address.parse(listen)
    with ExitStack() as ends:
        others = ends.enter_context(PlainMounts()) if plain else None
        if others is not None:
            others.start()
        collector = exporter.Collector(times=times, maps=maps, plain=others, warn=_warn_once())
        if once:
            click.echo(exporter.exposition(collector), nl=False)
            return
        exporter.serve(address, exporter.registry(collector), lambda url: click.echo(url, err=True))


def _warn_once() -> Callable[[str], None]:
    """Return a function that prints a problem on stderr, but each problem only once."""

    @lru_cache(maxsize=64)
    def warn(problem: str) -> None:
        echo(f"efuse: {problem}", err=True)

    return warn
