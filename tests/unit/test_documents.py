# SPDX-License-Identifier: LGPL-2.1-or-later
"""Every fenced block of the documents is tested; this module tests what no other test runs."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from pathlib import Path

import click
import pytest

import efuse
from efuse import demo
from efuse.bench import ON_REQUEST, SYSTEMS, WORKLOADS
from efuse.cli import _commands
from efuse.cli._mount_helper import main as mount_helper
from efuse.cli.main import cli
from tests.documents import KINDS, ROOT, Block, blocks, named
from tests.transcripts import agrees, steps

_ALL = blocks()


def _of_kind(kind: str) -> pytest.MarkDecorator:
    found = [block for block in _ALL if block.kind == kind]
    return pytest.mark.parametrize("block", found, ids=str)


def _tests_in(path: Path) -> set[str]:
    return {
        node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)
    }


def test_every_block_says_how_it_is_tested() -> None:
    assert [str(block) for block in _ALL if block.kind not in KINDS] == []


def test_blocks_are_run_where_there_is_a_test_for_it() -> None:
    assert {block.argument for block in _ALL if block.kind == "run"} == {"host", "guest"}
    fragments = [block.argument for block in _ALL if block.kind == "python"]
    text = (ROOT / "tests/guest/test_documents.py").read_text()
    assert len(fragments) == len(set(fragments))
    assert all(f'named("python", "{name}")' in text for name in fragments)


@_of_kind("test")
def test_test_of_a_block_exists(block: Block) -> None:
    path, _, name = block.argument.partition("::")
    assert name.startswith("test_")
    assert name in _tests_in(ROOT / path)


@_of_kind("file")
def test_block_of_a_file_is_verbatim(block: Block) -> None:
    assert block.text.rstrip("\n") in (ROOT / block.argument).read_text()


def _typed(block: Block) -> list[str]:
    return [step.command for step in steps(block.text)]


@_of_kind("make")
def test_targets_of_make_exist(block: Block) -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    for line in _typed(block):
        program, *targets = shlex.split(line)
        assert program == "make"
        assert targets and set(targets) <= set(phony[1].split()), line


def _parsed(line: str, directory: Path) -> None:
    """Parse the arguments of the command in *line*, without running it."""
    program, *words = shlex.split(line)
    assert program.removeprefix(".venv/bin/") == "efuse", line
    context = _commands.context_of(cli, "efuse")
    while words and isinstance(context.command, click.Group):
        below = context.command.get_command(context, words[0])
        if below is None and words[0].startswith("-"):
            break
        if below is None:
            raise click.UsageError(f"no such command: {words[0]}")
        context = _commands.context_of(below, words.pop(0), context)
    for word in words:
        if re.fullmatch(r"[\w/.]+\.(?:json|c)", word.rpartition("=")[2]):
            file = directory / word.rpartition("=")[2]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    context.command.parse_args(context, words)


@_of_kind("commands")
def test_commands_take_their_arguments(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in _typed(block):
        _parsed(line, tmp_path)


def test_a_command_that_takes_no_such_argument_is_noticed(tmp_path: Path) -> None:
    for line in ("efuse bench --clock cycles", "efuse stat --no-such", "efuse no-such"):
        with pytest.raises(click.UsageError):
            _parsed(line, tmp_path)


@_of_kind("usage")
def test_usage_has_every_option(block: Block) -> None:
    for usage in re.split(r"\n(?=efuse )", block.text.strip()):
        context = _commands.context_of(cli, "efuse")
        for word in usage.split()[1:]:
            if isinstance(context.command, click.Group):
                below = context.command.get_command(context, word)
                if below is None:
                    break
                context = _commands.context_of(below, word, context)
        there = {
            name
            for parameter in context.command.params
            if isinstance(parameter, click.Option)
            for name in parameter.opts
            if name.startswith("--")
        }
        assert set(re.findall(r"--[\w-]+", usage)) == there, context.command_path


# Figures

_ROW = re.compile(
    r"(?P<workload>\S+) +(?P<system>\S+) +(?P<value>[\d.e+]+) (?P<unit>\S+) +\d+ +\d+"
    r"(?: +(?P<ratio>[\d.]+) x \((?P<least>[\d.]+)-(?P<most>[\d.]+)\))? +yes"
)


def _check_bench(text: str) -> None:
    lines = [line for line in text.splitlines() if line]
    if lines[0].startswith("WORKLOAD"):
        wanted = "WORKLOAD SYSTEM VALUE REQUESTS SWITCHES EFUSE IS BETTER TRUE"
        assert " ".join(lines.pop(0).split()) == wanted
    rows = [_ROW.fullmatch(line) for line in lines]
    assert rows and all(rows)
    ours = {
        row["workload"]: float(row["value"]) for row in rows if row and row["system"] == "efuse"
    }
    for row in rows:
        assert row is not None
        assert row["workload"] in WORKLOADS and row["system"] in (*SYSTEMS, *ON_REQUEST)
        assert (row["ratio"] is None) == (row["system"] == "efuse")
        if row["ratio"] is None:
            continue
        least, ratio, most = (float(row[name]) for name in ("least", "ratio", "most"))
        assert least <= ratio <= most, row[0]
        # The median of ratios is not the ratio of medians, but both are of the same rounds.
        mine, other = ours[row["workload"]], float(row["value"])
        of_medians = other / mine if row["unit"] in ("s", "us") else mine / other
        assert 0.9 * least <= of_medians <= 1.1 * most, row[0]


def _check_replacement(text: str) -> None:
    from tests.perf.replacement import POLICIES
    from tests.perf.traces import ROOM, TRACES

    head, titles, *rows = text.splitlines()
    assert re.fullmatch(rf"\d+ reads, room for {ROOM} blocks; hits in percent", head)
    assert titles == f"{'trace':14}{'data cache':>11} " + " ".join(f"{p:>8}" for p in POLICIES)
    assert [row[:14].strip() for row in rows] == list(TRACES)
    for row in rows:
        shares = [float(word) for word in row[14:].split()]
        assert len(shares) == 1 + len(POLICIES) and all(0 <= share <= 100 for share in shares)


def _check_model(text: str) -> None:
    from docs.model.__main__ import CPUS
    from docs.model.systems import SYSTEMS as modelled

    *scales, breaks = text.strip().split("\n\n")
    for scale in scales:
        _, titles, *rows = scale.splitlines()
        assert re.findall(r"(\w+)/s", titles) == list(modelled)
        assert [int(row.split()[0]) for row in rows] == list(CPUS)
    assert breaks.startswith("128 CPUS") and len(breaks.splitlines()) > 10
    # The last line of the first table and the first line of the second one are the same run.
    last = scales[0].splitlines()[-1].split()
    assert breaks.splitlines()[1].split()[3:6] == [last[1], last[3], last[5]]


_FIGURES = {
    "efuse bench": _check_bench,
    "tests.perf.replacement": _check_replacement,
    "docs.model": _check_model,
}


@_of_kind("figures")
def test_figures_are_as_the_command_prints_them(block: Block) -> None:
    _FIGURES[block.argument](block.text)


def test_figures_that_contradict_each_other_are_noticed() -> None:
    right = "stat fuse 100 us 5 5 10 x (9-11) yes\nstat efuse 10 us 0 0 yes\n"
    _check_bench(right)
    for old, new in (("10 x", "12 x"), ("100 us", "300 us"), ("fuse 100", "fuss 100")):
        with pytest.raises(AssertionError):
            _check_bench(right.replace(old, new, 1))


def test_a_table_of_the_demo_is_as_it_prints_it() -> None:
    block, again = named("test", _here("test_a_table_of_the_demo_is_as_it_prints_it"))
    # The README's claims agree with the report.
    assert (block.document, again.document) == ("README.md", "docs/benchmarks.md")
    assert block.text == again.text
    (step,) = steps(block.text)
    assert step.command == "make demo"
    _, _, titles, *rows = step.printed
    table = _demo_table()
    assert titles.split() == [word for title in table for word in title.split()]
    assert [row.split()[0] for row in rows] == list(demo.PROGRAMS)
    for row in rows:
        words = re.sub(r" s\b| x\b", "", row).split()
        fuse, warm, speed = (float(words[at]) for at in (2, 6, 9))
        half = 0.05  # half of the last digit of each
        assert (fuse - half) / (warm + half) - half <= speed
        assert speed <= (fuse + half) / max(warm - half, 0.01) + half
        assert words[-1] == "same"


_FIRST_SCREEN = (
    "tests/guest/command_line/test_first_screen.py"
    "::test_first_screen_finds_the_same_files_without_the_daemon"
)


def test_the_first_screen_is_the_script_that_is_run() -> None:
    (block,) = named("test", _FIRST_SCREEN)
    script = (ROOT / "docs/examples/first-screen.sh").read_text().partition("set -x\n")[2]
    typed = script.replace('"$source"', "/mnt/src").replace('"$mountpoint"', "/mnt/m")
    assert _typed(block) == typed.splitlines()


def test_figures_of_the_first_screen_are_in_the_report() -> None:
    (block,) = named("test", _FIRST_SCREEN)
    report = (ROOT / "docs/benchmarks.md").read_text().partition("## The first screen\n")[2]
    report = report.partition("\n## ")[0]
    lines = block.text.splitlines()
    times = [line for line in lines if re.fullmatch(r"[\d.]+ s", line)]
    assert len(times) == 2
    assert all(time in report for time in times)
    rows = {line.split()[0]: line.split() for line in lines}
    assert f"of {rows['total'][1]} requests" in report
    assert f"{rows['total'][2]} were\nanswered" in report
    assert f"all {rows['opendir'][2]} OPENDIR" in report


def _demo_table() -> list[str]:
    report = {"results": [], "ratios": [], "settings": {"kernel_counters": {}, "programs": []}}
    return [str(column.header) for column in demo.table(report).columns]


# Documents with tests of their own

_MY_FS = """\
import efuse

