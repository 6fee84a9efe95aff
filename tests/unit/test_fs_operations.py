# SPDX-License-Identifier: LGPL-2.1-or-later
"""The base class without a mount, and the layer between it and the kernel."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pyfuse3
import pytest
import trio

import efuse
from efuse.bpf import Attachment, Entry, EntryKey, PublishedBlocks, Stamp
from efuse.bpf.values import FOR_IDS, caller_of
from efuse.control import Connection
from efuse.errors import MountError, UsageError
from efuse.fs import background, state
from efuse.fs.acceleration import Acceleration, declare
from efuse.fs.guard import HANDLERS, Guard


class _Map:
    """A map that takes everything."""

    def __init__(self) -> None:
        self.stored: dict[Any, Any] = {}

    def write_all(self, items: Iterable[tuple[Any, Any]]) -> int:
        found = dict(items)
        self.stored |= found
        return len(found)


class _EfuseMount:
    """A fake of the connection and the attachment of an eFuse mount."""

    id = 7
    epoch = 99

    def __init__(self) -> None:
        self.entries, self.attrs = _Map(), _Map()
        self.maps = {"entries": self.entries, "attrs": self.attrs}
        self.invalidations = 0

    def invalidate(self) -> None:
        self.invalidations += 1


def _accelerated() -> tuple[efuse.Operations, _EfuseMount]:
    operations, fake = efuse.Operations(), _EfuseMount()
    operations.efuse.acceleration = Acceleration(cast(Connection, fake), cast(Attachment, fake))
    return operations, fake


def _entry(name: bytes = b"n", inode: int = 5) -> efuse.PublishedEntry:
    attributes = pyfuse3.EntryAttributes()
    attributes.st_ino = inode
    attributes.st_size = 77
    attributes.st_mtime_ns = 1_500_000_000_000_000_001
    attributes.entry_timeout = 2.5
    attributes.attr_timeout = 0.5
    return efuse.PublishedEntry(1, name, attributes)


def test_state_before_the_mount_is_plain() -> None:
    operations = efuse.Operations()
    assert operations.efuse is operations.efuse
    assert not operations.efuse.accelerated
    assert operations.efuse.reason == "it is not mounted"
    assert operations.efuse.connection is None
    assert dict(operations.efuse.maps) == {}
    assert operations.efuse.epoch() == 0


def test_state_needs_no_call_of_the_base_class_constructor() -> None:
    class Forgetful(efuse.Operations):
        def __init__(self) -> None:
            self.ready = True

    assert not Forgetful().efuse.accelerated


def test_statistics_are_a_copy() -> None:
    one = state.State()
    before = one.statistics()
    one.count_request("lookup")
    one.count_request("lookup")
    one.count_error("lookup")
    after = one.statistics()
    assert (before.requests_total, after.requests_total) == (0, 2)
    assert (after.requests, after.errors_total) == ({"lookup": 2}, 1)


def test_publishing_on_plain_fuse_takes_nothing() -> None:
    assert efuse.Operations().publish_entries([_entry()]) == 0


@pytest.mark.parametrize("name", [b"", b"a/b", b"a\0b", b"n" * 256])
def test_publishing_an_impossible_name_fails(name: bytes) -> None:
    with pytest.raises(UsageError, match="cannot have the name"):
        efuse.Operations().publish_entries([_entry(name)])


def test_publishing_stores_the_values_of_the_reply(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic_ns", lambda: 1_000)
    operations, mount = _accelerated()
    assert operations.efuse.accelerated
    assert operations.publish_entries([_entry(), _entry(b"absent", 0)]) == 2
    of_entry = Stamp(99, 2_500_001_000, 0, FOR_IDS)
    assert mount.entries.stored == {
        EntryKey(1, b"n"): Entry(5, 0, of_entry),
        EntryKey(1, b"absent"): Entry(0, 0, of_entry),
    }
    (nodeid,) = mount.attrs.stored
    attributes = mount.attrs.stored[nodeid]
    assert (nodeid, attributes.st_ino, attributes.st_size) == (5, 5, 77)
    assert attributes.st_mtime_ns == 1_500_000_000_000_000_001
    assert attributes.stamp == Stamp(99, 500_001_000, 0, FOR_IDS)


def test_publishing_passes_the_epoch_and_the_caller() -> None:
    operations, mount = _accelerated()
    assert operations.publish_entries([_entry()], epoch=5, uid=1, gid=2) == 1
    for stored in (mount.entries.stored[EntryKey(1, b"n")], mount.attrs.stored[5]):
        assert (stored.stamp.epoch, stored.stamp.caller) == (5, caller_of(1, 2))


def test_published_data_on_plain_fuse_takes_nothing() -> None:
    assert efuse.Operations().publish_data(5, 0, bytes(4096), epoch=0) == 0


def test_published_data_on_plain_fuse_needs_no_bpf() -> None:
    script = (
        "import sys, efuse; efuse.Operations().publish_data(5, 0, bytes(4096), epoch=0);"
        "sys.exit('efuse.bpf' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


@pytest.mark.parametrize(
    ("inode", "offset", "size", "end"),
    [(0, 0, 4096, False), (5, 1, 4096, False), (5, -4096, 4096, False), (5, 0, 4095, False)],
)
def test_publish_of_an_incomplete_block_fails(
    inode: int, offset: int, size: int, end: bool
) -> None:
    with pytest.raises(UsageError, match="EINVAL"):
        efuse.Operations().publish_data(inode, offset, bytes(size), epoch=0, end=end)


def test_published_data_is_handed_over_with_its_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    operations, mount = _accelerated()
    published = []

    class Cache:
        def __init__(self, maps: Mapping[str, Any]) -> None:
            assert maps is mount.maps

        def publish(self, *data: Any, **valid: Any) -> PublishedBlocks:
            published.append((data, valid))
            return PublishedBlocks(1, 0, 0)

    monkeypatch.setattr("efuse.bpf.DataCache", Cache)
    assert operations.publish_data(5, 4096, b"end", epoch=77, end=True) == 1
    valid = {"epoch": 77, "valid_ns": 0, "end": True}
    assert published == [((5, 4096, b"end"), valid)]
    with pytest.raises(TypeError, match="epoch"):
        operations.publish_data(5, 0, bytes(4096))  # type: ignore[call-arg]


def test_invalidating_everything_voids_all_that_was_learned() -> None:
    trio.run(efuse.Operations().invalidate)
    operations, mount = _accelerated()
    trio.run(operations.invalidate)
    assert mount.invalidations == 1


def test_invalidating_half_an_entry_fails() -> None:
    async def half() -> None:
        await efuse.Operations().invalidate(parent=1)

    with pytest.raises(UsageError, match="both its parent and its name"):
        trio.run(half)


def test_declarations_are_written_before_anything_is_answered() -> None:
    connection = SimpleNamespace(max_request=0)
    options = efuse.Options(consistency="cto", no_open=True, max_request=1 << 20)
    declare(cast(Connection, connection), options)
    assert vars(connection) == {
        "consistency": "cto",
        "stable_nodeids": False,
        "nodeid_per_file": False,
        "caller_independent": False,
        "no_open": True,
        "no_flush": False,
        "lazy_atime": False,
        "lazy_open": False,
        "revalidate": True,
        "max_request": 1 << 20,
        "max_readdir": 32 << 10,
    }


def test_larger_request_size_of_the_connection_is_kept() -> None:
    connection = SimpleNamespace(max_request=8 << 20)
    declare(cast(Connection, connection), efuse.Options(max_request=1 << 20))
    assert connection.max_request == 8 << 20


class _Answers(pyfuse3.Operations):
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def getattr(self, inode: int, ctx: Any = None) -> Any:
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


def _through_guard(answer: Any) -> tuple[Any, dict[str, int]]:
    counters = state.State()
    guard = Guard(_Answers(answer), failed=counters.count_error, called=counters.count_request)
    try:
        return trio.run(guard.getattr, 1, None), dict(counters.statistics().errors)
    except pyfuse3.FUSEError as error:
        return error.errno, dict(counters.statistics().errors)


def test_guard_lets_a_right_answer_through() -> None:
    answer = pyfuse3.EntryAttributes()
    assert _through_guard(answer) == (answer, {})


@pytest.mark.parametrize("answer", [None, 5, ValueError("x"), OSError(errno.ENOENT, "x")])
def test_guard_turns_a_mistake_into_eio(answer: Any) -> None:
    assert _through_guard(answer) == (errno.EIO, {"getattr": 1})


def test_guard_lets_fuse_errors_and_interruptions_through() -> None:
    for number in (errno.EDOM, 511):
        assert _through_guard(pyfuse3.FUSEError(number)) == (number, {})
    with pytest.raises(KeyboardInterrupt):
        _through_guard(KeyboardInterrupt())


@pytest.mark.parametrize(
    ("number", "meant"),
    [(-2, errno.EIO), (512, errno.EIO), (524, errno.EOPNOTSUPP), (999, errno.EIO)],
)
def test_guard_replaces_an_unknown_errno(
    number: int, meant: int, caplog: pytest.LogCaptureFixture
) -> None:
    counters = state.State()
    guard = Guard(
        _Answers(pyfuse3.FUSEError(number)),
        failed=counters.count_error,
        called=counters.count_request,
    )
    for _ in range(3):
        with pytest.raises(pyfuse3.FUSEError) as raised:
            trio.run(guard.getattr, 1, None)
        assert raised.value.errno == meant
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert errno.errorcode[meant] in caplog.text


def test_guard_logs_a_traceback_once(caplog: pytest.LogCaptureFixture) -> None:
    counters = state.State()
    guard = Guard(
        _Answers(ValueError("x")), failed=counters.count_error, called=counters.count_request
    )
    for _ in range(3):
        with pytest.raises(pyfuse3.FUSEError):
            trio.run(guard.getattr, 1, None)
    assert ["Traceback" in record.getMessage() for record in caplog.records] == [True, False, False]
    assert {record.levelno for record in caplog.records} == {logging.ERROR}


def test_guard_escapes_names_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """The error of a handler contains the name for which a caller asked."""
    counters = state.State()
    error = ValueError("no x\x1b[31m\udcff\nefuse: forged")
    guard = Guard(_Answers(error), failed=counters.count_error, called=counters.count_request)
    with pytest.raises(pyfuse3.FUSEError):
        trio.run(guard.getattr, 1, None)
    (output,) = [caplog.handler.format(record) for record in caplog.records]
    assert "Traceback" in output
    assert "\x1b" not in output
    assert "\udcff" not in output
    assert [line for line in output.split("\n")[1:] if not line.startswith("    ")] == []


def test_guard_knows_every_handler_of_pyfuse3() -> None:
    own = {"init", "stacktrace", "forget"}
    names = {name for name in vars(pyfuse3.Operations) if not name.startswith("_")} - own
    handlers = {name for name in names if callable(getattr(pyfuse3.Operations, name))}
    assert handlers - {"poll"} <= set(HANDLERS)


def test_guard_is_transparent_for_settings() -> None:
    class Writeback(_Answers):
        enable_writeback_cache = True

    guard = Guard(Writeback(None), failed=print, called=print)
    assert guard.enable_writeback_cache is True
    assert guard.supports_dot_lookup is pyfuse3.Operations.supports_dot_lookup


@pytest.mark.parametrize("output", [errno.EOPNOTSUPP, 524])  # ENOTSUPP, from some file systems
@pytest.mark.parametrize("name", [b"system.posix_acl_access", b"system.posix_acl_default"])
def test_file_system_without_access_lists_has_empty_ones(name: bytes, output: int) -> None:
    """A kernel that checks access lists would refuse every caller after EOPNOTSUPP."""

    class Without(efuse.Operations):
        async def getxattr(self, inode: int, name: bytes, ctx: Any) -> bytes:
            raise pyfuse3.FUSEError(output)

    guard: Any = Guard(Without(), failed=lambda name: None, called=lambda name: None)
    for asked, number in ((name, errno.ENODATA), (b"user.x", errno.EOPNOTSUPP)):
        with pytest.raises(pyfuse3.FUSEError) as caught:
            trio.run(guard.getxattr, 1, asked, None)
        assert caught.value.errno == number


def test_error_of_a_background_process_is_printed_for_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its parent has been told that the file system is mounted, and has continued."""
    receive, send = os.pipe()
    parent = background._Parent(send, daemonize=False)
    parent.started()
    os.close(receive)
    parent.failed(MountError("/x\x1b[31m\udcff cannot be unmounted"))
    assert capsys.readouterr().err == "efuse: /x\\x1b[31m\\xff cannot be unmounted\n"
