# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse profiles``: what is known of FUSE daemons."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from efuse.cli._output import echo, json_option, print_json, print_table
from efuse.profiles import Profile, all_profiles, named

__all__ = ["cli"]


@click.group(name="profiles")
def cli() -> None:
    """Show what `efuse run` knows of FUSE daemons.

    \b
    efuse profiles list
    efuse profiles show squashfuse
    """


@cli.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the profiles.

    \b
    efuse profiles list
    """
    found = all_profiles().values()
    if as_json:
        print_json([each.json for each in found])
        return
    rows = [[each.name, _applies_to(each), each.consistency, each.reason] for each in found]
    print_table(("PROFILE", "APPLIES TO", "CONSISTENCY", "REASON"), rows)


class _Name(click.ParamType[str]):
    name = "profile"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in all_profiles() if name.startswith(incomplete)]


@cli.command(name="show")
@click.argument("name", type=_Name())
@json_option
def show(name: str, as_json: bool) -> None:
    """Show the profile NAME.

    \b
    efuse profiles show squashfuse
    """
    found = named(name)
    if as_json:
        print_json(found.json)
        return
    echo(f"{found.name}: {found.reason}")
    rows = [
        ["applies to", _applies_to(found)],
        ["other options", ", ".join(found.known_options) or "any"],
        ["consistency", found.consistency],
        *([["names", found.names], ["nodeids", found.nodeids]] if found.names else []),
        ["promises", ", ".join(found.promises) or "none"],
        ["revalidate", "yes" if found.revalidate else "no"],
        ["data cache", found.data_cache],
        ["tried with", ", ".join(found.tried)],
    ]
    print_table(("", ""), rows)


def _applies_to(profile: Profile) -> str:
    options = f" -o {','.join(profile.mount_options)}" if profile.mount_options else ""
    return ", ".join(f"{program}{options}" for program in profile.programs)
