# SPDX-License-Identifier: LGPL-2.1-or-later
"""Models of devices, stated once so that reports can refer to them by name.

Each of the first three differs from the one before it in one property. The numbers are round ones
of kinds of devices, not measurements of one device.

The fast link is PCIe 4.0 with four lanes: 4 x 16 GT/s, where 128 of 130 bits are payload, in
packets of 256 bytes with 24 bytes of header, checksum and framing: 7512 MiB/s x 256/280 =
6868 MiB/s. A command crosses the link about four times (doorbell, fetch, completion, interrupt) at
some 500 ns each (Neugebauer et al., "Understanding PCIe performance for end host networking",
SIGCOMM 2018): 2 us.

The medium is TLC flash: 45 us for a page (Samsung's figure for its sixth-generation V-NAND), eight
channels of 1200 MB/s (ONFI 4.1) = 9155 MiB/s, and eight dies on each channel, so that 64 accesses
can proceed at the same time. The channels together are faster than the link, which is what makes
such devices worthwhile.

A slow core is a small in-order core that decodes two instructions per cycle at 1.5 GHz (NGD
Systems' Newport has four Cortex-A53). The host's core decodes four to six out of order at 3 GHz or
more: twice the clock and three times the instructions per cycle, so 600 %. That is an estimate. A
fast core is as fast as the host's: 100 %, the least that csd.ko accepts.

The slow link is SATA: 6 Gbit/s, where 8 of 10 bits are payload: 572 MiB/s.

The low-latency medium is 3D XPoint, with the fast link and fast cores. Intel's figures for its
Optane P5800X are 5 us for a read of 4 KiB, 1.5 million such reads per second, and 7.2 GB/s. The
link takes 2 us of the 5 us, and the transfer of 4 KiB takes 0.6 us on the medium and 0.6 us on the
link. This leaves 2 us for the medium, with three accesses at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["PROFILES", "Profile"]


@dataclass(frozen=True)
class Profile:
    """A model of a device.

    :ivar name: name of the profile on the command line.
    :ivar doc: description in a few words.
    :ivar values: values of the attributes that the profile sets, by attribute name.
    """

    name: str
    doc: str
    values: Mapping[str, int]


_SLOW_CORES = {
    "cores": 4,
    "core_percent": 600,
    "queues": 4,
    "model": 1,
    "link_mib_per_s": 6868,
    "link_latency_ns": 2000,
    "media_mib_per_s": 9155,
    "media_latency_ns": 45_000,
    "media_units": 64,
}
_FAST_CORES = _SLOW_CORES | {"core_percent": 100}
_SLOW_LINK = _FAST_CORES | {"link_mib_per_s": 572}
_LOW_LATENCY = _FAST_CORES | {
    "media_latency_ns": 2000,
    "media_units": 3,
    "media_mib_per_s": 6866,
}

PROFILES: Mapping[str, Profile] = {
    profile.name: profile
    for profile in (
        Profile(
            "slow-cores", "fast NVMe, with cores six times slower than the host's", _SLOW_CORES
        ),
        Profile("fast-cores", "fast NVMe, with cores as fast as the host's", _FAST_CORES),
        Profile("slow-link", "the same cores and medium behind a link like SATA's", _SLOW_LINK),
        Profile("low-latency", "fast NVMe with a medium like 3D XPoint", _LOW_LATENCY),
    )
}
"""All profiles by name."""
