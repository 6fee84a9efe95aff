# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run the transcripts and the code fragments of the documents on eFuse."""

from __future__ import annotations

import ast
import dataclasses
import os
import random
import re
import shlex
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pyfuse3
import pytest
import trio
import trio.testing

import efuse
import efuse.bpf
from efuse import functions
from efuse.control import Connection
from efuse.module import live
from tests.documents import ROOT, Block, named, runs
from tests.examples import make_tree
from tests.guest.support.csd_device import Device
from tests.transcripts import World

_RUNS = runs("guest")
_ENDLESS = (".venv/bin/efuse top", "efuse exporter")


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with World() as made:
        yield made


# Transcripts


def _data(world: World) -> None:
    if not world.path("/srv/data").exists():
        make_tree(world.made("/srv/data"))
    world.made("/mnt/data")


def _install(world: World) -> None:
    _data(world)
    (world.made("/opt/efuse/bin") / "mount.efuse").symlink_to(ROOT / ".venv/bin/mount.efuse")


def _storage_functions(world: World) -> None:
    lines = "".join(f"2026-01-01 12:00:00 install number:{n}\n" for n in range(6000))
    (world.made("/var/log") / "dpkg.log").write_text(lines)


def _monitoring(world: World) -> None:
    world.made("/var/lib/node_exporter")


_PREPARED: dict[str, Callable[[World], None]] = {
    "docs/install.md": _install,
    "docs/monitoring.md": _monitoring,
    "docs/storage-functions.md": _storage_functions,
    "docs/writing-a-file-system.md": _data,
}
# Commands that undo changes outside of the test's own directories.
_AFTER = {
    "README.md": "umount /mnt",
    "docs/writing-a-file-system.md": "umount /mnt/data",
    "docs/storage-functions.md": "umount /mnt; efuse csd remove one; efuse csd remove fast",
}


@pytest.mark.parametrize("document", _RUNS)
def test_commands_of_the_documents_print_what_they_show(
    document: str, world: World, module_file: Path
) -> None:
    _PREPARED.get(document, lambda _: None)(world)
    world.type(f"cd {shlex.quote(str(ROOT))}")
    for block in _RUNS[document]:
        world.play(block.text, endless=_ENDLESS)
    world.type(_AFTER.get(document, "true"))
    if not live.loaded():
        live.load(module_file)


_HANDLER, _ITS_USE = named(
    "test", "tests/guest/test_documents.py::test_smallest_handler_of_the_document_works"
)
SMALLEST = _HANDLER.text


def test_smallest_handler_of_the_document_works(world: World) -> None:
    world.made("/mnt/hello")
    world.type("python docs/examples/hello.py /mnt/hello &")  # It ends when it is unmounted.
    world.path(f"{ROOT}/none.c").write_text(SMALLEST)
    world.play(_ITS_USE.text)
    # The handler is detached again, and the daemon implements no getxattr.
    assert "Operation not supported" in world.type(
        "getfattr -n user.x /mnt/hello/message", fails=True
    )
    world.type("umount /mnt/hello; wait")


# Code fragments

DATA = random.Random(0).randbytes(8 << 20)
_T = TypeVar("_T")


async def _execute(block: Block, names: dict[str, Any]) -> None:
    code = compile(block.text, str(block), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)
    if result is not None:
        await result


class Fragments(efuse.Passthrough):
    """A file system with the methods that the fragments assume. It keeps the results of calls."""

    efuse_options = efuse.Options(consistency="exclusive", capacity={"blocks": 1024})
    inode: int

    def __init__(self, source: Path) -> None:
        super().__init__(str(source))
        self.taken: list[Any] = []

    async def catalog(self) -> list[tuple[bytes, int]]:
        return [(b"f", self.inode)]

    async def fetch(self, inode: int, offset: int, length: int) -> bytes:
        return DATA[offset : offset + length]

    def publish_entries(self, *args: Any, **more: Any) -> int:
        return self._taken(super().publish_entries(*args, **more))

    def publish_data(self, *args: Any, **more: Any) -> int:
        return self._taken(super().publish_data(*args, **more))

    def backing(self, *args: Any, **more: Any) -> bool:
        return self._taken(super().backing(*args, **more))

    def _taken(self, value: _T) -> _T:
        self.taken.append(value)
        return value

    async def execute(self, block: Block, **names: Any) -> None:
        """Execute a fragment from within a method."""
        self.taken.clear()
        here = {"efuse": efuse, "self": self, "inode": self.inode, "parent": pyfuse3.ROOT_INODE}
        await _execute(block, {**here, "name": b"f", **names})


_Act = Callable[[Fragments, Path], Awaitable[None]]


