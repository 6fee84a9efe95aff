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
from typing import TYPE_CHECKING, Any

from efuse.errors import UsageError

if TYPE_CHECKING:
    import pyfuse3

    from efuse.fs import Mounted, State
    from efuse.fs.run import Daemon

__all__ = ["Request", "absolute_source", "describe", "split_options"]

# What /etc/fstab may hold beside the file system's own options.
_FSTAB_ONLY = {"auto", "noauto", "defaults", "fail", "nofail", "_netdev", "user", "nouser", "users"}


@dataclasses.dataclass
class Request:
    """What is to be mounted, and how."""

    what: str
    """``passthrough``, or the dotted name of a module, perhaps with ``:Class``."""

    arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    consistency: str | None = None
    options: set[str] = dataclasses.field(default_factory=lambda: {"default_permissions"})
    plain: bool = False
    require: bool = False

    def take(self, options: Iterable[str]) -> None:
        """Sort mount *options*: eFuse's own and the mount's.

        eFuse's are arg=NAME=VALUE, consistency=, plain, require and no_default_permissions.

        :raises UsageError: one of eFuse's own makes no sense.
        """
        for option in options:
            name, _, value = option.partition("=")
            if option in _FSTAB_ONLY or option.startswith("x-"):
                continue
            if option == "no_default_permissions":
                self.options.discard("default_permissions")
            elif option in ("plain", "require"):
                setattr(self, option, True)
            elif name == "consistency":
                self.consistency = value
            elif name == "arg":
                self.add_argument(value)
            else:
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
        from efuse.fs import Options

        arguments = dict(self.arguments)
        own = self.consistency is not None and "consistency" in inspect.signature(cls).parameters
        if own:
            arguments["consistency"] = self.consistency
        made: Any = cls(**arguments)
        if self.consistency is not None and not own:
            given = getattr(made, "efuse_options", Options())
            made.efuse_options = dataclasses.replace(given, consistency=self.consistency)
        result: pyfuse3.Operations = made
        return result


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
    if mounted.accelerated:
        return f"{mounted.mountpoint}: eFuse, connection {mounted.connection}"
    return f"{mounted.mountpoint}: not accelerated: {mounted.reason}"


def absolute_source(path: str) -> str:
    """Return *path* as it is found from anywhere: a daemon leaves this directory."""
    return os.fspath(Path(path).absolute())
