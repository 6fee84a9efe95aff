# SPDX-License-Identifier: LGPL-2.1-or-later
import io
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from efuse.stats import (
    Balance,
    Change,
    Channel,
    ChannelCounters,
    Counters,
    DeviceCounters,
    DeviceRates,
    DeviceSample,
    MapUsage,
    MountRates,
    PathCounters,
    Sample,
    rates,
)
from efuse.stats.devices import DEVICE_COUNTERS, device_rates
from efuse.tui import Order, plain

BEFORE = Sample(41, 0, opcodes={})
AFTER = Sample(
    41,
    2_000_000_000,
    mountpoint="/mnt/demo",
    state="attached",
    ops="efuse",
    consistency="exclusive",
    waiting=2,
    learned=1234,
    map_full=3,
    maps=(MapUsage("entries", 900, 65536), MapUsage("attrs", 512, 512)),
    opcodes={
        "lookup": Counters(
            requests=20_000,
            hits=19_000,
            daemon=1_000,
            miss=750,
            expired=250,
            hit_ns=19_000 * 14_200,
            hit_timed=19_000,
            daemon_ns=780_000,
            daemon_timed=1,
        ),
        "getxattr": Counters(requests=100, hits=100),
        "open": Counters(requests=400, daemon=398, refused=2, no_handler=398, errors=1),
    },
)
MODEL = [rates(BEFORE, AFTER)]

BLOCK = """\
/mnt/demo  #41  efuse attached  exclusive  2 waiting
total 10.2k/s  hit 93.2%  daemon 699/s  kernel 14 us  daemon 780 us
maps FULL 3  entries 1.4%  attrs 100%  learned 1.2k
OPCODE       RATE/s    HIT  DAEMON/s  KERNEL  DAEMON  PASSED (%)
lookup        10.0k  95.0%       500   14 us  780 us  miss 75 expired 25
open            200     0%       199       -       -  no_handler 100 refused 2…
getxattr         50   100%         0       -       -
"""


def show(
    model: list[MountRates],
    *,
    width: int = 80,
    devices: Sequence[DeviceRates] = (),
    sort: str = "rate",
    reverse: bool = False,
    part: str = "",
) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=50, color_system=None)
    change = Change(tuple(model), tuple(devices))
    console.print(plain(change, order=Order(sort, reverse), part=part, width=width))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def opcodes(lines: list[str]) -> list[str]:
    words = [line.split(" ")[0] for line in lines]
    return [word for word in words if word in AFTER.opcodes]


def test_block_equals_the_drawn_text() -> None:
    assert show(MODEL) == BLOCK.splitlines()


def test_block_shows_the_paths_that_were_taken() -> None:
    latency = [0] * 106
    latency[13] = 100
    paths = {
        "direct": PathCounters(
            requests=300, bytes=300 * 4096, latency=tuple(latency), predicted=10,
            predicted_ns=20_000, actual_ns=25_000, error_ns=5_000,
        ),
        "cache": PathCounters(requests=700, bytes=700 * 4096),
    }  # fmt: skip
    lines = show([rates(BEFORE, replace(AFTER, paths=paths))])
    assert " ".join(lines[3].split()) == "PATH RATE/s SHARE BYTES/s P50 P99 PREDICTED ACTUAL OFF"
    assert " ".join(lines[4].split()) == "cache 350 70.0% 1.4M - - - - -"
    assert " ".join(lines[5].split()) == "direct 150 30.0% 614k 2.3 us 2.6 us 2.0 us 2.5 us 20.0%"


def with_channels(nodes: int, cpus: int, **changes: object) -> list[MountRates]:
    """Return the rates of AFTER with a channel per CPU; higher CPUs send more.

    The CPUs of a node are not contiguous, as with two threads per core.
    """
    half = cpus // nodes // 2
    channels = {
        cpu: Channel(
            node=cpu // half % nodes,
            slots=4,
            depth=2,
            in_flight=1,
            service_ns=50_000,
            sleeping=1,
            counters=ChannelCounters(
                sent=2000 * (cpu + 1),
                stolen=200,
                poll_hits=95,
                poll_misses=5,
                spin_hits=1,
                spin_misses=3,
                elsewhere=1000,
                brought=2000 * (cpu + 1),
            ),
        )
        for cpu in range(cpus)
    }
    sample = replace(AFTER, channels=channels, balance=Balance("own", 3, 0, 20_000), **changes)
    return [rates(BEFORE, sample)]


CHANNELS = """\
policy own  threshold 3  spread 0  spin 20 us  elsewhere 20.0%  stolen 4.0%
NODE CPU RATE/s DEPTH FLIGHT SERVICE LOAD  POLL  SPIN SLEEP ELSE/s STOLEN/s
0    0     1.0k     2      1   50 us 0.05 95.0% 25.0%     1    500      100
0    2     3.0k     2      1   50 us 0.15 95.0% 25.0%     1    500      100
1    1     2.0k     2      1   50 us 0.10 95.0% 25.0%     1    500      100
1    3     4.0k     2      1   50 us 0.20 95.0% 25.0%     1    500      100
"""


