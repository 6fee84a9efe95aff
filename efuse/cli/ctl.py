# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse ctl``: read and write the attributes of a mount by name."""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import CompletionItem

from efuse.cli._output import MOUNT, connection, echo, json_option, print_json, print_table
from efuse.control import Attribute, Connection
from efuse.errors import UsageError

__all__ = ["cli"]


class _Name(click.ParamType[str]):
    """The name of an attribute."""

    name = "name"

    def __init__(self, mode: int) -> None:
        self.mode = mode

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [
            CompletionItem(name, help=attribute.doc)
            for name, attribute in Connection.attributes().items()
            if attribute.mode & self.mode and name.startswith(incomplete)
        ]


def _complete_value(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    attribute = Connection.attributes().get(ctx.params.get("name") or "")
    words = attribute.range.split(" or ") if attribute else []
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _attribute(name: str) -> Attribute[Any]:
    attributes = Connection.attributes()
    if name not in attributes:
        raise UsageError(f"there is no attribute {name!r}", hint=f"one of {', '.join(attributes)}")
    return attributes[name]


def _value(conn: Connection, attribute: Attribute[Any]) -> str:
    return str(attribute.show(attribute.__get__(conn, Connection)))


@click.group()
def cli() -> None:
    """Read and change the attributes of a mount.

    \b
    efuse ctl list /mnt/data
    """


@cli.command()
@click.argument("mount", type=MOUNT)
@click.argument("name", type=_Name(0o400))
@json_option
def get(mount: str, name: str, as_json: bool) -> None:
    """Print the attribute NAME of MOUNT, a path or the number of a connection.

    \b
    efuse ctl get /mnt/data state
    """
    attribute = _attribute(name)
    value = _value(connection(mount), attribute)
    if as_json:
        print_json({name: value})
    else:
        echo(value)


@cli.command("set")
@click.argument("mount", type=MOUNT)
@click.argument("name", type=_Name(0o200))
@click.argument("value", shell_complete=_complete_value)
def set_(mount: str, name: str, value: str) -> None:
    """Set the attribute NAME of MOUNT to VALUE.

    \b
    efuse ctl set /mnt/data consistency ttl
    """
    _attribute(name).set_text(connection(mount), value)


@cli.command("list")
@click.argument("mount", type=MOUNT, required=False)
@json_option
def list_(mount: str | None, as_json: bool) -> None:
    """List the attributes and what they mean; with MOUNT also their values.

    \b
    efuse ctl list --json 33
    """
    conn = connection(mount) if mount is not None else None
    found = []
    for name, attribute in Connection.attributes().items():
        entry = {
            "name": name,
            "mode": f"{attribute.mode:04o}",
            "unit": attribute.unit,
            "range": attribute.range,
            "default": attribute.default,
            "doc": attribute.doc,
        }
        if conn is not None:
            entry["value"] = _value(conn, attribute) if attribute.readable else ""
        found.append(entry)
    if as_json:
        print_json(found)
    elif conn is not None:
        print_table(("NAME", "VALUE", "DOC"), [(e["name"], e["value"], e["doc"]) for e in found])
    else:
        keys = ("name", "mode", "range", "default", "doc")
        print_table([k.upper() for k in keys], [[e[k] for k in keys] for e in found])
