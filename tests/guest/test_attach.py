# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test attaching, replacing, pinning and detaching program sets."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse import bpf
from efuse.bpf.attach import unpin
from efuse.bpf.members import MEMBERS, REQUEST_MEMBERS
from efuse.errors import AttachError, MountError, UsageError
from efuse.fs.acceleration import accelerate, compile_set
from efuse.fs.options import CAPACITY_MAPS, Options
from efuse.fs.overriding import Shortcuts
from tests.guest.support.set_names import Latin1, do_not_check
from tests.guest.support.tiny_fs import FIRST, Tiny, content, getattr_from_daemon, serve, xattr

COUNTER = """#include "efuse.bpf.h"
BPF_ARRAY(own, u64, 4);

int write(struct efuse_req *req)
{
	return 0;
}
"""
MAXIMAL = '#include "efuse.bpf.h"\n' + "".join(
    f"int {member}(void *argument)\n{{\n\treturn 0;\n}}\n" for member in MEMBERS
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    with serve(tmp_path_factory.mktemp("attach") / "mnt", timeout_s=1000) as mounted:
        mounted.write("stable_nodeids", "1")
        yield mounted


@pytest.fixture(autouse=True)
def _nothing_known(tiny: Tiny) -> None:
    tiny.forget()


def read_xattr(tiny: Tiny, number: int = 1) -> None:
    path = tiny.path / f"f{number}"
    assert os.getxattr(path, "user.tiny") == xattr(FIRST + number)


def test_attach_answers_in_the_kernel(tiny: Tiny) -> None:
    assert tiny.read("state") == "plain"
    with bpf.attach(tiny.connection):
        assert tiny.read("state") == "attached"
        assert tiny.read("ops") == "efuse"
        read_xattr(tiny)
        daemon = tiny.count("getxattr", "daemon")
        hits = tiny.count("getxattr", "hits")
        for _ in range(10):
            read_xattr(tiny)
        assert tiny.count("getxattr", "daemon") == daemon
        assert tiny.count("getxattr", "hits") == hits + 10
    assert tiny.read("state") == "plain"
    assert tiny.read("ops") == "none"


def test_promises_go_to_no_connection_but_that_of_the_intended_mount(tiny: Tiny) -> None:
    """A connection that ends leaves its number to the next one."""

    def is_another() -> None:
        raise MountError("the mount is gone")

    used = Shortcuts(Options(consistency="exclusive", caller_independent=True))
    programs = compile_set(used, {})
    names = ("consistency", "caller_independent", "epoch")
    before = [tiny.read(name) for name in names]
    with pytest.raises(MountError, match="the mount is gone"):
        accelerate(tiny.connection, used, programs, check=is_another)
    assert [tiny.read(name) for name in names] == before
    assert tiny.read("state") == "plain"
    assert "exclusive" not in before


def test_absent_xattr_is_answered_in_the_kernel(tiny: Tiny) -> None:
    with bpf.attach(tiny.connection):
        for _ in range(3):
            with pytest.raises(OSError, match="No data available"):
                os.getxattr(tiny.path / "f2", "user.none")
        hits = tiny.count("getxattr", "hits")
        with pytest.raises(OSError, match="No data available") as caught:
            os.getxattr(tiny.path / "f2", "user.none")
        assert caught.value.errno == errno.ENODATA
        assert tiny.count("getxattr", "hits") == hits + 1


def test_attributes_are_answered_in_the_kernel(tiny: Tiny) -> None:
    # No other source knows better than the kernel, so even AT_STATX_FORCE_SYNC gets its answer.
    tiny.write("consistency", "exclusive")
    try:
        with bpf.attach(tiny.connection):
            path = tiny.path / "f3"
            getattr_from_daemon(path)
            daemon, hits = (tiny.count("getattr", c) for c in ("daemon", "hits"))
            for _ in range(5):
                getattr_from_daemon(path)
                assert os.stat(path).st_size == len(content(FIRST + 3))
            assert tiny.count("getattr", "daemon") == daemon
            assert tiny.count("getattr", "hits") >= hits + 5
    finally:
        tiny.write("consistency", "ttl")


def test_requests_go_to_the_daemon_after_detach(tiny: Tiny) -> None:
    with bpf.attach(tiny.connection):
        read_xattr(tiny)
    hits = tiny.count("getxattr", "hits")
    read_xattr(tiny)
    assert tiny.count("getxattr", "hits") == hits
    assert tiny.read("exit_info").split()[0] == "unregister"


def test_attach_counts_in_enable_seq(tiny: Tiny) -> None:
    before = int(tiny.read("enable_seq"))
    with bpf.attach(tiny.connection) as attachment:
        attachment.replace()
    assert int(tiny.read("enable_seq")) == before + 2


def test_set_without_members_attaches(tiny: Tiny) -> None:
    with bpf.attach(tiny.connection, spec=bpf.Spec({}, {}), name="minimal"):
        assert tiny.read("ops") == "minimal"
        read_xattr(tiny)
        assert tiny.count("getxattr", "no_handler") > 0


def test_set_with_all_members_attaches(tiny: Tiny) -> None:
    handlers = dict.fromkeys(MEMBERS, MAXIMAL)
    with bpf.attach(tiny.connection, handlers, with_builtin=False, name="maximal"):
        missed = tiny.count("getxattr", "miss")
        read_xattr(tiny)
        assert tiny.count("getxattr", "miss") > missed
        assert (tiny.path / "f1").read_bytes() == content(FIRST + 1)
        assert os.statvfs(tiny.path).f_blocks == 1000
    assert not bpf.list_attached()


def test_attach_to_unknown_connection_fails(tiny: Tiny) -> None:
    with pytest.raises(AttachError, match="ENOENT"):
        bpf.attach(1_000_000)


def test_attach_twice_fails(tiny: Tiny) -> None:
    with (
        bpf.attach(tiny.connection, name="first"),
        pytest.raises(AttachError, match="EBUSY"),
    ):
        bpf.attach(tiny.connection)
    assert tiny.read("ops") == "none"


@pytest.mark.parametrize("name", ["", "x" * 32, "two words", "line\nbreak"])
def test_attach_under_a_bad_name_fails(tiny: Tiny, name: str) -> None:
    with pytest.raises(UsageError):
        bpf.attach(tiny.connection, name=name)


def test_replace_keeps_the_learned_values(tiny: Tiny) -> None:
    with bpf.attach(tiny.connection, name="one") as attachment:
        read_xattr(tiny)
        assert len(attachment.maps["blobs"]) >= 1
        attachment.replace(name="two")
        assert tiny.read("ops") == "two"
        daemon = tiny.count("getxattr", "daemon")
        read_xattr(tiny)
        assert tiny.count("getxattr", "daemon") == daemon
        assert tiny.read("exit_info").split()[0] == "replace"


def test_maps_have_their_default_capacities(tiny: Tiny) -> None:
    """Most tests attach smaller maps, which are made faster."""
    defaults = {"entries": 65536, "attrs": 65536, "blobs": 8192, "grants": 16384, "files": 4096}
    defaults |= {"blocks": 4096, "tags": 512, "ghosts": 16384}
    with bpf.attach(tiny.connection) as attachment:
        found = {name: attachment.maps[name].definition.max_entries for name in defaults}
    assert found == defaults


def test_replace_with_another_capacity_starts_with_empty_maps(tiny: Tiny) -> None:
    with bpf.attach(tiny.connection, capacity={"blobs": 100}) as attachment:
        read_xattr(tiny)
        attachment.replace(capacity={"blobs": 200})
        assert attachment.maps["blobs"].definition.max_entries == 200
        assert len(attachment.maps["blobs"]) == 0
        attachment.replace()
        assert attachment.maps["blobs"].definition.max_entries == 200


def test_replace_that_is_refused_leaves_the_old_set(tiny: Tiny) -> None:
    with bpf.attach(tiny.connection, name="old") as attachment:
        with pytest.raises(UsageError):
            attachment.replace(name="not a name")
        assert tiny.read("ops") == "old"
        read_xattr(tiny)
        read_xattr(tiny)
        assert tiny.count("getxattr", "hits") > 0


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a\nb", "\u00fc", Latin1("\u00fc"), "a" * 32])
def test_kernel_refuses_the_name_of_a_set_that_is_not_valid(
    monkeypatch: pytest.MonkeyPatch, tiny: Tiny, name: str
) -> None:
    """Without the toolkit's own check. Sysfs shows the name in a line."""
    do_not_check(monkeypatch)
    with pytest.raises(AttachError, match=r"cannot make a program set: .*EINVAL"):
        bpf.attach(tiny.connection, {"write": COUNTER}, name=name, with_builtin=False)
    assert tiny.read("ops") == "none"


def test_pinned_set_outlives_its_attachment(tiny: Tiny) -> None:
    with bpf.attach(tiny.connection, name="pinned") as attachment:
        directory = attachment.pin()
        read_xattr(tiny)
    try:
        assert tiny.read("ops") == "pinned"
        with bpf.Attachment.open_pinned(directory) as again:
            assert again.connection == tiny.connection
            assert again.name == "pinned"
            key = bpf.XattrKey(FIRST + 1, 22, b"user.tiny")
            assert again.maps["blobs"][key].data == xattr(FIRST + 1)
        assert tiny.read("ops") == "pinned"
        bpf.Attachment.open(tiny.connection).detach()
        assert tiny.read("ops") == "none"
        assert not directory.exists()
    finally:
        unpin(directory)


def test_replace_moves_the_pins(tiny: Tiny) -> None:
    with bpf.attach(tiny.connection, {"write": COUNTER}) as attachment:
        directory = attachment.pin()
        assert (directory / "own").exists()
        attachment.replace()
        assert not (directory / "own").exists()
        assert (directory / "attrs").exists()
        attachment.detach()
    assert not directory.exists()


def test_pin_into_a_used_directory_fails(tiny: Tiny) -> None:
    with bpf.attach(tiny.connection) as attachment:
        directory = attachment.pin()
        with pytest.raises(AttachError, match="EEXIST"):
            attachment.pin(directory)
        attachment.detach()


def test_open_pinned_of_nothing_fails(tmp_path: Path) -> None:
    with pytest.raises(AttachError):
        bpf.Attachment.open_pinned(tmp_path)


def test_list_attached_names_the_set(tiny: Tiny) -> None:
    with bpf.attach(tiny.connection, name="listed"):
        (found,) = (a for a in bpf.list_attached() if a.connection == tiny.connection)
        assert found.name == "listed"
        others = {"reply", "learn", "block", "select_path", "path_done", "written", "notify"}
        assert {"lookup", "learn"} <= set(found.members) <= {*REQUEST_MEMBERS, *others}
        beside = ("files", "geometry", "ghosts", "profiles", "tags")
        told = ("events", "listening", "lost")
        assert found.maps == tuple(sorted((*CAPACITY_MAPS, *beside, *told)))


def test_answers_are_right_during_a_reload_loop(tiny: Tiny) -> None:
    """While program sets are attached, replaced and detached, several tasks read right answers."""
    ended = threading.Event()
    failures: list[BaseException] = []
    answers = [0] * 3

    def load(task: int) -> None:
        try:
            while not ended.is_set():
                number = answers[task] % 20
                path = tiny.path / f"f{number}"
                assert os.getxattr(path, "user.tiny") == xattr(FIRST + number)
                assert path.read_bytes() == content(FIRST + number)
                answers[task] += 1
        except (AssertionError, OSError) as error:
            failures.append(error)

    tasks = [threading.Thread(target=load, args=(i,)) for i in range(len(answers))]
    for task in tasks:
        task.start()
    try:
        for _ in range(6):
            with bpf.attach(tiny.connection, capacity={"entries": 1000, "attrs": 1000}) as a:
                for _ in range(2):
                    a.replace()
    finally:
        ended.set()
        for task in tasks:
            task.join(120)
    assert not failures
    assert all(answers)
    assert tiny.read("ops") == "none"


def test_unmount_detaches_the_set(tmp_path: Path) -> None:
    with serve(tmp_path / "mnt", timeout_s=1000) as other:
        attachment = bpf.attach(other.connection)
    with attachment, pytest.raises(AttachError):
        attachment.replace()
