# SPDX-License-Identifier: LGPL-2.1-or-later
"""`efuse service`: many mounts are started, watched, replaced and stopped while they are used."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from efuse.bench.programs import built
from efuse.control import Connection, all_mounts
from efuse.control.daemons import holders
from efuse.fs.mountpoint import unmount
from tests.guest.support.daemons import eventually, running
from tests.guest.support.forked import Beside, run_efuse

CONTENT = os.urandom(3 * 4096 + 17)
ONES = ("one", "two", "own")


def hear(service: Beside, text: str) -> None:
    """Wait until the service has printed a line with a text."""
    for line in service.err:
        if text in line:
            return
    raise AssertionError(f"the service has ended without: {text}")


class Mounts:
    """Three described mounts: two of passthrough_ll, and one of the package's passthrough.

    :ivar descriptions: directory of the descriptions.
    """

    def __init__(self, root: Path) -> None:
        self.root, self.descriptions = root, root / "mounts.d"
        self.descriptions.mkdir()
        self._words = ("service", "--directory", self.descriptions, "--state", root / "state")
        for name in ONES:
            for directory in (self.at(name), self.source(name)):
                directory.mkdir()
            (self.source(name) / "file").write_bytes(CONTENT)
            self.describe(name)

    def at(self, name: str) -> Path:
        """Return the mount point of a mount."""
        return self.root / f"mnt-{name}"

    def source(self, name: str) -> Path:
        """Return the directory that a mount shows."""
        return self.root / f"source-{name}"

    def describe(self, name: str, more: str = "", *, command: tuple[str, ...] = ()) -> None:
        """Write the description of a mount.

        :param command: the daemon, in place of the one that works.
        """
        lines = [f'mountpoint = "{self.at(name)}"', "recovery = 600", more]
        if command:
            lines += [f"command = {json.dumps(command)}"]
        elif name == "own":
            lines += ['type = "passthrough"', f'source = "{self.source(name)}"']
        else:
            command = [built("passthrough_ll"), "-f", "-o"]
            command += [f"source={self.source(name)},timeout=3600", self.at(name)]
            lines += [f"command = {json.dumps([str(word) for word in command])}"]
        (self.descriptions / f"{name}.toml").write_text("\n".join(lines) + "\n")

    @contextlib.contextmanager
    def service(self, *options: str) -> Iterator[Beside]:
        """Run the service, and end it with SIGTERM after the block if it has not ended."""
        process = Beside(*self._words, *options)
        try:
            hear(process, "the service attends to ")
            yield process
        finally:
            with contextlib.suppress(ChildProcessError):  # the test has awaited it
                assert process.running()
                process.end(signal.SIGTERM)

    def run(self, *words: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command of `efuse service`."""
        return run_efuse(*self._words, *words, status=status)

    def told(self, *, bad: bool = False) -> dict[str, dict[str, Any]]:
        """Return what `efuse service status` tells of each mount.

        :param bad: whether one of them is not as it is to be.
        """
        done = self.run("status", "--json", status=1 if bad or self.bad else 0)
        return {each["name"]: each for each in json.loads(done.stdout)["mounts"]}

    @property
    def bad(self) -> bool:
        """Whether there is an invalid description."""
        return (self.descriptions / "bad.toml").exists()

    def connection(self, name: str) -> Connection:
        """Return the connection of a mount, which must be mounted once."""
        (found,) = (m.connection for m in all_mounts() if m.mountpoint == str(self.at(name)))
        return Connection(found)

    def is_mounted(self, name: str) -> bool:
        return any(m.mountpoint == str(self.at(name)) for m in all_mounts())

    def await_service(self, *names: str) -> None:
        """Wait until mounts are served."""
        eventually(lambda: all(map(self.is_mounted, names)), "the mounts")
        for name in names:
            assert (self.at(name) / "file").read_bytes() == CONTENT

    def daemons(self) -> dict[str, set[int]]:
        """Return the processes that serve each mount."""
        return {name: holders(self.connection(name).id) for name in ONES}

    def kill_daemon(self, name: str) -> None:
        """Kill the daemon of a mount."""
        for pid in holders(self.connection(name).id):
            os.kill(pid, signal.SIGKILL)

    def await_successor(self, name: str, incarnation: int) -> None:
        """Wait until a mount has had so many successors, and is served."""
        connection = self.connection(name)
        eventually(
            lambda: connection.incarnation == incarnation and connection.daemon == "serving",
            f"successor {incarnation} of {name}",
        )


