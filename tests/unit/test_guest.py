# SPDX-License-Identifier: LGPL-2.1-or-later
"""How a guest is prepared, followed and judged; these tests boot nothing."""

from __future__ import annotations

import io
import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from efuse import locations
from efuse.cli import guest as cli_guest
from efuse.errors import EmulatorError, GuestError, NotSupportedError, UsageError
from efuse.guest import accel, kernel_log, processes, run
from efuse.guest.accel import Accelerator
from efuse.guest.processes import Machine, Processes
from efuse.guest.run import _Follower, _fstab_word, _judge, _kept_paths, _write_directory
from efuse.guest.tree import HOST, Tree
from efuse.module.kernel import Kernel

_EMULATED = Accelerator(False, "of a test")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv(run.INSIDE, raising=False)
    return tmp_path / "cache/efuse"


# --- the kernel's log

_OOPS = """\
[    9.1] something before
[   10.0] ------------[ cut here ]------------
[   10.0] WARNING: CPU: 0 PID: 42 at fs/fuse/dev.c:10 fuse_dev_do_read+0x1/0x2 [efuse]
[   10.1] Call Trace:
[   10.2]  <TASK>
"""


@pytest.mark.parametrize(
    "line",
    [
        "WARNING: CPU: 1 PID: 7 at fs/fuse/inode.c:1",
        "WARNING: possible circular locking dependency detected",
        "WARNING: suspicious RCU usage",
        "WARNING: lock held when returning to user space!",
        "BUG: KASAN: slab-use-after-free in fuse_iget",
        "BUG: kernel NULL pointer dereference, address: 0000000000000008",
        "BUG: sleeping function called from invalid context at x.c:1",
        "kernel BUG at fs/fuse/dev.c:1!",
        "Oops: general protection fault, probably for non-canonical address",
        "INFO: task python3:77 blocked for more than 120 seconds.",
        "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
        "watchdog: BUG: soft lockup - CPU#0 stuck for 26s!",
        "refcount_t: underflow; use-after-free.",
        "list_del corruption. prev->next should be x",
        "UBSAN: array-index-out-of-bounds in x.c",
        "Kernel panic - not syncing: Attempted to kill init!",
        "VFS: Busy inodes after unmount of 0:40 (efuse)",
        "BUG kmalloc-64 (Tainted: G           O      ): Poison overwritten",
        "BUG efuse_inode (Not tainted): Objects remaining on __kmem_cache_shutdown()",
        "sysfs: cannot create duplicate filename '/fs/efuse/connections/41'",
        "percpu ref (efuse_release) <= 0 (-1) after switching to atomic",
        "EXT4-fs error (device loop0): ext4_lookup:1855: inode #2: comm cat: iget: bad extra_isize",
        "EXT4-fs error (device dm-0): ext4_validate_block_bitmap:420: bad block bitmap checksum",
        "XFS (loop0): Corruption of in-memory data (0x8) detected at xfs_trans_cancel+0x1/0x2",
        "XFS (loop0): Metadata corruption detected at xfs_agf_verify+0x1/0x2",
    ],
)
def test_kernel_warning_is_found_in_the_log(line: str) -> None:
    assert kernel_log.complaints(f"[    1.0] {line}\n") == [f"[    1.0] {line}"]


@pytest.mark.parametrize(
    "line",
    [
        "efuse: loading out-of-tree module taints kernel.",
        "efuse: module verification failed: signature and/or required key missing",
        "mtrr: your CPUs had inconsistent fixed MTRR settings",
        "clocksource: timekeeping watchdog on CPU0: Marking clocksource 'tsc' as unstable",
        "DEBUG: something",
        "NMI watchdog: Perf NMI watchdog permanently disabled",
        "sched_clock: Marking stable (1, 2)->(3, 4)",
        "Warning: unable to open an initial console.",
        "Buffer I/O error on dev loop0, logical block 3, lost async page write",
        "EXT4-fs error (device loop0): __ext4_find_entry:1683: reading directory lblock 0",
        "EXT4-fs error (device loop0) in ext4_reserve_inode_write:5841: IO failure",
        "EXT4-fs error (device loop0): ext4_journal_check_start:84: Detected aborted journal",
        "EXT4-fs (loop0): mounted filesystem 1234 r/w with ordered data mode.",
        "XFS (loop0): Ending recovery (logdev: internal)",
    ],
)
def test_ordinary_line_is_no_kernel_warning(line: str) -> None:
    assert kernel_log.complaints(f"[    1.0] {line}") == []


