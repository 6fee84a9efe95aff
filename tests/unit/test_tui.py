# SPDX-License-Identifier: LGPL-2.1-or-later
"""The effect of keys on the live ``efuse top``, without a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console

from efuse.stats import REASONS, Counters, Sample, Snapshot
from efuse.tui import TAB_NAMES, Model, State, View, render
from efuse.tui.detail import REASON_WORDS
from efuse.tui.keys import decode
from efuse.tui.view import KEYS, TABS
from tests.unit.watched import CONNECTION, PLAIN, model, sample

KNOWN = model()


def start(view: View | None = None, known: Model = KNOWN) -> State:
    return State(view or View(), known)


def press(state: State, data: str, *, width: int = 80, height: int = 24) -> State:
    """Press the keys that a terminal sends as *data*."""
    pressed = state.press(decode(data.encode()), width=width, height=height)
    assert pressed is not None
    return pressed


def show(state: State, *, width: int = 80, height: int = 24) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, color_system=None)
    console.print(state.render(interval_s=1, width=width, height=height))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def names(state: State, *, width: int = 80, height: int = 24) -> list[str]:
    """Return the first word of each row of the table."""
    lines = show(state, width=width, height=height)
    titles = tuple(f"  {title}" for title in ("MOUNT", "OPCODE", "PATH", "NODE", "DEVICE"))
    first = next((i for i, line in enumerate(lines) if line.startswith(titles)), len(lines))
    rows = []
    for line in lines[first + 1 :]:
        if not line.startswith(("  ", "> ")):
            break
        rows.append(line[2:].split(" ")[0])
    return rows


def marked(state: State) -> str:
    """Return the first word of the marked row."""
    return next(line.split()[1] for line in show(state) if line.startswith("> "))


OPCODES = start(View(TAB_NAMES.index("opcodes"), mount=CONNECTION))


@pytest.mark.parametrize(("key", "name"), [(str(i + 1), name) for i, name in enumerate(TAB_NAMES)])
def test_digit_opens_a_tab(key: str, name: str) -> None:
    assert f"[{key} {name}]" in show(press(start(), key))[0]


def test_tab_and_shift_tab_go_round() -> None:
    state, seen = start(), []
    for _ in TAB_NAMES:
        state = press(state, "\t")
        seen.append(TAB_NAMES[state.view.tab])
    assert seen == [*TAB_NAMES[1:], TAB_NAMES[0]]
    assert press(start(), "\x1b[Z").view.tab == len(TAB_NAMES) - 1
    assert press(start(), "\x1b[C\x1b[C\x1b[D").view.tab == 1


@pytest.mark.parametrize("tab", range(len(TAB_NAMES)))
def test_every_sort_of_a_tab_is_shown_and_goes_round(tab: int) -> None:
    state = start(View(tab))
    sorts, seen = TABS[tab].sorts, []
    for _ in sorts:
        state = press(state, "s")
        seen.append(state.view.order.sort)
        assert f"sorted by {seen[-1]}" in show(state)[1]
    assert sorted(seen) == sorted(sorts)
    assert state.view.order.sort == TABS[tab].first
    assert press(state, "S").view.order.sort == seen[-2]


def test_rows_are_sorted_and_reversed() -> None:
    by_rate = names(OPCODES)
    assert by_rate[:3] == ["lookup", "getattr", "open"]
    assert names(press(OPCODES, "r")) == by_rate[::-1]
    assert "(reversed)" in show(press(OPCODES, "r"))[1]
    state = press(OPCODES, "SS")
    assert state.view.order.sort == "name"
    assert names(state) == sorted(by_rate)


def test_each_tab_keeps_its_order() -> None:
    state = press(press(press(OPCODES, "ss"), "3s"), "2")
    assert state.view.order.sort == "daemon"
    assert press(state, "3").view.order.sort == "share"
    assert press(state, "1").view.order.sort == "rate"


def test_filter_is_typed_kept_and_cleared() -> None:
    state = press(OPCODES, "/GX\x7fet")
    assert "filter: Get_" in show(state)[-1]
    assert names(state) == ["getattr", "getxattr"]
    state = press(state, "\r")
    assert not state.view.typing
    assert "filter Get" in show(state)[1]
    assert names(state) == ["getattr", "getxattr"]
    assert press(state, "\x1b").view.filter == ""
    assert press(press(OPCODES, "/get"), "\x1b").view == OPCODES.view


def test_filter_takes_letters_that_are_keys_elsewhere() -> None:
    assert press(OPCODES, "/q2 s\x1b[A").view == replace(OPCODES.view, filter="q2 s", typing=True)


@pytest.mark.parametrize(
    ("tab", "part", "rows"),
    [
        ("mounts", "archive", ["…e/current"]),
        ("mounts", "efuse", ["/mnt/demo", "…e/current"]),
        ("mounts", "plain", ["/mnt/plain", "…e/current"]),
        ("opcodes", "readl", ["readlink"]),
        ("opcodes", "archive", ["lookup", "readlink"]),
        ("paths", "dir", ["direct"]),
        ("channels", "demo", ["0", "0", "1", "1"]),
        ("devices", "spa", ["spare"]),
    ],
)
def test_filter_looks_in_mounts_and_names(tab: str, part: str, rows: list[str]) -> None:
    assert names(start(View(TAB_NAMES.index(tab), filter=part))) == rows


def test_filter_without_matches_shows_a_message() -> None:
    for tab in range(len(TAB_NAMES)):
        assert "nothing matches zzz" in show(start(View(tab, filter="zzz")))


def test_pause_is_shown_and_can_be_ended() -> None:
    state = press(start(), " ")
    assert state.view.paused
    assert show(state)[1].startswith("PAUSED")
    assert press(state, " ").view == View()


def test_mounts_are_chosen_in_turn() -> None:
    state, seen = press(start(), "2"), []
    for _ in range(4):
        state = press(state, "n")
        seen.append(show(state)[1].split("  ")[0])
    assert seen == ["/mnt/demo", "/srv/projects/archive/current", "/mnt/plain", "3 mounts"]
    assert press(state, "p").view.mount == PLAIN
    assert press(press(state, "p"), "\x1b").view.mount is None


def test_view_of_an_ended_mount_shows_all_mounts() -> None:
    assert show(start(View(1, mount=9999)))[1].startswith("3 mounts")


def test_enter_on_a_mount_opens_its_opcodes() -> None:
    state = press(start(), "jj\r")
    assert (TAB_NAMES[state.view.tab], state.view.mount) == ("opcodes", 57)
    assert names(state) == ["lookup", "readlink"]


def test_enter_on_an_opcode_shows_all_its_counters() -> None:
    state = press(OPCODES, "\x1b[B\r")
    assert state.view.detail == (CONNECTION, "getattr")
    lines = show(state)
    assert lines[1] == "getattr  of /mnt/demo  #41"
    words = [line.split() for line in lines]
    assert ["hits", "1.8k", "98.4%", "111600", "answered", "in", "the", "kernel"] in words
    assert ["stale", "24", "80.0%", "1488", "a", "change", "voided", "the", "answer"] in words
    kernel = next(line for line in lines if line.startswith("kernel"))
    assert kernel.split()[1:6] == ["14", "us", "1.8k", "14", "us"]
    for back in ("\x1b", "\r", "\x7f"):
        assert press(state, back).view == replace(OPCODES.view, cursor=1)
    assert press(state, "3").view.detail is None


def test_detail_of_an_ended_mount_says_no_requests() -> None:
    for key in ((CONNECTION, "mknod"), (9999, "lookup")):
        assert "no requests" in show(start(View(1, detail=key)))


def test_detail_says_what_every_reason_means() -> None:
    assert REASON_WORDS.keys() == set(REASONS)


def test_enter_on_other_rows_does_nothing() -> None:
    for tab in ("paths", "channels", "devices"):
        state = start(View(TAB_NAMES.index(tab)))
        assert press(state, "\r") == state
    assert press(State(), "2\r").view == View(1)


def many(number: int) -> State:
    """Return a state with *number* opcodes, each more frequent than the next one."""

    def taken(second: int) -> Snapshot:
        opcodes = {f"op{i:02}": Counters(requests=second * (99 - i)) for i in range(number)}
        return Snapshot((Sample(1, second * 10**9, "/m", opcodes=opcodes),))

    return State(View(1)).after(taken(1)).after(taken(2))


def test_more_rows_than_lines_are_paged() -> None:
    state = many(50)
    first = names(state)
    assert first == [f"op{i:02}" for i in range(19)]
    assert "rows 1-19 of 50" in show(state)[1]
    assert marked(press(state, "\x1b[B")) == "op01"
    state = press(state, "\x1b[6~")
    assert (names(state)[0], marked(state)) == ("op19", "op19")
    assert "rows 20-38 of 50" in show(state)[1]
    state = press(state, "\x1b[F")
    assert (marked(state), names(state)) == ("op49", [f"op{i}" for i in range(38, 50)])
    assert marked(press(state, "\x1b[B\x1b[6~")) == "op49"
    assert marked(press(state, "\x1b[5~")) == "op30"
    assert marked(press(state, "\x1b[H\x1b[A")) == "op00"


def test_marked_row_is_shown_in_a_smaller_terminal_too() -> None:
    state = press(many(50), "\x1b[6~jj")
    assert marked(state) == "op21"
    assert "op21" in names(state, width=60, height=10)
    assert "op21" in names(state, width=120, height=40)


def test_channels_are_shown_by_cpu_or_node() -> None:
    state = start(View(TAB_NAMES.index("channels")))
    assert names(state) == ["0", "0", "1", "1"]
    state = press(state, "c")
    assert names(state) == ["0", "1"]
    assert press(press(state, "c"), "c") == start(View(TAB_NAMES.index("channels")))


def test_help_explains_every_column_of_the_tab_until_it_is_closed() -> None:
    for tab in range(len(TAB_NAMES)):
        state = start(View(tab))
        state_of_help = press(state, "?")
        lines = show(state_of_help)
        assert len(lines) == 24
        for title in (word for word in show(state, width=200)[2].split() if word.isupper()):
            assert any(title in line for line in lines), title
        for keys, _ in KEYS:
            assert any(line.startswith(keys) for line in lines)
        assert press(state_of_help, "q") == state


def test_q_quits_from_every_view() -> None:
    assert start().press(["q"], width=80, height=24) is None
    assert OPCODES.press(["j", "enter", "q", "1"], width=80, height=24) is None


def test_an_unknown_key_changes_nothing() -> None:
    assert press(start(), "zZ\x0190\x1b[15~\x1bOP") == start()


def test_keys_read_together_are_split() -> None:
    assert decode(b"\x1bq\x1b[A\x1b[5~a\x1b[Z\r") == [
        "esc", "q", "up", "pgup", "a", "backtab", "enter",
    ]  # fmt: skip
    assert decode("é\t\x7f".encode()) == ["é", "tab", "backspace"]


@pytest.mark.parametrize(
    ("tab", "why"),
    [
        ("paths", "plain FUSE has no paths: all READs and WRITEs go to the daemon, see opcodes"),
        ("channels", "plain FUSE has no channels: requests wait in one queue for all CPUs"),
    ],
)
def test_tab_without_rows_for_plain_fuse_tells_why(tab: str, why: str) -> None:
    number = TAB_NAMES.index(tab)
    assert why in show(start(View(number, mount=PLAIN)))
    assert why not in show(start(View(number)))


def test_mount_that_is_not_counted_has_no_rates() -> None:
    uncounted = Sample(PLAIN, 10**9, "/mnt/plain", kind="fuse", since_ns=None, waiting=7)
    note = "plain FUSE mounts are not counted: " + "why " * 20
    state = State()
    for second in (1, 2):
        sample = replace(uncounted, taken_ns=second * 10**9)
        state = state.after(Snapshot((sample,), notes=(note,)))
    lines = show(state)
    assert " ".join(lines[2:4]) == note.strip()
    assert lines[5].split() == [">", "…nt/plain", str(PLAIN), "fuse", "-", "-", "-", "-", "-", "7"]
    assert f"/mnt/plain  #{PLAIN}  plain FUSE  7 waiting" in lines
    assert "requests are not counted" in show(press(state, "\r"))


def test_first_frame_says_that_it_waits_for_a_sample() -> None:
    state = State().after(sample(1))
    assert "the first interval has not passed yet" in show(state)
    assert any(line.startswith("no FUSE file system") for line in show(State()))


def test_times_and_maps_are_read_only_where_they_are_shown() -> None:
    assert [View(tab).timing for tab in range(5)] == [False, True, True, False, False]
    assert [View(tab).maps for tab in range(5)] == [True, False, False, False, False]


def test_times_are_shown_once_two_samples_have_them() -> None:
    state = OPCODES.after(sample(26, timing=False))
    assert "14 us" not in "".join(show(state))
    state = state.after(sample(27))
    assert "14 us" not in "".join(show(state))
    assert "14 us" in "".join(show(state.after(sample(28))))


def test_history_goes_on_while_another_tab_is_open() -> None:
    state = press(OPCODES, "1").after(sample(26, timing=False))
    before = KNOWN.history.of("opcode", CONNECTION, "lookup")
    assert state.model.history.of("opcode", CONNECTION, "lookup") == (*before, 8000.0)


def test_frame_fits_whatever_the_terminal() -> None:
    views = [View(tab) for tab in range(5)]
    views += [replace(view, help=True) for view in views]
    views.append(View(1, detail=(CONNECTION, "lookup")))
    for known in (KNOWN, many(60).model, Model()):
        for view in views:
            for width, height in ((80, 24), (120, 40), (60, 20), (40, 12), (20, 5), (1, 1)):
                lines = show(start(view, known), width=width, height=height)
                assert len(lines) == height
                assert max(map(cell_len, lines)) <= width


def test_a_narrow_terminal_keeps_the_columns_that_matter() -> None:
    titles = show(OPCODES, width=50)[3].split()
    assert titles == ["OPCODE", "RATE/s", "HIT", "DAEMON/s", "KERNEL", "DAEMON"]
    assert show(OPCODES, width=40)[3].split() == ["OPCODE", "RATE/s", "HIT", "DAEMON/s"]


def test_control_characters_in_names_are_escaped() -> None:
    def taken(second: int) -> Snapshot:
        return Snapshot((Sample(1, second * 10**9, "/m\x1b]0;x\x07\x9b2J"),))

    state = State().after(taken(1)).after(taken(2))
    for view in (View(), View(1), View(1, detail=(1, "lookup"))):
        out = io.StringIO()
        frame = start(view, state.model).render(interval_s=1, width=80, height=24)
        Console(file=out, width=80).print(frame)
        assert out.getvalue().replace("\n", "").isprintable()


@pytest.mark.parametrize("variable", ["NO_COLOR", "TERM"])
def test_no_colour_is_used_with_no_color_or_a_dumb_terminal(variable: str) -> None:
    environment = {"TERM": "xterm-256color"} | {variable: "1" if variable == "NO_COLOR" else "dumb"}
    out = io.StringIO()
    console = Console(file=out, width=80, force_terminal=True, _environ=environment)
    console.print(render(KNOWN, View(1), interval_s=1))
    assert "\x1b[3" not in out.getvalue()
    assert "\x1b[9" not in out.getvalue()
    assert "lookup" in out.getvalue()


def test_bars_are_ascii_on_an_ascii_terminal() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(file=out, width=80, color_system=None).print(render(KNOWN, View(1), interval_s=1))
    out.flush()
    assert "#" in out.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