class MyFs(efuse.Operations):
    def __init__(self, size: str) -> None:
        super().__init__()
"""


def _here(name: str) -> str:
    return f"tests/unit/test_documents.py::{name}"


def test_packages_of_the_documents_are_debians() -> None:
    """scripts/setup installs them, or the description of the Debian package names them."""
    known = set(re.findall(r"[\w.+-]+", (ROOT / "scripts/setup").read_text()))
    known |= {f"{name}-6.12-amd64" for name in ("linux-headers", "linux-source")}
    known |= {"linux-source-6.12", "dkms", "libbpf1"}
    for path in (ROOT / "packaging").rglob("control*"):
        known |= set(re.findall(r"[\w.+-]+", path.read_text()))
    asked = named("test", _here("test_packages_of_the_documents_are_debians"))
    asked += named("test", "tests/host/test_wheel.py::test_installed_command_mounts")
    words = {
        word
        for block in asked
        for line in _typed(block)
        if line.startswith("apt-get install ")
        for word in line.split()[2:]
    }
    ours = {word for word in words if "/" in word}
    assert ours == {f"/tmp/efuse-dkms_{efuse.__version__}_all.deb"}
    assert words - ours <= known


def test_lines_of_fstab_are_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = named("test", _here("test_lines_of_fstab_are_understood"))
    (tmp_path / "mypackage").mkdir()
    (tmp_path / "mypackage" / "myfs.py").write_text(_MY_FS)
    monkeypatch.syspath_prepend(tmp_path)
    for line in block.text.splitlines():
        what, where, kind, options, *numbers = line.split()
        assert (kind, numbers) == ("efuse", ["0", "0"])
        what = what.replace("/srv/data", str(tmp_path))
        with pytest.raises(SystemExit) as ended:
            mount_helper(["-f", what, where, "-o", options])
        assert ended.value.code == 0


def test_last_block_removes_everything_that_the_page_installs() -> None:
    """The last block of the page removes all that the page has installed."""
    (last,) = named("test", _here("test_last_block_removes_everything_that_the_page_installs"))
    removed = [
        word
        for line in _typed(last)
        if line.startswith(("rm ", "apt-get purge "))
        for word in line.split()[2:]
        if not word.startswith("-")
    ]
    made = set()
    for block in blocks(last.document):
        for line in _typed(block) if block.language == "console" and block != last else []:
            made |= set(re.findall(r"> (/\S+)$", line))
            if line.startswith(("ln ", "cp ")):
                made.add(line.split()[-1])
    made.discard("/etc/systemd/system/")
    assert made
    for path in made:
        assert any(path == one or path.startswith(f"{one}/") for one in removed), path
    for shell in ("bash", "zsh", "fish"):
        assert any(shell in path for path in removed)


def test_modules_of_the_documents_are_there() -> None:
    (block,) = named("test", _here("test_modules_of_the_documents_are_there"))
    for line in _typed(block):
        python, option, name = line.split()
        assert (python, option) == (".venv/bin/python", "-m")
        assert importlib.util.find_spec(name) is not None


def test_the_smallest_file_system_is_the_example() -> None:
    (block,) = named("test", _here("test_the_smallest_file_system_is_the_example"))
    example = ast.parse((ROOT / "docs/examples/hello.py").read_text())
    (short,) = [n for n in ast.parse(block.text).body if isinstance(n, ast.ClassDef)]
    (whole,) = [n for n in example.body if isinstance(n, ast.ClassDef)]
    assert short.name == whole.name
    assert [ast.dump(base) for base in short.bases] == [ast.dump(base) for base in whole.bases]
    names = {n.name: n for n in whole.body if isinstance(n, ast.AsyncFunctionDef)}
    for handler in short.body:
        if isinstance(handler, ast.AsyncFunctionDef):
            arguments = [a.arg for a in names[handler.name].args.args]
            assert [a.arg for a in handler.args.args] == arguments
    assert "trio.run(efuse.serve, Hello(), " in (ROOT / "docs/examples/hello.py").read_text()


def test_transcripts_are_compared_without_their_figures() -> None:
    assert agrees("GETS 10  0.5 s\n...\nend", "GETS  7 12.25 s\nmore\nend\n")
    assert agrees("...\nend", "end")
    assert not agrees("GETS 10", "PUTS 10")
    assert not agrees("GETS 10", "GETS 10\nand more")
    assert not agrees("/mnt/m1: eFuse", "/mnt/m1: plain")
