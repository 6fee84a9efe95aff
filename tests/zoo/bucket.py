# SPDX-License-Identifier: LGPL-2.1-or-later
"""``python -m tests.zoo.bucket PORT``: serve an S3 store with one empty bucket, until killed.

Runs with the Python that has ``moto``.
"""

from __future__ import annotations

import sys
import threading
import urllib.request

from moto.server import ThreadedMotoServer


def main(port: int) -> None:
    ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False).start()
    made = urllib.request.Request(f"http://127.0.0.1:{port}/bucket", method="PUT")
    urllib.request.urlopen(made).close()
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]))
