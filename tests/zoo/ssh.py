# SPDX-License-Identifier: LGPL-2.1-or-later
"""``python -m tests.zoo.ssh PORT KEY``: serve this machine's files by SFTP over SSH, until killed.

The file KEY is made: the key of the one user who may log in. Runs with the Python that has
``asyncssh``.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import asyncssh


async def main(port: int, key: Path) -> None:
    user = asyncssh.generate_private_key("ssh-ed25519")
    user.write_private_key(str(key))
    key.chmod(0o600)
    await asyncssh.listen(
        "127.0.0.1",
        port,
        server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
        authorized_client_keys=asyncssh.import_authorized_keys(user.export_public_key().decode()),
        sftp_factory=True,
    )
    print("ready", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), Path(sys.argv[2])))
