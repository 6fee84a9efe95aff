# SPDX-License-Identifier: LGPL-2.1-or-later
"""Start the processes of one guest: QEMU, and virtiofsd, which serves the host's files."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from efuse.errors import GuestError, NotSupportedError, UsageError
from efuse.guest.accel import QEMU, Accelerator, die_with_parent
from efuse.guest.tree import HOST, Tree

__all__ = ["Machine", "Processes", "missing_programs", "started"]

_C_VIRTIOFSD = Path("/usr/lib/qemu/virtiofsd")
"""The virtiofsd of QEMU 7.2 and older, in C. Debian 12 has it."""

_RUST_VIRTIOFSD = Path("/usr/libexec/virtiofsd")
"""The virtiofsd in Rust, a package of its own since Debian 13."""


@dataclass(frozen=True)
class Machine:
    """Configuration of a guest.

    :ivar image: the kernel to boot.
    :ivar acceleration: how the processors are run.
    :ivar cpus: number of virtual processors.
    :ivar memory: size of the memory with a unit, such as ``4G``.
    :ivar icount: let the guest's clock count instructions. Needs one processor, and software
        emulation.
    :ivar parameters: additional words for the kernel's command line.
    :ivar nodes: number of NUMA nodes. Processors and memory are divided evenly among them.
    """

    image: Path
    acceleration: Accelerator
    cpus: int = 2
    memory: str = "4G"
    icount: bool = False
    parameters: tuple[str, ...] = ()
    nodes: int = 1

    def command(
        self,
        directory: Path,
        out: int,
        err: int,
        status: int,
        shell: bool,
        inside: Path | None = None,
    ) -> list[str]:
        """Return QEMU's command line.

        :param directory: directory of this run.
        :param out: descriptor for the command's standard output.
        :param err: descriptor for the command's standard error.
        :param status: descriptor for the guest's own reports.
        :param shell: connect the guest's console to standard input and output of this process.
        :param inside: path of *directory* in the guest, if the guest has another root. It is on the
            kernel's command line.
        """
        inside = inside or directory
        append = [
            "rootfstype=virtiofs root=efuseroot rw",
            f"init={inside}/init",
            f"efuse_dir={inside}",
            "devtmpfs.mount=1 console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off nokaslr",
            "rcupdate.rcu_cpu_stall_timeout=300 watchdog_thresh=60",
            # Memory that a module forgets to clear shows what it held before.
            "init_on_alloc=0",
            *self.parameters,
        ]
        command = [QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        command += ["-machine", "q35", *self._processor(), *self._nodes()]
        command += ["-kernel", str(self.image), "-append", " ".join(append)]
        command += ["-chardev", f"socket,id=fs,path={directory}/fs.sock"]
        command += ["-device", "vhost-user-fs-pci,chardev=fs,tag=efuseroot,queue-size=1024"]
        command += ["-object", "rng-random,id=rng,filename=/dev/urandom"]
        command += ["-device", "virtio-rng-pci,rng=rng"]
        command += ["-serial", f"file:{directory}/kernel.log"]
        command += ["-device", "virtio-serial-pci"]
        if shell:
            command += ["-chardev", "stdio,id=tty,signal=off"]
            command += ["-serial", "chardev:tty"]
        for number, descriptor in enumerate((out, err, status), start=1):
            command += ["-add-fd", f"fd={descriptor},set={number}"]
            command += ["-chardev", f"file,id=port{number},path=/dev/fdset/{number},append=on"]
            command += ["-device", f"virtserialport,chardev=port{number},nr={number}"]
        return command

    def _nodes(self) -> list[str]:
        """Return the options for the memory, and for the NUMA node of each processor."""
        if self.cpus % self.nodes:
            raise UsageError(
                f"{self.cpus} processors cannot be shared among {self.nodes} nodes",
                hint=f"--nodes {self.nodes} --cpus {2 * self.nodes}",
            )
        cpus = self.cpus // self.nodes
        mib = int(self.memory[:-1]) * {"M": 1, "G": 1024}[self.memory[-1]] // self.nodes
        words = ["-m", f"{mib * self.nodes}M"]
        for node in range(self.nodes):
            words += ["-object", f"memory-backend-memfd,id=mem{node},size={mib}M,share=on"]
            near = f"cpus={node * cpus}-{(node + 1) * cpus - 1}"
            words += ["-numa", f"node,nodeid={node},{near},memdev=mem{node}"]
        return words

    def _processor(self) -> list[str]:
        if not self.icount:
            # Each node is a socket: its processors share no caches with those of other nodes.
            sockets = f",sockets={self.nodes}" if self.nodes > 1 else ""
            return [*self.acceleration.arguments, "-smp", f"{self.cpus}{sockets}"]
        if self.cpus != 1:
            raise UsageError(
                "instructions can be counted only on one processor",
                hint="--icount with --cpus 1",
            )
        return [
            "-accel",
            "tcg,thread=single",
            "-cpu",
            "qemu64",
            "-smp",
            "1",
            "-icount",
            "shift=0,align=off,sleep=off",
        ]


@dataclass
class Processes:
    """The processes of a started guest.

    :ivar qemu: the QEMU process.
    :ivar directory: directory of this run.
    :ivar streams: output of the guest: "out", "err" and "status".
    """

    qemu: subprocess.Popen[bytes]
    directory: Path
    streams: dict[str, BinaryIO] = field(default_factory=dict)

    def output(self) -> str:
        """Return the error messages of virtiofsd and of QEMU itself."""
        logs = ((self.directory / name) for name in ("virtiofsd.log", "qemu.log"))
        return "\n".join(filter(None, (log.read_text(errors="replace").strip() for log in logs)))


def _virtiofsd() -> Path | None:
    # Debian 13 has a link to the one in Rust where Debian 12 has the one in C.
    for program in (_RUST_VIRTIOFSD, _C_VIRTIOFSD):
        if os.access(program, os.X_OK):
            return program
    found = shutil.which("virtiofsd")
    return Path(found) if found else None


def _virtiofsd_command(program: Path, descriptor: int, root: Path, *, keep: bool) -> list[str]:
    """Return the file server's command line.

    :param program: the server; every one that is not QEMU's is the one in Rust.
    :param descriptor: a socket that listens for the guest.
    :param root: directory that is served.
    :param keep: let the guest keep what it has read.
    """
    cache = "always" if keep else "auto"
    command = [str(program), f"--fd={descriptor}"]
    if program == _C_VIRTIOFSD:
        options = f"source={root},cache={cache},sandbox=chroot,log_level=err"
        return [*command, "-f", "-o", options]
    # If it announced mounts, the guest would have a mount of its own for each mount of the host.
    return [
        *command,
        f"--shared-dir={root}",
        f"--cache={cache}",
        "--sandbox=chroot",
        "--log-level=error",
        "--no-announce-submounts",
    ]


def missing_programs() -> list[str]:
    """Return the names of missing programs that a guest needs."""
    missing = [] if shutil.which(QEMU) else [QEMU]
    return missing if _virtiofsd() else [*missing, "virtiofsd"]


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _start_virtiofsd(directory: Path, tree: Tree, *, keep: bool) -> subprocess.Popen[bytes]:
    """Start the file server. It is listening when this returns, and ends with its one client.

    :param tree: the files that are served.
    :param keep: let the guest keep what it has read. Otherwise it drops the pages of a file at each
        open(2), even those of programs and libraries, and starting one takes several times as long.
    """
    program = _virtiofsd()
    assert program is not None
    # Pass a bound socket instead of its path, so that QEMU need not wait for the path to appear.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{directory}/fs.sock")
        listener.listen(1)
        command = _virtiofsd_command(program, listener.fileno(), tree.root, keep=keep)
        with (directory / "virtiofsd.log").open("wb") as log:
            return subprocess.Popen(
                tree.entering(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[listener.fileno()],
                preexec_fn=die_with_parent,
            )


@contextlib.contextmanager
def started(
    machine: Machine, directory: Path, *, tree: Tree = HOST, shell: bool = False
) -> Iterator[Processes]:
    """Start a guest. Both of its processes are stopped when the context ends.

    :param tree: the guest's root file system, in which *directory* is shown.
    :param shell: connect the guest's console to this process's terminal.
    :raises NotSupportedError: QEMU or virtiofsd is missing, or this user is not root.
    :raises GuestError: QEMU does not start.
    """
    missing = missing_programs()
    if missing:
        raise NotSupportedError(
            f"a guest cannot be started: {' and '.join(missing)} not found",
            hint="scripts/setup",
        )
    if os.geteuid() != 0:
        raise NotSupportedError(
            "a guest cannot be started: serving the root file system needs root", hint="sudo"
        )
    with contextlib.ExitStack() as stack:
        # With a shell, the user may change files on the host while the guest runs.
        server = _start_virtiofsd(directory, tree, keep=not shell)
        stack.callback(_stop, server)
        streams: dict[str, BinaryIO] = {}
        write_ends = []
        for name in ("out", "err", "status"):
            read_end, write_end = os.pipe()
            streams[name] = stack.enter_context(os.fdopen(read_end, "rb", buffering=0))
            write_ends.append(write_end)
        try:
            out, err, status = write_ends
            command = machine.command(directory, out, err, status, shell, tree.inside(directory))
            with (directory / "qemu.log").open("wb") as log:
                qemu = subprocess.Popen(
                    command,
                    stdin=None if shell else subprocess.DEVNULL,
                    stdout=None if shell else log,
                    stderr=log,
                    pass_fds=write_ends,
                    preexec_fn=die_with_parent,
                )
        except OSError as error:
            raise GuestError(f"QEMU could not be started: {error}") from error
        finally:
            for descriptor in write_ends:
                os.close(descriptor)
        stack.callback(_stop, qemu)
        yield Processes(qemu, directory, streams)
