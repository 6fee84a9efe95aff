# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse completion``: print a shell's completion script."""

from __future__ import annotations

import click

__all__ = ["cli"]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "fish", "zsh"]))
def cli(shell: str) -> None:
    """Print the script with which SHELL completes the words of efuse.

    It completes commands and options, and what exists at the moment: mounts, devices, functions,
    names of attributes and their values.

    \b
    efuse completion bash > ~/.local/share/bash-completion/completions/efuse
    efuse completion fish > ~/.config/fish/completions/efuse.fish
    efuse completion zsh > ~/.zfunc/_efuse
    """
    from click.shell_completion import get_completion_class

    from efuse.cli.main import cli as whole

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(whole, {}, "efuse", "_EFUSE_COMPLETE").source())
