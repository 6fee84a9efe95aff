# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse module``: build, install, load and unload the kernel modules."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from efuse.cli._kernels import buildable
from efuse.cli._output import echo, print_json

if TYPE_CHECKING:
    from efuse.module.build import Source

__all__ = ["cli"]


_csd_option = click.option(
    "--csd", "is_csd", is_flag=True, help="Use csd.ko, the module of the emulated storage devices."
)


def _source(is_csd: bool) -> Source:
    from efuse.module import build

    return build.CSD if is_csd else build.EFUSE


def _say(text: str) -> None:
    echo(f"module: {text}", err=True)


@click.group()
def cli() -> None:
    """Build, install, load and unload the kernel modules.

    \b
    efuse module build
    efuse module load
    efuse module status
    """


@cli.command("build")
@click.option(
    "--kernel",
    "wanted",
    metavar="SERIES|RELEASE|TREE",
    help="Build for this kernel: one that scripts/setup-kernel has unpacked, such as 7, one whose "
    "headers are installed, or the one built in a source tree. Default: the running kernel if it "
    "has patches, else the newest 6.12.",
)
@click.option("--force", is_flag=True, help="Build even if the module is up to date.")
@_csd_option
def build_command(wanted: str | None, force: bool, is_csd: bool) -> None:
    """Build efuse.ko, or csd.ko, from the distribution's kernel source and print its path.

    \b
    efuse module build --csd
    efuse module build --kernel ../linux
    """
    from efuse.module import build, kernel

    target = buildable(wanted) if wanted else kernel.find(release=kernel.running())
    echo(build.build(target, _source(is_csd), say=_say, force=force))


@cli.command("install")
@click.option(
    "--kernel",
    "release",
    metavar="RELEASE",
    help="Install for this kernel instead of the running one.",
)
@_csd_option
def install_command(release: str | None, is_csd: bool) -> None:
    """Install the module with DKMS.

    \b
    efuse module install --csd
    """
    from efuse.module import dkms

    dkms.install(release, _source(is_csd), say=_say)


@cli.command("load")
@click.argument(
    "module", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@_csd_option
def load_command(module: Path | None, is_csd: bool) -> None:
    """Load the module: the file MODULE, the installed one, or one that is built now.

    \b
    efuse module load --csd
    """
    if is_csd:
        from efuse import csd

        csd.load(module, say=_say)
    else:
        from efuse.module import live

        live.load(module, say=_say)


@cli.command("unload")
@_csd_option
def unload_command(is_csd: bool) -> None:
    """Unload the module.

    \b
    efuse module unload --csd
    """
    if is_csd:
        from efuse import csd

        csd.unload()
    else:
        from efuse.module import live

        live.unload()


@cli.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@_csd_option
def status_command(as_json: bool, is_csd: bool) -> None:
    """Show the state of the module: whether it is built, installed and loaded.

    \b
    efuse module status --csd --json
    """
    from efuse.module import live

    fields = dataclasses.asdict(live.status(_source(is_csd)))
    if as_json:
        print_json(fields)
        return
    for key, value in fields.items():
        echo(f"{key:<10} {'-' if value is None else value}")
