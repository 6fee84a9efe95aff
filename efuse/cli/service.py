# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse service``: keep the mounts running that a directory describes."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from efuse.cli._errors import report
from efuse.cli._output import echo, json_option, print_json, print_table
from efuse.control import all_mounts
from efuse.display import shown
from efuse.errors import EfuseError, NotSupportedError, UsageError
from efuse.service.description import Description
from efuse.service.parsing import DIRECTORY, Described, described
from efuse.service.records import STATE, Record, Records

__all__ = ["cli"]

_F = TypeVar("_F", bound=Callable[..., Any])


class _Service:
    """Where descriptions and records are."""

    def __init__(self, directory: Path, state: Path) -> None:
        self.directory, self.records = directory, Records(state)

    def described(self) -> Described:
        return described(self.directory)

    def given(self, found: Described, name: str) -> Description:
        """Return a description.

        :raises EfuseError: it is not valid.
        """
        if name in found.errors:
            raise found.errors[name]
        return found.mounts[name]

    def loaded(self) -> list[Record]:
        """Return all records."""
        found = [self.records.load(name) for name in self.records.names()]
        return [record for record in found if record is not None]

    def names(self, given: tuple[str, ...], *, every: bool, known: Iterable[str]) -> list[str]:
        """Return the names that a command is to work on.

        :raises UsageError: there are none, or there is no mount with one of the names.
        """
        known = [*known]
        if bool(given) == every:
            raise UsageError(
                "either names or --all are needed (EINVAL)",
                hint="efuse service list shows the names",
            )
        if every:
            return known
        for name in given:
            if name not in known:
                raise UsageError(
                    f"there is no mount {name!r} (ENOENT)",
                    hint="efuse service list shows the names",
                )
        return [*given]


_pass = click.make_pass_decorator(_Service)


class _Name(click.ParamType[str]):
    """The name of a mount."""

    name = "name"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        try:
            found = described(DIRECTORY).mounts
        except EfuseError:
            return []
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]


def _names(command: _F) -> _F:
    for option in (
        json_option,
        click.option("--all", "every", is_flag=True, help="All mounts, one after the other."),
        click.argument("names", nargs=-1, type=_Name(), metavar="[NAME]..."),
    ):
        command = option(command)
    return command


_wait = click.option(
    "--wait",
    "most_s",
    type=click.FloatRange(min=0),
    default=120,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for each daemon, which goes on after that.",
)


@click.group(name="service", invoke_without_command=True)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=DIRECTORY,
    show_default=True,
    help="Directory of the descriptions.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    default=STATE,
    show_default=True,
    help="Directory for what is remembered of the mounts.",
)
@click.option("--unmount", is_flag=True, help="Unmount all mounts when the service is ended.")
@click.pass_context
def cli(ctx: click.Context, directory: Path, state: Path, unmount: bool) -> int:
    """Start the mounts that a directory describes, and start them again when they end.

    Without a command, this is the service. It ends on SIGINT or SIGTERM, and reads the descriptions
    again on SIGHUP. The mounts and their daemons go on when it ends. A service that is started
    later finds them, and starts nothing twice. docs/service.md has the keys of a description.

    The commands work without the service, too.

    \b
    efuse service
    efuse service status
    efuse service upgrade --all
    """
    ctx.obj = _Service(directory.absolute(), state.absolute())
    if ctx.invoked_subcommand is None:
        return _serve(ctx.obj, unmount=unmount)
    if unmount:
        raise UsageError("--unmount cannot be used: it is an option of the service itself (EINVAL)")
    return 0


def _serve(service: _Service, *, unmount: bool) -> int:
    from efuse.service.serving import serve
    from efuse.service.stopping import deepest_first
    from efuse.service.stopping import stop as end

    _check_kernel()
    logging.basicConfig(format="%(message)s")
    serve(
        service.directory,
        service.records,
        ready=lambda: echo(f"the service attends to {service.directory}", err=True),
    )
    status = 0
    for record in deepest_first(service.loaded()) if unmount else ():
        try:
            end(record, service.records, lazy=True, rest=record.rest)
        except EfuseError as error:
            report(error, "efuse")
            status = 1
    return status


