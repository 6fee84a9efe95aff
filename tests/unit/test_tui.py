# SPDX-License-Identifier: LGPL-2.1-or-later
import io
import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest
from rich.console import Console

from efuse.stats import (
    Balance,
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
from efuse.tui import View, press, render
from efuse.tui.channels import CHANNEL_VIEWS
from efuse.tui.units import count, duration, share

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

FRAME = """\
eFuse top  mount 1 of 1  every 2 s  sorted by rate
/mnt/demo  #41  efuse attached  exclusive  2 waiting
total 10.2k/s  hit 93.2%  daemon 699/s  kernel 14 us  daemon 780 us
maps FULL 3  entries 1.4%  attrs 100%  learned 1.2k
OPCODE           RATE/s    HIT DAEMON/s  KERNEL  DAEMON WHY PASSED (%)
lookup            10.0k  95.0%      500   14 us  780 us miss 75 expired 25
open                200     0%      199       -       - no_handler 100 refused …
getxattr             50   100%        0       -       -
s sort  r reverse  / filter  c channels  n mount  space pause  h help  q quit
"""


def show(
    model: list[MountRates],
    view: View,
    *,
    width: int = 80,
    height: int | None = 24,
    devices: Sequence[DeviceRates] = (),
) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=50, color_system=None)
    frame = render(model, view, interval_s=2, width=width, height=height, devices=devices)
    console.print(frame)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def opcodes(model: list[MountRates], view: View) -> list[str]:
    names = AFTER.opcodes.keys()
    words = [line.split(" ")[0] for line in show(model, view)]
    return [word for word in words if word in names]


def test_frame_is_as_drawn() -> None:
    assert show(MODEL, View()) == FRAME.splitlines()


def test_frame_fits_80_by_24_whatever_is_in_it() -> None:
    busy = {f"opcode_{i:02}_" + "x" * 30: Counters(requests=10**12) for i in range(60)}
    sample = replace(AFTER, opcodes=busy, mountpoint="/very/long" * 20, learned=10**15)
    for width, height in ((80, 24), (120, 40), (40, 10)):
        lines = show([rates(BEFORE, sample)], View(), width=width, height=height)
        assert len(lines) <= height
        assert max(map(len, lines)) <= width


def test_frame_keeps_the_rows_that_matter_most() -> None:
    lines = show(MODEL, View(), height=8)
    assert [line.split(" ")[0] for line in lines[5:7]] == ["lookup", "open"]


def test_frame_shows_the_paths_that_were_taken() -> None:
    latency = [0] * 106
    latency[13] = 100
    paths = {
        "direct": PathCounters(
            requests=300, bytes=300 * 4096, latency=tuple(latency), predicted=10,
            predicted_ns=20_000, actual_ns=25_000, error_ns=5_000,
        ),
        "cache": PathCounters(requests=700, bytes=700 * 4096),
    }  # fmt: skip
    lines = show([rates(BEFORE, replace(AFTER, paths=paths))], View())
    assert " ".join(lines[4].split()) == "PATH RATE/s SHARE BYTES/s P50 P99 PREDICTED ACTUAL OFF"
    assert " ".join(lines[5].split()) == "cache 350 70.0% 1.4M - - - - -"
    assert " ".join(lines[6].split()) == "direct 150 30.0% 614k 2.3 us 2.6 us 2.0 us 2.5 us 20.0%"
    assert len(show([rates(BEFORE, replace(AFTER, paths=paths))], View(), height=10)) <= 10


def with_channels(nodes: int, cpus: int, **changes: object) -> list[MountRates]:
    """AFTER with a channel for each CPU, which sends the more the higher its number is.

    The CPUs of a node are not one after the other, as with two threads to a core.
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
NODE  CPU   RATE/s  DEPTH  FLIGHT SERVICE LOAD  POLL  SPIN SLEEP ELSE/s STOLEN/s
0     0       1.0k      2       1   50 us 0.05 95.0% 25.0%     1    500      100
0     2       3.0k      2       1   50 us 0.15 95.0% 25.0%     1    500      100
1     1       2.0k      2       1   50 us 0.10 95.0% 25.0%     1    500      100
1     3       4.0k      2       1   50 us 0.20 95.0% 25.0%     1    500      100
"""


