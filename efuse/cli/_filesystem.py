# SPDX-License-Identifier: LGPL-2.1-or-later
"""From what a person typed to a file system and its mount options."""

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
    from efuse.fs.run import Daemon

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
    """Return a decorator that gives a command --data-cache, --max-request and --max-readdir.

    :param data_cache: the help's word on how large the data cache is without the option.
    """
    options = (
        click.option(
            "--data-cache",
            type=SIZE,
            metavar="SIZE",
            help=f"File data that the kernel keeps, such as 64M; 0 for none. {data_cache}",
        ),
        click.option(
            "--max-request",
            type=SIZE,
            metavar="SIZE",
            help="Most bytes of a READ or WRITE, up to 8M. Default: what the daemon takes.",
        ),
        click.option(
            "--max-readdir",
            type=SIZE,
            metavar="SIZE",
            help="Most bytes of a directory asked for at once, 4K to 128K. Default: 32K.",
        ),
    )

    def add(command: _F) -> _F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@dataclasses.dataclass
class Request:
    """What is to be mounted, and how."""

    what: str
    """``passthrough``, or the dotted name of a module, perhaps with ``:Class``."""

    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    consistency: str | None = None
    data_cache: int | None = None
    """Bytes of file data that the kernel keeps; None for what the file system says itself."""

    max_request: int | None = None
    max_readdir: int | None = None
    options: set[str] = dataclasses.field(default_factory=lambda: {"default_permissions"})
    plain: bool = False
    require: bool = False
    channels: bool = True

    def take(self, options: Iterable[str], *, is_sloppy: bool = False) -> None:
        """Sort mount *options*: eFuse's own and the mount's.

        eFuse's are arg=NAME=VALUE, consistency=, data_cache=, max_request=, max_readdir=, plain,
        require, no_channels and no_default_permissions.

        :param is_sloppy: leave out what nobody knows, instead of failing.
        :raises UsageError: one of eFuse's own makes no sense, or nobody knows one.
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
        """Add an argument of the file system's class, from ``name=value``.

        :raises UsageError: it is not of that form.
        """
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"an argument cannot be {text!r} (EINVAL)", hint="write NAME=VALUE")
        try:
            self.arguments[name] = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            self.arguments[name] = value

    def operations(self) -> Callable[[], pyfuse3.Operations]:
        """Return what makes the file system. The class is found now, made when that is called.

        :raises UsageError: there is no such class.
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
                f"{self.what} cannot be made: {error}",
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
        """Return *given* with what was asked for here; None where nothing was.

        :raises UsageError: it makes no sense.
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


def data_cache_capacity(size: int) -> dict[str, int]:
    """Return the capacity of the maps for a data cache of *size* bytes; 0 for none.

    :raises UsageError: it is larger than any can be.
    """
    from efuse.bpf.cache import BLOCK_BYTES
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
            hint="name a module that Python finds from here, such as mypackage.myfs:MyFs",
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
            f"{name} has not one file system but {len(found)}: {names} (EINVAL)",
            hint=f"name one: {name}:CLASS",
        )
    return found[0]


def split_options(texts: Iterable[str]) -> list[str]:
    """Return the single options of ``-o a,b=c -o d``."""
    return [option for text in texts for option in text.split(",") if option]


def describe(mounted: Mounted | State | Daemon) -> str:
    """Return in one line how it is mounted."""
    where = shown(mounted.mountpoint or "")
    if mounted.accelerated:
        # A daemon in C says of itself why it has none.
        lacks = getattr(mounted, "channels_reason", "")
        return f"{where}: eFuse, connection {mounted.connection}" + (
            f", no channels: {lacks}" if lacks else ""
        )
    return f"{where}: not accelerated: {mounted.reason}"


def absolute_source(path: str) -> str:
    """Return *path* as it is found from anywhere: a daemon leaves this directory."""
    return os.fspath(Path(path).absolute())
