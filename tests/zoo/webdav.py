# SPDX-License-Identifier: LGPL-2.1-or-later
"""``python -m tests.zoo.webdav PORT DIRECTORY``: serve a directory by WebDAV, until killed.

Runs with the Python that has ``wsgidav`` and ``cheroot``.
"""

from __future__ import annotations

import sys

from cheroot.wsgi import Server
from wsgidav.wsgidav_app import WsgiDAVApp


def main(port: int, directory: str) -> None:
    application = WsgiDAVApp(
        {
            "provider_mapping": {"/": directory},
            "simple_dc": {"user_mapping": {"*": True}},
            "verbose": 1,
        }
    )
    server = Server(("127.0.0.1", port), application)
    server.prepare()
    print("ready", flush=True)
    server.serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
