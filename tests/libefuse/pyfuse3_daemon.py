# SPDX-License-Identifier: LGPL-2.1-or-later
"""`BlockingFileSystem` on plain FUSE with the channel of ``plain_channel.c``.

``pyfuse3_daemon.py LIBRARY MOUNTPOINT`` serves until the file system is unmounted. Then it prints
how many requests it has found by polling.
"""

from __future__ import annotations

import sys

import pyfuse3
import trio

from efuse.fs import channel as channel_module
from efuse.fs.channel import SessionChannel
from tests.blocking_file_system import BlockingFileSystem


def main(library: str, mountpoint: str) -> None:
    found = 0
    functions = channel_module.Functions(library)
    look = functions.look

    def counted() -> int:
        nonlocal found
        result = look()
        found += result
        return result

    functions.look = counted
    channel_module.functions = lambda: functions
    channel = SessionChannel(wanted=True)
    with channel.found():
        pyfuse3.init(BlockingFileSystem(), mountpoint, {"default_permissions"})
    channel.open()
    assert channel.is_open, channel.reason
    trio.run(pyfuse3.main)
    channel.close()
    pyfuse3.close(unmount=False)
    print(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
