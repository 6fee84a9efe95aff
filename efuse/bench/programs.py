# SPDX-License-Identifier: LGPL-2.1-or-later
"""The C daemons of the benchmarks, and the commands that run them.

Daemons that no package contains are built at their first use.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from efuse import locations
from efuse.bench.ring import EFUSE_RING, OWN, RING, ZERO_COPY, counts_file
from efuse.errors import EfuseError, NotSupportedError, UsageError, reason

__all__ = ["COMPILED", "PROGRAMS", "SID", "URING", "built", "command", "compiled", "libfuse"]

_LIBFUSE_EXAMPLES = Path("/usr/share/doc/libfuse3-dev/examples")
_OUR_EXAMPLE = "docs/examples/passthrough_backing"
_UAPI = "kernel_patches/include/uapi"

COMPILED = ("passthrough_backing", "passthrough_ll")
"""The daemons that are compiled at their first use."""

SID = "passthrough_ll-sid"
"""``passthrough_ll`` of the libfuse that scripts/setup-libfuse builds, which supports io_uring."""

URING = "passthrough_uring"
"""Our daemon that serves the systems of `efuse.bench.ring.OWN`, and no others."""

_INSTALLED = ("bindfs", "sshfs")

PROGRAMS = (*COMPILED, SID, *_INSTALLED)
"""All C daemons that can be chosen. ``passthrough_backing`` is an example of eFuse, which gives the
kernel the extents of its lower files. The others are unmodified: ``passthrough_ll`` is libfuse's
example, ``bindfs`` and ``sshfs`` are Debian's. ``sshfs`` uses an SFTP server on this machine,
through a pipe."""

_SFTP_SERVER = Path("/usr/lib/openssh/sftp-server")

_LONG = "entry_timeout=3600,attr_timeout=3600,negative_timeout=3600"

# The same for each system as in the Python daemon (daemon.py): no caching, all that plain FUSE
# offers, or only eFuse. bindfs uses nothing that plain FUSE can keep, and sshfs has a cache of its
# own: they run with their default options, and with all the cache options that they accept.
_EXAMPLE = {
    "fuse": "xattr,timeout=0",
    "fuse-writeback": "xattr,timeout=0,writeback",
    "fuse-tuned": "xattr,cache=always,timeout=3600,writeback",
    "efuse": "xattr,timeout=0,writeback",
    "efuse-writethrough": "xattr,timeout=0",
    "fuse-default": "xattr",
    "efuse-default": "xattr",
}
_OPTIONS = {
    "passthrough_backing": {
        "fuse": "timeout=0",
        "fuse-writeback": "timeout=0,writeback",
        "fuse-tuned": "timeout=3600,keep_cache,writeback",
        "efuse": "timeout=0,keep_cache,writeback",
        "efuse-writethrough": "timeout=0,keep_cache",
    },
    "passthrough_ll": _EXAMPLE,
    SID: {
        **_EXAMPLE,
        RING: f"{_EXAMPLE['fuse']},io_uring",
        EFUSE_RING: f"{_EXAMPLE['efuse']},io_uring",
    },
    URING: {
        system: "timeout=0,writeback" if system.startswith("efuse") else "timeout=0"
        for system in OWN
    },
    "bindfs": {
        "fuse": "",
        "fuse-tuned": _LONG,
        "efuse": "",
        "fuse-default": "",
        "efuse-default": "",
    },
    "sshfs": {
        "fuse": "",
        "fuse-tuned": f"{_LONG},kernel_cache,dcache_timeout=3600",
        "efuse": "",
        "fuse-default": "",
        "efuse-default": "",
    },
}


def command(
    name: str, system: str, source: Path, mountpoint: Path, *, options: str = ""
) -> list[str]:
    """Return the command by which *name* serves *source* as *system*, in the foreground.

    :param options: options of the daemon instead of those for *system*.
    :raises UsageError: the daemon does not support *system*.
    :raises EfuseError: the daemon cannot be built, or is not installed.
    """
    if not options and system not in _OPTIONS[name]:
        raise UsageError(
            f"{name} is not measured as {system}", hint=f"use {', '.join(_OPTIONS[name])}"
        )
    options = options or _OPTIONS[name][system]
    if name == URING:
        options += ",zero_copy" * (system in ZERO_COPY) + f",counts={counts_file(mountpoint)}"
    if name in _INSTALLED:
        return [*_installed(name), *_with(options), *_places(name, source), str(mountpoint)]
    if name in ("passthrough_ll", SID):
        return [str(built(name)), "-f", *_with(f"source={source},{options}"), str(mountpoint)]
    return [str(built(name)), "-f", *_with(options), str(source), str(mountpoint)]


def _with(options: str) -> list[str]:
    return ["-o", options] if options else []


def _installed(name: str) -> list[str]:
    program = shutil.which(name)
    if program is None:
        raise NotSupportedError(f"{name} is not installed", hint=f"apt-get install {name}")
    return [program, "-f"]


def _places(name: str, source: Path) -> list[str]:
    """Return the arguments by which *name* finds *source*."""
    if name == "bindfs":
        return [str(source)]
    if not _SFTP_SERVER.exists():
        raise NotSupportedError(
            f"{name} has no server on this machine: {_SFTP_SERVER}",
            hint="apt-get install openssh-sftp-server",
        )
    # sshfs appends ssh's arguments to the command; the shell takes them as arguments of the script.
    return ["-o", f"ssh_command=sh -c {_SFTP_SERVER}", f"localhost:{source}"]


def _sources(name: str) -> list[Path]:
    if name == "passthrough_ll":
        found = [_LIBFUSE_EXAMPLES / f for f in ("passthrough_ll.c", "passthrough_helpers.h")]
        hint = "apt-get install libfuse3-dev"
    else:
        root = locations.package().parent
        found = [*sorted((root / _OUR_EXAMPLE).glob("*.[ch]")), root / _UAPI / "linux/efuse.h"]
        hint = "run it from a checkout"
    missing = [path for path in found if not path.exists()]
    if missing or len(found) < 2:
        raise NotSupportedError(f"{name} cannot be built: its source is not here", hint=hint)
    return found


def _set_up() -> Path:
    """Return the directory into which scripts/setup-libfuse has built libfuse."""
    directory = locations.cache() / "libfuse"
    if not (directory / "version").exists():
        raise NotSupportedError(
            f"{SID} is not installed: {directory} has no libfuse", hint="scripts/setup-libfuse"
        )
    return locations.check_private(directory)


def libfuse(daemon: str | None) -> dict[str, str]:
    """Return the version of the daemon's libfuse, unless it is the installed one.

    :raises NotSupportedError: scripts/setup-libfuse has not been run.
    """
    if daemon != SID:
        return {}
    return {"libfuse": (_set_up() / "version").read_text().strip()}


def built(name: str) -> Path:
    """Return the path of the daemon's program; compile it if it is not in the cache.

    :raises EfuseError: it cannot be built, or scripts/setup-libfuse has not been run.
    """
    if name == SID:
        return _set_up() / "example/passthrough_ll"
    if name == URING:
        source = Path(__file__).with_name(f"{name}.c")
        return compiled("daemons", name, [source], ["-luring", "-pthread"])
    sources = _sources(name)
    try:
        flags = subprocess.check_output(["pkg-config", "fuse3", "--cflags", "--libs"], text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise EfuseError(
            f"{name} cannot be built: {why}", hint="apt-get install pkg-config libfuse3-dev"
        ) from error
    include = f"-I{sources[-1].parent.parent}"
    return compiled("daemons", name, sources, [include, *flags.split()])


def compiled(kind: str, name: str, sources: Sequence[Path], flags: Sequence[str]) -> Path:
    """Return the path of the program *name*; compile it if it is not in the cache.

    :param kind: subdirectory of the cache.
    :param sources: its C files, and other files on which it depends.
    :param flags: arguments for gcc.
    :raises EfuseError: the program cannot be compiled.
    """
    return locations.made_once(kind, name, sources, lambda out: _compile(sources, flags, out))


def _compile(sources: Sequence[Path], flags: Sequence[str], out: Path) -> None:
    files = [str(source) for source in sources if source.suffix == ".c"]
    try:
        done = subprocess.run(
            ["gcc", "-O2", "-o", str(out), *files, *flags],
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        raise EfuseError(
            f"{out.name} cannot be built: {reason(error)}", hint="apt-get install gcc libc6-dev"
        ) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["gcc printed nothing"])[-1]
        raise EfuseError(
            f"{out.name} cannot be built: {last}",
            hint="apt-get install libc6-dev libfuse3-dev liburing-dev",
        )
