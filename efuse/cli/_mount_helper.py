# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mount.efuse``, which mount(8) runs for ``mount -t efuse`` and for /etc/fstab.

mount.efuse SPEC DIR [-sfnv] [-o OPTIONS] [-t TYPE]. SPEC is a directory to pass through, or the
dotted name of a Python file system.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from efuse.cli._filesystem import Request, absolute_source, split_options
from efuse.errors import EfuseError

__all__ = ["main"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("spec")
@click.argument("directory")
@click.option(
    "-o",
    "options",
    multiple=True,
    help="Mount options; consistency=, data_cache=, max_request=, max_readdir=, plain, "
    "no_channels, arg=K=V.",
)
@click.option("-s", "sloppy", is_flag=True, help="Ignored: mount(8) may give it.")
@click.option("-f", "fake", is_flag=True, help="Do everything but mount.")
@click.option("-n", "no_mtab", is_flag=True, help="Ignored: mount(8) may give it.")
@click.option("-v", "verbose", is_flag=True, help="Say how it is mounted.")
@click.option("-t", "fstype", help="The type, perhaps with a subtype: efuse.SUBTYPE.")
def _cli(
    spec: str,
    directory: str,
    options: tuple[str, ...],
    sloppy: bool,
    fake: bool,
    no_mtab: bool,
    verbose: bool,
    fstype: str | None,
) -> None:
    """Mount SPEC on DIRECTORY, as mount(8) asks."""
    from efuse.cli.mount import mount

    request = Request("passthrough" if "/" in spec else spec)
    request.options.add(f"fsname={spec}")
    if "/" in spec:
        request.arguments["source"] = absolute_source(spec)
    request.take(split_options(options))
    if fstype and "." in fstype:
        request.options.add(f"subtype={fstype.partition('.')[2]}")
    request.operations()
    if not fake:
        mount(request, directory, foreground=False, as_json=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run it and exit with mount(8)'s codes: 0 mounted, 1 usage, 32 failed."""
    try:
        _cli.main(args=arguments, prog_name="mount.efuse", standalone_mode=False)
    except EfuseError as error:
        click.echo(f"mount.efuse: {error}", err=True)
        if error.hint:
            click.echo(f"try: {error.hint}", err=True)
        sys.exit(32)
    except click.ClickException as error:
        error.show()
        sys.exit(1)
    sys.exit(0)