def _check_kernel() -> None:
    """Check that this process can mount eFuse.

    :raises NotSupportedError: it cannot.
    """
    from efuse.fs.mountpoint import kernel_lacks_efuse

    why = kernel_lacks_efuse()
    if why is not None:
        raise NotSupportedError(f"nothing can be mounted: {why}", hint="efuse doctor")


@cli.command(name="list")
@json_option
@_pass
def list_(service: _Service, as_json: bool) -> None:
    """List the descriptions, and what is wrong with them.

    \b
    efuse service list
    """
    found = service.described()
    rows = [
        {
            "name": each.name,
            "what": each.what,
            "mountpoint": each.mountpoint,
            "recovery": each.recovery,
            "restart": each.restart,
        }
        for each in found.mounts.values()
    ]
    if as_json:
        errors = [{"name": name, "error": str(error)} for name, error in found.errors.items()]
        print_json({"mounts": rows, "errors": errors})
        return
    heads = ("name", "what", "mountpoint", "recovery", "restart")
    print_table(
        [head.upper() for head in heads], [[str(row[head]) for head in heads] for row in rows]
    )
    for error in found.errors.values():
        echo(f"{error}\ntry: {error.hint}")


@cli.command()
@click.argument("names", nargs=-1, type=_Name(), metavar="[NAME]...")
@json_option
@_pass
def status(service: _Service, names: tuple[str, ...], as_json: bool) -> int:
    """Show how the mounts are doing: all of them, or those with a NAME.

    The exit status is 1 if one of them is neither served nor stopped.

    \b
    efuse service status --json
    """
    from efuse.service.status import statuses

    found = statuses(service.records, service.described())
    known = [each.name for each in found]
    chosen = service.names(names, every=not names, known=known)
    found = [each for each in found if each.name in chosen]
    runs = service.records.service()
    if as_json:
        pid = runs.process.pid if runs is not None else None
        print_json({"service": pid, "mounts": [each.json for each in found]})
    else:
        rows = [
            [
                each.name,
                each.mountpoint,
                str(each.seen.state),
                str(each.seen.connection or ""),
                str(each.seen.incarnation),
                str(each.seen.waiting),
                each.note,
            ]
            for each in found
        ]
        heads = ("NAME", "MOUNTPOINT", "STATE", "CONNECTION", "SUCCESSORS", "WAITING", "NOTE")
        print_table(heads, rows, right="lllrrrl")
        if runs is None:
            echo("the service does not run")
    return 0 if all(each.is_right for each in found) else 1


@cli.command()
@_names
@_wait
@_pass
def start(
    service: _Service, names: tuple[str, ...], every: bool, most_s: float, as_json: bool
) -> None:
    """Start the mounts with a NAME, and wait until they are served.

    A mount that was stopped is attended to by the service again. The first failure ends the
    command.

    \b
    efuse service start data
    """
    from efuse.service.actions import start as begin

    found = service.described()

    def act(name: str) -> str:
        is_new = begin(service.given(found, name), service.records, most_s=most_s)
        return "started" if is_new else "is served already"

    chosen = service.names(names, every=every, known=[*found.mounts, *found.errors])
    _check_kernel()
    _each(chosen, act, as_json)


