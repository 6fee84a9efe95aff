# SPDX-License-Identifier: LGPL-2.1-or-later
"""Read the descriptions of mounts. Each error names the file, and the line or the key."""

from __future__ import annotations

import ast
import contextlib
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efuse.control import CONSISTENCY, MOST_RECOVERY_S, PROMISES, all_mounts
from efuse.control.mounts import resolve
from efuse.errors import EfuseError, UsageError
from efuse.locations import read_private
from efuse.profiles import all_profiles
from efuse.service.description import RESTARTS, Description

__all__ = ["DIRECTORY", "Described", "described", "parsed", "read"]

DIRECTORY = Path("/etc/efuse/mounts.d")
"""Where descriptions are by default."""

# The names of its records are longer, and may have 255 bytes.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}")
_SIZE = re.compile(r"[0-9]+([kmg](i?b)?)?", re.IGNORECASE)
_SIZES = {"data_cache": "--data-cache", "max_request": "--max-request"}
_SIZES["max_readdir"] = "--max-readdir"


@dataclass(frozen=True, slots=True)
class Described:
    """What a directory describes.

    :ivar mounts: the valid descriptions by name, in the order of their mount points.
    :ivar errors: what is wrong with each of the others, by name.
    """

    mounts: Mapping[str, Description]
    errors: Mapping[str, EfuseError]


def described(directory: Path) -> Described:
    """Read all descriptions in a directory: the files whose names end in ``.toml``.

    :raises EfuseError: the directory or mountinfo cannot be read.
    """
    try:
        paths = sorted(path for path in directory.iterdir() if path.suffix == ".toml")
    except OSError as error:
        raise EfuseError(
            f"{directory} cannot be read: {os.strerror(error.errno or 0)}",
            hint="create it, or name another one with --directory",
        ) from error
    found: dict[str, Description] = {}
    errors: dict[str, EfuseError] = {}
    table = all_mounts()
    for path in paths:
        try:
            given = read(path)
            place = resolve(given.mountpoint, table)
            if place in found:
                raise UsageError(
                    f"{path} cannot be used: {found[place].name}.toml has the same mountpoint"
                    " (EEXIST)",
                    hint="remove one of the two files, or change its mountpoint",
                )
            found[place] = given
        except EfuseError as error:
            errors[path.stem] = error
    # A mount may lie below another one.
    return Described({given.name: given for _, given in sorted(found.items())}, errors)


def read(path: Path) -> Description:
    """Read a description.

    :raises EfuseError: it cannot be read, or another user can change it.
    :raises UsageError: it is not valid.
    """
    try:
        text = read_private(path)
    except FileNotFoundError:
        raise EfuseError(
            f"{path} cannot be read: there is no such file (ENOENT)",
            hint="efuse service list shows the descriptions",
        ) from None
    except EfuseError as error:
        raise EfuseError(
            str(error), hint="the commands in it run as root: only root may be able to write it"
        ) from error
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not valid TOML: it is not UTF-8 (EILSEQ)") from None
    return parsed(path, text)


def parsed(path: Path, text: str) -> Description:
    """Return the description with this text.

    :param path: path of its file, for its name and for messages.
    :raises UsageError: it is not valid.
    """
    if not _NAME.fullmatch(path.stem):
        raise UsageError(
            f"{path} cannot be used: {path.stem!r} is no name for a mount (EINVAL)",
            hint="use up to 200 letters, digits, '.', '_' and '-', and begin with one of the first",
        )
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of numbers and tables that are too long
        raise UsageError(
            f"{path} is not valid TOML: {error} (EINVAL)",
            hint="docs/service.md has examples; strings need quotation marks",
        ) from None
    return _Reader(path, text, table).description()


_Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_profile(value: Any) -> bool:
    return _is_text(value) and (value == "none" or value in all_profiles())


def _is_path(value: Any) -> bool:
    return _is_text(value) and value.startswith("/")


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return isinstance(value, str) and _SIZE.fullmatch(value) is not None


def _is_seconds(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MOST_RECOVERY_S


def _is_option(value: Any) -> bool:
    return _is_texts(value) and not any("," in v or v.startswith("recovery=") for v in value)


def _is_arguments(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_argument, value, value.values()))


def _is_argument(name: str, value: Any) -> bool:
    """Tell whether an argument reaches the class as it is: `efuse mount` reads Python literals."""
    with contextlib.suppress(ValueError, SyntaxError):
        return name.isidentifier() and ast.literal_eval(repr(value)) == value
    return False


