# SPDX-License-Identifier: LGPL-2.1-or-later
"""What the kernel and the processes of eFuse occupy at a moment."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from efuse.control import connections
from efuse.kernel_fs import BPFFS

_libbpf = ctypes.CDLL("libbpf.so.1", use_errno=True)
_KIB = 1 << 10
_SETTLING_S = 10.0
_IN_MEMINFO = {
    "percpu_bytes": "Percpu",
    "kernel_stack_bytes": "KernelStack",
    "page_table_bytes": "PageTables",
    "slab_bytes": "Slab",
}
_CACHES = {"efuse_inode_bytes": "efuse_inode", "efuse_request_bytes": "efuse_request"}
_IDS = {
    "bpf_programs": "bpf_prog_get_next_id",
    "bpf_maps": "bpf_map_get_next_id",
    "bpf_links": "bpf_link_get_next_id",
}


def _count_ids(function: str) -> int:
    following: Callable[..., int] = _libbpf[function]
    number = ctypes.c_uint32(0)
    count = 0
    while not following(number, ctypes.byref(number)):
        count += 1
    return count


def _meminfo() -> dict[str, int]:
    text = Path("/proc/meminfo").read_text()
    return {name: int(kib) * _KIB for name, kib in re.findall(r"^(\w+): +(\d+) kB$", text, re.M)}


def _used_by(cache: str) -> int:
    """Return the bytes of a slab cache's objects in use.

    They include those of other caches that are merged with it, unless the kernel was booted with
    ``slab_nomerge``.
    """
    directory = Path("/sys/kernel/slab", cache)
    objects, size = ((directory / name).read_text().split()[0] for name in ("objects", "slab_size"))
    return int(objects) * int(size)


def _tasks() -> tuple[int, int]:
    """Return the numbers of kernel threads without workers, and of processes."""
    threads = processes = 0
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            _, _, rest = (directory / "stat").read_text().partition("(")
        except (FileNotFoundError, ProcessLookupError):
            continue
        name, _, fields = rest.rpartition(")")
        if int(fields.split()[1]) != 2:
            processes += 1
        elif not name.startswith("kworker/"):
            threads += 1
    return threads, processes


def _memory_of(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return sum(int(kib) * _KIB for kib in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+)", text, re.M))


def settle(before: Mapping[str, float]) -> None:
    """Wait until the kernel has freed the BPF objects of a mount that has ended.

    It does so after a grace period. Objects that leak are waited for in vain.

    :param before: the last sample.
    """
    end = time.monotonic() + _SETTLING_S
    while any(_count_ids(function) > before[name] for name, function in _IDS.items()):
        if time.monotonic() > end:
            return
        time.sleep(0.05)


def sample(watched: Mapping[str, int]) -> dict[str, float]:
    """Return all quantities now. Drop the kernel's caches first, which may be of any size.

    :param watched: processes whose descriptors and memory are counted, by name.
    """
    gc.collect()
    os.sync()
    for _ in range(2):
        # The first round frees inodes, and the second one what these held.
        Path("/proc/sys/vm/drop_caches").write_text("3")
    memory = _meminfo()
    found: dict[str, float] = {name: _used_by(cache) for name, cache in _CACHES.items()}
    found |= {name: memory[field] for name, field in _IN_MEMINFO.items()}
    found |= {name: _count_ids(function) for name, function in _IDS.items()}
    found["connections"] = len(connections())
    found["module_references"] = int(Path("/sys/module/efuse/refcnt").read_text())
    found["kernel_threads"], found["processes"] = _tasks()
    found["mounts"] = len(Path("/proc/self/mountinfo").read_text().splitlines())
    found["pins"] = sum(1 for _ in BPFFS.rglob("*"))
    for name, pid in watched.items():
        found[f"{name}_fds"] = len(os.listdir(f"/proc/{pid}/fd"))
        found[f"{name}_rss_bytes"] = _memory_of(pid)
    return found
