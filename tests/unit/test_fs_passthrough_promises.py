# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a pass-through takes back of its promises, and when."""

from __future__ import annotations

import errno
import itertools
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from pyfuse3 import FUSEError, RequestContext

import efuse
from efuse.control.mounts import Mount, parse
from efuse.errors import ControlError
from efuse.fs.acceleration import Acceleration
from efuse.fs.overriding import shortcuts
from efuse.fs.passthrough import mounts as mounts_module
from efuse.fs.passthrough.syscalls import status
from tests.descriptors import no_descriptor_left

ROOT = 1
_CTX = cast(RequestContext, None)
NOTHING = {"consistency": "ttl", "nodeid_per_file": False, "no_open": False}
Row = tuple[str, str, Path]


class Kernel:
    """What the kernel believes; it refuses the first *failures* changes."""

    def __init__(self, failures: int = 0) -> None:
        self.believes: dict[str, Any] = {}
        self.failures = failures
        self.voided = 0

    def withdraw(self, changes: Mapping[str, Any]) -> None:
        self._fail()
        self.believes |= changes
        self._fail()
        self.voided += 1

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            raise ControlError("cannot write it: Too many open files (EMFILE)")


@pytest.fixture
def mounted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Say what the table of mounts has: ``mounted((type, device, path), ...)``.

    The first is what *tmp_path* lies on; None in its place: the table does not have that one.
    """

    def say(first: Row | None, *others: Row) -> None:
        directory = os.open(tmp_path, os.O_PATH)
        own = status(directory).mount
        os.close(directory)
        rows = [*([(own, first)] if first else []), *zip(itertools.count(10**9), others)]
        lines = [
            f"{number} 1 {device} / {path} rw - {fstype} x rw\n"
            for number, (fstype, device, path) in rows
        ]
        monkeypatch.setattr(mounts_module, "read_table", lambda fd: parse("".join(lines)))

    return say


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Callable[..., efuse.Passthrough]]:
    """Make a pass-through of *tmp_path* as if it were mounted on eFuse."""
    all_made: list[efuse.Passthrough] = []

    def make(kernel: Kernel) -> efuse.Passthrough:
        (tmp_path / "f").touch()
        fs = efuse.Passthrough(tmp_path, consistency="exclusive")
        all_made.append(fs)
        fs.efuse.shortcuts = shortcuts(fs.efuse_options, fs)
        fs.efuse.mount_options = frozenset({"default_permissions"})
        options = fs.efuse_options
        kernel.believes = {name: getattr(options, name) for name in NOTHING}
        fs.efuse.acceleration = cast(Acceleration, kernel)
        fs.init()
        return fs

    yield make
    for fs in all_made:
        fs.close()


def _look_up(fs: efuse.Passthrough) -> None:
    trio.run(fs.lookup, ROOT, b"f", _CTX)


@pytest.mark.parametrize("failures", [1, 2, 3])
def test_promise_that_could_not_be_taken_back_is_taken_back_by_a_later_request(
    tmp_path: Path,
    mounted: Callable[..., None],
    made: Callable[..., efuse.Passthrough],
    caplog: pytest.LogCaptureFixture,
    failures: int,
) -> None:
    """Until then no request brings the kernel another inode."""
    here = ("ext4", "0:49", tmp_path)
    mounted(here)
    kernel = Kernel()
    fs = made(kernel)
    _look_up(fs)
    assert kernel.believes == {**NOTHING, "consistency": "exclusive"} | {
        "nodeid_per_file": True,
        "no_open": True,
    }
    mounted(here, ("ext4", "0:49", tmp_path / "again"))
    fs._inodes.mounts.read()
    kernel.failures = failures
    before = fs.lookups
    for _ in range(failures):
        with pytest.raises(FUSEError) as caught:
            _look_up(fs)
        assert caught.value.errno == errno.EIO
    assert fs.lookups == before
    _look_up(fs)
    assert kernel.believes == {**NOTHING, "no_open": True}
    assert "cannot be withdrawn" in caplog.text


def test_promise_that_could_not_be_taken_back_at_the_mount_is_taken_back_by_a_request(
    tmp_path: Path, mounted: Callable[..., None], made: Callable[..., efuse.Passthrough]
) -> None:
    here = ("ext4", "0:49", tmp_path)
    mounted(here)
    kernel = Kernel()
    make = efuse.Passthrough.init

    def late(fs: efuse.Passthrough) -> None:
        mounted(here, ("ext4", "0:49", tmp_path / "again"))
        fs._inodes.mounts.read()
        kernel.failures = 1
        make(fs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(efuse.Passthrough, "init", late)
        fs = made(kernel)
    _look_up(fs)
    assert kernel.believes == {**NOTHING, "no_open": True}


@pytest.mark.parametrize(
    "fstype", ["fuse.bindfs", "fuse", "efuse", "virtiofs", "overlay", "ecryptfs", "nfs4", "9p"]
)
@pytest.mark.parametrize("where", ["below", "beside"])
def test_view_that_may_show_files_of_the_source_again_ends_promises(
    tmp_path: Path,
    mounted: Callable[..., None],
    made: Callable[..., efuse.Passthrough],
    fstype: str,
    where: str,
) -> None:
    place = tmp_path / "view" if where == "below" else tmp_path.parent / "view"
    mounted(("ext4", "0:49", tmp_path), (fstype, "0:50", place))
    fs = made(Kernel())
    options = fs.efuse_options
    assert options.no_open is (where == "beside")
    assert options.nodeid_per_file is (where == "beside")
    assert options.consistency == ("exclusive" if where == "beside" else "ttl")


@pytest.mark.parametrize("fstype", ["fuse.bindfs", "overlay"])
def test_view_without_another_mount_below_it_keeps_its_promises(
    tmp_path: Path,
    mounted: Callable[..., None],
    made: Callable[..., efuse.Passthrough],
    fstype: str,
) -> None:
    mounted((fstype, "0:49", tmp_path))
    fs = made(Kernel())
    assert fs.efuse_options.consistency == "exclusive"
    assert fs.efuse_options.no_open
    assert not fs.efuse_options.nodeid_per_file


def test_file_system_below_a_view_ends_promises(
    tmp_path: Path, mounted: Callable[..., None], made: Callable[..., efuse.Passthrough]
) -> None:
    """It may hold what the view shows."""
    mounted(("overlay", "0:49", tmp_path), ("ext4", "0:50", tmp_path / "upper"))
    assert made(Kernel()).efuse_options.consistency == "ttl"


def test_mount_that_is_in_no_table_gets_no_promise(
    tmp_path: Path,
    mounted: Callable[..., None],
    made: Callable[..., efuse.Passthrough],
    caplog: pytest.LogCaptureFixture,
) -> None:
    mounted(None, ("ext4", "0:50", tmp_path / "below"))
    fs = made(Kernel())
    assert {name: getattr(fs.efuse_options, name) for name in NOTHING} == NOTHING
    assert "is missing from the mount table" in caplog.text


def test_own_mount_below_the_source_ends_no_promise(
    tmp_path: Path, mounted: Callable[..., None], made: Callable[..., efuse.Passthrough]
) -> None:
    mounted(("ext4", "0:49", tmp_path))
    make = efuse.Passthrough.init

    def init(fs: efuse.Passthrough) -> None:
        mounted(("ext4", "0:49", tmp_path), ("efuse", "0:77", tmp_path / "mnt"))
        fs._inodes.mounts.read()
        fs.efuse.mounted_connection = 77
        make(fs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(efuse.Passthrough, "init", init)
        fs = made(Kernel())
    assert fs.efuse_options.consistency == "exclusive"
    assert fs.efuse_options.nodeid_per_file


@pytest.mark.parametrize("failures", [0, 1])
def test_mount_that_comes_below_the_source_voids_what_was_learned(
    tmp_path: Path,
    mounted: Callable[..., None],
    made: Callable[..., efuse.Passthrough],
    failures: int,
) -> None:
    """The kernel believes in exclusive mode that a name leads to what is covered now."""
    here = ("ext4", "0:49", tmp_path)
    mounted(here)
    kernel = Kernel()
    fs = made(kernel)
    _look_up(fs)
    assert kernel.voided == 0
    mounted(here, ("tmpfs", "0:50", tmp_path / "d"))
    fs._inodes.mounts.read()
    kernel.failures = failures
    for _ in range(failures):
        with pytest.raises(FUSEError):
            _look_up(fs)
    for _ in range(3):
        _look_up(fs)
    assert kernel.voided == 1
    assert fs.efuse_options.consistency == "exclusive"


def test_promises_end_although_some_nodes_cannot_follow_their_mount(
    tmp_path: Path,
    mounted: Callable[..., None],
    made: Callable[..., efuse.Passthrough],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nodes may not follow for as long as callers have files open. The kernel must not wait."""
    here = ("ext4", "0:49", tmp_path)
    mounted(here)
    kernel = Kernel()
    fs = made(kernel)
    _look_up(fs)

    def fails() -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    mounted(here, ("ext4", "0:49", tmp_path / "again"))
    with monkeypatch.context() as patch:
        patch.setattr(fs._inodes.mounts, "altered", {fs._inodes.root.mount})
        patch.setattr(fs._inodes, "_attend_to_mounts", fails)
        assert not fs._promises.look()
        assert (kernel.believes, kernel.voided) == ({**NOTHING, "no_open": True}, 1)
        with pytest.raises(FUSEError):
            _look_up(fs)
    _look_up(fs)
    assert (kernel.believes, kernel.voided) == ({**NOTHING, "no_open": True}, 1)


