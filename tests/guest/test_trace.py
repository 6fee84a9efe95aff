# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test ``efuse trace`` and ``efuse advise`` on real mounts, of plain FUSE and eFuse."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from efuse.bpf import libbpf
from efuse.control.mounts import find
from efuse.tracing import Advisor, Names, Request, Watch
from tests.commands import AS_NOBODY, EFUSE, run_output
from tests.guest.support.backing_files import make
from tests.guest.support.daemons import eventually
from tests.guest.support.data_cache import cached
from tests.guest.support.file_data import BLOCK, fill, read, read_direct
from tests.guest.support.forked import Beside, efuse
from tests.guest.support.shell import run

PLAIN = ("--plain",)
ACCELERATED = ("--consistency", "exclusive")


@contextmanager
def mounted(mountpoint: Path, *options: str) -> Iterator[Path]:
    """Mount a directory with a file and a link to it."""
    source = mountpoint.parent / "source"
    source.mkdir()
    (source / "file").write_bytes(b"data")
    (source / "link").symlink_to("file")
    efuse("mount", "passthrough", *options, source, mountpoint)
    try:
        yield mountpoint
    finally:
        run("umount", mountpoint)


@contextmanager
def watching(mountpoint: Path, **more: Any) -> Iterator[Watch]:
    with Watch(find(mountpoint, fuse=True), **more) as watch:
        yield watch


def seen(watch: Watch, names: Names, *opcodes: str) -> list[tuple[str, str, str, str, str]]:
    """Return (opcode, subject, answered_by, reason, error) of each request of this process."""
    found = []
    for request in watch.read():
        names.learn(request)
        if request.opcode in opcodes:
            assert request.pid == os.getpid()
            assert request.comm == Path("/proc/self/comm").read_text().strip()
            assert request.ns
            shown = names.shown(request)
            found.append(
                (request.opcode, shown, request.answered_by, request.reason, request.error)
            )
    return found


def ask(m: Path, fd: int) -> None:
    """Make requests for values that FUSE itself does not keep."""
    os.statvfs(m)
    with contextlib.suppress(OSError):
        os.getxattr(fd, "user.none")


def change(m: Path) -> None:
    (m / "new").mkdir()
    (m / "new").rename(m / "other")
    (m / "other").rmdir()


def test_trace_shows_the_requests_of_plain_fuse(mountpoint: Path) -> None:
    with mounted(mountpoint, *PLAIN) as m:
        fd = os.open(m / "file", os.O_RDONLY)
        with watching(m) as watch:
            names = Names()
            ask(m, fd)
            ask(m, fd)
            assert (
                seen(watch, names, "statfs", "getxattr")
                == [
                    ("statfs", "/", "daemon", "", ""),
                    ("getxattr", "user.none", "daemon", "", "ENODATA"),
                ]
                * 2
            )
            assert not (m / "gone").exists()
            assert seen(watch, names, "lookup") == [("lookup", "gone", "daemon", "", "ENOENT")]
            change(m)
            assert seen(watch, names, "mkdir", "rename", "rename2", "rmdir") == [
                ("mkdir", "new", "daemon", "", ""),
                ("rename", "new -> other", "daemon", "", ""),
                ("rmdir", "other", "daemon", "", ""),
            ]
            assert watch.lost == 0
        os.close(fd)


def test_trace_shows_what_answered_a_request_and_why_on_efuse(mountpoint: Path) -> None:
    with mounted(mountpoint, *ACCELERATED) as m:
        fd = os.open(m / "file", os.O_RDONLY)
        with watching(m) as watch:
            names = Names()
            ask(m, fd)
            ask(m, fd)
            assert seen(watch, names, "statfs", "getxattr") == [
                ("statfs", "/", "daemon", "miss", ""),
                ("getxattr", "user.none", "daemon", "miss", "ENODATA"),
                ("statfs", "/", "handler", "", ""),
                ("getxattr", "user.none", "handler", "", "ENODATA"),
            ]
            change(m)
            assert seen(watch, names, "mkdir", "rename", "rename2", "rmdir") == [
                ("mkdir", "new", "daemon", "no_handler", ""),
                ("rename", "new -> other", "daemon", "no_handler", ""),
                ("rmdir", "other", "daemon", "no_handler", ""),
            ]
            os.statvfs(m)
            assert seen(watch, names, "statfs") == [("statfs", "/", "daemon", "stale", "")]
        os.close(fd)