@pytest.fixture
def serving(lower: Path, mountpoint: Path) -> Callable[[_Act], None]:
    """Return ``serving(act)``, which serves `Fragments` over a file ``f`` while *act* runs."""
    (lower / "f").write_bytes(DATA)

    async def main(act: _Act) -> None:
        operations = Fragments(lower)
        async with trio.open_nursery() as nursery:
            state = await nursery.start(efuse.serve, operations, str(mountpoint))
            assert state.accelerated, state.reason
            file = mountpoint / "f"
            operations.inode = (await trio.to_thread.run_sync(os.stat, file)).st_ino
            await act(operations, file)
            nursery.cancel_scope.cancel()

    return lambda act: trio.run(main, act)


Serving = Callable[[_Act], None]


def test_documented_invalidate_fragment_voids_what_was_learned(serving: Serving) -> None:
    (block,) = named("python", "invalidate")

    async def act(operations: Fragments, file: Path) -> None:
        connection = Connection.at(file.parent)
        before = connection.epoch
        await operations.execute(block)
        assert connection.epoch > before
        assert (await trio.to_thread.run_sync(os.stat, file)).st_size == len(DATA)

    serving(act)


def test_documented_publish_entries_fragment_publishes_an_entry(serving: Serving) -> None:
    (block,) = named("python", "publish_entries")

    async def act(operations: Fragments, _file: Path) -> None:
        await operations.execute(block)
        assert operations.taken == [1]

    serving(act)


def test_documented_publish_data_fragment_publishes_blocks(serving: Serving) -> None:
    (block,) = named("python", "publish_data")

    async def act(operations: Fragments, _file: Path) -> None:
        await operations.execute(block)
        assert operations.taken[0] > 0

    serving(act)


def test_documented_backing_fragment_serves_the_backing_file(serving: Serving, lower: Path) -> None:
    (block,) = named("python", "backing")

    async def act(operations: Fragments, file: Path) -> None:
        fd = os.open(lower / "f", os.O_RDWR)
        try:
            await operations.execute(block, fd=fd)
        finally:
            os.close(fd)
        assert operations.taken == [True, True, True]
        assert await trio.to_thread.run_sync(file.read_bytes) == DATA

    serving(act)


def test_documented_state_fragment_prints_what_it_shows(serving: Serving) -> None:
    (block,) = named("python", "state")

    async def act(operations: Fragments, _file: Path) -> None:
        await operations.execute(block)
        output = {
            line.partition("  #")[0]: eval(line, {"self": operations})
            for line in block.text.splitlines()
        }
        assert output["self.efuse.accelerated"] is True
        assert output["self.efuse.reason"] == ""
        assert output["self.efuse.statistics()"].requests
        assert "entries" in output["self.efuse.maps"]

    serving(act)


def test_documented_events_fragment_ends_with_the_mount(serving: Serving) -> None:
    """The loop ends when the file system is unmounted."""
    (block,) = named("python", "events")

    async def act(operations: Fragments, file: Path) -> None:
        ended = trio.Event()

        async def listen() -> None:
            await operations.execute(block)
            ended.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            await trio.testing.wait_all_tasks_blocked()
            await operations.invalidate(operations.inode)
            await trio.run_process(["umount", str(file.parent)])
            with trio.fail_after(60):
                await ended.wait()

    serving(act)


def test_documented_listener_fragment_prints_events(
    serving: Serving, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = named("python", "listener")

    async def act(operations: Fragments, file: Path) -> None:
        connection = Connection.at(file.parent)

        def change() -> None:
            with efuse.bpf.Attachment.open(connection.id) as attachment:
                while not attachment.maps["listening"][0]:
                    threading.Event().wait(0.01)
            file.write_bytes(b"changed")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, change)
            names = {"efuse": efuse, "connection": connection.id}
            await trio.to_thread.run_sync(exec, block.text, names)

    serving(act)
    assert "EventKind" in capsys.readouterr().out


# Fragments with storage functions


@pytest.fixture
def log(files: Path) -> Path:
    path = files / "log"
    path.write_bytes(b"an error\nall is well\n" * 1000)
    return path


def _at(path: Path, block: Block) -> str:
    """Return the text of a fragment with *path* instead of a file below /mnt."""
    return re.sub(r'"/mnt/\w+"', repr(str(path)), block.text)


def test_documented_count_fragment_counts_lines(
    log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = named("python", "count")
    exec(_at(log, block), {})
    assert "lines=2000, matches=1000" in capsys.readouterr().out


def test_documented_btree_fragment_finds_a_value(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = named("python", "btree")
    items = {key: (b"value of %d" % key).ljust(64) for key in range(0, 9000, 3)}
    text = block.text.replace("4711", "4713")
    names = {"Path": Path, "functions": functions, "items": items}
    exec(_at(files / "index", dataclasses.replace(block, text=text)), names)
    assert "value of 4713" in capsys.readouterr().out


def test_documented_policy_fragment_sets_a_policy(device: Device) -> None:
    (block,) = named("python", "policy")
    assert device.read("chosen_policy") == 0
    exec(block.text, {"functions": functions})
