# SPDX-License-Identifier: LGPL-2.1-or-later
"""The daemons in C that are measured: built at their first use, and how each is started."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from efuse import paths
from efuse.errors import EfuseError, NotSupportedError, reason

__all__ = ["PROGRAMS", "built", "command"]

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


def command(name: str, system: str, source: Path, mountpoint: Path) -> list[str]:
    """Return the words that serve *source* in the foreground by the daemon *name* as *system*.

    :raises EfuseError: the daemon cannot be built.
    """
    options = _OPTIONS[name][system]
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
    return paths.made_once("daemons", name, sources, lambda out: _compile(sources, out))


def _compile(sources: Sequence[Path], out: Path) -> None:
    files = [str(source) for source in sources if source.suffix == ".c"]
    include = f"-I{sources[-1].parent.parent}"
    try:
        flags = subprocess.check_output(["pkg-config", "fuse3", "--cflags", "--libs"], text=True)
        done = subprocess.run(
            ["gcc", "-O2", "-o", str(out), include, *files, *flags.split()],
            capture_output=True,
            text=True,
            check=False,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise EfuseError(
            f"{out.name} cannot be built: {why}", hint="apt-get install gcc pkg-config libfuse3-dev"
        ) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["gcc said nothing"])[-1]
        raise EfuseError(
            f"{out.name} cannot be built: {last}", hint="apt-get install libc6-dev libfuse3-dev"
        )