def test_trace_shows_an_open_in_the_kernel_and_its_release(mountpoint: Path) -> None:
    with mounted(mountpoint, *ACCELERATED) as m:
        read(m / "file", 100)
        with watching(m) as watch:
            assert read(m / "file", 100) == b"data"
            # Another task may drop the last reference to the file, later.
            found: list[tuple[str, str]] = []

            def released() -> bool:
                found.extend(
                    (r.opcode, r.answered_by) for r in watch.read() if r.opcode != "getattr"
                )
                return ("release", "kernel") in found

            eventually(released)
            assert [one for one in found if one[0] != "read"] == [
                ("open", "handler"),
                ("flush", "handler"),
                ("release", "kernel"),
            ]
            # Measurements decide which of the two is used.
            reads = {answered_by for opcode, answered_by in found if opcode == "read"}
            assert reads
            assert reads <= {"direct", "cache"}


def test_trace_shows_what_answered_a_read(mountpoint: Path) -> None:
    with cached(mountpoint) as m:
        data = fill("h", 3 * BLOCK)
        make(m, "h", data)
        with watching(mountpoint) as watch:
            for _ in range(2):
                assert read_direct(m / "h", 1 << 17) == data
            reads = [r for r in watch.read() if r.opcode == "read"]
            assert [(r.answered_by, r.reason) for r in reads] == [("daemon", "miss"), ("cache", "")]
            assert [(r.offset, r.size, r.ret) for r in reads] == [(0, 1 << 17, len(data))] * 2
            assert {r.pid for r in reads} == {os.getpid()}


@pytest.mark.parametrize("options", [PLAIN, ACCELERATED])
def test_trace_shows_the_caller_of_background_requests(
    mountpoint: Path, options: tuple[str, ...]
) -> None:
    with mounted(mountpoint, *options) as m, watching(m) as watch:
        found: list[Request] = []
        (m / "file").write_bytes(b"more")

        def released() -> list[Request]:
            found.extend(watch.read())
            return [r for r in found if r.opcode == "release"]

        (release,) = eventually(released)
        assert (release.answered_by, release.background, release.pid) == (
            "daemon",
            True,
            os.getpid(),
        )
        assert release.comm == Path("/proc/self/comm").read_text().strip()


@pytest.mark.parametrize("options", [PLAIN, ACCELERATED])
def test_lost_requests_are_counted(mountpoint: Path, options: tuple[str, ...]) -> None:
    with mounted(mountpoint, *options) as m, watching(m, ring_bytes=4000) as watch:
        for _ in range(40):
            os.statvfs(m)
        (kept, lost) = (len(list(watch.read())), watch.lost)
        assert kept + lost >= 40
        assert lost > 0
        assert kept > 0
        os.statvfs(m)
        assert [r.opcode for r in watch.read()] == ["statfs"]
        assert watch.lost == lost
    assert (watch.lost, list(watch.read())) == (lost, [])


@pytest.mark.parametrize("options", [PLAIN, ACCELERATED])
def test_two_watchers_see_only_the_requests_of_their_mount(
    mountpoint: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "other").mkdir()
    start_watching = tmp_path / "other" / "mnt"
    start_watching.mkdir()
    with (
        mounted(mountpoint, *options) as m,
        mounted(start_watching, *options) as n,
        watching(m) as one,
        watching(m) as other,
    ):
        for _ in range(3):
            os.statvfs(n)
        os.statvfs(m)
        for watch in (one, other):
            assert [(r.opcode, r.connection) for r in watch.read()] == [
                ("statfs", find(m, fuse=True).connection)
            ]


def start_watching(*words: str | Path) -> Beside:
    """Start a command, and return after it has begun to watch."""
    before = set(libbpf.link_ids())
    made = Beside(*words)
    eventually(lambda: len(set(libbpf.link_ids()) - before) >= 2, "it watches")
    return made


def leaves_nothing(action: Callable[[], None]) -> None:
    links, programs = set(libbpf.link_ids()), set(libbpf.program_ids())
    action()
    eventually(lambda: set(libbpf.link_ids()) <= links, "links are gone")
    eventually(lambda: set(libbpf.program_ids()) <= programs, "programs are gone")


