# SPDX-License-Identifier: LGPL-2.1-or-later
"""libfuse daemons with the preloaded shim, and what shows that they use channels."""

from __future__ import annotations

import contextlib
import functools
import os
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from efuse import locations
from efuse.bench.programs import built
from efuse.control import Connection, find
from efuse.fs.mountpoint import unmount
from efuse.fs.preload import preload_library
from efuse.libefuse import library
from efuse.libefuse import sources as libefuse_sources
from efuse.supervisor import running
from tests.guest.support.manual_daemon import DEADLINE_S, until
from tests.threads import system_calls

CPUS = os.cpu_count() or 1
_IOCTL, _EFUSE_IOC_NEXT = "16", "0xc018e543"
_ROOT = locations.package().parent
_LOOP_DAEMON = _ROOT / "tests/libefuse/loop_daemon.c"


def loop_daemon() -> Path:
    """Return the path of the compiled tests/libefuse/loop_daemon.c."""

    def compiled(out: Path) -> None:
        flags = subprocess.check_output(["pkg-config", "fuse3", "--cflags", "--libs"], text=True)
        words = ["gcc", "-O1", "-g", "-o", out, _LOOP_DAEMON, *flags.split(), "-pthread"]
        subprocess.run(words, check=True)

    return locations.made_once("daemons", "loop_daemon", [_LOOP_DAEMON], compiled)


def hello() -> tuple[Path, dict[str, str]]:
    """Return the path of docs/examples/hello.c, linked with libefuse, and its environment."""
    shared = library("libefuse.so.0")
    sources = [_ROOT / "docs/examples/hello.c", *libefuse_sources()]

    def compiled(out: Path) -> None:
        flags = subprocess.check_output(["pkg-config", "fuse3", "--cflags", "--libs"], text=True)
        words = ["gcc", "-o", out, sources[0], f"-I{_ROOT / 'libefuse'}", shared, *flags.split()]
        subprocess.run(words, check=True)

    program = locations.made_once("daemons", "hello", sources, compiled)
    return program, {"LD_LIBRARY_PATH": str(shared.parent)}