def test_frame_shows_the_channels_of_few_cpus_in_the_order_of_nodes() -> None:
    assert show(with_channels(2, 4), View())[4:10] == CHANNELS.splitlines()


def test_frame_shows_a_row_a_node_of_many_cpus() -> None:
    lines = show(with_channels(2, 128), View())
    assert [line.split()[:4] for line in lines[6:8]] == [
        ["0", "64", "CPUs", "3.1M"],
        ["1", "64", "CPUs", "5.2M"],
    ]
    wide = show(with_channels(2, 128), View(), width=140, height=40)
    assert [line.split()[:3] for line in wide[6:8]] == [
        ["0", "0-31,64-95", "3.1M"],
        ["1", "32-63,96-127", "5.2M"],
    ]
    assert lines[8].startswith("OPCODE")


def test_frame_shows_the_busiest_cpus_where_not_all_have_room() -> None:
    lines = show(with_channels(2, 128), View(channels="cpus"))
    start = lines.index("and 114 quieter CPUs") - 14
    shown = [line.split()[:2] for line in lines[start : start + 14]]
    assert shown == [["1", str(cpu)] for cpu in range(114, 128)]
    assert [line.split()[0] for line in lines[start + 15 : start + 17]] == ["OPCODE", "lookup"]


def test_frame_with_channels_fits_whatever_the_terminal() -> None:
    latency = (0,) * 106
    paths = {name: PathCounters(requests=10**9, latency=latency) for name in ("a", "b", "c")}
    for nodes, cpus in ((1, 2), (2, 128), (8, 128)):
        model = with_channels(nodes, cpus, paths=paths)
        for view in CHANNEL_VIEWS:
            for width, height in ((80, 24), (140, 40), (40, 13), (80, 11)):
                lines = show(model, View(channels=view), width=width, height=height)
                assert len(lines) <= height, (nodes, cpus, view, height)
                assert max(map(len, lines)) <= width
                assert any(line.startswith("lookup") for line in lines)


def test_frame_of_a_standard_terminal_cuts_no_number_of_channels_off() -> None:
    for nodes, cpus in ((1, 16), (8, 128)):
        lines = show(with_channels(nodes, cpus), View(), height=30)
        rows = [line for line in lines if line.startswith(("policy", "NODE", *"01234567"))]
        assert len(rows) == 2 + (cpus if cpus == 16 else nodes)
        assert "\u2026" not in "".join(rows)


def test_frame_without_channels_has_no_table_of_them() -> None:
    served = {0: Channel(counters=ChannelCounters(sent=400))}
    text = "\n".join(show([rates(BEFORE, replace(AFTER, channels=served))], View()))
    assert "policy" not in text
    waiting = {0: Channel(depth=7)}
    text = "\n".join(show([rates(BEFORE, replace(AFTER, channels=waiting))], View()))
    assert "policy least" in text


