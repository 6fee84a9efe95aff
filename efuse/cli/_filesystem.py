# SPDX-License-Identifier: LGPL-2.1-or-later
"""Turn what a person typed into a file system and its mount options."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from efuse.cli._sizes import SIZE, parse_size
from efuse.display import shown
from efuse.errors import UsageError

if TYPE_CHECKING:
    import pyfuse3

    from efuse.fs import Mounted, Options, State
    from efuse.supervisor.daemon_mount import DaemonMount

__all__ = [
    "Request",
    "absolute_source",
    "data_cache_capacity",
    "describe",
    "size_options",
    "split_options",
]

_SIZES = ("data_cache", "max_request", "max_readdir")

_F = TypeVar("_F", bound=Callable[..., Any])


def size_options(*, data_cache: str) -> Callable[[_F], _F]:
    """Return a decorator that adds --data-cache, --max-request and --max-readdir to a command.

    :param data_cache: the default of --data-cache, as its help states it.
    """
    options = (
        click.option(
            "--data-cache",
            type=SIZE,
            metavar="SIZE",
            help=f"Size of the data cache in the kernel, such as 64M; 0: none. {data_cache}",
        ),
        click.option(
            "--max-request",
            type=SIZE,
            metavar="SIZE",
            help="Largest READ or WRITE, up to 8M. Default: as large as the daemon accepts.",
        ),
        click.option(
            "--max-readdir",
            type=SIZE,
            metavar="SIZE",
            help="Largest READDIR or READDIRPLUS, 4K to 128K. Default: 32K.",
        ),
    )

    def add(command: _F) -> _F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@dataclasses.dataclass
class Request:
    """A request to mount a file system."""

    what: str
    """``passthrough``, or the dotted name of a module, with or without ``:Class``."""

    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    consistency: str | None = None
    data_cache: int | None = None
    """Bytes of file data that the kernel caches; None: as the file system's own options say."""

    max_request: int | None = None
    max_readdir: int | None = None
    options: set[str] = dataclasses.field(default_factory=lambda: {"default_permissions"})
    plain: bool = False
    require: bool = False
    channels: bool = True
    recovery: int = 0
    """How long callers wait for a successor when the process has died, in seconds."""

    def take(self, options: Iterable[str], *, is_sloppy: bool = False) -> None:
        """Sort mount *options* into eFuse's own and those of the mount.

        eFuse's own are arg=NAME=VALUE, consistency=, data_cache=, max_request=, max_readdir=,
        recovery=, plain, require, no_channels and no_default_permissions.

        :param is_sloppy: ignore unknown options instead of failing.
        :raises UsageError: the value of one of eFuse's own is not valid, or an option is unknown.
        """
        from efuse.cli._mount_options import check, is_for_mount

        for option in options:
            name, _, value = option.partition("=")
            if is_for_mount(option):
                continue
            if option == "no_default_permissions":
                self.options.discard("default_permissions")
            elif option == "no_channels":
                self.channels = False
            elif option in ("plain", "require"):
                setattr(self, option, True)
            elif name == "consistency":
                self.consistency = value
            elif name in _SIZES:
                setattr(self, name, _size(name, value))
            elif name == "recovery":
                self.recovery = _seconds(name, value)
            elif name == "arg":
                self.add_argument(value)
            else:
                try:
                    check(option)
                except UsageError:
                    if is_sloppy:
                        continue
                    raise
                self.options.add(option)

    def add_argument(self, text: str) -> None:
        """Add an argument for the file system's class from ``name=value``.

        :param text: the argument; the value is a Python literal, or else taken as a string.
        :raises UsageError: *text* does not have this form.
        """
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"{text!r} is not an argument (EINVAL)", hint="write NAME=VALUE")
        try:
            self.arguments[name] = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            self.arguments[name] = value

    def operations(self) -> Callable[[], pyfuse3.Operations]:
        """Find the class of the file system, and return a function that makes an instance.

        :raises UsageError: the class does not exist or does not take the arguments, or the options
            are not valid.
        """
        self._adjusted(None)
        if self.what == "passthrough":
            from efuse.fs import Passthrough

            cls: Any = Passthrough
        else:
            cls = _find(self.what)
        try:
            inspect.signature(cls).bind(**self.arguments)
        except TypeError as error:
            raise UsageError(
                f"{self.what} cannot be created: {error}",
                hint=f"give its arguments with --arg: {cls.__name__}{inspect.signature(cls)}",
            ) from error
        return lambda: self._make(cls)

    def _make(self, cls: Any) -> pyfuse3.Operations:
        arguments = dict(self.arguments)
        own = self.consistency is not None and "consistency" in inspect.signature(cls).parameters
        if own:
            arguments["consistency"] = self.consistency
        made: Any = cls(**arguments)
        adjusted = self._adjusted(getattr(made, "efuse_options", None))
        if adjusted is not None:
            made.efuse_options = adjusted
        result: pyfuse3.Operations = made
        return result

    def _adjusted(self, given: Options | None) -> Options | None:
        """Return *given* with the options of this request, or None if this request sets none.

        :raises UsageError: the resulting options are not valid.
        """
        from efuse.fs import Options

        changes: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("consistency", "max_request", "max_readdir")
            if getattr(self, name) is not None
        }
        given = given or Options()
        if self.data_cache is not None:
            changes["capacity"] = {**given.capacity, **data_cache_capacity(self.data_cache)}
        return dataclasses.replace(given, **changes) if changes else None


