# SPDX-License-Identifier: LGPL-2.1-or-later
"""Keep a user out of a mount until Enter is pressed: ``deny_user.py MOUNT UID [FILE.c]``."""

import os
import sys
from pathlib import Path

from efuse import bpf


def main(mount: str, uid: int, file: str = "bpf_programs/examples/deny_uid.c") -> None:
    text = Path(file).read_text()
    connection = os.minor(Path(mount).stat().st_dev)
    with bpf.attach(connection, {"lookup": text, "open": text}, name="deny") as attachment:
        attachment.maps["denied"][uid] = 0
        print(f"uid {uid} is kept out", flush=True)
        sys.stdin.readline()
        print(f"refused {attachment.maps['denied'][uid]} times")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:4])
