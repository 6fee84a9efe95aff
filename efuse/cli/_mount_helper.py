# SPDX-License-Identifier: LGPL-2.1-or-later
"""``mount.efuse``, which mount(8) runs for ``mount -t efuse`` and for /etc/fstab."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from efuse.cli._errors import report
from efuse.cli._filesystem import Request, absolute_source, split_options
from efuse.errors import EfuseError

__all__ = ["cli", "main"]


def _request(spec: str) -> Request:
    """Parse *spec*: DIRECTORY, NAME, or NAME#SOURCE."""
    name, has_source, source = spec.partition("#")
    if not has_source or "/" in name:
        name, source = ("passthrough", spec) if "/" in spec else (spec, "")
    request = Request(name)
    request.options.add(f"fsname={spec}")
    if source:
        request.arguments["source"] = absolute_source(source)
    return request


@click.command(name="mount.efuse", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("spec")
@click.argument("directory")
@click.option(
    "-o",
    "options",
    multiple=True,
    metavar="OPTION,...",
    help="Mount options; consistency=, data_cache=, max_request=, max_readdir=, recovery=, plain, "
    "require, no_channels, no_default_permissions, arg=NAME=VALUE.",
)
@click.option("-s", "sloppy", is_flag=True, help="Ignore unknown options.")
@click.option("-f", "fake", is_flag=True, help="Do everything except mount.")
@click.option("-n", "no_mtab", is_flag=True, help="Ignored: mount(8) may pass it.")
@click.option(
    "-v", "verbose", is_flag=True, help="Ignored: the type of the mount is always printed."
)
@click.option(
    "-t", "fstype", metavar="TYPE", help="The type, perhaps with a subtype: efuse.SUBTYPE."
)
def cli(
    spec: str,
    directory: str,
    options: tuple[str, ...],
    sloppy: bool,
    fake: bool,
    no_mtab: bool,
    verbose: bool,
    fstype: str | None,
) -> None:
    """Mount SPEC on DIRECTORY. mount(8) runs this command.

    SPEC is DIRECTORY or passthrough#DIRECTORY, a directory to pass through; or MODULE:CLASS, a
    file system written in Python; or MODULE:CLASS#SOURCE, which is MODULE:CLASS with
    arg=source=SOURCE. Options that are meant for mount(8) and systemd, such as nofail, _netdev and
    x-systemd.automount, are ignored.

    \b
    mount -t efuse passthrough#/srv/data /mnt/data -o consistency=exclusive,ro
    mount.efuse mypackage.myfs:MyFs /mnt/my -o allow_other,arg=size=10
    """
    from efuse.cli.mount import mount

    request = _request(spec)
    request.take(split_options(options), is_sloppy=sloppy)
    if fstype and "." in fstype:
        request.options.add(f"subtype={fstype.partition('.')[2]}")
    request.operations()
    if not fake:
        mount(request, directory, foreground=False, as_json=False)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit with mount(8)'s codes: 0 mounted, 1 usage, 32 failed."""
    try:
        cli.main(args=arguments, prog_name="mount.efuse", standalone_mode=False)
    except EfuseError as error:
        report(error, "mount.efuse")
        sys.exit(32)
    except click.ClickException as error:
        report(error, "mount.efuse")
        sys.exit(1)
    sys.exit(0)