def test_kernel_warning_includes_its_stack_trace() -> None:
    (found,) = kernel_log.complaints(_OOPS)
    assert found.splitlines()[0].endswith("[efuse]")
    assert "<TASK>" in found


def test_distant_kernel_warnings_are_reported_separately() -> None:
    line = "WARNING: CPU: 0 PID: 1\n"
    assert len(kernel_log.complaints(line + "quiet\n" * 30 + line)) == 2
    assert len(kernel_log.complaints(line + "quiet\n" * 3 + line)) == 1


_BREAKPOINT = """\
[    1.3] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI
[    1.3] RIP: 0010:run_timer_softirq+0xd7/0xf0
[    1.3] Code: 48 89 df e8 7a 16 b4 00 {before} <0a> 48 83 c4 18 5b
[    1.3] Kernel panic - not syncing: Fatal exception in interrupt
"""


def test_breakpoint_missing_in_memory_is_attributed_to_the_emulator() -> None:
    fault = kernel_log.emulators_fault(_BREAKPOINT.format(before="eb"))
    assert fault is not None and "breakpoint" in fault
    assert kernel_log.emulators_fault(_BREAKPOINT.format(before="cc")) is None
    assert kernel_log.emulators_fault(_OOPS) is None


@pytest.mark.parametrize(
    "flags", ["00908666", "00008246", "80000246", "0000020a", "00043002", "00047402"]
)
def test_impossible_processor_flags_are_attributed_to_the_emulator(flags: str) -> None:
    fault = kernel_log.emulators_fault(f"{_OOPS}\nRSP: 0018:ffffc9000044b7d8 EFLAGS: {flags}\n")
    assert fault is not None and "flags" in fault


@pytest.mark.parametrize("flags", ["00010246", "00000202", "00210a97", "003f0fd7"])
def test_valid_processor_flags_are_attributed_to_the_kernel(flags: str) -> None:
    assert (
        kernel_log.emulators_fault(f"{_OOPS}\nRSP: 0018:ffffc9000044b7d8 EFLAGS: {flags}\n") is None
    )


def test_taint_bits_have_names() -> None:
    assert kernel_log.taint_names(0) == []
    assert kernel_log.taint_names(1 << 9 | 1 << 7) == ["died (oops or BUG)", "warning"]
    assert kernel_log.taint_names(kernel_log.MODULE_TAINTS) == [
        "out-of-tree module",
        "unsigned module",
    ]
    assert kernel_log.taint_names(1 << 40) == ["bit 40"]


# --- acceleration


