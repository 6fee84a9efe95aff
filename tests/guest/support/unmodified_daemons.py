# SPDX-License-Identifier: LGPL-2.1-or-later
"""Command lines of other projects' libfuse daemons, for `efuse run`."""

from __future__ import annotations

from pathlib import Path

from efuse.bench.programs import built

_TIMEOUTS = "entry_timeout=3600,attr_timeout=3600"


def passthrough_ll_command(tmp: Path, source: Path) -> list[str]:
    return [str(built("passthrough_ll")), "-o", f"source={source},timeout=3600,cache=always"]


def bindfs_command(tmp: Path, source: Path) -> list[str]:
    return ["bindfs", "-o", _TIMEOUTS, str(source)]


def sshfs_command(tmp: Path, source: Path) -> list[str]:
    ssh = tmp / "ssh"
    ssh.write_text("#!/bin/sh\nexec /usr/lib/openssh/sftp-server\n")
    ssh.chmod(0o755)
    options = f"ssh_command={ssh},dir_cache=no,{_TIMEOUTS}"
    return ["sshfs", "-o", options, f"here:{source}"]
