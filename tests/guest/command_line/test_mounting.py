# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test mounts as an administrator makes and ends them: fstab, mount(8), signals."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from efuse.bpf import list_attached
from efuse.control import Connection, connections, find
from tests.commands import EFUSE
from tests.guest.support.forked import efuse, run_efuse
from tests.nasty_names import NASTY, is_safe
from tests.stuck_file_system import CALLERS, end_while_stuck

_HELPERS = Path("/usr/sbin")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a directory with one file."""
    directory = tmp_path / "source"
    directory.mkdir()
    (directory / "f").write_bytes(b"data")
    return directory


@pytest.fixture
def helper(tmp_path: Path) -> Iterator[None]:
    """Put mount.efuse where mount(8) looks for it, like docs/writing-a-file-system.md."""
    upper, work = tmp_path / "upper", tmp_path / "work"
    upper.mkdir()
    work.mkdir()
    script = upper / "mount.efuse"
    script.write_text(f"#!{sys.executable}\nfrom efuse.cli._mount_helper import main\nmain()\n")
    script.chmod(0o755)
    layers = f"lowerdir={_HELPERS},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "-o", layers, "overlay", _HELPERS], check=True)
    yield
    subprocess.run(["umount", _HELPERS], check=True)


def _gone(mountpoint: Path, number: int) -> bool:
    return not os.path.ismount(mountpoint) and number not in connections()


def _answers(mountpoint: Path) -> Connection:
    """Check that the mount returns the right bytes, and that handlers answer."""
    connection = Connection(find(mountpoint).connection)
    assert connection.state == "attached"
    for _ in range(5):
        assert (mountpoint / "f").read_bytes() == b"data"
        with pytest.raises(OSError, match="No data"):
            os.getxattr(mountpoint / "f", "user.none")
    assert connection.counts("stats/getxattr")["hits"] >= 4
    return connection


@pytest.mark.usefixtures("helper")
@pytest.mark.parametrize("how", ["fstab", "type"])
def test_mount_8_mounts_with_the_given_options(
    how: str, source: Path, mountpoint: Path, tmp_path: Path, eventually: Callable[..., object]
) -> None:
    options = "consistency=exclusive,allow_other"
    if how == "fstab":
        table = tmp_path / "fstab"
        table.write_text(f"{source} {mountpoint} efuse {options},noauto 0 0\n")
        subprocess.run(["mount", "--fstab", table, mountpoint], check=True)
    else:
        subprocess.run(["mount", "-t", "efuse", "-o", options, source, mountpoint], check=True)
    connection = _answers(mountpoint)
    assert connection.consistency == "exclusive"
    subprocess.run(["umount", mountpoint], check=True)
    eventually(lambda: _gone(mountpoint, connection.id), what="the mount to be gone")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_mount_in_the_background_ended_by_a_signal_loses_nothing(
    number: int, source: Path, mountpoint: Path, eventually: Callable[..., object]
) -> None:
    words = ["mount", "passthrough", source, mountpoint, "--require", "--json"]
    words += ["--consistency", "exclusive", "--arg", "writeback=True"]
    told = json.loads(subprocess.check_output([*EFUSE, *words]))
    connection = _answers(mountpoint)
    data = os.urandom(300_000)
    (mountpoint / "late").write_bytes(data)
    os.kill(told["pid"], number)
    eventually(lambda: _gone(mountpoint, connection.id), what="the mount to be gone")
    assert (source / "late").read_bytes() == data


def test_signal_to_efuse_run_in_the_foreground_unmounts(
    source: Path, mountpoint: Path, eventually: Callable[..., object]
) -> None:
    daemon = ["bindfs", "-f", "-o", "entry_timeout=3600,attr_timeout=3600", source, mountpoint]
    process = subprocess.Popen([*EFUSE, "run", "--require", "--", *daemon])
    try:
        eventually(lambda: os.path.ismount(mountpoint), what="the mount")
        connection = Connection(find(mountpoint).connection)
        eventually(lambda: connection.state == "attached", what="the handlers")
        _answers(mountpoint)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 0
    finally:
        process.kill()
        process.wait()
    eventually(lambda: _gone(mountpoint, connection.id), what="the mount to be gone")


# The daemon gets the signal at a step of the mount. It prints the state of each connection then.
_SIGNALLED = """
import os, signal, sys
from efuse.cli.main import main
from efuse.bpf import list_attached
from efuse.control import Connection, connections
from efuse.fs import acceleration, session

