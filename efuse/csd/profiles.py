# SPDX-License-Identifier: LGPL-2.1-or-later
"""Models of devices that are stated once, so that figures can name them.

Each of the first three differs from the one before it in one thing. They are round numbers of kinds
of devices, not measurements of one.

The link of the fast ones is PCIe 4.0 with four lanes: 4 x 16 GT/s, of which 128 of 130 bits are
payload, in packets of 256 bytes with 24 of header, checksum and framing: 7512 MiB/s x 256/280 =
6868 MiB/s. A command crosses it about four times (doorbell, fetch, completion, interrupt), with
some 500 ns each (Neugebauer et al., "Understanding PCIe performance for end host networking",
SIGCOMM 2018): 2 us.

The medium is TLC flash: 45 us for a page (what Samsung says of its sixth V-NAND), eight channels of
1200 MB/s (ONFI 4.1) = 9155 MiB/s, of eight dies each, so that 64 accesses go on at once. That the
channels carry more than the link is what such devices live from.

A slow core is a small one that decodes two instructions in order at 1.5 GHz (four Cortex-A53 are in
NGD Systems' Newport), against one that decodes four to six out of order at 3 GHz or more: twice the
clock, three times the instructions: 600 %. That is an estimate. A fast core is as quick as the
host's: 100 %, the least that csd.ko can say.

The slow link is SATA's: 6 Gbit/s, of which 8 of 10 bits are payload: 572 MiB/s.

The medium of low latency is 3D XPoint, behind the fast link, with fast cores: what Intel says of
its Optane P5800X is 5 us for a read of 4 KiB, 1.5 million of those in a second, and 7.2 GB/s. Of
the 5 us the link takes 2, and 4 KiB take 0.6 at each of medium and link: that leaves 2 us for the
medium, of which three go on at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["PROFILES", "Profile"]


@dataclass(frozen=True)
class Profile:
    """A model of a device.

    :ivar name: by which it is asked for.
    :ivar doc: what it is, in a few words.
    :ivar values: of the attributes that it sets, by name.
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
            "slow-cores", "fast NVMe, cores that take six times as long as the host's", _SLOW_CORES
        ),
        Profile("fast-cores", "fast NVMe, cores as quick as the host's", _FAST_CORES),
        Profile("slow-link", "the same cores and medium behind a link like SATA's", _SLOW_LINK),
        Profile("low-latency", "fast NVMe with a medium like 3D XPoint", _LOW_LATENCY),
    )
}
"""By name."""
