# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse csd``: emulated devices, and storage functions over files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from efuse import csd, functions
from efuse.cli._c_text import c_text
from efuse.cli._csd_functions import COMMANDS
from efuse.cli._csd_policy import policy
from efuse.cli._csd_run import run
from efuse.cli._output import echo, json_option, print_json, print_table
from efuse.cli._sizes import SIZE
from efuse.csd.attributes import ATTRIBUTES, attribute
from efuse.csd.devices import device
from efuse.csd.profiles import PROFILES
from efuse.errors import EfuseError, UsageError
from efuse.functions.running import CONTROL

__all__ = ["cli"]

_MIB = 1 << 20


def _beginning(words: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


class _Device(click.ParamType[str]):
    """The name of a device."""

    name = "device"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            return _beginning((found.name for found in csd.devices()), incomplete)
        except EfuseError:
            return []


class _Setting(click.ParamType[tuple[str, int]]):
    """A device's attribute and its value in the form ``KEY=VALUE``."""

    name = "key=value"

    def convert(
        self,
        value: str | tuple[str, int],
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        name, equals, text = value.partition("=")
        if not equals:
            self.fail(f"{value!r} is not an assignment: write KEY=VALUE", param, ctx)
        return name, attribute(name).parse(text)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [
            CompletionItem(f"{name}=", help=found.doc)
            for name, found in ATTRIBUTES.items()
            if found.writable and name.startswith(incomplete)
        ]


class _Function(click.ParamType[str]):
    """The name of a function; *shipped* and *loaded* choose which names are completed."""

    name = "function"

    def __init__(self, *, shipped: bool, loaded: bool) -> None:
        self._shipped = shipped
        self._loaded = loaded

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        names = set(COMMANDS) if self._shipped else set()
        if self._loaded:
            names |= {found.name for found in _loaded()[0] or ()}
        return _beginning(sorted(names), incomplete)


@click.group()
def cli() -> None:
    """Make emulated storage devices, and run storage functions over files.

    \b
    efuse csd create fast --size 1G --profile fast-cores
    efuse csd run count --pattern error /mnt/log
    """


cli.add_command(run)
cli.add_command(policy)


@cli.command()
@click.argument("name")
@click.option("--size", type=SIZE, metavar="SIZE", help="Size of the device, such as 256M.")
@click.option("--profile", type=click.Choice(list(PROFILES)), help="Model of a device.")
@click.option(
    "--set",
    "settings",
    type=_Setting(),
    multiple=True,
    metavar="KEY=VALUE",
    help="Set an attribute; overrides --profile and --size. May be repeated.",
)
def create(
    name: str, size: int | None, profile: str | None, settings: Sequence[tuple[str, int]]
) -> None:
    """Make the device NAME, power it on, and print the path of its disk.

    \b
    efuse csd create fast --size 1G --profile fast-cores --set cores=8
    """
    values = dict(PROFILES[profile].values) if profile is not None else {}
    if size is not None:
        if size % _MIB:
            raise UsageError(f"a device cannot have {size} bytes (EINVAL)", hint="whole MiB: 256M")
        values["size_mib"] = size // _MIB
    made = csd.create(name, values | dict(settings))
    echo(made.path if made.powered else f"{name}: powered off")


@cli.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the devices.

    \b
    efuse csd list --json
    """
    found = [
        {
            "name": each.name,
            "disk": str(each.path) if each.powered else None,
            "mounts": each.mounts(),
            "attributes": each.values(),
        }
        for each in csd.devices()
    ]
    if as_json:
        print_json(found)
    elif not found:
        echo("there are no devices")
    else:
        print_table(
            ("NAME", "DISK", "MIB", "CORES", "CORE", "MODEL", "COMMANDS", "MOUNTED ON"),
            [_row(each) for each in found],
            right="  rrrrr",
        )


def _row(found: dict[str, Any]) -> list[str]:
    values = found["attributes"]
    return [
        found["name"],
        found["disk"] or "-",
        str(values["size_mib"]),
        str(values["cores"]),
        f"{values['core_percent']}%",
        str(values["model"]),
        str(values["commands"]),
        " ".join(found["mounts"]) or "-",
    ]


@cli.command("set")
@click.argument("name", type=_Device())
@click.argument("settings", type=_Setting(), nargs=-1, required=True, metavar="KEY=VALUE...")
def set_(name: str, settings: Sequence[tuple[str, int]]) -> None:
    """Set attributes of the device NAME, in the given order.

    To change an attribute that is fixed while the power is on, put power=0 before it and power=1
    after it.

    \b
    efuse csd set fast model=1 link_mib_per_s=500
    """
    found = device(name)
    for key, value in settings:
        found.set(key, value)


@cli.command()
@click.argument("name", type=_Device())
def remove(name: str) -> None:
    """Remove the device NAME and its data.

    \b
    efuse csd remove fast
    """
    device(name).remove()


@cli.command()
@click.argument("name", type=_Device(), required=False)
@json_option
def attributes(name: str | None, as_json: bool) -> None:
    """List the attributes of devices and what they mean; with NAME also their values.

    \b
    efuse csd attributes fast
    """
    values = device(name).values() if name is not None else {}
    found = [
        {
            "name": each.name,
            "kind": each.kind.value,
            "unit": each.unit,
            "range": each.range,
            "default": each.default,
            "doc": each.doc,
            **({"value": values[each.name]} if values else {}),
        }
        for each in ATTRIBUTES.values()
    ]
    if as_json:
        print_json(found)
        return
    keys = ("name", "value", "unit", "doc") if values else ("name", "kind", "range", "unit", "doc")
    rows = [[str(each[key]) for key in keys] for each in found]
    print_table([key.upper() for key in keys], rows, right=" r" if values else "")


@cli.command("functions")
@json_option
def functions_(as_json: bool) -> None:
    """List the functions that are shipped or loaded, and their arguments.

    \b
    efuse csd functions --json
    """
    present, unknown = _loaded()
    in_kernel = {each.name: each for each in present or ()}
    found: list[dict[str, Any]] = [
        {
            "name": name,
            "shipped": name in COMMANDS,
            "loaded": name in in_kernel if present is not None else None,
            "pinned": in_kernel[name].pinned if name in in_kernel else None,
            "args_bytes": in_kernel[name].args_size if name in in_kernel else None,
            "arguments": _arguments(name),
            "doc": COMMANDS[name].doc if name in COMMANDS else "",
        }
        for name in sorted({*COMMANDS, *in_kernel})
    ]
    if as_json:
        print_json(found)
        return
    rows = [
        (each["name"], _state(each), " ".join(a["usage"] for a in each["arguments"]), each["doc"])
        for each in found
    ]
    print_table(("NAME", "LOADED", "TAKES", "DOC"), rows)
    if unknown:
        echo(f"the loaded functions are not known: {unknown}", err=True)


def _loaded() -> tuple[tuple[functions.InKernel, ...] | None, str]:
    """Return the functions in the kernel, or None and why they cannot be listed."""
    if not Path(CONTROL).exists():
        return (), ""
    try:
        return functions.loaded(), ""
    except EfuseError as error:
        return None, str(error)


def _arguments(name: str) -> list[dict[str, Any]]:
    if name not in COMMANDS:
        return []
    return [
        {
            "name": option.name,
            "usage": _usage(option),
            "required": option.required,
            "help": option.help if isinstance(option, click.Option) else None,
        }
        for option in COMMANDS[name].options
    ]


def _usage(option: click.Parameter) -> str:
    if not isinstance(option, click.Option):
        return option.metavar or option.opts[0].upper()
    usage = f"{option.opts[0]} {option.metavar or option.type.name.upper()}"
    return usage if option.required else f"[{usage}]"


def _state(found: dict[str, Any]) -> str:
    if found["loaded"] is None:
        return "?"
    if not found["loaded"]:
        return "no"
    return "yes" if found["pinned"] else "for a task"


@cli.command()
@click.argument("function", type=_Function(shipped=True, loaded=False), metavar="NAME|FILE.c")
def load(function: str) -> None:
    """Load the shipped function NAME, or the function in FILE.c, until it is unloaded.

    Needs root. Any user can run the function afterwards, unless it is private.

    \b
    efuse csd load count
    efuse csd load ./mine.c
    """
    name, text = function, None
    if function.endswith(".c"):
        path = Path(function)
        name, text = path.stem, c_text(path, "the function")
    with functions.load(name, text) as made:
        made.pin()
    echo(f"loaded {name!r}")


@cli.command()
@click.argument("name", type=_Function(shipped=False, loaded=True))
def unload(name: str) -> None:
    """Unload the function NAME, whichever process loaded it.

    \b
    efuse csd unload count
    """
    functions.unload(name)
    echo(f"unloaded {name!r}")