def signals():
    print({number: Connection(number).state for number in connections()}, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

def wrapped(real):
    def wrapper(*arguments, **more):
        if when == "before":
            signals()
        result = real(*arguments, **more)
        if when == "after":
            signals()
        return result
    return wrapper

when, step, *words = sys.argv[1:]
owner = {"mount_efuse": session, "open": session.SessionChannel, "accelerate": acceleration}[step]
setattr(owner, step, wrapped(getattr(owner, step)))
main(["mount", "--foreground", "--require", "passthrough", *words])
"""


@pytest.mark.parametrize(
    ("when", "step", "state"),
    [
        ("after", "mount_efuse", "plain"),
        ("after", "open", "plain"),
        ("before", "accelerate", "plain"),
        ("after", "accelerate", "attached"),
    ],
)
def test_signal_between_the_mount_and_its_handlers_leaves_no_mount(
    when: str, step: str, state: str, source: Path, mountpoint: Path
) -> None:
    before = connections()
    words = [sys.executable, "-c", _SIGNALLED, when, step, source, mountpoint]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    seen = ast.literal_eval(done.stdout)
    assert [seen[number] for number in seen if number not in before] == [state]
    assert (done.returncode, done.stderr) == (
        1,
        "efuse: it is not mounted: SIGTERM arrived meanwhile (EINTR)\n",
    )
    assert connections() == before
    assert not os.path.ismount(mountpoint)
    assert not {attached.connection for attached in list_attached()} - set(before)


@pytest.mark.parametrize(
    ("handler", "signals"), [*((handler, 1) for handler in CALLERS), ("waits", 2)]
)
def test_signal_ends_a_mount_whose_handler_does_not_return(
    handler: str, signals: int, mountpoint: Path
) -> None:
    """Its requests come through a channel."""
    before = connections()
    kind, number, has_channels = end_while_stuck(mountpoint, handler, signals).split()
    assert (kind, has_channels) == ("efuse", "True")
    assert int(number) not in before
    assert connections() == before


def test_mount_prints_the_shortcuts_that_overridden_handlers_disable(
    source: Path, mountpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rule.py").write_text(
        "import efuse\n"
        "class Rule(efuse.Passthrough):\n"
        "    async def access(self, inode, mode, ctx):\n"
        "        return await super().access(inode, mode, ctx)\n"
    )
    monkeypatch.chdir(tmp_path)
    words = ["mount", "rule:Rule", "--arg", f"source={source}", str(mountpoint), "--require"]
    words += ["--consistency", "exclusive"]
    ends = "overrides access: without extended timeouts (exclusive), access"
    printed = efuse(*words).splitlines()
    number = find(mountpoint).connection
    assert printed == [f"{mountpoint}: eFuse, connection {number}", f"{mountpoint}: {ends}"]
    assert Connection(number).ops == "efuse-less.access"
    subprocess.run(["umount", mountpoint], check=True)
    assert json.loads(efuse(*words, "--json"))["given_up"] == ends


def test_commands_print_names_on_a_mount_escaped(mountpoint: Path, tmp_path: Path) -> None:
    """One name has all that a terminal would obey, and bytes that are no UTF-8."""
    name = os.fsdecode(b" ".join(NASTY))
    place, lower = mountpoint / name, tmp_path / name
    place.mkdir()
    lower.mkdir()
    data = os.urandom(5000)
    (lower / name).write_bytes(data)
    mount = ["mount", "passthrough", str(lower), str(place), "--require", "--data-cache", "1M"]
    mount += ["--consistency", "exclusive"]
    done = run_efuse(*mount)
    assert is_safe(done.stdout + done.stderr)
    assert len(done.stdout.splitlines()) == 1
    subprocess.run(["umount", place], check=True)
    told = json.loads(efuse(*mount, "--json"))
    assert told["mountpoint"] == str(place)
    for _ in range(3):
        assert (place / name).read_bytes() == data
    assert Connection(told["connection"]).state == "attached"
    for words in (
        ["maps", "files", place],
        ["maps", "dump", place, "entries"],
        ["stat"],
        ["top", "--once", "--interval", "0.1"],
        ["advise", place, "--seconds", "0.1"],
        ["prog", "list"],
        ["prog", "detach", place],
    ):
        texts = [efuse(*words), ""]
        if words[:2] != ["prog", "detach"]:
            texts[1] = efuse(*words, "--json")
            json.loads(texts[1])
        assert all(map(is_safe, texts))
    subprocess.run(["umount", place], check=True)