class Opening(Kernel):
    """It takes a change only with a descriptor, like sysfs."""

    def withdraw(self, changes: Mapping[str, Any]) -> None:
        try:
            os.close(os.open("/dev/null", os.O_WRONLY))
        except OSError as error:
            raise ControlError("cannot write it") from error
        super().withdraw(changes)


def test_promises_end_although_callers_have_taken_all_descriptors(
    tmp_path: Path, mounted: Callable[..., None], made: Callable[..., efuse.Passthrough]
) -> None:
    here = ("ext4", "0:49", tmp_path)
    mounted(here)
    kernel = Opening()
    fs = made(kernel)

    async def look_up_all() -> None:
        for number in range(100):
            (tmp_path / f"{number}").touch()
            await fs.lookup(ROOT, b"%d" % number, _CTX)

    trio.run(look_up_all)
    mounted(here, ("ext4", "0:49", tmp_path / "again"))
    with no_descriptor_left():
        assert fs._promises.look()
    assert (kernel.believes, kernel.voided) == ({**NOTHING, "no_open": True}, 1)


class Refusing(Kernel):
    """It refuses the changes, each with the next of *reasons*, and accepts later ones."""

    def __init__(self, *reasons: str) -> None:
        super().__init__()
        self.reasons = list(reasons)

    def withdraw(self, changes: Mapping[str, Any]) -> None:
        if self.reasons:
            raise ControlError(self.reasons.pop(0))
        super().withdraw(changes)