def device(name: str, index: int = 0, **counters: int) -> DeviceRates:
    """What a device with four cores did in 2 s."""
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
DEVICE  DISK    CMD/s   RD/s  WR/s    IN   OUT  MEDIA  CORES  DEV KERN POL   OFF
one     csd3      123  12.3k   678  0.50  1.50    436  67.9%  120   16   6 12.5%
spare   csd12       0      0     0     0     0      0     0%    0    0   0     -
"""


def test_frame_shows_the_devices_below_the_mount() -> None:
    devices = [BUSY, device("spare", 12)]
    frame, bare = show(MODEL, View(), devices=devices), FRAME.splitlines()
    assert frame == [*bare[:-1], *DEVICES.splitlines(), bare[-1]]
    assert show(MODEL, View(), height=None, devices=devices)[-4:] == DEVICES.splitlines()


def test_frame_without_mounts_has_the_devices_all_the_same() -> None:
    frame = show([], View(), devices=[BUSY, device("spare", 12)])
    assert frame[1] == "no eFuse file system is mounted: efuse mount --help"
    assert frame[2:-1] == DEVICES.splitlines()
    many = [device(f"d{i}", i) for i in range(30)]
    assert show([], View(), devices=many)[-2] == "and 12 quieter devices"


def test_frame_cuts_no_number_of_devices_off() -> None:
    most = {name: 2**63 for name in DEVICE_COUNTERS}
    lines = show(MODEL, View(), devices=[device("a-long-name", 63, **most), BUSY])
    row = next(line for line in lines if line.startswith("a-long-"))
    assert row.split()[0] == "a-long-\u2026"
    assert "\u2026" not in row.removeprefix("a-long-\u2026")
    off = device("off", actual_ns=1, error_ns=12)
    assert show(MODEL, View(), devices=[off])[-2].endswith(" 1200%")


def test_frame_shows_the_busiest_devices_where_not_all_have_room() -> None:
    devices = [device(f"d{i}", i, commands=i) for i in range(30)]
    lines = show(MODEL, View(), devices=devices)
    assert lines[-2] == "and 27 quieter devices"
    assert [line.split()[0] for line in lines[-5:-2]] == ["d27", "d28", "d29"]


def test_frame_with_devices_fits_whatever_the_terminal() -> None:
    latency = (0,) * 106
    paths = {name: PathCounters(requests=10**9, latency=latency) for name in ("a", "b", "c")}
    for number in (1, 3, 60):
        devices = [device(f"device{i}", i) for i in range(number)]
        for model in (with_channels(2, 128, paths=paths), MODEL, []):
            for width, height in ((80, 24), (140, 40), (40, 15), (80, 14), (80, 11)):
                lines = show(model, View(), width=width, height=height, devices=devices)
                assert len(lines) <= height, (number, height)
                assert max(map(len, lines)) <= width
                assert not model or any(line.startswith("lookup") for line in lines)


def test_key_c_shows_channels_otherwise() -> None:
    model, view, seen = with_channels(2, 4), View(), []
    for _ in range(5):
        lines = show(model, view)
        seen.append([line.split()[1] for line in lines if line[:1] in "01"])
        view = type_keys(view, "c")
    cpus, nodes = ["0", "2", "1", "3"], ["0,2", "1,3"]
    assert seen == [cpus, [], nodes, cpus, cpus]
    assert "channels: none" in show(model, view)[0]


def test_help_fits_and_has_every_column() -> None:
    lines = show(with_channels(1, 2), View(help=True))
    assert len(lines) <= 24
    assert lines[-1] == "any key goes back"
    words = set(re.split(r"[ ,]+", " ".join(lines)))
    frame = show(with_channels(1, 2), View(), devices=[device("one")])
    heads = [line.split() for line in frame if line.startswith(("NODE", "OPCODE", "DEVICE"))]
    assert len(heads) == 3
    assert {word for head in heads for word in head} - words <= {"OPCODE", "(%)", "DEVICE", "DISK"}


def test_frame_without_mounts_says_so() -> None:
    assert "no eFuse file system is mounted" in "\n".join(show([], View()))


def test_frame_without_requests_says_so() -> None:
    model = [rates(BEFORE, replace(AFTER, opcodes={}))]
    assert "no requests" in show(model, View())
    assert "no opcode matches" in show(MODEL, View(filter="zzz"))


def test_all_mounts_are_shown_without_a_height() -> None:
    second = rates(replace(BEFORE, connection=9), replace(AFTER, connection=9, mountpoint="/b"))
    text = "\n".join(show([*MODEL, second], View(), height=None))
    assert "/mnt/demo  #41" in text
    assert "/b  #9" in text


def test_no_color_frame_has_no_escapes() -> None:
    out = io.StringIO()
    console = Console(
        file=out, width=80, force_terminal=True, _environ={"NO_COLOR": "1", "TERM": "xterm"}
    )
    console.print(render(MODEL, View(), interval_s=2))
    assert "\x1b[3" not in out.getvalue()
    assert "lookup" in out.getvalue()


def test_dumb_terminal_frame_has_no_escapes() -> None:
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, _environ={"TERM": "dumb"})
    console.print(render(MODEL, View(), interval_s=2))
    assert "\x1b" not in out.getvalue()


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
def test_rows_are_sorted(sort: str, order: list[str]) -> None:
    assert opcodes(MODEL, View(sort=sort)) == order


def test_reverse_turns_the_order_round() -> None:
    assert opcodes(MODEL, View(reverse=True)) == ["getxattr", "open", "lookup"]


def type_keys(view: View, keys: str) -> View:
    for key in keys:
        changed = press(view, key)
        assert changed is not None
        view = changed
    return view


def test_keys_sort_and_reverse() -> None:
    assert type_keys(View(), "s").sort == "hits"
    assert type_keys(View(), "S").sort == "name"
    assert type_keys(View(), "ss S".replace(" ", "")).sort == "hits"
    assert type_keys(View(), "r").reverse


def test_keys_filter_until_enter_or_escape() -> None:
    view = type_keys(View(), "/gq\x7fe")
    assert view.typing
    assert view.filter == "ge"
    assert opcodes(MODEL, view) == ["getxattr"]
    assert type_keys(view, "\r") == View(filter="ge")
    assert type_keys(view, "\x1b") == View()
    assert type_keys(view, "\r\x1b") == View()


def test_keys_choose_the_mount_and_wrap() -> None:
    second = rates(replace(BEFORE, connection=9), replace(AFTER, connection=9, mountpoint="/b"))
    model = [*MODEL, second]
    assert "mount 2 of 2" in show(model, type_keys(View(), "n"))[0]
    assert "mount 1 of 2" in show(model, type_keys(View(), "nn"))[0]
    assert "mount 2 of 2" in show(model, type_keys(View(), "p"))[0]


def test_keys_pause_and_help() -> None:
    assert "PAUSED" in show(MODEL, type_keys(View(), " "))[0]
    assert not type_keys(View(), "  ").paused
    view = type_keys(View(), "?")
    assert "any key goes back" in show(MODEL, view)
    assert type_keys(view, "q") == View()


def test_keys_quit() -> None:
    assert press(View(), "q") is None
    assert press(View(typing=True), "\x03") is None


def test_an_unknown_key_changes_nothing() -> None:
    assert type_keys(View(), "zZ\x01") == View()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.5, "0.50"),
        (3, "3"),
        (12.3, "12"),
        (999.4, "999"),
        (999.6, "1.0k"),
        (12_345, "12.3k"),
        (123_456, "123k"),
        (1.5e6, "1.5M"),
    ],
)
def test_count(value: float, text: str) -> None:
    assert count(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0%"), (0.0001, "<0.1%"), (0.5, "50.0%"), (0.99999, "99.9%"), (1, "100%")],
)
def test_share_rounds_only_exact_ends(value: float | None, text: str) -> None:
    assert share(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0 ns"),
        (870, "870 ns"),
        (9_830, "9.8 us"),
        (7.8e5, "780 us"),
        (2e9, "2.0 s"),
    ],
)
def test_duration(value: float | None, text: str) -> None:
    assert duration(value) == text


LIVE = """
import time
from rich.console import Console
from efuse.stats import Counters, DeviceSample, Sample, Snapshot
from efuse.tui import View, run
def sample():
    now = time.monotonic_ns()
    opcodes = {"lookup": Counters(requests=now // 1000)}
    device = DeviceSample("one", now, "/dev/csd3")
    return Snapshot((Sample(41, now, "/mnt/demo", opcodes=opcodes),), (device,))
run(sample, interval_s=0.2, console=Console(), view=View())
print("ended")
"""


def test_loop_draws_obeys_keys_and_restores_the_terminal() -> None:
    control, terminal = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(
        [sys.executable, "-c", LIVE],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment,
    ) as program:
        os.close(terminal)
        seen = _read_until(control, _read_until(control, b"", b"lookup"), b"csd3")
        os.write(control, b"s")
        seen = _read_until(control, seen, b"sorted by hits")
        os.write(control, b"q")
        seen = _read_until(control, seen, b"ended")
        assert program.wait(30) == 0
    os.close(control)
    assert b"\x1b[?1049h" in seen
    assert seen.rindex(b"\x1b[?1049l") < seen.rindex(b"ended")


def _read_until(fd: int, seen: bytes, what: bytes) -> bytes:
    while what not in seen:
        assert select.select([fd], [], [], 60)[0], seen
        seen += os.read(fd, 65536)
    return seen