# What each key has to be. The word tells which kind of mount has the key.
_KEYS: Mapping[str, tuple[str, _Check, str]] = {
    "mountpoint": ("", _is_path, "an absolute path"),
    "command": ("command", lambda v: _is_texts(v) and v != [], "a list of strings"),
    "profile": ("command", _is_profile, "a name of a profile"),
    "promises": (
        "command",
        lambda v: _is_texts(v) and {*v} <= {*PROMISES},
        f"a list with words of {', '.join(PROMISES)}",
    ),
    "type": ("type", _is_text, "passthrough, or MODULE:CLASS"),
    "source": ("type", _is_path, "an absolute path"),
    "arguments": ("type", _is_arguments, "a table of names and values, without dates, inf and nan"),
    "options": ("type", _is_option, "a list of mount options, without recovery"),
    "consistency": (
        "",
        lambda v: _is_text(v) and v in CONSISTENCY,
        f"one of {', '.join(CONSISTENCY)}",
    ),
    "data_cache": ("", _is_size, "a size, such as '64M'"),
    "max_request": ("", _is_size, "a size, such as '1M'"),
    "max_readdir": ("", _is_size, "a size, such as '64K'"),
    "channels": ("", _is_flag, "true or false"),
    "require": ("", _is_flag, "true or false"),
    "recovery": ("", _is_seconds, f"a number of seconds from 1 to {MOST_RECOVERY_S}"),
    "restart": ("", lambda v: _is_text(v) and v in RESTARTS, f"one of {', '.join(RESTARTS)}"),
}


class _Reader:
    """Checks the keys of a description."""

    def __init__(self, path: Path, text: str, table: dict[str, Any]) -> None:
        self._path, self._text, self._table = path, text, table

    def description(self) -> Description:
        table = self._table
        for key, value in table.items():
            self._check(key, value)
        if ("command" in table) == ("type" in table):
            raise UsageError(
                f"{self._path} cannot be used: it needs either command or type (EINVAL)",
                hint='command = ["mydaemon", "-f", "/mnt"], or type = "passthrough"',
            )
        if "mountpoint" not in table:
            raise self._lacks("mountpoint", '"/mnt"')
        if table.get("type") == "passthrough" and "source" not in table:
            raise self._lacks("source", '"/srv/data"')
        kind = "command" if "command" in table else "type"
        for key in table:
            only = _KEYS[key][0]
            if only and only != kind:
                raise self._wrong(key, f"it belongs to {only}, not to {kind}", "remove it")
        if "source" in table and table["type"] != "passthrough":
            raise self._wrong(
                "source", "only passthrough has it", "use arguments = { source = ... }"
            )
        return self._made()

    def _made(self) -> Description:
        table = dict(self._table)
        given: dict[str, Any] = {
            key: tuple(table.pop(key)) if isinstance(table[key], list) else table.pop(key)
            for key in [*table]
            if key not in _SIZES and key != "arguments"
        }
        given["mountpoint"] = os.path.normpath("/" + given["mountpoint"].lstrip("/"))
        given["arguments"] = tuple(
            f"{name}={value!r}" for name, value in table.pop("arguments", {}).items()
        )
        given["sizes"] = tuple((_SIZES[key], value) for key, value in sorted(table.items()))
        return Description(self._path.stem, **given)

    def _check(self, key: str, value: Any) -> None:
        if key not in _KEYS:
            raise self._wrong(key, "there is no such key", f"use {', '.join(_KEYS)}")
        _, is_right, what = _KEYS[key]
        if not is_right(value):
            raise self._wrong(key, f"{value!r} is not {what}", "docs/service.md describes each key")

    def _wrong(self, key: str, why: str, hint: str) -> UsageError:
        return UsageError(
            f"{self._path}: line {self._line_of(key)}: {key} cannot be used: {why} (EINVAL)",
            hint=hint,
        )

    def _lacks(self, key: str, example: str) -> UsageError:
        return UsageError(
            f"{self._path} cannot be used: {key} is missing (EINVAL)", hint=f"{key} = {example}"
        )

    def _line_of(self, key: str) -> int:
        """Return the number of the line with a key; 1 if it is written in another way."""
        begins = re.compile(rf"\s*\[?\s*[\"']?{re.escape(key)}[\"']?\s*[\].=]")
        lines = self._text.split("\n")
        for number, line in enumerate(lines, 1):
            if begins.match(line) and _is_complete("\n".join(lines[: number - 1])):
                return number
        return 1


def _is_complete(text: str) -> bool:
    """Tell whether a text does not end within a value, such as a string of several lines."""
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True