@pytest.fixture
def mounts(tmp_path: Path) -> Iterator[Mounts]:
    made = Mounts(tmp_path)
    yield made
    for name in ONES:
        while made.is_mounted(name):
            unmount(str(made.at(name)), lazy=True)


def read_until(path: Path, ends: Path) -> int:
    """Read an open file until *ends* exists, and compare its bytes; return how often."""
    number = 0
    with path.open("rb", buffering=0) as file:

        def is_over() -> bool:
            nonlocal number
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert os.pread(file.fileno(), len(CONTENT) + 1, 0) == CONTENT
            number += 1
            return ends.exists()

        eventually(is_over, "the end of the test", deadline_s=900)
    return number


def test_killed_daemons_are_followed_while_their_files_are_open(mounts: Mounts) -> None:
    (mounts.descriptions / "bad.toml").write_text('mountpoint = "/mnt"\nrecovry = 1\n')
    with mounts.service() as service:
        mounts.await_service(*ONES)
        eventually(lambda: mounts.told()["own"]["state"] == "serving", "the state")
        told = mounts.told()
        assert {name: told[name]["state"] for name in ONES} == dict.fromkeys(ONES, "serving")
        assert "line 2: recovry cannot be used: there is no such key" in told["bad"]["problem"]
        for name in ("one", "own"):
            with (mounts.at(name) / "file").open("r+b", buffering=0) as file:
                assert file.read(17) == CONTENT[:17]
                mounts.kill_daemon(name)
                assert file.read() == CONTENT[17:]
                file.write(b"more")
                mounts.await_successor(name, 1)
            assert (mounts.source(name) / "file").read_bytes() == CONTENT + b"more"
        assert mounts.connection("two").incarnation == 0
        told = mounts.told()
        assert [told[name]["successors"] for name in ONES] == [1, 0, 1]
        assert service.running()
    assert all(map(mounts.is_mounted, ONES)), "the end of the service unmounts nothing"


def test_service_that_follows_a_killed_one_finds_everything(mounts: Mounts) -> None:
    with mounts.service() as service:
        mounts.await_service(*ONES)
        before = mounts.daemons()
        service.end(signal.SIGKILL)
    mounts.await_service(*ONES)
    assert mounts.daemons() == before
    with mounts.service() as service:
        mounts.run("reload")
        hear(service, "the descriptions were read again: 3 are valid")
        mounts.await_service(*ONES)
        assert mounts.daemons() == before
        assert [mounts.connection(name).incarnation for name in ONES] == [0, 0, 0]
        service.end(signal.SIGKILL)
    # Its own supervisor attends to it, and the next service to the other one.
    mounts.kill_daemon("one")
    mounts.await_successor("one", 1)
    mounts.kill_daemon("own")
    with mounts.service():
        mounts.await_successor("own", 1)
        mounts.await_service("one", "two", "own")
        assert mounts.daemons()["two"] == before["two"]


def test_daemons_are_replaced_one_after_the_other_while_files_are_read(
    mounts: Mounts, tmp_path: Path
) -> None:
    ends = tmp_path / "ends"
    with mounts.service(), contextlib.ExitStack() as stack:
        mounts.await_service(*ONES)
        before = mounts.daemons()
        calls = [
            stack.enter_context(running(read_until, mounts.at(name) / "file", ends))
            for name in ONES
        ]
        mounts.describe("two", 'consistency = "exclusive"')
        assert [mounts.told()[name]["changed"] for name in ONES] == [False, True, False]
        done = json.loads(mounts.run("upgrade", "--all", "--json").stdout)
        assert done == [{"name": name, "result": "upgraded"} for name in ("one", "own", "two")]
        ends.touch()
        assert all(call.result() > 0 for call in calls)
        after = mounts.daemons()
        assert all(after[name] and not after[name] & before[name] for name in ONES)
        assert [mounts.connection(name).incarnation for name in ONES] == [1, 1, 1]
        assert [mounts.connection(name).daemon_exit.failed for name in ONES] == [0, 0, 0]
        assert mounts.connection("two").consistency == "exclusive"
        assert not any(mounts.told()[name]["changed"] for name in ONES)