def _size(name: str, value: str) -> int:
    try:
        return parse_size(value)
    except ValueError as error:
        raise UsageError(f"{name} cannot be used: {error} (EINVAL)", hint=f"{name}=8M") from error


def _seconds(name: str, value: str) -> int:
    if not (value.isascii() and value.isdecimal()):
        raise UsageError(f"{name} cannot be {value!r} (EINVAL)", hint=f"{name}=60")
    return int(value)


def data_cache_capacity(size: int) -> dict[str, int]:
    """Return the map capacities for a data cache of *size* bytes; 0 means no data cache.

    :raises UsageError: the size is larger than possible.
    """
    from efuse.blocks import BLOCK_BYTES
    from efuse.fs.options import Options

    capacity = {"blocks": -(-size // BLOCK_BYTES)}
    Options(capacity=capacity)
    return capacity


def _find(what: str) -> Any:
    import pyfuse3

    name, _, wanted = what.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{name} cannot be imported: {error} (ENOENT)",
            hint="name a module that Python can import from here, such as mypackage.myfs:MyFs",
        ) from error
    if wanted:
        cls = getattr(module, wanted, None)
        if not isinstance(cls, type):
            raise UsageError(f"{name} has no class {wanted} (ENOENT)")
        return cls
    found = [
        cls
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, pyfuse3.Operations) and cls.__module__ == module.__name__
    ]
    if len(found) != 1:
        names = ", ".join(cls.__name__ for cls in found) or "none"
        raise UsageError(
            f"{name} defines {len(found)} file systems instead of one: {names} (EINVAL)",
            hint=f"name one: {name}:CLASS",
        )
    return found[0]


def split_options(texts: Iterable[str]) -> list[str]:
    """Split arguments such as ``-o a,b=c -o d`` into single options."""
    return [option for text in texts for option in text.split(",") if option]


def describe(mounted: Mounted | State | DaemonMount) -> str:
    """Return a line that describes how the file system is mounted.

    If a subclass overrides handlers, a second line says what the kernel does not do for that.
    """
    where = shown(mounted.mountpoint or "")
    if mounted.accelerated:
        # A C daemon knows itself why it has no channels, and has no class.
        lacks = getattr(mounted, "channels_reason", "")
        given_up = getattr(mounted, "given_up", "")
        return (
            f"{where}: eFuse, connection {mounted.connection}"
            + (f", no channels: {lacks}" if lacks else "")
            + (f"\n{where}: {given_up}" if given_up else "")
        )
    hint = getattr(mounted, "hint", "")
    return f"{where}: not accelerated: {mounted.reason}" + (f"\ntry: {hint}" if hint else "")


def absolute_source(path: str) -> str:
    """Return *path* as an absolute path: a daemon changes its working directory."""
    return os.fspath(Path(path).absolute())
