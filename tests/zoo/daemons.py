# SPDX-License-Identifier: LGPL-2.1-or-later
"""The daemons of the zoo: what each one shows, and its command line."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from efuse import locations

__all__ = ["DAEMONS", "Daemon"]

_PASSWORD = "correct horse"
# Where the daemons of PyPI are: `scripts/setup-zoo` installs them there.
_PYPI = locations.cache() / "zoo/bin"
_PORT = 18421


@dataclass(frozen=True)
class Daemon:
    """A daemon.

    :ivar program: its program, which Debian's package of that name has, or `package`.
    :ivar prepare: makes what it shows, from a tree of files, in an empty directory.
    :ivar command: its command line in the foreground, from that directory and the mount point.
    :ivar package: the package, if its name is another one than the program's.
    :ivar through: what else the table tells of it: the server from which it gets its files.
    :ivar read_only: whether the file system cannot be written to.
    :ivar back_door: a directory of that place whose changes the file system shows.
    :ivar top: the directory of the file system that is looked at, without names that differ each
        time.
    :ivar only: the files to look at; empty: all.
    :ivar server: command line of a server that runs meanwhile, from that directory.
    :ivar finish: undoes in the end what `prepare` has done outside of that directory.
    :ivar input: what it reads from its standard input.
    :ivar environment: variables that the daemon needs.
    """

    program: str
    prepare: Callable[[Path, Path], None]
    command: Callable[[Path, Path], list[str]]
    package: str = ""
    through: str = ""
    read_only: bool = False
    back_door: str = ""
    top: str = ""
    only: tuple[str, ...] = ()
    server: Callable[[Path], list[str]] | None = None
    finish: Callable[[Path], None] = lambda place: None
    input: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_installed(self) -> bool:
        first = self.command(Path("/"), Path("/"))[0]
        return shutil.which(first if first.startswith("/") else self.program) is not None


def _run(*command: str | Path, cwd: Path | None = None, **environment: str) -> None:
    subprocess.run(
        [str(word) for word in command],
        check=True,
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def _copied(tree: Path, place: Path) -> None:
    shutil.copytree(tree, place / "source", symlinks=True)


def _image(size: int, *maker: str) -> Callable[[Path, Path], None]:
    def prepare(tree: Path, place: Path) -> None:
        with (place / "image").open("wb") as file:
            file.truncate(size)
        _run(*maker, place / "image")

    return prepare


def _exfat(tree: Path, place: Path) -> None:
    """It takes only a block device."""
    _image(64 << 20, "mkfs.exfat")(tree, place)
    _run("modprobe", "loop")
    made = subprocess.check_output(["losetup", "-f", "--show", place / "image"], text=True)
    (place / "loop").symlink_to(made.strip())


def _sshfs(tree: Path, place: Path) -> None:
    _copied(tree, place)
    ssh = place / "ssh"
    ssh.write_text("#!/bin/sh\nexec /usr/lib/openssh/sftp-server\n")
    ssh.chmod(0o755)


def _squashfs(tree: Path, place: Path) -> None:
    _run("mksquashfs", tree, place / "image", "-quiet", "-no-progress")


def _tar(tree: Path, place: Path) -> None:
    _run("tar", "-cf", place / "image.tar", ".", cwd=tree)


def _zip(tree: Path, place: Path) -> None:
    _run("zip", "-q", "-r", place / "image.zip", ".", cwd=tree)


def _iso(tree: Path, place: Path) -> None:
    _run("genisoimage", "-quiet", "-R", "-o", place / "image", tree)


def _layers(tree: Path, place: Path) -> None:
    _copied(tree, place)
    for name in ("upper", "work"):
        (place / name).mkdir()


def _gocryptfs(tree: Path, place: Path) -> None:
    (place / "raw").mkdir()
    _run("gocryptfs", "-init", "-q", "-scryptn", "10", "-extpass", _SAY, place / "raw")


def _restic(tree: Path, place: Path) -> None:
    for words in (["init"], ["backup", "--host", "here", "."]):
        _run("restic", "-q", "-r", place / "repo", *words, cwd=tree, RESTIC_PASSWORD=_PASSWORD)


def _borg(tree: Path, place: Path) -> None:
    _run("borg", "init", "-e", "none", place / "repo")
    _run("borg", "create", f"{place}/repo::a", ".", cwd=tree)


def _bucket(tree: Path, place: Path) -> None:
    (place / "keys").write_text("access:secret")
    (place / "keys").chmod(0o600)


def _rclone(place: Path, point: Path, *source: str) -> list[str]:
    words = ["rclone", "mount", "--cache-dir", f"{place}/cache", "--vfs-cache-mode", "writes"]
    return [*words, *source, str(point)]


def _server(name: str) -> Callable[..., list[str]]:
    """Return the command line of a server of this package, which runs with the Python of PyPI."""
    return lambda *words: [f"{_PYPI}/python", "-m", f"tests.zoo.{name}", str(_PORT), *words]


def _empty(tree: Path, place: Path) -> None:
    (place / "raw").mkdir()


_SAY = f"echo {_PASSWORD}"

DAEMONS: tuple[Daemon, ...] = (
    Daemon(
        "bindfs",
        _copied,
        lambda at, on: ["bindfs", "-f", f"{at}/source", f"{on}"],
        back_door="source",
    ),
    Daemon(
        "sshfs",
        _sshfs,
        lambda at, on: [
            *("sshfs", "-f", "-o", f"ssh_command={at}/ssh", f"here:{at}/source", f"{on}")
        ],
    ),
    Daemon(
        "sshfs",
        _copied,
        lambda at, on: [
            *("sshfs", "-f", "-p", str(_PORT), "-o", f"IdentityFile={at}/key"),
            *("-o", "StrictHostKeyChecking=no,UserKnownHostsFile=/dev/null"),
            *(f"user@127.0.0.1:{at}/source", f"{on}"),
        ],
        server=lambda at: _server("ssh")(f"{at}/key"),
        through="an SSH server",
    ),
    Daemon(
        "squashfuse",
        _squashfs,
        lambda at, on: ["squashfuse", "-f", f"{at}/image", f"{on}"],
        read_only=True,
    ),
    Daemon(
        "archivemount",
        _tar,
        lambda at, on: ["archivemount", "-f", "-o", "readonly", f"{at}/image.tar", f"{on}"],
        read_only=True,
    ),
    Daemon(
        "fuse-zip",
        _zip,
        lambda at, on: ["fuse-zip", "-f", "-r", f"{at}/image.zip", f"{on}"],
        read_only=True,
    ),
    Daemon(
        "archivemount",
        _tar,
        lambda at, on: ["archivemount", "-f", f"{at}/image.tar", f"{on}"],
    ),
    Daemon(
        "fuse-zip",
        _zip,
        lambda at, on: ["fuse-zip", "-f", f"{at}/image.zip", f"{on}"],
    ),
    Daemon(
        "fuseiso",
        _iso,
        lambda at, on: ["fuseiso", f"{at}/image", f"{on}", "-f"],
        read_only=True,
    ),
    Daemon(
        "unionfs",
        _layers,
        lambda at, on: [*("unionfs", "-f", "-o", "cow", f"{at}/upper=RW:{at}/source=RO", f"{on}")],
        package="unionfs-fuse",
        back_door="source",
    ),
    Daemon(
        "mergerfs",
        _copied,
        lambda at, on: ["mergerfs", "-f", f"{at}/source", f"{on}"],
        back_door="source",
    ),
    Daemon(
        "fuse-overlayfs",
        _layers,
        lambda at, on: [
            *("fuse-overlayfs", "-f", "-o"),
            f"lowerdir={at}/source,upperdir={at}/upper,workdir={at}/work",
            f"{on}",
        ],
    ),
    Daemon(
        "encfs",
        _empty,
        lambda at, on: [
            *("encfs", "-f", "--standard", f"--extpass={_SAY}", f"{at}/raw", f"{on}"),
        ],
    ),
    Daemon(
        "gocryptfs",
        _gocryptfs,
        lambda at, on: ["gocryptfs", "-fg", "-q", "-extpass", _SAY, f"{at}/raw", f"{on}"],
    ),
    Daemon("rclone", _copied, lambda at, on: _rclone(at, on, f"{at}/source")),
    Daemon(
        "rclone",
        _copied,
        lambda at, on: _rclone(at, on, "--webdav-url", f"http://127.0.0.1:{_PORT}", ":webdav:"),
        server=lambda at: _server("webdav")(f"{at}/source"),
        through="WebDAV",
    ),
    Daemon(
        "rclone",
        _empty,
        lambda at, on: _rclone(
            at,
            on,
            *("--s3-provider", "Other", "--s3-endpoint", f"http://127.0.0.1:{_PORT}"),
            *("--s3-access-key-id", "access", "--s3-secret-access-key", "secret", ":s3:bucket"),
        ),
        server=lambda at: _server("bucket")(),
        through="moto",
        environment={"AWS_CA_BUNDLE": ""},  # its S3 takes none together with its own transport
    ),
    Daemon(
        "restic",
        _restic,
        lambda at, on: ["restic", "-q", "-r", f"{at}/repo", "mount", f"{on}"],
        read_only=True,
        top="snapshots/latest",
        environment={"RESTIC_PASSWORD": _PASSWORD},
    ),
    Daemon(
        "borg",
        _borg,
        lambda at, on: ["borg", "mount", "-f", f"{at}/repo::a", f"{on}"],
        package="borgbackup",
        read_only=True,
    ),
    Daemon(
        "fuse2fs",
        _image(64 << 20, "mkfs.ext4", "-q", "-F"),
        lambda at, on: ["fuse2fs", "-f", f"{at}/image", f"{on}"],
    ),
    Daemon(
        "ntfs-3g",
        _image(64 << 20, "mkntfs", "-q", "-F", "-f"),
        lambda at, on: ["ntfs-3g", "-o", "no_detach", f"{at}/image", f"{on}"],
    ),
    Daemon(
        "mount.exfat-fuse",
        _exfat,
        lambda at, on: ["mount.exfat-fuse", "-d", os.path.realpath(f"{at}/loop"), f"{on}"],
        finish=lambda at: _run("losetup", "-d", os.path.realpath(at / "loop")),
        package="exfat-fuse",
    ),
    Daemon(
        "cryfs",
        _empty,
        lambda at, on: ["cryfs", "-f", f"{at}/raw", f"{on}"],
        input=f"{_PASSWORD}\n",
        environment={"CRYFS_FRONTEND": "noninteractive"},
    ),
    Daemon(
        "s3fs",
        _bucket,
        lambda at, on: [
            *("s3fs", "bucket", f"{on}", "-f", "-o", f"passwd_file={at}/keys"),
            *("-o", f"url=http://127.0.0.1:{_PORT},use_path_request_style"),
        ],
        server=lambda at: _server("bucket")(),
        through="moto",
    ),
    Daemon(
        "lxcfs",
        lambda tree, place: None,
        lambda at, on: ["lxcfs", "-f", f"{on}"],
        read_only=True,
        only=("proc/cpuinfo", "proc/swaps", "sys/devices/system/cpu/online"),
    ),
    Daemon(
        "ratarmount",
        _tar,
        lambda at, on: [f"{_PYPI}/ratarmount", "-f", f"{at}/image.tar", f"{on}"],
        read_only=True,
    ),
    Daemon(
        "fsspec",
        _copied,
        # -t ends its threads, which its help denies. Two of them mix their seeks of a file.
        lambda at, on: f"{_PYPI}/python -m fsspec.fuse -t file {at}/source {on}".split(),
        read_only=True,
    ),
)
