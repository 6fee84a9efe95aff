# SPDX-License-Identifier: LGPL-2.1-or-later
"""`efuse.Passthrough` as a daemon of plain FUSE: ``passthrough.py SOURCE MOUNTPOINT``.

`efuse run` cannot pass on the flag of mount(2) by which the class applies umasks itself.
"""

from __future__ import annotations

import functools
import sys

import trio

import efuse


class _Passthrough(efuse.Passthrough):
    efuse_applies_umask = False


def main() -> None:
    source, mountpoint = sys.argv[1:]
    trio.run(functools.partial(efuse.serve, _Passthrough(source), mountpoint, plain=True))


if __name__ == "__main__":
    main()
