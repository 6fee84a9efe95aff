# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse module``: build, install, load and unload the kernel module."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

__all__ = ["cli"]


def _say(text: str) -> None:
    click.echo(f"module: {text}", err=True)


@click.group()
def cli() -> None:
    """Build, install, load and unload the kernel module."""


@cli.command("build")
@click.option("--kernel", "release", metavar="RELEASE", help="Build for this kernel's headers.")
@click.option(
    "--tree",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Build for the kernel built in this source tree.",
)
@click.option("--force", is_flag=True, help="Build even if it was built before.")
def build_command(release: str | None, tree: Path | None, force: bool) -> None:
    """Build efuse.ko from the distribution's kernel source and print where it is."""
    from efuse.module import build, kernel

    target = kernel.from_tree(tree) if tree else kernel.find(release=release)
    click.echo(build.build(target, say=_say, force=force))


@cli.command("install")
@click.option("--kernel", "release", metavar="RELEASE", help="Instead of the running kernel.")
def install_command(release: str | None) -> None:
    """Install the module by DKMS."""
    from efuse.module import dkms

    dkms.install(release, say=_say)


@cli.command("load")
@click.argument(
    "module", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
def load_command(module: Path | None) -> None:
    """Load the module: MODULE, the installed one, or one built now."""
    from efuse.module import live

    live.load(module, say=_say)


@cli.command("unload")
def unload_command() -> None:
    """Unload the module."""
    from efuse.module import live

    live.unload()


@cli.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status_command(as_json: bool) -> None:
    """Say what there is of the module."""
    from efuse.module import live

    fields = dataclasses.asdict(live.status())
    if as_json:
        click.echo(json.dumps(fields, indent=2))
        return
    for key, value in fields.items():
        click.echo(f"{key:<10} {'-' if value is None else value}")
