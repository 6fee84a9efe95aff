# SPDX-License-Identifier: LGPL-2.1-or-later
"""Compile all built-in programs into a directory: ``python -m efuse.bpf.build OUT``."""

from __future__ import annotations

import sys
from pathlib import Path

from efuse import locations
from efuse.bpf.compile import builtin, compile_text, store
from efuse.bpf.members import TRACING
from efuse.errors import EfuseError


def main(arguments: list[str]) -> int:
    """Write the specs of the built-in handlers and tracing programs. Return the exit status.

    :param arguments: one word, the output directory.
    """
    if len(arguments) != 1:
        print("usage: python -m efuse.bpf.build OUT", file=sys.stderr)
        return 2
    try:
        print(store(builtin(use_shipped=False), Path(arguments[0])))
        for path in sorted((locations.data("bpf_programs") / "tracing").glob("*.c")):
            text = path.read_text()
            spec = compile_text(text, path.name, interface=TRACING, cached=False)
            print(store(spec, Path(arguments[0])))
    except EfuseError as error:
        print(f"error: {error}", file=sys.stderr)
        if error.hint:
            print(f"try: {error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
