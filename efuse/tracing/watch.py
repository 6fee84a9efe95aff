# SPDX-License-Identifier: LGPL-2.1-or-later
"""Receive the requests of one mount as they are answered."""

from __future__ import annotations

import mmap
import os
import select
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType

from efuse.bpf import libbpf
from efuse.bpf.tracing import Hook, Tracer, check_allowed, shipped
from efuse.closing import Closing
from efuse.control.mounts import Mount
from efuse.errors import AttachError, reason
from efuse.tracing.request import Request

__all__ = ["RING_BYTES", "Watch"]

RING_BYTES = 4 << 20
"""Default size of the ring buffer, in bytes: room for about 12,000 unread requests."""

_PLAIN: Mapping[str, Hook] = MappingProxyType(
    {
        "begun": Hook("fentry", "__fuse_simple_request"),
        "done": Hook("fexit", "__fuse_simple_request"),
        "background": Hook("fentry", "fuse_simple_background"),
        "unsent": Hook("fexit", "fuse_simple_background"),
        "ended": Hook("fentry", "fuse_request_end"),
    }
)
_EFUSE: Mapping[str, Hook] = MappingProxyType(
    {
        "background": Hook("fentry", "fuse_simple_background"),
        "answered": Hook("tp_btf", "efuse_request"),
    }
)
_SETTINGS_BYTES = 8
_ELEMENT_0 = bytes(4)
_KALLSYMS = Path("/proc/kallsyms")


class Watch(Closing):
    """The requests of one mount that are answered from now on. A context manager, for one thread.

    Each watch has its own programs and ring buffer, so any number of them can watch the same mount.
    The kernel removes all of it when the watch is closed or its process ends.

    :param mount: a mount of plain FUSE or of eFuse.
    :param digests: take a digest of the answers' data, so that answers can be compared.
    :param ring_bytes: size of the ring buffer in bytes, rounded up to a power of two of pages.
    :raises NotSupportedError: this kernel lacks a function or tracepoint that has to be hooked.
    :raises AttachError: this process may not trace.
    """

    def __init__(
        self, mount: Mount, *, digests: bool = False, ring_bytes: int = RING_BYTES
    ) -> None:
        check_allowed()
        self._records: list[bytes] = []
        self._lost = 0
        self._tracer: Tracer | None = None
        self._open = ExitStack()
        ring_bytes = 1 << (max(ring_bytes, mmap.PAGESIZE) - 1).bit_length()
        spec = shipped("trace").with_capacity({"requests": ring_bytes})
        with ExitStack() as undo:
            undo.callback(self.close)
            hooks = _EFUSE if mount.is_efuse else _PLAIN
            tracer = Tracer(spec, hooks, module="efuse" if mount.is_efuse else "fuse")
            self._open.enter_context(tracer)
            self._tracer = tracer
            try:
                self._ring = libbpf.Ring(tracer.maps["requests"].fd, self._take)
                self._open.callback(self._ring.close)
                tracer.maps["settings"][0] = _settings(digests)
                # Last, because requests arrive from here on.
                tracer.maps["watched"][mount.connection] = 1
            except OSError as error:
                raise AttachError(f"cannot watch {mount.mountpoint}: {reason(error)}") from error
            undo.pop_all()

    @property
    def lost(self) -> int:
        """Number of requests lost: the ring was full, or a program was already running."""
        if self._tracer is not None:
            dropped: int = self._tracer.maps["lost"][0]
            self._lost = dropped + self._tracer.missed()
        return self._lost

    def read(self) -> Iterator[Request]:
        """Iterate over the waiting requests, in the order of their answers. Do not wait."""
        if self._tracer is not None:
            self._ring.consume()
        records, self._records = self._records, []
        return map(Request.decode, records)

    def wait(self, timeout_s: float) -> bool:
        """Wait until there are requests. Return False if the timeout expires first.

        :param timeout_s: timeout in seconds.
        """
        poll = select.poll()
        poll.register(self._ring.fileno(), select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def stop(self) -> None:
        """Stop receiving requests. The requests received before can still be read."""
        if self._tracer is not None:
            self._tracer.maps["watched"].clear()

    def close(self) -> None:
        """Remove the programs from the kernel. Further calls do nothing."""
        self._lost = self.lost
        self._tracer = None
        self._open.close()

    def _take(self, raw: bytes) -> bool:
        self._records.append(raw)
        return True


def _settings(digests: bool) -> bytes:
    """Return a ``struct settings``."""
    bases = _page_bases() if digests else (0, 0)
    return b"".join(n.to_bytes(_SETTINGS_BYTES, "little") for n in (int(digests), *bases))


def _page_bases() -> tuple[int, int]:
    """Return the bases from which the kernel computes addresses of pages; zeros if unknown.

    They are variables on x86-64 only. On other machines, only answers in one piece can be compared.
    """
    wanted = {"page_offset_base": 0, "vmemmap_base": 0}
    if os.uname().machine == "x86_64":
        with _KALLSYMS.open() as symbols:
            for symbol in symbols:
                if symbol.endswith("_base\n"):
                    address, _, name = symbol.split()
                    if name in wanted:
                        wanted[name] = int(address, 16)
    return wanted["page_offset_base"], wanted["vmemmap_base"]
