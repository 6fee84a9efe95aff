# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run a command in a guest: prepare the guest, follow it, and judge how it ended.

virtme-ng boots a guest from the host's files, too. It is not in Debian 12, and judges no log of the
kernel.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import shlex
import shutil
import sys
import tempfile
import termios
import time
import tty
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from efuse import locations
from efuse.errors import EmulatorError, GuestError, NotSupportedError, UsageError
from efuse.guest import accel, kernel_log
from efuse.guest.processes import Machine, Processes, started
from efuse.guest.tree import HOST, Tree, at
from efuse.module import build as module_build
from efuse.module import kernel
from efuse.module.kernel import Kernel

__all__ = ["CSD_MODULE", "INSIDE", "Options", "Result", "is_shared", "run"]

INSIDE = "EFUSE_GUEST"
"""Environment variable that is 1 for everything that runs in a guest."""

MODULE = "EFUSE_MODULE"
"""Environment variable with the path of the ``efuse.ko`` that is loaded in the guest."""

CSD_MODULE = "EFUSE_CSD_MODULE"
"""Environment variable with the path of a ``csd.ko`` that can be loaded in the guest."""

_BOOT_TIMEOUT_S = 300.0
_END_TIMEOUT_S = 120.0
_KEPT_LOGS = 20
_BOOTS_AGAIN = 2


@dataclass(frozen=True)
class Options:
    """Options for a guest.

    :ivar cpus: number of virtual processors; with ``icount`` it is always 1.
    :ivar memory: size of the memory with a unit, such as ``4G``.
    :ivar icount: let the guest's clock count instructions.
    :ivar kernel: the kernel to boot; by default the newest one of the default series below *root*.
    :ivar module: whether to build the modules and load ``efuse.ko``.
    :ivar timeout_s: time limit of the command, in seconds; the guest is then stopped.
    :ivar keep_log: keep the kernel log even if nothing is wrong.
    :ivar parameters: additional words for the kernel's command line.
    :ivar nodes: number of NUMA nodes among which processors and memory are divided.
    :ivar again: how often to run the command again, in a new guest, after a fault of the emulator
        ended its guest. A guest whose kernel complains before it has booted is always booted again,
        at most twice: eFuse's code has not run in it yet.
    :ivar root: directory that the guest has as its root.
    """

    cpus: int = 2
    memory: str = "4G"
    icount: bool = False
    kernel: Kernel | None = None
    module: bool = True
    timeout_s: float | None = None
    keep_log: bool = False
    parameters: tuple[str, ...] = ()
    nodes: int = 1
    again: int = 0
    root: Path = Path("/")


@dataclass(frozen=True)
class Result:
    """How a command in a guest ended.

    :ivar status: exit status of the command; 128 + N if signal N ended it.
    :ivar boot_s: time from the start of QEMU to the start of the command, in seconds.
    :ivar run_s: run time of the command by the host's clock, in seconds.
    :ivar kernel_log: path of the guest's kernel log, or None if it was not kept.
    """

    status: int
    boot_s: float
    run_s: float
    kernel_log: Path | None


def _note(text: str) -> None:
    print(f"guest: {text}", file=sys.stderr, flush=True)


def _guests() -> Path:
    return locations.cache() / "guests"


def _sweep() -> None:
    """Remove the directories of runs whose process no longer exists, and the oldest kernel logs."""
    for directory in _guests().glob("run-*"):
        pid = directory.name.split("-")[1]
        if not Path(f"/proc/{pid}").exists():
            shutil.rmtree(directory, ignore_errors=True)
    locations.remove_oldest(_guests(), "kernel-*.log", _KEPT_LOGS)


def _kept_paths(*needed: Path) -> list[Path]:
    """Return the directories below /tmp and /run of the host that the guest has to see.

    A guest has its own /tmp and /run. For each path in *needed* that is below one of them, the
    directory directly below /tmp or /run is bind-mounted from the host.
    """
    kept = set()
    for path in needed:
        parts = path.resolve().parts
        if len(parts) > 2 and parts[1] in ("tmp", "run"):
            kept.add(Path(*parts[:3]))
    return sorted(kept)


def is_shared(path: Path) -> bool:
    """Return whether a file that a guest writes at *path* appears on the host.

    A guest has its own /dev, /tmp and /run.
    """
    shown = _kept_paths(Path.cwd(), Path(sys.prefix), locations.package())
    return path.resolve().parts[1:2] != ("dev",) and set(_kept_paths(path)) <= set(shown)


