# SPDX-License-Identifier: LGPL-2.1-or-later
"""Boot guests without the module, and check their output and how they end."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from efuse.errors import GuestError
from efuse.guest.run import Options, Result, run

_PLAIN = Options(module=False, timeout_s=300, memory="1G")


def _guest(script: str, options: Options = _PLAIN) -> tuple[Result, str, str]:
    out, err = io.BytesIO(), io.BytesIO()
    result = run(["bash", "-c", script], options, stdout=out, stderr=err, say=lambda _text: None)
    return result, out.getvalue().decode(), err.getvalue().decode()


def _guest_processes(parent: int) -> list[str]:
    """Return the command lines of the guests' processes that descend from ``parent``."""
    listing = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    processes = {}
    for line in listing.splitlines():
        pid, ppid, command = line.split(maxsplit=2)
        processes[int(pid)] = (int(ppid), command)

    def descends(pid: int) -> bool:
        while pid in processes and pid != parent:
            pid = processes[pid][0]
        return pid == parent

    return [
        command
        for pid, (_, command) in processes.items()
        if ("qemu-system" in command or "virtiofsd" in command) and descends(pid)
    ]


def test_command_runs_in_this_directory_and_returns_output_and_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EFUSE_TEST", "a 'quoted' word")
    monkeypatch.chdir(tmp_path)  # Below /tmp, where the guest has a tmpfs of its own.
    (tmp_path / "input").write_text("from the host")
    result, out, err = _guest(
        """
        cat input; echo; echo from the guest >output; echo "$EFUSE_TEST"; pwd; id -u; cat; tty
        echo complaint >&2
        test -w /dev/fuse && test -d /sys/fs/bpf && modprobe loop && test -b /dev/loop0 || exit 9
        test -f /lib/modules/$(uname -r)/build/Module.symvers || exit 10
        sleep 1000 &  # Left behind: it must not keep the guest from ending.
        exit 42
        """
    )
    assert result.status == 42
    assert out.splitlines() == ["from the host", "a 'quoted' word", str(tmp_path), "0", "not a tty"]
    assert err == "complaint\n"
    assert (tmp_path / "output").read_text() == "from the guest\n"
    assert result.boot_s > 0
    assert _guest_processes(os.getpid()) == []


def test_kernel_warning_fails_the_run() -> None:
    with pytest.raises(GuestError, match="WARNING: CPU: 0 PID: 1 at a test") as caught:
        _guest("echo '<4>WARNING: CPU: 0 PID: 1 at a test' >/dev/kmsg")
    kept = Path(str(caught.value.hint).rpartition(" ")[2])
    assert "Linux version" in kept.read_text()


def test_kernel_panic_fails_the_run() -> None:
    with pytest.raises(GuestError, match="Kernel panic"):
        _guest("echo c >/proc/sysrq-trigger; sleep 1000")
    assert _guest_processes(os.getpid()) == []


def test_timeout_ends_the_guest() -> None:
    with pytest.raises(GuestError, match="did not end within 1 s"):
        _guest("sleep 1000", Options(module=False, timeout_s=1, memory="1G"))
    assert _guest_processes(os.getpid()) == []


def test_interrupt_ends_the_guest() -> None:
    command = [
        sys.executable,
        "-m",
        "efuse.cli.main",
        "guest",
        "run",
        "--no-module",
        "--memory",
        "1G",
        "--",
        "sh",
        "-c",
        "echo started; sleep 1000",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        guests = _guest_processes(process.pid)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert {"qemu-system" in command for command in guests} == {True, False}
    listing = subprocess.run(["ps", "-e", "-o", "args="], capture_output=True, text=True)
    assert not set(guests) & set(listing.stdout.splitlines())
