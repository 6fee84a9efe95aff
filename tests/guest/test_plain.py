# SPDX-License-Identifier: LGPL-2.1-or-later
"""Requests of plain FUSE mounts are counted as daemons count them, without the module."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from efuse import opcodes
from efuse.bpf import libbpf, requests
from efuse.bpf.requests import HOOKS, RequestCounters, request_programs
from efuse.control import fuse_waiting, mounts
from efuse.errors import ModuleBuildError
from efuse.module import live
from efuse.stats import PlainMounts, Sample, rates
from tests.guest.support.daemons import eventually
from tests.guest.support.forked import Beside, efuse
from tests.guest.support.shell import run
from tests.guest.support.tiny_fs import getattr_from_daemon
from tests.host.conftest import Served, place, served

__all__ = ["place", "served"]  # Fixtures of the host tests.

Serve = Callable[..., Served]
MIB = 1 << 20
FILES = 10


def _unloaded() -> bool:
    # An attached program set is freed some time after its mount has ended.
    with contextlib.suppress(ModuleBuildError):
        live.unload()
    return not live.loaded()


@pytest.fixture(scope="module", autouse=True)
def _module_is_unloaded(module_file: Path) -> Iterator[None]:
    eventually(_unloaded, what="the module to be let go")
    yield
    live.load(module_file)


@pytest.fixture(autouse=True)
def _module_is_loaded() -> None:
    """Replace the fixture of conftest.py: here the module must not be loaded."""
    assert not live.loaded()


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[], Path]]:
    """Return a function that mounts one more pass-through.

    Its daemon is forked from this process, and so starts faster than that of `served`, but reports
    nothing.
    """
    points: list[Path] = []

    def mount() -> Path:
        source, point = (tmp_path / f"{name}{len(points)}" for name in ("source", "mnt"))
        source.mkdir()
        point.mkdir()
        efuse("mount", "passthrough", "--plain", source, point)
        points.append(point)
        return point

    yield mount
    for point in points:
        if os.path.ismount(point):
            run("umount", point)


def number(path: Path) -> int:
    """Return the number of the mount's connection, without sending it a request."""
    return next(m.connection for m in mounts(fuse=True) if m.mountpoint == str(path))


def counts(counters: RequestCounters, path: Path) -> dict[str, requests.Counted]:
    mine = number(path)
    return {opcodes.name(o): c for (n, o), c in counters.read().items() if n == mine}


def work(one: Served) -> None:
    """Make requests of many kinds: READs that take several requests, and LOOKUPs that fail."""
    data = os.urandom(4 * MIB)
    (one.source / "data").write_bytes(data)
    (one.path / "directory").mkdir()
    for n in range(FILES):
        assert not (one.path / f"none{n}").exists()
        (one.path / "directory" / f"file{n}").write_bytes(b"x" * n)
    assert len(os.listdir(one.path / "directory")) == FILES
    assert (one.path / "data").read_bytes() == data
    with pytest.raises(FileNotFoundError):
        (one.path / "none").rename(one.path / "other")


@pytest.mark.parametrize("hooks", [HOOKS[:1], HOOKS[1:2]], ids=["tracepoints", "functions"])
def test_request_counts_agree_with_the_daemon(served: Serve, hooks: tuple[object, ...]) -> None:
    one = served()
    with RequestCounters(hooks) as counters:  # type: ignore[arg-type]
        before = one.report()["requests"]
        work(one)
        # RELEASE is sent in the background, so no call has waited for its answer.
        found = counts(counters, one.path)
        opened = found["open"].requests + found["create"].requests
        eventually(lambda: counts(counters, one.path)["release"].requests == opened)
        found = counts(counters, one.path)
        after = one.report()["requests"]
        assert counters.missed() == 0
    handled = {name: number - before.get(name, 0) for name, number in after.items()}
    told = {name: number for name, number in handled.items() if number and name != "forget"}
    # Requests that libfuse refuses do not reach the handlers. One handler has both kinds of
    # READDIR.
    asked = {name: c.requests for name, c in found.items() if name in told or c.errors < c.requests}
    asked["readdir"] = asked.get("readdir", 0) + asked.pop("readdirplus", 0)
    assert asked == told
    assert told["read"] > 1
    for counted in found.values():
        assert sum(counted.latency) == counted.requests
        assert counted.ns > 0
    # The failing names are: those that do not exist, those that are created (files and a
    # directory), and the source of the failing rename.
    assert found["lookup"].errors == FILES + FILES + 1 + 1
    assert found["mkdir"].errors == 0


def test_each_request_is_counted_once(served: Serve) -> None:
    one = served(options=("allow_other",))
    with RequestCounters() as counters:
        for _ in range(20):
            getattr_from_daemon(one.path)
        for n in range(10):
            assert not (one.path / f"none{n}").exists()
        found = counts(counters, one.path)
    assert (found["getattr"].requests, found["getattr"].errors) == (20, 0)
    assert (found["lookup"].requests, found["lookup"].errors) == (10, 10)
    assert found.keys() == {"getattr", "lookup"}