def test_block_shows_the_channels_of_few_cpus_in_the_order_of_nodes() -> None:
    assert show(with_channels(2, 4))[3:9] == CHANNELS.splitlines()


def test_block_shows_a_row_a_node_of_many_cpus() -> None:
    lines = show(with_channels(2, 128))
    assert [line.split()[:4] for line in lines[5:7]] == [
        ["0", "64", "CPUs", "3.1M"],
        ["1", "64", "CPUs", "5.2M"],
    ]
    wide = show(with_channels(2, 128), width=140)
    assert [line.split()[:3] for line in wide[5:7]] == [
        ["0", "0-31,64-95", "3.1M"],
        ["1", "32-63,96-127", "5.2M"],
    ]
    assert lines[7].startswith("OPCODE")


def test_block_without_channels_has_no_table_of_them() -> None:
    served = {0: Channel(counters=ChannelCounters(sent=400))}
    text = "\n".join(show([rates(BEFORE, replace(AFTER, channels=served))]))
    assert "policy" not in text
    waiting = {0: Channel(depth=7)}
    text = "\n".join(show([rates(BEFORE, replace(AFTER, channels=waiting))]))
    assert "policy least" in text


def device(name: str, index: int = 0, **counters: int) -> DeviceRates:
    """Return the rates of a device with four cores over 2 s."""
    after = DeviceSample(
        name, 2_000_000_000, f"/dev/csd{index}", cores=4, counters=DeviceCounters(**counters)
    )
    return device_rates(DeviceSample(name, 0, after.disk), after)


BUSY = device(
    "one", 3, link_read_bytes=3 << 20, link_write_bytes=1 << 20, media_read_bytes=870 << 20,
    media_write_bytes=2 << 20, core_busy_ns=5_432_000_000, reads=24_680, writes=1357, commands=246,
    chosen_device=240, chosen_kernel=33, chosen_policy=12, actual_ns=1100, error_ns=137,
)  # fmt: skip

DEVICES = """\
devices  IN OUT MEDIA in MiB/s  DEV KERN POL in batches/s
DEVICE DISK  CMD/s  RD/s WR/s   IN  OUT MEDIA CORES  DEV KERN POL   OFF
one    csd3    123 12.3k  678 0.50 1.50   436 67.9%  120   16   6 12.5%
spare  csd12     0     0    0    0    0     0    0%    0    0   0     -
"""


def test_block_shows_the_devices_below_the_mounts() -> None:
    devices = [BUSY, device("spare", 12)]
    assert show(MODEL, devices=devices) == [*BLOCK.splitlines(), *DEVICES.splitlines()]
    assert show([], devices=devices) == DEVICES.splitlines()


def test_block_cuts_no_number_of_devices_off() -> None:
    most = {name: 2**63 for name in DEVICE_COUNTERS}
    lines = show(MODEL, devices=[device("a-long-name", 63, **most), BUSY])
    row = next(line for line in lines if line.startswith("a-long-"))
    assert "\u2026" not in row.split("\u2026", 1)[1]
    off = device("off", actual_ns=1, error_ns=12)
    assert show(MODEL, devices=[off])[-1].endswith(" 1200%")


def test_block_without_requests_shows_a_message() -> None:
    model = [rates(BEFORE, replace(AFTER, opcodes={}))]
    assert "no requests" in show(model)
    assert "no opcode matches" in show(MODEL, part="zzz")
    assert opcodes(show(MODEL, part="GET")) == ["getxattr"]


def test_block_has_all_mounts() -> None:
    second = rates(replace(BEFORE, connection=9), replace(AFTER, connection=9, mountpoint="/b"))
    lines = show([*MODEL, second])
    assert [line for line in lines if "#" in line] == [
        "/mnt/demo  #41  efuse attached  exclusive  2 waiting",
        "/b  #9  efuse attached  exclusive  2 waiting",
    ]


def test_block_fits_the_terminal_with_any_content() -> None:
    busy = {f"opcode_{i:02}": Counters(requests=10**12) for i in range(60)}
    sample = replace(AFTER, opcodes=busy, mountpoint="/very/long" * 20, learned=10**15)
    for width in (40, 60, 80, 120):
        lines = show([rates(BEFORE, sample), *with_channels(2, 128)], width=width)
        assert max(map(len, lines)) <= width


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("rate", ["lookup", "open", "getxattr"]),
        ("hits", ["getxattr", "lookup", "open"]),
        ("daemon", ["lookup", "open", "getxattr"]),
        ("kernel-time", ["lookup", "getxattr", "open"]),
        ("daemon-time", ["lookup", "getxattr", "open"]),
        ("name", ["getxattr", "lookup", "open"]),
    ],
)
def test_opcodes_are_sorted(sort: str, order: list[str]) -> None:
    assert opcodes(show(MODEL, sort=sort)) == order


def test_reverse_option_reverses_the_order() -> None:
    assert opcodes(show(MODEL, reverse=True)) == ["getxattr", "open", "lookup"]


def test_dumb_terminal_block_has_no_escapes() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, _environ={"TERM": "dumb"})
    console.print(plain(Change(tuple(MODEL))))
    assert "\x1b" not in out.getvalue()
    assert out.getvalue().count("\n") == len(BLOCK.splitlines())
