# SPDX-License-Identifier: LGPL-2.1-or-later
"""Find out with a short boot whether KVM works here. If it does not, guests are emulated.

The existence of /dev/kvm proves little: under nested virtualization an ordinary kernel may not
boot.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from efuse import locations
from efuse.errors import EfuseError

__all__ = ["QEMU", "Accelerator", "cached", "die_with_parent", "probe"]

QEMU = "qemu-system-x86_64"

_PROBE_TIMEOUT_S = 20


@dataclass(frozen=True)
class Accelerator:
    """How a guest's processors are run.

    :ivar kvm: whether KVM runs them. If not, software emulation does.
    :ivar why: the reason for the choice.
    """

    kvm: bool
    why: str

    @property
    def arguments(self) -> list[str]:
        """QEMU's command-line options for it."""
        if self.kvm:
            return ["-accel", "kvm", "-cpu", "host"]
        # qemu64 has no AVX: emulated vector registers only make the C library slower.
        return ["-accel", "tcg,thread=multi", "-cpu", "qemu64"]

    def __str__(self) -> str:
        return "KVM" if self.kvm else f"software emulation ({self.why})"


def die_with_parent() -> None:
    """Make the calling process end when its parent ends. For use as ``preexec_fn``."""
    import ctypes

    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def _cache_file() -> Path:
    return locations.cache() / "guests" / "acceleration.json"


def _boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def cached() -> Accelerator | None:
    """Return the result of an earlier probe since the last boot of this machine, or None.

    A result that another user can change is ignored.
    """
    try:
        known = json.loads(locations.read_private(_cache_file()))
        if known["boot_id"] != _boot_id():
            return None
        return Accelerator(bool(known["kvm"]), str(known["why"]))
    except (OSError, ValueError, KeyError, EfuseError):
        return None


def probe(image: Path) -> Accelerator:
    """Return how guests run here. The result is cached until this machine boots again.

    :param image: kernel for the probe. KVM works if it boots to the point where it finds no root.
    """
    known = cached()
    if known is not None:
        return known
    answer = _try_kvm(image)
    kept = {"boot_id": _boot_id(), "kvm": answer.kvm, "why": answer.why}
    locations.write(_cache_file(), json.dumps(kept))
    return answer


def _try_kvm(image: Path) -> Accelerator:
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return Accelerator(False, "/dev/kvm is not usable")
    with tempfile.TemporaryDirectory() as work:
        log = Path(work) / "log"
        command = [QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]
        command += ["-accel", "kvm", "-cpu", "host", "-m", "512M", "-smp", "2"]
        command += ["-kernel", str(image), "-append", "console=ttyS0 panic=-1"]
        command += ["-serial", f"file:{log}"]
        try:
            result = subprocess.run(
                command,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                timeout=_PROBE_TIMEOUT_S,
                preexec_fn=die_with_parent,
            )
        except subprocess.TimeoutExpired:
            return Accelerator(False, f"no kernel booted under KVM within {_PROBE_TIMEOUT_S} s")
        booted = log.is_file() and "Unable to mount root fs" in log.read_text(errors="replace")
    if booted:
        return Accelerator(True, "a kernel boots under KVM")
    lines = result.stderr.strip().splitlines()
    return Accelerator(
        False, "KVM fails: " + (lines[0] if lines else "its guest stops immediately")
    )