def test_requests_are_counted_by_mount(mounted: Callable[[], Path]) -> None:
    one, other = mounted(), mounted()
    with RequestCounters() as counters:
        for _ in range(7):
            getattr_from_daemon(one)
        for _ in range(11):
            getattr_from_daemon(other)
        assert counts(counters, one)["getattr"].requests == 7
        assert counts(counters, other)["getattr"].requests == 11


def test_later_mount_of_the_same_number_starts_at_zero(mounted: Callable[[], Path]) -> None:
    one = mounted()

    def sample(plain: PlainMounts, path: Path) -> Sample:
        return next(s for s in plain.read() if s.mountpoint == str(path))

    with PlainMounts() as plain:
        assert sample(plain, one).opcodes == {}
        other = mounted()
        getattr_from_daemon(other)
        first = sample(plain, other)
        assert first.opcodes["init"].requests == 1
        assert first.since_ns is not None
        assert first.since_ns > (sample(plain, one).since_ns or 0)
        gone = number(other)
        run("umount", other)
        assert [s.mountpoint for s in plain.read()] == [str(one)]
        # The kernel uses the lowest free number, which is the same again.
        again = mounted()
        assert number(again) == gone
        for _ in range(3):
            getattr_from_daemon(again)
        second = sample(plain, again)
        assert (second.since_ns or 0) > first.since_ns
        change = {row.opcode: row.counters.requests for row in rates(first, second).opcodes}
        assert (change["init"], change["getattr"]) == (1, second.opcodes["getattr"].requests)


def test_time_of_a_request_includes_a_stop_of_the_daemon(served: Serve) -> None:
    """While the daemon is stopped, the time of its request goes on."""
    one = served()
    with RequestCounters() as counters:
        os.killpg(one.process.pid, signal.SIGSTOP)
        caller = threading.Thread(target=getattr_from_daemon, args=(one.path,))
        caller.start()
        eventually(lambda: (fuse_waiting(number(one.path)) or 0) > 0)
        threading.Event().wait(0.3)
        os.killpg(one.process.pid, signal.SIGCONT)
        caller.join()
        found = counts(counters, one.path)["getattr"]
    assert found.requests == 1
    assert found.ns >= 300_000_000
    assert sum(found.latency[21:]) == 1  # The last classes begin at 268 ms.


def test_requests_without_room_in_the_map_are_counted_as_missed(
    served: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = served()
    spec = request_programs()
    small = {**spec.maps, "sent_ns": replace(spec.maps["sent_ns"], max_entries=1)}
    monkeypatch.setattr(requests, "request_programs", lambda: replace(spec, maps=small))
    with RequestCounters() as counters:
        os.killpg(one.process.pid, signal.SIGSTOP)
        callers = [threading.Thread(target=getattr_from_daemon, args=(one.path,)) for _ in range(4)]
        for caller in callers:
            caller.start()
        eventually(lambda: counters.missed() == 3)
        os.killpg(one.process.pid, signal.SIGCONT)
        for caller in callers:
            caller.join()
        assert counts(counters, one.path)["getattr"].requests == 1


def test_counting_leaves_no_programs_attached(mounted: Callable[[], Path]) -> None:
    mounted()
    before = set(libbpf.link_ids())
    with RequestCounters():
        assert len(set(libbpf.link_ids()) - before) == 2
    assert set(libbpf.link_ids()) <= before
    top = Beside("top", "--json", "--interval", "0.1")
    assert json.loads(top.out.readline())["mounts"][0]["after"]["kind"] == "fuse"
    assert len(set(libbpf.link_ids()) - before) == 2
    top.end(signal.SIGKILL)
    eventually(lambda: set(libbpf.link_ids()) <= before)


def test_stat_shows_counts_and_the_time_span(mounted: Callable[[], Path]) -> None:
    one = mounted()
    ends = threading.Event()

    def stat() -> None:
        """Make requests during the whole test, and leave the processors to the command."""
        while not ends.wait(0.01):
            getattr_from_daemon(one)

    caller = threading.Thread(target=stat)
    caller.start()
    try:
        output = efuse("stat", one, "--span", "0.5")
        listed = efuse("stat", "--span", "0.1")
    finally:
        ends.set()
        caller.join()
    lines = output.splitlines()
    assert lines[0].startswith(f"{one}  connection {number(one)}  plain FUSE  ")
    assert "  counted for " in lines[0]
    row = next(line.split() for line in lines if line.startswith("getattr"))
    assert int(row[1]) > 0
    assert any(line.lstrip().startswith("TOOK") for line in lines)
    assert f"{number(one)}  fuse  {one}" in listed
    assert "plain FUSE mounts were counted for " in listed