def _fake_qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "bin/qemu"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\nfor last; do :; done\nlog=${{last#file:}}\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(accel, "QEMU", str(program))
    monkeypatch.setattr(os, "access", lambda _path, _mode: True)


@pytest.mark.parametrize(
    ("script", "kvm", "why"),
    [
        ("echo 'VFS: Unable to mount root fs on unknown-block(0,0)' >$log", True, "boots"),
        ("echo 'error: failed to set MSR 0x48d' >&2; exit 1", False, "failed to set MSR"),
        ("echo 'Linux version 6.12' >$log", False, "stops immediately"),
        ("exec sleep 60", False, "no kernel booted under KVM within 0.3 s"),
    ],
)
def test_kvm_is_used_only_if_a_kernel_boots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, kvm: bool, why: str
) -> None:
    _fake_qemu(tmp_path, monkeypatch, script)
    if "sleep" in script:
        monkeypatch.setattr(accel, "_PROBE_TIMEOUT_S", 0.3)
    found = accel.probe(Path("vmlinuz"))
    assert found.kvm is kvm
    assert why in found.why
    assert accel.cached() == found


def test_probe_is_kept_until_the_next_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake_qemu(tmp_path, monkeypatch, f"echo x >>{tmp_path}/calls; exit 1")
    calls = tmp_path / "calls"
    accel.probe(Path("vmlinuz"))
    accel.probe(Path("vmlinuz"))
    assert calls.read_text() == "x\n"
    monkeypatch.setattr(accel, "_boot_id", lambda: "another")
    assert accel.cached() is None
    accel.probe(Path("vmlinuz"))
    assert calls.read_text() == "x\nx\n"


def test_damaged_probe_file_is_ignored(cache: Path) -> None:
    (cache / "guests").mkdir(parents=True)
    (cache / "guests/acceleration.json").write_text("{")
    assert accel.cached() is None


# --- QEMU's command line


def _command(**changes: object) -> list[str]:
    made = Machine(Path("/boot/vmlinuz"), _EMULATED, **changes)  # type: ignore[arg-type]
    return made.command(Path("/run-dir"), 4, 5, 6, shell=False)


def _after(command: list[str], option: str) -> list[str]:
    return [command[i + 1] for i, word in enumerate(command) if word == option]


def test_qemu_command_by_emulation_has_two_cpus_and_the_root() -> None:
    command = _command()
    assert _after(command, "-accel") == ["tcg,thread=multi"]
    assert _after(command, "-smp") == ["2"]
    assert "fd=6,set=3" in _after(command, "-add-fd")
    (append,) = _after(command, "-append")
    assert "root=efuseroot" in append
    assert "init=/run-dir/init" in append


def test_memory_is_not_cleared_for_the_kernel() -> None:
    """Else a module that forgets to clear memory shows nothing of what it held before."""
    (append,) = _after(_command(), "-append")
    assert "init_on_alloc=0" in append.split()


def test_qemu_command_that_counts_instructions_has_one_thread() -> None:
    command = _command(cpus=1, icount=True)
    assert _after(command, "-icount") == ["shift=0,align=off,sleep=off"]
    assert _after(command, "-accel") == ["tcg,thread=single"]


def test_qemu_command_that_counts_instructions_on_two_cpus_fails() -> None:
    with pytest.raises(UsageError):
        _command(cpus=2, icount=True)


def test_qemu_command_with_nodes_divides_cpus_and_memory() -> None:
    command = _command(cpus=4, nodes=2, memory="3G")
    assert _after(command, "-smp") == ["4,sockets=2"]
    assert _after(command, "-m") == ["3072M"]
    assert _after(command, "-numa") == [
        "node,nodeid=0,cpus=0-1,memdev=mem0",
        "node,nodeid=1,cpus=2-3,memdev=mem1",
    ]
    assert "memory-backend-memfd,id=mem1,size=1536M,share=on" in _after(command, "-object")


def test_processors_that_cannot_be_shared_among_nodes_fail() -> None:
    with pytest.raises(UsageError, match="3 processors cannot be shared among 2 nodes"):
        _command(cpus=3, nodes=2)


def test_kernel_parameters_are_appended() -> None:
    (append,) = _after(_command(parameters=("slub_debug=FZ", "panic_on_warn=1")), "-append")
    assert append.endswith("slub_debug=FZ panic_on_warn=1")


def test_missing_programs_fail(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(processes, "missing_programs", lambda: ["virtiofsd"])
    with (
        pytest.raises(NotSupportedError, match="virtiofsd not found"),
        processes.started(Machine(Path("vmlinuz"), _EMULATED), tmp_path),
    ):
        pytest.fail("it started")


def test_directory_of_the_file_servers_socket_is_private(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that connects to the socket reads and writes the host's files as root."""
    modes = []

    def start(_machine: Machine, directory: Path, *, tree: Tree, shell: bool) -> Processes:
        modes.append(stat.S_IMODE(directory.stat().st_mode))
        raise GuestError("seen")

    monkeypatch.setattr(run, "started", start)
    locations.make_directory(cache / "guests")
    machine = Machine(Path("vmlinuz"), _EMULATED)
    umask = os.umask(0)
    try:
        with pytest.raises(GuestError, match="seen"):
            run._attempt(
                machine, lambda _path: HOST, run.Options(), False, (io.BytesIO(), io.BytesIO())
            )
    finally:
        os.umask(umask)
    assert modes == [0o700]


# --- the files for init


def test_fstab_words_are_escaped() -> None:
    assert _fstab_word("/a b\\c#d") == "/a\\040b\\134c\\043d"


def test_only_what_lies_below_tmp_or_run_is_shown_through() -> None:
    found = _kept_paths(
        Path("/tmp/x/clone/tests"),
        Path("/tmp/x/.venv"),
        Path("/srv/y"),
        Path("/tmp"),
        Path("/run/user/0/z"),
    )
    assert found == [Path("/run/user"), Path("/tmp/x")]


def test_command_file_passes_arguments_and_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "some dir"
    here.mkdir()
    monkeypatch.chdir(here)
    directory = tmp_path / "run"
    directory.mkdir()
    words = ["$HOME 'quoted'", "two\nlines", ""]
    code = "import os, sys; print(ascii([sys.argv[1:], os.getcwd(), dict(os.environ)]))"
    command = [sys.executable, "-I", "-c", code, *words]
    target = Kernel("6.12.1", tmp_path / "headers", tmp_path / "vmlinuz")
    _write_directory(directory, command, target, Path("/efuse.ko"), {"A": "b c", "LC_ALL": "C"})
    result = subprocess.run(["bash", directory / "command"], capture_output=True, text=True)
    assert result.stdout.strip() == ascii([words, str(here), {"A": "b c", "LC_ALL": "C"}])
    assert (directory / "module").read_text() == "/efuse.ko"
    assert os.access(directory / "init", os.X_OK)
    build = directory / "modules/6.12.1/build"
    assert build.readlink() == tmp_path / "headers"
    lines = [shlex.split(line)[:2] for line in (directory / "fstab").read_text().splitlines()]
    points = [line[1] for line in lines]
    assert points.index("/run/efuse/host") < points.index("/tmp")
    assert points[-1] == "/lib/modules"


def test_run_inside_a_guest_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(run.INSIDE, "1")
    with pytest.raises(NotSupportedError, match="inside a guest"):
        run.run(["true"])


# --- following and judging


class _Fake:
    """A fake guest made of pipes; its output is written before it is followed."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        for name in ("qemu.log", "virtiofsd.log"):
            (directory / name).write_text("")
        self.writers: dict[str, int] = {}
        streams = {}
        for name in ("out", "err", "status"):
            read_end, self.writers[name] = os.pipe()
            streams[name] = os.fdopen(read_end, "rb", buffering=0)
        self.processes = Processes(None, directory, streams)  # type: ignore[arg-type]
        self.out, self.err = io.BytesIO(), io.BytesIO()

    def tell(self, name: str, data: bytes) -> None:
        os.write(self.writers[name], data)

    def hang_up(self) -> None:
        for descriptor in self.writers.values():
            os.close(descriptor)
        self.writers.clear()

    def follow(self, timeout_s: float | None = None) -> _Follower:
        follower = _Follower(self.processes, self.out, self.err, timeout_s)
        follower.follow()
        return follower

    def close(self) -> None:
        self.hang_up()
        for stream in self.processes.streams.values():
            stream.close()


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[_Fake]:
    guest = _Fake(tmp_path)
    yield guest
    guest.close()


def test_follow_passes_output_and_status(fake: _Fake) -> None:
    fake.tell("out", b"\x00\xffbytes")
    fake.tell("err", b"complaint")
    fake.tell("status", b"boot\ntaint 0\nexit 7\ntaint 12288\nend\n")
    fake.hang_up()
    follower = fake.follow()
    assert (fake.out.getvalue(), fake.err.getvalue()) == (b"\x00\xffbytes", b"complaint")
    assert (follower.status, follower.complete) == (7, True)
    _judge(follower, fake.processes, "")


def test_guest_that_says_nothing_fails(fake: _Fake) -> None:
    fake.hang_up()
    with pytest.raises(GuestError, match="died before it had booted"):
        _judge(fake.follow(), fake.processes, "")


def test_guest_that_dies_during_the_command_fails(fake: _Fake) -> None:
    fake.tell("status", b"boot\ntaint 0\n")
    fake.hang_up()
    with pytest.raises(GuestError, match=r"died before its command ended:\nlast words"):
        _judge(fake.follow(), fake.processes, "last words")


def test_guest_that_dies_after_the_command_fails(fake: _Fake) -> None:
    fake.tell("status", b"boot\ntaint 0\nexit 0\n")
    fake.hang_up()
    with pytest.raises(GuestError, match="died"):
        _judge(fake.follow(), fake.processes, "")


def test_kernel_warning_fails_a_good_command(fake: _Fake) -> None:
    fake.tell("status", b"boot\ntaint 0\nexit 0\ntaint 0\nend\n")
    fake.hang_up()
    with pytest.raises(GuestError, match="kernel complained"):
        _judge(fake.follow(), fake.processes, _OOPS)


def test_kernel_that_warns_before_it_has_booted_is_booted_again(fake: _Fake) -> None:
    """The warning cannot come from eFuse, and the command has not started."""
    fake.hang_up()
    with pytest.raises(EmulatorError, match="before it had booted") as caught:
        _judge(fake.follow(), fake.processes, _OOPS)
    assert not caught.value.began


@pytest.mark.parametrize("reports", [b"", b"boot\ntaint 0\n"])
def test_fault_of_the_emulator_is_distinguished_from_one_of_the_kernel(
    fake: _Fake, reports: bytes
) -> None:
    fake.tell("status", reports)
    fake.hang_up()
    with pytest.raises(EmulatorError, match="int3") as caught:
        _judge(fake.follow(), fake.processes, _BREAKPOINT.format(before="eb"))
    assert caught.value.began == bool(reports)


class _Attempts:
    """A fake :func:`run._attempt` with the given results in turn."""

    def __init__(self, *ends: Exception | run.Result) -> None:
        self._ends = list(ends)

    def __call__(self, *_arguments: object) -> run.Result:
        end = self._ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end


_GOOD = run.Result(0, 1.0, 1.0, None)


def _run_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, again: int, *ends: Exception | run.Result
) -> run.Result:
    kernel = Kernel("6.12.0", tmp_path, tmp_path / "image", tmp_path)
    monkeypatch.setattr(run.kernel, "find", lambda _root: kernel)
    monkeypatch.setattr(run.accel, "probe", lambda _image: _EMULATED)
    monkeypatch.setattr(run, "_attempt", _Attempts(*ends))
    return run.run(["true"], run.Options(module=False, again=again), say=lambda _text: None)


def test_guest_is_booted_again_after_the_emulators_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    early = EmulatorError("early", began=False)
    late = EmulatorError("late", began=True)
    assert _run_with(monkeypatch, tmp_path, 0, early, early, _GOOD) == _GOOD
    with pytest.raises(EmulatorError, match="early"):
        _run_with(monkeypatch, tmp_path, 9, early, early, early, _GOOD)
    assert _run_with(monkeypatch, tmp_path, 1, late, early, _GOOD) == _GOOD
    with pytest.raises(EmulatorError, match="late"):
        _run_with(monkeypatch, tmp_path, 0, late, _GOOD)
    with pytest.raises(GuestError, match="own"):
        _run_with(monkeypatch, tmp_path, 9, GuestError("its own"), _GOOD)


def test_taint_fails_a_good_command(fake: _Fake) -> None:
    fake.tell("status", b"boot\ntaint 0\nexit 0\ntaint 12800\nend\n")
    fake.hang_up()
    with pytest.raises(GuestError, match=r"tainted: warning$"):
        _judge(fake.follow(), fake.processes, "")


def test_taint_from_before_the_command_is_ignored(fake: _Fake) -> None:
    fake.tell("status", b"boot\ntaint 512\nexit 0\ntaint 12800\nend\n")
    fake.hang_up()
    _judge(fake.follow(), fake.processes, "")


def test_module_that_is_refused_fails(fake: _Fake) -> None:
    fake.tell("status", b"boot\ntaint 0\nfailed insmod: ERROR: Invalid module format\n")
    with pytest.raises(GuestError, match="Invalid module format"):
        fake.follow()


def test_command_that_takes_too_long_fails(fake: _Fake) -> None:
    fake.tell("status", b"boot\ntaint 0\n")
    with pytest.raises(GuestError, match=r"did not end within 0\.2 s"):
        fake.follow(0.2)


def test_guest_that_does_not_boot_in_time_fails(
    fake: _Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_BOOT_TIMEOUT_S", 0.2)
    with pytest.raises(GuestError, match=r"did not boot within 0\.2 s"):
        fake.follow()


# --- the command line


def test_invalid_memory_size_is_a_usage_error() -> None:
    result = CliRunner().invoke(cli_guest.cli, ["run", "--memory", "lots", "--", "true"])
    assert result.exit_code == 2
    assert "such as 4G" in result.output


def test_command_is_required() -> None:
    assert CliRunner().invoke(cli_guest.cli, ["run"]).exit_code == 2


def test_options_and_status_are_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []

    def fake_run(command: list[str], options: run.Options, *, shell: bool) -> run.Result:
        seen.extend([command, options, shell])
        return run.Result(42, 1.0, 1.0, None)

    monkeypatch.setattr(run, "run", fake_run)
    arguments = ["run", "--cpus", "3", "--no-module", "--timeout", "9", "--", "ls", "-l", "--all"]
    result = CliRunner().invoke(cli_guest.cli, arguments)
    assert result.exit_code == 42
    assert seen == [["ls", "-l", "--all"], run.Options(cpus=3, module=False, timeout_s=9), False]


def test_sweep_removes_the_oldest_kernel_logs_and_the_directories_of_ended_runs(
    cache: Path,
) -> None:
    guests = cache / "guests"
    for name in (f"run-{os.getpid()}-x", "run-4194305-x"):  # above the largest process ID
        (guests / name).mkdir(parents=True)
    for number in range(run._KEPT_LOGS + 2):
        log = guests / f"kernel-20260101-0000{number:02}-1.log"
        log.write_text(f"{number}")
        os.utime(log, ns=(0, number))
    run._sweep()
    logs = sorted(guests.glob("kernel-*.log"))
    assert [log.read_text() for log in logs] == [f"{n}" for n in range(2, run._KEPT_LOGS + 2)]
    assert [path.name for path in guests.glob("run-*")] == [f"run-{os.getpid()}-x"]