def _logged(caplog: pytest.LogCaptureFixture, about: str) -> list[str]:
    output = [record.getMessage() for record in caplog.records if about in record.getMessage()]
    caplog.clear()
    return output


def test_refusal_to_take_a_promise_back_is_logged_at_each_change_of_its_reason(
    tmp_path: Path,
    mounted: Callable[..., None],
    made: Callable[..., efuse.Passthrough],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "efuse.fs")
    here = ("ext4", "0:49", tmp_path)
    mounted(here)
    kernel = Refusing()
    fs = made(kernel)
    for reasons in (["EMFILE", "EMFILE", "ENOENT"], ["EMFILE"]):
        mounted(here, ("tmpfs", "0:50", tmp_path / "d"))
        kernel.reasons = list(reasons)
        for _ in reasons:
            assert not fs._promises.look()
        assert fs._promises.look()
        assert fs._promises.look()
        assert _logged(caplog, "promise") == [
            *(
                f"a promise to the kernel cannot be withdrawn: {why}"
                for why in dict.fromkeys(reasons)
            ),
            "the promises to the kernel are true again",
        ]
        mounted(here)
        assert fs._promises.look()


def test_table_of_mounts_that_cannot_be_read_is_logged_at_each_change_of_the_reason(
    tmp_path: Path,
    mounted: Callable[..., None],
    made: Callable[..., efuse.Passthrough],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "efuse.fs")
    mounted(("ext4", "0:49", tmp_path))
    fs = made(Kernel())
    numbers: list[int] = []

    def fails(mountinfo: int) -> tuple[Mount, ...]:
        raise OSError(numbers[-1], os.strerror(numbers[-1]))

    with monkeypatch.context() as patch:
        patch.setattr(mounts_module, "read_table", fails)
        for number in (errno.ENOMEM, errno.EMFILE):
            numbers.append(number)
            assert not fs._promises.look()
            with pytest.raises(FUSEError):
                _look_up(fs)
            assert not fs._promises.look()
    assert fs._promises.look()
    _look_up(fs)
    assert _logged(caplog, "mounts below") == [
        f"mounts below cannot be followed: {os.strerror(errno.ENOMEM)} (ENOMEM)",
        f"mounts below cannot be followed: {os.strerror(errno.EMFILE)} (EMFILE)",
        "mounts below are followed again",
    ]
