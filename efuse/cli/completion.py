# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse completion``: the script by which a shell completes words."""

from __future__ import annotations

import click

__all__ = ["cli"]


@click.command()
@click.argument("shell", type=click.Choice(["bash", "fish", "zsh"]))
def cli(shell: str) -> None:
    """Print the script by which SHELL completes the words of efuse.

    Commands and options are completed, and what is there now: mounts, devices, functions, names of
    attributes and their values.

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
