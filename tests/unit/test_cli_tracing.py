# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse trace`` and ``efuse advise`` on recorded requests."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from efuse.cli import advise, trace
from efuse.control.mounts import Mount
from efuse.errors import AttachError
from efuse.tracing import Request
from efuse.tracing.advice import NEEDS
from efuse.units import share
from tests.documents import named
from tests.unit.recorded_requests import entry, getattr_, lookup, request

HERE = "tests/unit/test_cli_tracing.py"
REQUESTS = [
    request("lookup", 1, b"main.c", answer=entry(2)),
    request("open", 2, arguments=bytes(8), reason=5),
    request("getattr", 2, answered_by=5, ns=9_000),
    request("lookup", 1, b"gone", ret=-2, ns=7_000_000),
]


class Recorded:
    """A fake Watch that has all its requests immediately, and then ends."""

    lost = 0
    ring_bytes = 0

    def __init__(self, requests: list[Request]) -> None:
        self.requests = requests
        self.closed = self.stopped = False

    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def wait(self, timeout_s: float) -> bool:
        return bool(self.requests)

    def read(self) -> Iterator[Request]:
        while self.requests:
            yield self.requests.pop(0)

    def stop(self) -> None:
        self.stopped = True

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    recorded = Recorded(list(REQUESTS))

    def opened(mount: Mount, **more: int) -> Recorded:
        recorded.ring_bytes = more.get("ring_bytes", 0)
        return recorded

    mount = Mount(1, 0, 40, "/mnt/a", "fuse.sshfs", "host:", "rw")
    for module in (trace, advise):
        monkeypatch.setattr(module, "watched_mount", lambda where: mount)
        monkeypatch.setattr(module, "Watch", opened)
    return recorded


def run(module: object, *words: str) -> Result:
    return CliRunner().invoke(module.cli, [*words, "/mnt/a"], catch_exceptions=False)  # type: ignore[attr-defined]


def about(result: Result) -> list[str]:
    """Return the last column of the lines: the names that the requests are about."""
    head, *lines = result.stdout.splitlines()
    return [text[head.index("NAME") :] for text in lines]


def test_trace_ends_after_its_count(watch: Recorded) -> None:
    result = run(trace, "--count", "4")
    assert result.exit_code == 0
    assert about(result) == ["main.c", "/main.c", "/main.c", "gone = ENOENT"]
    assert watch.closed


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--opcode", "LOOKUP"], ["main.c", "gone = ENOENT"]),
        (["--opcode", "open", "--opcode", "getattr"], ["/main.c", "/main.c"]),
        (["--answered-by", "handler"], ["/main.c"]),
        (["--errors"], ["gone = ENOENT"]),
        (["--slower-than", "5ms"], ["gone = ENOENT"]),
        (["--slower-than", "9000ns", "--name", "*.c"], ["main.c", "/main.c"]),
        (["--nodeid", "2"], ["/main.c", "/main.c"]),
        (["--pid", "77", "--name", "gone"], ["gone = ENOENT"]),
    ],
)
def test_trace_prints_only_the_chosen_requests(
    watch: Recorded, words: list[str], wanted: list[str]
) -> None:
    result = run(trace, *words, "--count", str(len(wanted)))
    assert (result.exit_code, about(result)) == (0, wanted)


def test_trace_json_is_one_object_a_line(watch: Recorded) -> None:
    result = run(trace, "--json", "--count", "2")
    found = [json.loads(text) for text in result.stdout.splitlines()]
    assert [(o["opcode"], o["about"], o["reason"]) for o in found] == [
        ("lookup", "main.c", None),
        ("open", "/main.c", "miss"),
    ]


def test_trace_reports_lost_requests(watch: Recorded) -> None:
    watch.lost = 12
    result = run(trace, "--count", "1", "--buffer", "8K")
    assert watch.ring_bytes == 8192
    assert result.exit_code == 0
    assert result.stderr == (
        "efuse: 12 requests are missing: they arrived faster than they were printed\n"
        "try: --buffer 16K\n"
    )


def test_trace_reports_lost_requests_as_documented(watch: Recorded) -> None:
    watch.lost = 1377
    (block,) = named("test", f"{HERE}::test_trace_reports_lost_requests_as_documented")
    assert run(trace, "--count", "1").stderr == block.text


