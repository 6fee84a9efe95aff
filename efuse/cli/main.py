# SPDX-License-Identifier: LGPL-2.1-or-later
"""The ``efuse`` command: imports the module of a subcommand when needed, and prints errors."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Sequence

import click

import efuse
import efuse.cli
from efuse.cli._errors import report
from efuse.errors import EfuseError

__all__ = ["cli", "main"]


class _Nouns(click.Group):
    """A group whose commands are the public modules of this package, imported when needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        found = (module.name for module in pkgutil.iter_modules(efuse.cli.__path__))
        return sorted(name for name in found if name != "main" and not name.startswith("_"))

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.list_commands(ctx):
            return None
        command = importlib.import_module(f"efuse.cli.{name}").cli
        assert isinstance(command, click.Command)
        return command


@click.command(cls=_Nouns, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(efuse.__version__, prog_name="efuse")
def cli() -> None:
    """FUSE file systems whose requests BPF handlers answer inside the kernel.

    \b
    efuse mount passthrough --consistency exclusive /srv/data /mnt/data
    efuse stat /mnt/data
    efuse doctor
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 ok, 1 failed, 2 usage, 3 not supported here.

    :param arguments: the arguments without the program's name; None: those of this process.
    """
    try:
        status = cli.main(args=arguments, prog_name="efuse", standalone_mode=False)
    except (EfuseError, click.ClickException) as error:
        report(error, "efuse")
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("efuse: interrupted", err=True)
        sys.exit(130)
    sys.exit(status if isinstance(status, int) else 0)


if __name__ == "__main__":
    main()
