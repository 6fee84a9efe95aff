# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse prog``: check, attach, replace and detach program sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from efuse import bpf
from efuse.bpf.compile import compile_text
from efuse.cli._c_text import c_text
from efuse.cli._output import MOUNT, connection, echo, json_option, print_json, print_table
from efuse.errors import NotSupportedError, UsageError, VerifierError

__all__ = ["cli"]

_Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _set_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose the programs of a set."""
    options: list[_Decorator] = [
        click.option(
            "--handler",
            "handlers",
            multiple=True,
            metavar="[MEMBER=]FILE.c",
            help="Run the handler of MEMBER in FILE.c before the built-in one; without MEMBER, all "
            "handlers in FILE.c. May be repeated.",
        ),
        click.option("--no-builtin", is_flag=True, help="Leave the built-in handlers out."),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def _attach_options(function: Callable[..., Any]) -> Callable[..., Any]:
    options: list[_Decorator] = [
        click.option("--name", help="Name of the programs in sysfs."),
        click.option(
            "--capacity",
            "capacities",
            multiple=True,
            metavar="MAP=ENTRIES",
            help="Set the capacity of a map. May be repeated.",
        ),
    ]
    for option in reversed(options):
        function = option(function)
    return function


def _spec(handlers: tuple[str, ...], no_builtin: bool) -> bpf.Spec:
    texts: dict[str, str] = {}
    names: dict[str, str] = {}
    for given in handlers:
        member, separator, file = given.partition("=")
        path = Path(file if separator else given)
        text = c_text(path, "the handler")
        members = [member] if separator else list(compile_text(text, path.name).programs)
        for name in members:
            if name in texts:
                raise UsageError(f"two handlers are given for {name}: {names[name]} and {path}")
            texts[name] = text
            names[name] = path.name
    return bpf.compile_handlers(texts, with_builtin=not no_builtin, names=names)


def _capacity(capacities: tuple[str, ...]) -> Mapping[str, int]:
    found = {}
    for given in capacities:
        name, separator, entries = given.partition("=")
        if not separator or not entries.isdecimal():
            raise UsageError(f"cannot read the capacity {given!r}", hint="--capacity attrs=100000")
        found[name] = int(entries)
    return found


@click.group()
def cli() -> None:
    """Check, attach, replace and detach the programs that answer requests in the kernel.

    \b
    efuse prog list
    """


@cli.command()
@_set_options
@click.option("--log", is_flag=True, help="Print the verifier's whole log if it refuses a program.")
@json_option
def check(handlers: tuple[str, ...], no_builtin: bool, log: bool, as_json: bool) -> None:
    """Compile the programs and, if the module is loaded, let the kernel verify them.

    No program is attached.

    \b
    efuse prog check --handler lookup=mine.c
    """
    spec = _spec(handlers, no_builtin)
    try:
        verified: dict[str, int] | None = {
            v.member: v.verified_instructions for v in bpf.check(spec=spec)
        }
        reason = ""
    except NotSupportedError as error:
        verified, reason = None, str(error)
    except VerifierError as error:
        if log:
            echo(error.log, err=True)
        raise
    programs = [
        {
            "member": member,
            "instructions": len(program.code) // 8,
            "verified_instructions": verified[member] if verified else None,
        }
        for member, program in spec.programs.items()
    ]
    if as_json:
        maps = {name: vars(definition) for name, definition in spec.maps.items()}
        print_json({"programs": programs, "maps": maps, "verified": verified is not None})
        return
    rows = [
        (str(p["member"]), str(p["instructions"]), str(p["verified_instructions"] or "-"))
        for p in programs
    ]
    print_table(("MEMBER", "INSTRUCTIONS", "VERIFIED"), rows, right=" rr")
    if verified is None:
        echo(f"compiled, not verified: {reason}")


@cli.command("list")
@json_option
def list_(as_json: bool) -> None:
    """List the attached program sets.

    \b
    efuse prog list --json
    """
    found = bpf.list_attached()
    if as_json:
        print_json([vars(attached) for attached in found])
    elif not found:
        echo("no programs are attached")
    else:
        rows = [
            (str(a.connection), a.name, str(a.link_id), " ".join(a.members), " ".join(a.maps))
            for a in found
        ]
        print_table(("ID", "NAME", "LINK", "MEMBERS", "MAPS"), rows, right="r r")


@cli.command()
@click.argument("mount", type=MOUNT)
@_set_options
@_attach_options
@json_option
def attach(
    mount: str,
    handlers: tuple[str, ...],
    no_builtin: bool,
    name: str | None,
    capacities: tuple[str, ...],
    as_json: bool,
) -> None:
    """Attach the programs to MOUNT, a path or the number of a connection, until `detach`.

    \b
    efuse prog attach --capacity attrs=100000 /mnt/data
    """
    spec = _spec(handlers, no_builtin)
    number = connection(mount).id
    with bpf.attach(
        number, name=name or "efuse", capacity=_capacity(capacities), spec=spec
    ) as attachment:
        directory = attachment.pin()
        _report("attached", attachment, as_json, pins=str(directory))


@cli.command()
@click.argument("mount", type=MOUNT)
@_set_options
@_attach_options
@json_option
def replace(
    mount: str,
    handlers: tuple[str, ...],
    no_builtin: bool,
    name: str | None,
    capacities: tuple[str, ...],
    as_json: bool,
) -> None:
    """Replace the programs of MOUNT, keeping the maps that the old and the new ones share.

    \b
    efuse prog replace --handler lookup=mine.c /mnt/data
    """
    spec = _spec(handlers, no_builtin)
    with bpf.Attachment.open(connection(mount).id) as attachment:
        attachment.replace(name=name, capacity=_capacity(capacities), spec=spec)
        _report("replaced", attachment, as_json)


@cli.command()
@click.argument("mount", type=MOUNT)
@json_option
def detach(mount: str, as_json: bool) -> None:
    """Detach the programs of MOUNT, so that all its requests go to the daemon.

    For a connection that no longer exists, its number removes the programs that were pinned for it.

    \b
    efuse prog detach /mnt/data
    """
    attachment = bpf.Attachment.open(int(mount) if mount.isdecimal() else connection(mount).id)
    attachment.detach()
    _report("detached", attachment, as_json)


def _report(verb: str, attachment: bpf.Attachment, as_json: bool, **more: str) -> None:
    if as_json:
        print_json({"connection": attachment.connection, "name": attachment.name, **more})
    else:
        echo(f"{verb} {attachment.name!r}, connection {attachment.connection}")
