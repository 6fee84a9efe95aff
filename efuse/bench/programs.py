# SPDX-License-Identifier: LGPL-2.1-or-later
"""The programs in C that take part: built at their first use, and how each daemon is started."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from efuse import paths
from efuse.errors import EfuseError, NotSupportedError, reason

__all__ = ["PROGRAMS", "built", "command", "compiled"]

_LIBFUSE_EXAMPLES = Path("/usr/share/doc/libfuse3-dev/examples")
_OUR_EXAMPLE = "docs/examples/passthrough_backing"
_UAPI = "kernel_patches/include/uapi"

PROGRAMS = ("passthrough_backing", "passthrough_ll")
"""``passthrough_ll`` is libfuse's example, unmodified; ``passthrough_backing`` is ours, which maps
its lower files into the kernel."""

# As the Python daemon: nothing is believed, all that plain FUSE offers, eFuse alone.
_OPTIONS = {
    "passthrough_backing": {
        "fuse": "timeout=0",
        "fuse-writeback": "timeout=0,writeback",
        "fuse-tuned": "timeout=3600,keep_cache,writeback",
        "efuse": "timeout=0,keep_cache,writeback",
        "efuse-writethrough": "timeout=0,keep_cache",
    },
    "passthrough_ll": {
        "fuse": "xattr,timeout=0",
        "fuse-writeback": "xattr,timeout=0,writeback",
        "fuse-tuned": "xattr,cache=always,timeout=3600,writeback",
        "efuse": "xattr,timeout=0,writeback",
        "efuse-writethrough": "xattr,timeout=0",
    },
}


def command(
    name: str, system: str, source: Path, mountpoint: Path, *, options: str = ""
) -> list[str]:
    """Return the words that serve *source* in the foreground by the daemon *name* as *system*.

    :param options: of the daemon, in the place of those that it has for *system*.
    :raises EfuseError: the daemon cannot be built.
    """
    options = options or _OPTIONS[name][system]
    words = [str(built(name)), "-f"]
    if name == "passthrough_ll":
        words += ["-o", f"source={source},{options}", str(mountpoint)]
    else:
        words += ["-o", options, str(source), str(mountpoint)]
    return words


def _sources(name: str) -> list[Path]:
    if name == "passthrough_ll":
        found = [_LIBFUSE_EXAMPLES / f for f in ("passthrough_ll.c", "passthrough_helpers.h")]
        hint = "apt-get install libfuse3-dev"
    else:
        root = paths.package().parent
        found = [*sorted((root / _OUR_EXAMPLE).glob("*.[ch]")), root / _UAPI / "linux/efuse.h"]
        hint = "run it from a checkout"
    missing = [path for path in found if not path.exists()]
    if missing or len(found) < 2:
        raise NotSupportedError(f"{name} cannot be built: its source is not here", hint=hint)
    return found


def built(name: str) -> Path:
    """Return the daemon's program, compiled now if it is not in the cache.

    :raises EfuseError: it cannot be built.
    """
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
    """Return the program *name* of *sources*, compiled now if it is not in the cache.

    :param kind: the directory below the cache.
    :raises EfuseError: it cannot be compiled.
    """
    return paths.made_once(kind, name, sources, lambda out: _compile(sources, flags, out))


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
        last = (done.stderr.strip().splitlines() or ["gcc said nothing"])[-1]
        raise EfuseError(
            f"{out.name} cannot be built: {last}", hint="apt-get install libc6-dev libfuse3-dev"
        )
