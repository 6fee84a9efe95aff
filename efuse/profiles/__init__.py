# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is known of FUSE daemons: how the kernel may treat the files of each.

Each file ``NAME.toml`` here is a profile. It applies to a command that runs one of its
``programs`` with the mount options ``mount_options``, if it names any, and with no options but
those that it knows, if it lists any. If several apply, the one with the most ``mount_options``
does. If none does, or the command is not understood, the timeouts of the daemon decide.

A profile makes a mount ``exclusive`` without being asked, and nothing ends a wrong answer then. So
it says why names do not fold case, and why each change of a file comes by its one nodeid; or that
nothing changes at all. With an option that it does not know, that may be wrong.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from efuse.errors import UsageError
from efuse.fs.options import Options

__all__ = ["NO_PROFILE", "Profile", "all_profiles", "default_options", "matching", "named"]

# Options of libfuse and of mount(8) that do not matter for what a profile says.
_COMMON_OPTIONS = (
    *("-f", "-d", "-s", "-n", "-v", "allow_other", "allow_root", "auto_unmount", "debug"),
    *(
        "default_permissions",
        "dev",
        "nodev",
        "suid",
        "nosuid",
        "exec",
        "noexec",
        "atime",
        "noatime",
    ),
    *("fsname", "subtype", "max_read", "big_writes", "rw", "uid", "gid", "umask"),
)

_PYTHON = re.compile(r"python[0-9.]*")


@dataclass(frozen=True, kw_only=True)
class Profile:
    """How the kernel may treat the files of a daemon.

    :ivar name: name of the profile.
    :ivar reason: why that is right, in one sentence.
    :ivar tried: the versions of the daemon that it was tried with.
    :ivar programs: names of the programs that it applies to.
    :ivar mount_options: options after ``-o`` that the command must have.
    :ivar known_options: other options that the command may have: those after ``-o``, and those with
        their dashes. Empty: any. A word of `_COMMON_OPTIONS` is always known.
    :ivar names: why two names with different bytes are two names; said with ``exclusive``.
    :ivar nodeids: why each change of a file comes by its one nodeid; said with ``exclusive``.
    :ivar consistency: see `efuse.fs.options.Options`.
    :ivar promises: names of promises of `efuse.fs.options.Options` that the daemon keeps.
    :ivar revalidate: see `efuse.fs.options.Options`.
    :ivar data_cache: size of the data cache in the kernel, such as ``64M``.
    """

    name: str
    reason: str
    tried: tuple[str, ...]
    programs: tuple[str, ...]
    mount_options: tuple[str, ...] = ()
    known_options: tuple[str, ...] = ()
    names: str = ""
    nodeids: str = ""
    consistency: str = "ttl"
    promises: tuple[str, ...] = ()
    revalidate: bool = True
    data_cache: str = "0"

    def applies(self, command: Sequence[str]) -> bool:
        """Tell whether it applies to a daemon and its arguments."""
        program, arguments = _program(command)
        if program not in self.programs:
            return False
        given = _options(arguments)
        known = {*self.mount_options, *self.known_options, *_COMMON_OPTIONS}
        return given.issuperset(self.mount_options) and (
            not self.known_options or given.issubset(known)
        )

    @property
    def declared(self) -> dict[str, Any]:
        """What it declares, by the names of `efuse.fs.options.Options`."""
        promised = dict.fromkeys(self.promises, True)
        return {"consistency": self.consistency, "revalidate": self.revalidate, **promised}

    @property
    def json(self) -> dict[str, Any]:
        """Its members by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


NO_PROFILE = Profile(name="none", reason="nothing is known of the daemon", tried=(), programs=())
"""The profile of any other daemon."""


@cache
def all_profiles() -> Mapping[str, Profile]:
    """Return the profiles by name, in alphabetical order."""
    files = sorted(
        (file for file in resources.files(__name__).iterdir() if file.name.endswith(".toml")),
        key=lambda file: file.name,
    )
    return {
        name: _parsed(name, file.read_text(encoding="utf-8"))
        for file in files
        for name in [file.name.removesuffix(".toml")]
    }


def named(name: str) -> Profile:
    """Return the profile with this name.

    :raises UsageError: there is none.
    """
    try:
        return all_profiles()[name]
    except KeyError:
        raise UsageError(
            f"there is no profile {name!r} (ENOENT)", hint="efuse profiles list"
        ) from None


def default_options(command: Sequence[str]) -> Options:
    """Return what ``efuse run`` declares for a daemon and its arguments without an option."""
    return Options(capacity={"blocks": 0}, **(matching(command) or NO_PROFILE).declared)


def matching(command: Sequence[str]) -> Profile | None:
    """Return the profile that applies to a daemon and its arguments, None if there is none."""
    found = [each for each in all_profiles().values() if each.applies(command)]
    return max(found, key=lambda each: len(each.mount_options), default=None)


def _parsed(name: str, text: str) -> Profile:
    members: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in tomllib.loads(text).items()
    }
    return Profile(name=name, **members)


def _program(command: Sequence[str]) -> tuple[str, list[str]]:
    """Return the name of the program that a command runs, and its arguments.

    A Python program is the script, or the module after ``-m``.
    """
    program, *arguments = command
    if _PYTHON.fullmatch(Path(program).name):
        for at, word in enumerate(arguments):
            if at and arguments[at - 1] in ("-W", "-X"):
                continue
            if word == "-m" and at + 1 < len(arguments):
                return arguments[at + 1], arguments[at + 2 :]
            if word == "-c":
                break
            if not word.startswith("-"):
                return Path(word).name, arguments[at + 1 :]
    return Path(program).name, arguments


def _options(arguments: Sequence[str]) -> set[str]:
    """Return the options of a daemon: the names after ``-o``, and the others with their dashes.

    ``-r`` and ``--read-only`` stand for ``ro``. Short ones may be combined: ``-no ro``.
    """
    found: set[str] = set()
    words = iter(arguments)
    for word in words:
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if name in ("--options", "--option"):
            found |= _names(value if equals else next(words, ""))
        elif name.startswith("--"):
            found.add("ro" if name == "--read-only" else name)
        elif word.startswith("-"):
            flags, with_options, value = word[1:].partition("o")
            found |= {"ro" if flag == "r" else f"-{flag}" for flag in flags}
            if with_options:
                found |= _names(value or next(words, ""))
    return found


def _names(options: str) -> set[str]:
    return {option.partition("=")[0] for option in options.split(",") if option}
