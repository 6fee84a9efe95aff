# SPDX-License-Identifier: LGPL-2.1-or-later
"""The processes of one guest: virtiofsd, which serves the host's files, and QEMU."""

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
from efuse.guest.accel import QEMU, Acceleration, die_with_parent

__all__ = ["Machine", "Processes", "missing_programs", "started"]

_VIRTIOFSD = ("/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd")


@dataclass(frozen=True)
class Machine:
    """What a guest is made of.

    :ivar cpus: virtual processors.
    :ivar memory: as QEMU takes it, such as ``4G``.
    :ivar icount: let the guest's clock count instructions (one processor, software emulation).
    :ivar parameters: more words for the kernel's command line.
    :ivar nodes: NUMA nodes; each has as many of the processors, and as much of the memory.
    """

    image: Path
    acceleration: Acceleration
    cpus: int = 2
    memory: str = "4G"
    icount: bool = False
    parameters: tuple[str, ...] = ()
    nodes: int = 1

    def command(self, directory: Path, out: int, err: int, status: int, shell: bool) -> list[str]:
        """Return QEMU's command line.

        :param directory: the run's own, which the guest finds by its kernel's command line.
        :param out: descriptors for what the command prints, and for the guest's own reports.
        :param shell: join the guest's console to this process's standard input and output.
        """
        append = [
            "rootfstype=virtiofs root=efuseroot rw",
            f"init={directory}/init",
            f"efuse_dir={directory}",
            "devtmpfs.mount=1 console=ttyS0 loglevel=5 panic=-1 oops=panic mitigations=off nokaslr",
            "rcupdate.rcu_cpu_stall_timeout=300 watchdog_thresh=60",
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
        """Return the memory, and which processors each part of it is near to."""
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
            # A node is a socket: its processors share caches with no other.
            sockets = f",sockets={self.nodes}" if self.nodes > 1 else ""
            return [*self.acceleration.arguments, "-smp", f"{self.cpus}{sockets}"]
        if self.cpus != 1:
            raise UsageError(
                "instructions can be counted on one processor only",
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
    """A started guest.

    :ivar streams: what can be read from it: "out", "err", "status".
    """

    qemu: subprocess.Popen[bytes]
    directory: Path
    streams: dict[str, BinaryIO] = field(default_factory=dict)

    def qemu_said(self) -> str:
        """Return QEMU's own complaints."""
        return (self.directory / "qemu.log").read_text(errors="replace").strip()


def _virtiofsd() -> str | None:
    found = [path for path in _VIRTIOFSD if os.access(path, os.X_OK)]
    return found[0] if found else shutil.which("virtiofsd")


def missing_programs() -> list[str]:
    """Return which of the programs that a guest needs are not installed."""
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


def _start_virtiofsd(directory: Path, *, keep: bool) -> subprocess.Popen[bytes]:
    """Start the file server; it is listening when this returns and ends with its one client.

    :param keep: the guest keeps what it has read. Otherwise it forgets a file at each open(2), the
        pages of programs and libraries too: starting one takes several times as long.
    """
    program = _virtiofsd()
    assert program is not None
    # Bound here rather than by its path there: then nobody has to wait for it to appear.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{directory}/fs.sock")
        listener.listen(1)
        command = [program, "-f", f"--fd={listener.fileno()}"]
        cache = "always" if keep else "auto"
        command += ["-o", f"source=/,cache={cache},sandbox=chroot,log_level=err"]
        with (directory / "virtiofsd.log").open("wb") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[listener.fileno()],
                preexec_fn=die_with_parent,
            )


@contextlib.contextmanager
def started(machine: Machine, directory: Path, *, shell: bool = False) -> Iterator[Processes]:
    """Start a guest; both of its processes are gone when the context ends, however it ends.

    :raises NotSupportedError: QEMU or virtiofsd is missing, or this user may not serve the root.
    :raises GuestError: they do not start.
    """
    missing = missing_programs()
    if missing:
        raise NotSupportedError(
            f"a guest cannot be started: {' and '.join(missing)} not found",
            hint="apt-get install qemu-system-x86 qemu-system-common",
        )
    if os.geteuid() != 0:
        raise NotSupportedError(
            "a guest cannot be started: serving the root file system needs root", hint="sudo"
        )
    with contextlib.ExitStack() as stack:
        # Who works in a shell may change files here meanwhile.
        server = _start_virtiofsd(directory, keep=not shell)
        stack.callback(_stop, server)
        streams: dict[str, BinaryIO] = {}
        write_ends = []
        for name in ("out", "err", "status"):
            read_end, write_end = os.pipe()
            streams[name] = stack.enter_context(os.fdopen(read_end, "rb", buffering=0))
            write_ends.append(write_end)
        try:
            command = machine.command(directory, write_ends[0], write_ends[1], write_ends[2], shell)
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