@pytest.mark.parametrize(
    ("number", "options"),
    [
        (signal.SIGINT, PLAIN),
        (signal.SIGTERM, ACCELERATED),
        (signal.SIGKILL, PLAIN),
        (signal.SIGKILL, ACCELERATED),
    ],
)
def test_trace_that_ends_by_a_signal_leaves_no_programs(
    mountpoint: Path, number: int, options: tuple[str, ...]
) -> None:
    with mounted(mountpoint, *options) as m:

        def trace() -> None:
            command = start_watching("trace", m)
            eventually(lambda: os.statvfs(m))
            status, _, err = command.end(number)
            assert (status, err) == ((-9, "") if number == signal.SIGKILL else (0, ""))

        leaves_nothing(trace)


def test_trace_prints_the_requests_before_ctrl_c(mountpoint: Path) -> None:
    with mounted(mountpoint, *PLAIN) as m:
        command = start_watching(
            "trace", "--json", "--opcode", "LOOKUP", "--errors", "--name", "g*", m
        )
        # The programs are loaded a moment before the mount is watched.
        lines: list[str] = []

        def told() -> bool:
            assert not (m / "gone").exists()
            assert not (m / "absent").exists()
            return bool(select_line(command, lines))

        eventually(told)
        status, out, err = command.end(signal.SIGINT)
        assert (status, err) == (0, "")
        objects = [json.loads(text) for text in (*lines, *out.splitlines())]
        assert {o["about"] for o in objects} == {"gone"}
        assert {(o["opcode"], o["answered_by"], o["error"]) for o in objects} == {
            ("lookup", "daemon", "ENOENT")
        }


def select_line(command: Beside, lines: list[str]) -> str:
    """Return a line that the command has printed, or an empty string."""
    if not select.select([command.out], [], [], 0)[0]:
        return ""
    lines.append(command.out.readline())
    return lines[-1]


def test_advice_counts_the_repeated_requests_of_plain_fuse(mountpoint: Path) -> None:
    with mounted(mountpoint, *PLAIN) as m, watching(m, digests=True) as watch:
        for _ in range(3):
            os.statvfs(m)
            os.readlink(m / "link")
            assert read(m / "file", 100) == b"data"
        (m.parent / "source" / "link").unlink()
        (m.parent / "source" / "link").symlink_to("else")
        os.readlink(m / "link")
        advisor = Advisor()
        for request in watch.read():
            advisor.add(request)
        found = advisor.advice(1).opcodes
        # Making and removing files elsewhere may change the reply to STATFS.
        assert (found["statfs"].requests, found["statfs"].repeats) == (3, 2)
        links = found["readlink"]
        assert links.requests == links.repeats + 1
        assert links.hits >= 2
        assert links.hits + links.changed == links.repeats
        assert 0 < links.saved_ns < links.daemon_ns
        reads = found["read"]
        assert (reads.same, reads.changed) == (reads.repeats, 0)


@pytest.mark.parametrize("options", [PLAIN, ACCELERATED])
def test_advise_prints_a_table_and_a_sentence(mountpoint: Path, options: tuple[str, ...]) -> None:
    with mounted(mountpoint, *options) as m:
        command = start_watching("advise", "--seconds", "600", m)

        def ask() -> bool:
            for _ in range(5):
                os.statvfs(m)
            return True

        eventually(ask)
        status, out, err = command.end(signal.SIGINT)
        assert (status, err) == (0, "")
        assert out.startswith(f"{m}  {'fuse' if options == PLAIN else 'efuse'}  watched for")
        assert "OPCODE" in out
        assert (
            "In exclusive mode eFuse would have answered" in out or "No requests were made" in out
        )


@pytest.mark.parametrize("words", [("trace",), ("advise", "--seconds", "1")])
def test_trace_without_root_fails(mountpoint: Path, words: tuple[str, ...]) -> None:
    with mounted(mountpoint, *PLAIN) as m:
        output = run_output(*AS_NOBODY, *EFUSE, *words, m, status=1)
        assert "EPERM" in output
        assert "try: run as root" in output