LOOP_DAEMON_DATA = bytes((i * 31 + i // 251) & 0xFF for i in range(300000))
"""The contents of each file of loop_daemon."""


def passthrough_ll(source: Path, *options: str) -> list[str]:
    """Return the command of libfuse's passthrough_ll in the foreground, without the mountpoint."""
    every = ",".join(["timeout=0", f"source={source}", *options])
    return [str(built("passthrough_ll")), "-f", "-o", every]


def passthrough_fh(source: Path, *, own_numbers: bool = False) -> list[str]:
    """Return the command of libfuse's passthrough_fh, which uses the high-level interface.

    :param own_numbers: whether st_ino is libfuse's nodeid, and not that of the source.
    """
    examples = Path("/usr/share/doc/libfuse3-dev/examples")
    files = [examples / "passthrough_fh.c", examples / "passthrough_helpers.h"]
    text = files[0].read_text()
    if own_numbers:
        assert "cfg->use_ino = 1;" in text
        text = text.replace("cfg->use_ino = 1;", "cfg->use_ino = 0;")

    def compiled(out: Path) -> None:
        flags = subprocess.check_output(["pkg-config", "fuse3", "--cflags", "--libs"], text=True)
        words = ["gcc", "-O1", "-DHAVE_UTIMENSAT", f"-I{examples}", "-x", "c", "-o", out, "-"]
        subprocess.run([*words, *flags.split()], input=text.encode(), check=True)

    name = "passthrough_own" if own_numbers else "passthrough_fh"
    program = locations.made_once("daemons", name, files, compiled)
    return [str(program), "-f", "-o", f"modules=subdir,subdir={source}"]


def bindfs(source: Path) -> list[str]:
    """Return the command of bindfs, which uses libfuse 2."""
    return ["bindfs", "-f", "-o", "entry_timeout=0,attr_timeout=0", str(source)]


def sshfs(source: Path) -> list[str]:
    ssh = source.parent / "ssh"
    ssh.write_text("#!/bin/sh\nexec /usr/lib/openssh/sftp-server\n")
    ssh.chmod(0o755)
    return ["sshfs", "-f", "-o", f"ssh_command={ssh},dir_cache=no", f"here:{source}"]


class ChannelDaemon:
    """A running daemon with its mounted file system."""

    def __init__(self, process: subprocess.Popen[bytes], mountpoint: Path, output: Path) -> None:
        self.process = process
        self.path = mountpoint
        self.connection = Connection(find(mountpoint).connection)
        self._output = output

    @property
    def pid(self) -> int:
        return self.process.pid

    def say(self, text: bytes = b".") -> None:
        """Write to the daemon's standard input."""
        assert self.process.stdin
        self.process.stdin.write(text)
        self.process.stdin.flush()

    def hear(self) -> bytes:
        """Read a line of the daemon's standard output."""
        assert self.process.stdout
        return self.process.stdout.readline()

    def output(self) -> str:
        """Return what the daemon has written to standard error."""
        return self._output.read_text(errors="replace")

    def wait_for_channels(self, number: int = CPUS) -> None:
        """Wait until the daemon has *number* channels: it opens them after it has mounted."""
        until(lambda: mapped(self.pid) == number)

    def brought(self) -> int:
        """Return how many requests have come through channels."""
        return brought(self.connection)

    def others_woken(self) -> int:
        """Return how often a worker was woken for a request on another worker's channel."""
        return _total(self.connection, "others_woken")

    def waiting(self) -> int:
        """Return how many threads wait for a request in a channel."""
        return len(waiting(self.pid))

    def end(self) -> int:
        """Unmount, and return the daemon's exit status."""
        unmount(str(self.path))
        return self.process.wait(DEADLINE_S)


def brought(connection: Connection) -> int:
    return _total(connection, "brought")


def _total(connection: Connection, counter: str) -> int:
    return sum(connection.counts(f"channels/{cpu}")[counter] for cpu in connection.cpus())


def mapped(pid: int) -> int:
    """Return how many channels a process has mapped."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return sum(line.endswith("/dev/efuse") and " rw-s " in line for line in lines)


def waiting(pid: int) -> list[int]:
    """Return the IDs of the threads of a process that wait in EFUSE_IOC_NEXT."""
    return [
        tid
        for tid, words in system_calls(pid)
        if words[0] == _IOCTL and words[2] == _EFUSE_IOC_NEXT
    ]


@contextlib.contextmanager
def started(
    words: Sequence[str | Path],
    mountpoint: Path,
    *,
    before: Sequence[str] = (),
    shim: str | None = None,
    **environment: str,
) -> Iterator[ChannelDaemon]:
    """Start a daemon that mounts *mountpoint*, without handlers.

    :param words: the daemon's command, with the mountpoint.
    :param before: a command that runs the daemon's command.
    :param shim: library to preload; None: the shim of `efuse run`.
    """
    settings = {"LD_PRELOAD": shim or str(preload_library()), **environment}
    # The shell of the tests may ignore some signals; the daemon must not inherit that.
    command = [
        *before,
        "env",
        "--default-signal",
        *(f"{k}={v}" for k, v in settings.items()),
        *map(str, words),
    ]
    with (
        tempfile.NamedTemporaryFile() as output,
        running.started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output) as (
            daemon,
            _,
        ),
    ):
        process = daemon.process
        try:
            yield ChannelDaemon(process, mountpoint, Path(output.name))
        finally:
            process.kill()
            process.wait(DEADLINE_S)
            for stream in (process.stdin, process.stdout):
                assert stream
                stream.close()
            with contextlib.suppress(OSError):
                unmount(str(mountpoint), lazy=True)


SIZES = (0, 1, 4095, 4096, 8000, 8193, 100_000, 1 << 20, (3 << 20) + 5)
"""Sizes of files whose READs and WRITEs fit into a slot, and of others whose do not."""


@functools.cache  # making the largest takes most of a second under emulation
def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def write_and_compare(root: Path, lower: Path) -> None:
    """Write files through *root*, read them back, and compare them with *lower*."""
    for size in SIZES:
        (root / f"f{size}").write_bytes(content(size))
        assert (lower / f"f{size}").read_bytes() == content(size)
        assert (root / f"f{size}").read_bytes() == content(size)
        with (root / f"f{size}").open("r+b") as file:
            file.seek(size // 3)
            file.write(b"changed")
        changed = (lower / f"f{size}").read_bytes()
        assert changed[size // 3 :][:7] == b"changed"
        assert (root / f"f{size}").read_bytes() == changed


def facts(root: Path) -> list[tuple[object, ...]]:
    """Return attributes of all files below *root*, from lstat(2)."""

    def of(path: Path) -> tuple[object, ...]:
        st = path.lstat()
        size = 0 if path.is_dir() else st.st_size
        name = str(path.relative_to(root))
        return name, st.st_mode, st.st_uid, st.st_gid, size, st.st_mtime_ns // 10**9

    return sorted(map(of, root.rglob("*")))


def change_names(root: Path, many: int = 60) -> None:
    """Make, link, rename, change and remove files.

    :param many: number of files in a directory that is listed; 60 take more than one READDIR.
    """
    (root / "dir").mkdir(mode=0o750)
    (root / "dir" / "old").write_bytes(b"data")
    os.rename(root / "dir" / "old", root / "dir" / "new")
    os.symlink("new", root / "dir" / "link")
    assert os.readlink(root / "dir" / "link") == "new"
    os.chmod(root / "dir" / "new", 0o640)
    os.chown(root / "dir" / "new", 12, 34)
    os.truncate(root / "dir" / "new", 6)
    assert (root / "dir" / "link").read_bytes() == b"data\0\0"
    os.utime(root / "dir" / "new", ns=(10**18, 2 * 10**18))
    paths = [root / "dir" / f"many-with-a-long-name-{number:0100}" for number in range(many)]
    for path in paths:
        path.touch()
    assert len(os.listdir(root / "dir")) == many + 2
    for path in paths:
        os.unlink(path)


Daemon = Callable[[Path], list[str]]
