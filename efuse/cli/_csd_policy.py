# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse csd policy``: load the program that decides where functions run."""

from __future__ import annotations

from pathlib import Path

import click

from efuse import functions
from efuse.cli._c_text import c_text
from efuse.cli._output import echo

__all__ = ["policy"]


@click.group()
def policy() -> None:
    """Load a BPF program that decides where functions run unless their callers choose.

    \b
    efuse csd policy load --replace ./mine.c
    efuse csd policy unload
    """


@policy.command()
@click.argument("file", type=click.Path(path_type=Path), metavar="FILE.c")
@click.option("--replace", is_flag=True, help="Replace the loaded policy.")
def load(file: Path, *, replace: bool) -> None:
    """Load the policy in FILE.c, for all devices, until it is unloaded. Needs root.

    \b
    efuse csd policy load ./mine.c
    """
    text = c_text(file, "the policy")
    if replace:
        functions.replace_policy(text, file.stem)
    else:
        with functions.load_policy(text, file.stem) as made:
            made.pin()
    echo(f"loaded the policy {file.stem!r}")


@policy.command()
def unload() -> None:
    """Unload the policy, whichever process loaded it. The kernel decides itself again.

    \b
    efuse csd policy unload
    """
    functions.unload_policy()
    click.echo("unloaded the policy")
