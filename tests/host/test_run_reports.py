# SPDX-License-Identifier: LGPL-2.1-or-later
"""The library that `efuse run` preloads reports the daemon's own mount, and no other one."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse.control.mounts import all_mounts, numbered
from efuse.fs.preload import preload_library

_LIBRARY = Path(__file__).parents[1] / "libefuse" / "unruly_mount.c"
_MOUNTS = """
import ctypes, os, sys
fd = os.open("/dev//fuse", os.O_RDWR)  # a path that the library does not replace
options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % fd
print(ctypes.CDLL(None).mount(b"x", os.fsencode(sys.argv[1]), b"fuse.x", 0, options))
with open(f"/proc/self/fdinfo/{fd}") as told:
    print([line.split()[1] for line in told if line.startswith("fuse_connection:")][0], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def unruly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that changes the mounts as soon as the daemon has mounted."""
    out = tmp_path_factory.mktemp("unruly") / "unruly.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", out, _LIBRARY], check=True)
    return out


@pytest.fixture
def above(place: Path) -> Iterator[Path]:
    """A directory whose directory ``at`` is mounted on."""
    (place / "above" / "at").mkdir(parents=True)
    yield place / "above"
    for mount in reversed(all_mounts()):
        if mount.mountpoint.startswith(f"{place}/"):
            subprocess.run(["umount", "--lazy", mount.mountpoint], check=True)


def _report(above: Path, unruly: Path, how: str, *, is_hidden: bool) -> str:
    """Let a daemon mount on ``above/at``. Return its report, which may be empty."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {
        **os.environ,
        "LD_PRELOAD": f"{preload_library()}:{unruly}",
        "EFUSE_REPORT_FD": f"{its.fileno()}:{os.fstat(its.fileno()).st_ino}",
        "UNRULY": how,
        "ABOVE": str(above),
        "RENAMED": str(above.with_name("renamed")),
        **({"HIDDEN": "1"} if is_hidden else {}),
    }
    with ours, its:
        words = [sys.executable, "-c", _MOUNTS, str(above / "at")]
        with subprocess.Popen(
            words,
            env=environment,
            pass_fds=[its.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as daemon:
            assert daemon.stdout is not None
            assert daemon.stdout.readline() == "0\n"
            connection = int(daemon.stdout.readline())
            ours.setblocking(False)
            try:
                report = ours.recv(8192).decode()
            except BlockingIOError:
                report = ""
            seen = numbered(int(report.split()[1])) if report else None
            daemon.kill()
    if report:
        assert seen is not None, "a mount that does not exist was reported"
        assert seen.connection == connection, "another mount was reported"
    return report


_MOUNT_ON = """
import ctypes, os, sys
fd = os.open("/dev//fuse", os.O_RDWR)
options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % fd
libc = ctypes.CDLL(None, use_errno=True)
result = libc.mount(b"x", os.fsencode(sys.argv[1]), sys.argv[2].encode(), 0, options)
print(result, ctypes.get_errno(), sum(" - fuse" in line for line in open("/proc/self/mountinfo")))
"""


@pytest.mark.parametrize("fstype", ["fuse.x", "efuse.x"])
@pytest.mark.parametrize("target", ["/proc", "/proc/sys", "/proc/self/fdinfo"])
def test_mount_on_proc_is_refused_below_efuse_run(unruly: Path, target: str, fstype: str) -> None:
    """The library reads /proc after the mount. There it would wait for the daemon itself."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    preloaded = f"LD_PRELOAD={preload_library()}:{unruly}"
    reporting = f"EFUSE_REPORT_FD={its.fileno()}:{os.fstat(its.fileno()).st_ino}"
    words = ["unshare", "-m", "--propagation", "private", "env", preloaded, reporting]
    words += ["UNRULY=left alone", sys.executable, "-c", _MOUNT_ON, target, fstype]
    before = sum(mount.is_fuse for mount in all_mounts())
    with ours, its:
        # The time limit ends a daemon that waits for itself.
        ended = subprocess.run(
            words, pass_fds=[its.fileno()], capture_output=True, text=True, timeout=30, check=True
        )
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            ours.recv(8192)
    assert ended.stdout == f"-1 {errno.EBUSY} {before}\n"
    assert re.fullmatch(
        r"efuse: /proc\S* cannot be mounted on: efuse run reads /proc \(EBUSY\)\n", ended.stderr
    )


@pytest.mark.parametrize("is_hidden", [False, True])
@pytest.mark.parametrize("how", ["left alone", "covered", "renamed"])
def test_mount_that_changes_at_once_is_reported_by_its_own_number(
    above: Path, unruly: Path, how: str, is_hidden: bool
) -> None:
    """Before Linux 6.17 a mount that another FUSE mount covers cannot be told from that one."""
    report = _report(above, unruly, how, is_hidden=is_hidden)
    if how == "covered" and is_hidden:
        assert report == ""
    else:
        assert report.startswith("efuse.x ")
        assert report.endswith(f" {above / 'at'}")