def test_first_failure_ends_an_upgrade(mounts: Mounts) -> None:
    with mounts.service():
        mounts.await_service(*ONES)
        before = mounts.daemons()
        path = mounts.descriptions / "own.toml"
        path.write_text(path.read_text().replace('source = "', 'source = "/other'))
        done = mounts.run("upgrade", "--all", status=1)
        assert done.stdout == "one: upgraded\n"
        assert "own cannot be upgraded: its mountpoint, type, source or options" in done.stderr
        after = mounts.daemons()
        assert [after[name] == before[name] for name in ONES] == [False, True, True]


def test_stopped_mount_is_unmounted_and_stays_so(mounts: Mounts) -> None:
    with mounts.service() as service:
        mounts.await_service(*ONES)
        for name in ("one", "own"):
            with (mounts.at(name) / "file").open("rb"):
                done = mounts.run("stop", name, status=1)
                assert f"{name} cannot be stopped: " in done.stderr
                assert "(EBUSY)" in done.stderr
                assert mounts.is_mounted(name)
            assert mounts.run("stop", name).stdout == f"{name}: stopped\n"
            assert not mounts.is_mounted(name)
        mounts.run("reload")
        hear(service, "the descriptions were read again")
        assert {name: each["state"] for name, each in mounts.told().items()} == {
            "one": "stopped",
            "own": "stopped",
            "two": "serving",
        }
        assert mounts.run("start", "own").stdout == "own: started\n"
        assert mounts.run("start", "own").stdout == "own: is served already\n"
        mounts.await_service("own")
    with mounts.service("--unmount") as service:
        assert service.end(signal.SIGTERM)[0] == 0
    assert not any(map(mounts.is_mounted, ONES))


def test_mount_of_another_program_is_neither_taken_over_nor_unmounted(mounts: Mounts) -> None:
    mounts.describe("one", command=("/bin/false",))
    with mounts.service():
        mounts.await_service("two", "own")
        assert "one is not served: " in mounts.run("start", "one", status=1).stderr
        run_efuse("mount", "passthrough", mounts.source("one"), mounts.at("one"))
        other = mounts.connection("one").id
        # The service may just have tried once more.
        eventually(lambda: mounts.told(bad=True)["one"]["state"] == "foreign", "the last try")
        assert mounts.told(bad=True)["one"]["connection"] == other
        done = mounts.run("start", "one", status=1)
        assert "one cannot be started: another file system is mounted on " in done.stderr
        assert mounts.run("stop", "--lazy", "one").stdout == "one: was not running\n"
        mounts.await_service("one")
        assert mounts.connection("one").id == other
        # Over a mount that is served.
        own = mounts.connection("own").id
        run_efuse("mount", "passthrough", mounts.source("one"), mounts.at("own"))
        done = mounts.run("stop", "--lazy", "own", status=1)
        assert "own cannot be stopped: " in done.stderr
        assert mounts.told(bad=True)["own"]["connection"] == own
        assert len([m for m in all_mounts() if m.mountpoint == str(mounts.at("own"))]) == 2
        unmount(str(mounts.at("own")))
        assert mounts.run("stop", "own").stdout == "own: stopped\n"
        assert not mounts.is_mounted("own")


def test_daemon_that_hangs_at_its_start_keeps_no_command_waiting(mounts: Mounts) -> None:
    mounts.describe("one", command=("/bin/sleep", "6000"))
    with mounts.service():
        mounts.await_service("two", "own")
        done = mounts.run("start", "--wait", "1", "one", status=1)
        assert "one is not served yet: process " in done.stderr
        assert mounts.told(bad=True)["one"]["state"] == "starting"
        assert mounts.run("stop", "one").stdout == "one: stopped\n"
        assert mounts.told()["one"]["state"] == "stopped"
        # A successor that hangs: the mount waits, until that one is ended.
        mounts.describe("two", command=("/bin/sleep", "6000"))
        done = mounts.run("upgrade", "--wait", "1", "two", status=1)
        hangs = re.search(r"two is not served yet: process (\d+) goes on", done.stderr)
        assert hangs
        connection = mounts.connection("two")
        eventually(lambda: connection.daemon == "dead", "the end of the last daemon")
        assert "still upgrades it" in mounts.run("upgrade", "two", status=1).stderr
        os.kill(int(hangs[1]), signal.SIGTERM)
        # The service has not read the description again.
        mounts.await_successor("two", 1)
        mounts.await_service("two")
        assert mounts.run("stop", "--all").stdout.splitlines() == [
            "two: stopped",
            "own: stopped",
            "one: was not running",
        ]
