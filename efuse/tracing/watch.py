# SPDX-License-Identifier: LGPL-2.1-or-later
"""See the requests of one mount as they are answered."""

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
"""Size of the ring: room for some 12 000 requests that nobody has read yet."""

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
    """The requests of one mount that are answered from now on. A context manager.

    Each watch has programs and a ring of its own, and any number of them may watch a mount. Nothing
    is left in the kernel when it is closed, or its process ends. For use by one thread.

    :param mount: of plain FUSE or of eFuse.
    :param digests: take a digest of the answers' data, so that they can be compared.
    :param ring_bytes: room for what was not read yet; as much as a power of two of pages has.
    :raises NotSupportedError: this kernel has not what is hooked into.
    :raises AttachError: this task may not trace.
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
                # The last, since from here on there are requests.
                tracer.maps["watched"][mount.connection] = 1
            except OSError as error:
                raise AttachError(f"cannot watch {mount.mountpoint}: {reason(error)}") from error
            undo.pop_all()

    @property
    def lost(self) -> int:
        """How many requests there was no room for, or that came while their program ran."""
        if self._tracer is not None:
            dropped: int = self._tracer.maps["lost"][0]
            self._lost = dropped + self._tracer.missed()
        return self._lost

    def read(self) -> Iterator[Request]:
        """Iterate over the requests that are there, in the order of their answers; do not wait."""
        if self._tracer is not None:
            self._ring.consume()
        records, self._records = self._records, []
        return map(Request.decode, records)

    def wait(self, timeout_s: float) -> bool:
        """Wait until there are requests; return whether there are."""
        poll = select.poll()
        poll.register(self._ring.fileno(), select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def stop(self) -> None:
        """See nothing more; what was seen before can still be read."""
        if self._tracer is not None:
            self._tracer.maps["watched"].clear()

    def close(self) -> None:
        """Take the programs out of the kernel. May be called again."""
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
    """Return where the kernel keeps what makes an address of a ``struct page``; zeros: nowhere.

    On x86-64 alone pages lie where two variables say. Elsewhere only answers that are in one piece
    can be compared.
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