def test_documented_figures_of_advise_add_up() -> None:
    (block,) = named("test", f"{HERE}::test_documented_figures_of_advise_add_up")
    _, _, titles, *lines = block.text.splitlines()
    table, sentences = lines[: lines.index("")], lines[lines.index("") + 1 :]
    assert titles.split() == [*advise._HEADERS, "IF"]
    rows = {words[0]: words for words in (text.split() for text in table)}
    total = rows.pop("total")
    for column in range(1, 6):
        assert sum(int(words[column]) for words in rows.values()) == int(total[column])
    for words in (*rows.values(), total):
        assert words[6] == share(int(words[5]) / int(words[1]))
    declared = sum(int(words[5]) for name, words in rows.items() if name in NEEDS)
    assert f"answered {int(total[5]) - declared} of the {total[1]} requests" in sentences[0]
    assert f"{declared} more" in sentences[1]


FOR_EVER = """
from efuse.cli._watched import until_interrupted
with until_interrupted() as ended:
    while not ended():
        print("x" * 100, flush=True)
"""


@pytest.mark.parametrize("interrupted", [True, False])
def test_watching_ends_on_an_interrupt_or_a_closed_pipe(interrupted: bool) -> None:
    """Watching ends with Ctrl-C, or when the reader of the output ends."""
    command = [sys.executable, "-c", FOR_EVER]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.read(1) == "x"
    if interrupted:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    else:
        process.stdout.close()
        assert process.stderr
        err = process.stderr.read()
        process.stderr.close()
    assert (process.wait(), err) == (0, "")


@pytest.mark.parametrize("words", [["--slower-than", "5"], ["--opcode", "nonsense"]])
def test_trace_with_invalid_arguments_fails(watch: Recorded, words: list[str]) -> None:
    result = run(trace, *words)
    assert result.exit_code == 2
    assert words[-1] in result.stderr


def advice(watch: Recorded, requests: list[Request], *words: str) -> Result:
    watch.requests = requests
    return run(advise, "--seconds", "0.1", *words)


def test_advise_prints_the_time_that_handlers_would_save(watch: Recorded) -> None:
    result = advice(watch, [lookup(), lookup(), getattr_(), getattr_(answered_by=5)])
    assert result.exit_code == 0
    head, titles, *rows = result.stdout.splitlines()
    assert re.fullmatch(r"/mnt/a  fuse  watched for \d+\.\d s", head)
    assert titles.split() == [
        "OPCODE", "REQUESTS", "KERNEL", "REPEATS", "SAME", "HITS", "HIT", "WAITED", "SAVED", "IF",
    ]  # fmt: skip
    assert rows[1].split()[:7] == ["lookup", "2", "0", "1", "1", "0", "0%"]
    assert "would have answered 0 of the 3 requests to the daemon (0%)" in result.stdout
    assert watch.stopped
    assert watch.closed


def test_advise_json_has_the_requests_of_the_mount(watch: Recorded) -> None:
    found = json.loads(advice(watch, [getattr_(), getattr_()], "--json").stdout)
    assert (found["mount"], found["kind"]) == ("/mnt/a", "fuse")
    assert found["opcodes"]["getattr"]["requests"] == 2


def test_advise_without_requests_prints_a_message(watch: Recorded) -> None:
    assert "No requests were made meanwhile" in advice(watch, []).stdout


def test_advise_reports_lost_requests(watch: Recorded) -> None:
    watch.lost = 3
    assert "3 requests are missing" in advice(watch, [getattr_()]).stdout


def test_trace_without_capabilities_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from efuse.bpf import tracing

    monkeypatch.setattr(tracing, "_STATUS", tmp_path / "status")
    allow: Callable[[int], object] = lambda bits: (tmp_path / "status").write_text(  # noqa: E731
        f"Name:\tx\nCapEff:\t{bits:016x}\nCapBnd:\t000001ffffffffff\n"
    )
    for bits in (1 << 21, 1 << 38 | 1 << 39):
        allow(bits)
        tracing.check_allowed()
    for bits in (0, 1 << 38, 1 << 39):
        allow(bits)
        with pytest.raises(AttachError, match=r"cannot trace: .*EPERM"):
            tracing.check_allowed()