_FSTAB = """\
proc /proc proc defaults
sysfs /sys sysfs defaults
devpts /dev/pts devpts x-mount.mkdir,gid=5,mode=620,ptmxmode=666
shm /dev/shm tmpfs x-mount.mkdir,mode=1777
run /run tmpfs mode=755
lock /run/lock tmpfs x-mount.mkdir,mode=1777
/ /run/efuse/host none x-mount.mkdir,bind
tmp /tmp tmpfs mode=1777,size=75%
bpf /sys/fs/bpf bpf defaults
debugfs /sys/kernel/debug debugfs defaults
tracefs /sys/kernel/tracing tracefs defaults
cgroup2 /sys/fs/cgroup cgroup2 defaults
fusectl /sys/fs/fuse/connections fusectl defaults
"""


def _fstab_word(path: Path | str) -> str:
    return re.sub(r"[\\\s#]", lambda match: f"\\{ord(match[0]):03o}", str(path))


def _write_directory(
    directory: Path,
    command: Sequence[str],
    target: Kernel,
    module: Path | None,
    environment: Mapping[str, str],
    tree: Tree = HOST,
) -> None:
    """Write the files that ``init.sh`` reads.

    :param module: path in the guest of the module to load.
    :param tree: the guest's root file system, in which *directory* and the kernel are shown.
    """
    init = directory / "init"
    shutil.copyfile(Path(__file__).with_name("init.sh"), init)
    init.chmod(0o755)
    cwd = tree.inside(Path.cwd())
    variables = [f"{key}={value}" for key, value in environment.items()]
    lines = [
        f"cd {shlex.quote(str(cwd))} || exit 125",
        shlex.join(["exec", "env", "-i", *variables, *command]),
        "",
    ]
    (directory / "command").write_text("\n".join(lines), errors="surrogateescape")
    if module is not None:
        (directory / "module").write_text(str(module))

    # This directory becomes the guest's /lib/modules.
    modules = directory / "modules"
    modules.mkdir(mode=0o755)
    headers = tree.inside(target.headers)
    if target.modules is not None:
        (modules / target.release).symlink_to(tree.inside(target.modules))
    else:
        (modules / target.release).mkdir()
        (modules / target.release / "build").symlink_to(headers)
        (modules / target.release / "source").symlink_to(headers)

    devices = directory / "dev"
    devices.mkdir()
    (devices / "fd").symlink_to("/proc/self/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        (devices / name).symlink_to(f"fd/{number}")

    shown = _kept_paths(
        cwd,
        *([Path(sys.prefix), locations.package()] if tree == HOST else []),
        tree.inside(directory),
        headers,
        *([tree.inside(target.modules)] if target.modules else []),
    )
    binds = []
    # The bind mounts use the host's root, which was made accessible before /tmp and /run were
    # covered.
    for path in shown:
        word = _fstab_word(path)
        binds.append(f"/run/efuse/host{word} {word} none x-mount.mkdir,bind\n")
    binds.append(f"{_fstab_word(tree.inside(modules))} /lib/modules none x-mount.mkdir,bind\n")
    (directory / "fstab").write_text(_FSTAB + "".join(binds))


def _environment(modules: Mapping[str, Path]) -> dict[str, str]:
    environment = {**os.environ, INSIDE: "1"}
    environment |= {name: str(module) for name, module in modules.items()}
    environment.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
    # Bash exports functions under names that env(1) cannot set. TMPDIR is wrong in the guest's own
    # /tmp.
    unusable = [key for key in environment if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key)]
    for key in (*unusable, "TMPDIR", "MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
        environment.pop(key, None)
    return environment


def _copied_modules(directory: Path, modules: Mapping[str, Path]) -> dict[str, Path]:
    """Copy built modules into the directory of a run: another tree does not show the cache."""
    return {name: Path(shutil.copy(module, directory)) for name, module in modules.items()}


def _fill(
    directory: Path, command: Sequence[str], target: Kernel, modules: Mapping[str, Path], tree: Tree
) -> Tree:
    """Write the guest's files. Return its root file system, in which they are shown.

    :param modules: the built modules by the environment variable with their path.
    """
    if tree != HOST:
        tree = tree.with_run(run=directory, modules=target.modules, headers=target.headers)
        modules = _copied_modules(directory, modules)
    paths = {name: tree.inside(module) for name, module in modules.items()}
    _write_directory(directory, command, target, paths.get(MODULE), _environment(paths), tree)
    return tree


class _Follower:
    """Forward a guest's output and collect its reports, until it ends or a timeout expires."""

    def __init__(
        self, processes: Processes, stdout: BinaryIO, stderr: BinaryIO, timeout_s: float | None
    ) -> None:
        self._processes = processes
        self._sinks = {"out": stdout, "err": stderr}
        self._timeout_s = timeout_s
        self._started = time.monotonic()
        self._partial = b""
        self.boot_s: float | None = None
        self.ended_s: float | None = None
        self.status: int | None = None
        self.taints: list[int] = []
        self.complete = False

    def _report(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        now = time.monotonic() - self._started
        match word:
            case "boot":
                self.boot_s = now
            case "taint":
                self.taints.append(int(rest))
            case "exit":
                self.status = int(rest)
                self.ended_s = now
            case "failed":
                raise GuestError(
                    f"efuse.ko could not be loaded in the guest: {rest}",
                    hint="see the guest's kernel log: --keep-log",
                )
            case "end":
                self.complete = True

    def _deadline(self) -> tuple[float, str]:
        """Return the deadline of the next step, and the error message if it passes."""
        if self.boot_s is None:
            return self._started + _BOOT_TIMEOUT_S, (
                f"the guest did not boot within {_BOOT_TIMEOUT_S:g} s"
            )
        if self.ended_s is not None:
            return self._started + self.ended_s + _END_TIMEOUT_S, (
                f"the guest did not end within {_END_TIMEOUT_S:g} s of its command: "
                "a process in it cannot be killed"
            )
        if self._timeout_s is None:
            return float("inf"), ""
        return self._started + self.boot_s + self._timeout_s, (
            f"the command did not end within {self._timeout_s:g} s"
        )

    def follow(self) -> None:
        """Follow the guest until it reports its end, or its processes are gone.

        :raises GuestError: it did not boot, did not load the module, or did not end in time.
        """
        with selectors.DefaultSelector() as selector:
            for name, stream in self._processes.streams.items():
                selector.register(stream, selectors.EVENT_READ, name)
            while selector.get_map():
                deadline, meaning = self._deadline()
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise GuestError(meaning)
                for key, _ in selector.select(min(left_s, 3600.0)):
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fileobj)
                    elif key.data == "status":
                        *lines, self._partial = (self._partial + data).split(b"\n")
                        for line in lines:
                            self._report(line.decode(errors="replace"))
                    else:
                        sink = self._sinks[key.data]
                        sink.write(data)
                        sink.flush()


def _excerpt(log: str, lines: int = 25) -> str:
    return "\n".join(log.strip().splitlines()[-lines:])


def _judge(follower: _Follower, processes: Processes, log: str) -> None:
    """Raise an error if the guest died, reported nothing, or its kernel complained."""
    found = kernel_log.complaints(log)
    fault = kernel_log.emulators_fault(log)
    if found and fault:
        raise EmulatorError(
            f"the guest died of a fault of its emulator ({fault}, "
            "see efuse.guest.kernel_log.emulators_fault):\n" + found[0],
            began=follower.boot_s is not None,
            hint="run it again, or use QEMU 8.1 or newer",
        )
    if found and follower.boot_s is None:
        raise EmulatorError(
            "the guest's kernel complained before it had booted:\n" + found[0], began=False
        )
    if found:
        raise GuestError("the guest's kernel complained:\n" + "\n...\n".join(found[:3]))
    if not follower.complete or follower.status is None:
        why = processes.output() or _excerpt(log) or "its kernel printed nothing"
        when = "before it had booted" if follower.boot_s is None else "before its command ended"
        raise GuestError(f"the guest died {when}:\n{why}")
    before, after = follower.taints[0], follower.taints[-1]
    new = after & ~before & ~kernel_log.MODULE_TAINTS
    if new:
        raise GuestError(
            f"the guest's kernel became tainted: {', '.join(kernel_log.taint_names(new))}"
        )


def _keep_log(directory: Path) -> Path:
    kept = _guests() / f"kernel-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    parts = [directory / name for name in ("dmesg", "kernel.log")]
    texts = [part.read_text(errors="replace") for part in parts if part.is_file()]
    # The guest writes the complete log when it ends. If it died, only the console's log exists.
    kept.write_text(max(texts, key=len, default=""))
    return kept


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    saved = termios.tcgetattr(sys.stdin)
    tty.setraw(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, saved)


def _shell_files(directory: Path) -> None:
    if not sys.stdin.isatty():
        raise UsageError("a guest's shell needs a terminal", hint="efuse guest run -- COMMAND")
    size = os.get_terminal_size(sys.stdin.fileno())
    (directory / "shell").touch()
    (directory / "size").write_text(f"rows {size.lines} cols {size.columns}")


def _attempt(
    machine: Machine,
    fill: Callable[[Path], Tree],
    options: Options,
    shell: bool,
    sinks: tuple[BinaryIO, BinaryIO],
) -> Result:
    """Boot one guest, and follow it to its end.

    :param fill: function that writes the guest's files into the given directory, and returns the
        guest's root file system, in which it is shown.
    :param sinks: files for the command's standard output and standard error.
    """
    with tempfile.TemporaryDirectory(dir=_guests(), prefix=f"run-{os.getpid()}-") as name:
        directory = Path(name)
        tree = fill(directory)
        if shell:
            _shell_files(directory)
        log_file = directory / "kernel.log"
        try:
            with (
                started(machine, directory, tree=tree, shell=shell) as processes,
                _raw_terminal() if shell else contextlib.nullcontext(),
            ):
                follower = _Follower(processes, *sinks, options.timeout_s)
                follower.follow()
            log = log_file.read_text(errors="replace") if log_file.is_file() else ""
            _judge(follower, processes, log)
        except GuestError as error:
            kept = _keep_log(directory)
            error.hint = error.hint or f"the guest's kernel log is in {kept}"
            raise
        assert follower.status is not None and follower.boot_s is not None
        assert follower.ended_s is not None
        kept_log = _keep_log(directory) if options.keep_log else None
        return Result(
            follower.status, follower.boot_s, follower.ended_s - follower.boot_s, kept_log
        )


def run(
    command: Sequence[str],
    options: Options = Options(),
    *,
    shell: bool = False,
    stdout: BinaryIO | None = None,
    stderr: BinaryIO | None = None,
    say: Callable[[str], None] = _note,
) -> Result:
    """Run ``command`` in a new guest, in the current directory. The guest ends with the command.

    The command sees the host's files, or those of another root directory and the current directory.
    It gets the caller's environment, with ``EFUSE_GUEST=1`` added, and no standard input. If a file
    changes on the host after the guest has read it, the guest may not see the change; with *shell*
    it does.

    :param options: options for the guest.
    :param shell: connect the command to the terminal.
    :param stdout: file for the command's standard output; by default that of this process.
    :param stderr: file for the command's standard error; by default that of this process.
    :param say: function that is called with each progress message.
    :raises NotSupportedError: something that a guest needs is missing, or this process runs in a
        guest itself.
    :raises UsageError: the guest cannot have the given root directory.
    :raises ModuleBuildError: a module cannot be built.
    :raises GuestError: the guest died, reported nothing, took too long, or its kernel complained.
    """
    if os.environ.get(INSIDE):
        raise NotSupportedError("a guest cannot be started inside a guest")
    tree = at(options.root)
    target = options.kernel or kernel.find(tree.root)
    if target.image is None:
        raise NotSupportedError(
            f"a guest cannot be booted: the image of kernel {target.release} is missing",
            hint="scripts/setup",
        )
    modules = {}
    if options.module:
        modules[MODULE] = module_build.build(target, say=say)
        modules[CSD_MODULE] = module_build.build(target, module_build.CSD, say=say)
    locations.make_directory(_guests())
    _sweep()
    acceleration = (
        accel.Accelerator(False, "instructions are counted")
        if options.icount
        else accel.probe(target.image)
    )
    cpus = 1 if options.icount else options.cpus
    where = f"{cpus} CPUs" + (f" on {options.nodes} nodes" if options.nodes > 1 else "")
    say(f"{target.release}, {where}, {options.memory}, {acceleration}")
    machine = Machine(
        target.image,
        acceleration,
        cpus,
        options.memory,
        options.icount,
        options.parameters,
        options.nodes,
    )
    spare = {False: _BOOTS_AGAIN, True: options.again}
    while True:
        try:
            return _attempt(
                machine,
                lambda directory: _fill(directory, command, target, modules, tree),
                options,
                shell,
                (stdout or sys.stdout.buffer, stderr or sys.stderr.buffer),
            )
        except EmulatorError as error:
            if not spare[error.began]:
                raise
            spare[error.began] -= 1
            say(f"{error}\nguest: trying again")