@cli.command()
@_names
@click.option(
    "--force",
    is_flag=True,
    help="Kill a daemon that does not end otherwise. What it has not written is lost.",
)
@_wait
@_pass
def upgrade(
    service: _Service,
    names: tuple[str, ...],
    every: bool,
    force: bool,
    most_s: float,
    as_json: bool,
) -> int:
    """Replace the daemons of the mounts with a NAME, one after the other, while they are used.

    Each new daemon is started from the present description, and has to serve before the next one is
    replaced. The first failure ends the command. With --all, mounts that have no daemon on eFuse
    are left out. Then, the exit status is 1.

    \b
    efuse service upgrade data
    efuse service upgrade --all
    """
    from efuse.service.actions import upgrade as replace

    found = service.described()

    def act(name: str) -> str:
        replace(service.given(found, name), service.records, force=force, most_s=most_s)
        return "upgraded"

    known = [*found.mounts, *found.errors]
    status = 0
    if every:
        known, left_out = _with_daemon(service, found)
        for name, state in left_out.items():
            report(EfuseError(f"{name} is not upgraded: it is {state}"), "efuse")
            status = 1
    chosen = service.names(names, every=every, known=known)
    _check_kernel()
    _each(chosen, act, as_json)
    return status


@cli.command()
@_names
@click.option("--lazy", is_flag=True, help="Unmount also what is used; its programs go on.")
@_pass
def stop(service: _Service, names: tuple[str, ...], every: bool, lazy: bool, as_json: bool) -> int:
    """Unmount the mounts with a NAME. The service does not start them until `efuse service start`.

    A mount below another one is unmounted first. If one cannot be unmounted, the others are, and
    the exit status is 1.

    \b
    efuse service stop data
    """
    from efuse.service.stopping import deepest_first
    from efuse.service.stopping import stop as end

    found = service.described().mounts
    known = [*dict.fromkeys([*service.records.names(), *found])]
    chosen = service.names(names, every=every, known=known)
    stopped = {}
    status = 0
    for name in chosen:
        record = service.records.load(name) or (Record.of(found[name]) if name in found else None)
        if record is None:
            error = EfuseError(
                f"{name} cannot be stopped: its record is spoiled (EINVAL)",
                hint=f"unmount it, and remove {service.records.path(name)}",
            )
            report(error, "efuse")
            status = 1
        else:
            stopped[name] = record

    def act(name: str) -> str:
        forgets = not (service.directory / f"{name}.toml").exists()
        was_running = end(
            stopped[name], service.records, lazy=lazy, rest="stopped", forgets=forgets
        )
        return "stopped" if was_running else "was not running"

    order = [record.name for record in deepest_first(stopped.values())]
    return max(status, _each(order, act, as_json, goes_on=True))


@cli.command()
@_pass
def reload(service: _Service) -> None:
    """Let the service read the descriptions again.

    New mounts are started. A mount whose description is gone goes on. One whose description has
    changed goes on, too, and needs `efuse service upgrade`.

    \b
    efuse service reload
    """
    found = service.records.service()
    if found is None or not found.process.send(signal.SIGHUP):
        raise EfuseError(
            "the service cannot reload: it does not run (ESRCH)",
            hint="systemctl start efuse.service",
        )


def _with_daemon(service: _Service, found: Described) -> tuple[list[str], dict[str, str]]:
    """Return which mounts can be upgraded, and the states of others that are mounted.

    What is not mounted needs no upgrade.
    """
    from efuse.service.seeing import State, see

    names, left_out, table = [], {}, all_mounts()
    for name in (*found.mounts, *found.errors):
        record = service.records.load(name)
        if record is None:
            continue
        seen = see(record, record.mountpoint, table)
        if seen.state in (State.SERVING, State.WAITING):
            names.append(name)
        elif seen.is_mounted:
            left_out[name] = str(seen.state)
    return names, left_out


def _each(
    names: list[str], act: Callable[[str], str], as_json: bool, *, goes_on: bool = False
) -> int:
    """Do something with each mount, print what was done, and return the exit status.

    :param goes_on: whether a failure does not keep the others from being worked on.
    """
    done: list[dict[str, str]] = []
    status = 0
    try:
        for name in names:
            try:
                done.append({"name": name, "result": act(name)})
            except EfuseError as error:
                if not goes_on:
                    raise
                report(error, "efuse")
                status = 1
            else:
                if not as_json:
                    echo(f"{shown(name)}: {done[-1]['result']}")
    finally:
        if as_json:
            print_json(done)
    return status
