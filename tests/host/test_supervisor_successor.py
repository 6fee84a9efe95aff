# SPDX-License-Identifier: LGPL-2.1-or-later
"""A successor of a daemon of `efuse run`, with plain FUSE in place of eFuse.

A mount of plain FUSE cannot be taken over. So the test keeps the first daemon's descriptor, and the
successor gets a clone of it.
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse.control.mounts import mounts, number_of
from efuse.errors import MountError
from efuse.fs.mountpoint import MountOptions, mount_efuse
from efuse.supervisor import succeeding
from efuse.supervisor.asking import Asked
from efuse.supervisor.caller import Caller
from efuse.supervisor.daemon_mount import DaemonMount
from efuse.supervisor.notifications import FUSE_DEV_IOC_CLONE
from efuse.supervisor.running import Ended
from tests.stand_in import scripted

_ENOUGH_S = 30
_OPTIONS = "rootmode=40000,user_id=0,group_id=0"


def _at(mountpoint: Path) -> list[int]:
    return [m.connection for m in mounts(fuse=True) if m.mountpoint == str(mountpoint)]


@pytest.fixture
def predecessor(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DaemonMount]:
    """A mount whose daemon answers nothing: a look at it would last for ever."""
    mountpoint = stand_in / "mnt"
    mountpoint.mkdir()
    (mountpoint / "below").mkdir()
    device = mount_efuse(str(mountpoint), MountOptions.parse(("suid", "dev")), plain=True)
    (connection,) = _at(mountpoint)
    mount = DaemonMount(
        str(mountpoint),
        number=number_of(connection),
        asked=Asked.by_call("fuse", 0, _OPTIONS),
    )
    mount.begin(connection, lambda _: pytest.fail("no handlers are wanted"))
    test = os.getpid()

    def take_over(ours: int, where: int) -> None:
        held = Caller(test).descriptor(device)
        fcntl.ioctl(ours, FUSE_DEV_IOC_CLONE, struct.pack("=I", held))

    monkeypatch.setattr(succeeding, "take_over_by", take_over)
    yield mount
    os.close(device)
    if _at(mountpoint):
        subprocess.run(["umount", "-l", mountpoint], check=True)


def _ended(script: str, predecessor: DaemonMount, *words: object) -> tuple[list[DaemonMount], int]:
    """Run a successor to its end; return what it has mounted or taken over, and its status."""
    with scripted(
        script, predecessor.mountpoint, *words, predecessor=predecessor, recovery_s=60
    ) as running:
        *found, end = running.events()
        assert isinstance(end, Ended)
        return [event for event in found if isinstance(event, DaemonMount)], end.status


_TAKES_OVER = """
target, relative = sys.argv[1], sys.argv[2] == "relative"
assert os.listdir(target) == ["below"]  # what is below the mount point
if relative:
    os.chdir(target)
fd = opened()
duplicate = os.dup(fd)
assert mount("." if relative else target, fd, int(sys.argv[3])) == 0
# INIT of the mount that was there.
os.set_blocking(duplicate, False)
assert struct.unpack_from("=II", os.read(duplicate, 1 << 17))[1] == 26
assert os.listdir(target) == ["below"]
"""


@pytest.mark.parametrize("way", ["absolute", "relative"])
def test_successor_gets_the_mount_of_its_predecessor(way: str, predecessor: DaemonMount) -> None:
    before = [m.mount_id for m in mounts(fuse=True)]
    found, status = _ended(_TAKES_OVER, predecessor, way, 0)
    assert status == 0
    assert found == [predecessor]
    assert [m.mount_id for m in mounts(fuse=True)] == before


def test_successor_with_other_options_gets_no_mount(predecessor: DaemonMount) -> None:
    found, status = _ended(_TAKES_OVER, predecessor, "absolute", 1)
    assert status != 0
    (refused,) = found
    assert refused.is_refused
    assert refused.reason == "the daemon asks for other options: ro is new"


_UNMOUNTS = """
target = sys.argv[1]
assert mount(target, opened()) == 0
assert libc.umount2(os.fsencode(target), 2) == 0
# Once more there is nothing, here or outside.
assert libc.umount2(os.fsencode(target), 2) == -1 and ctypes.get_errno() == errno.EINVAL
"""


def test_unmount_by_a_successor_is_made_outside(predecessor: DaemonMount) -> None:
    assert _ended(_UNMOUNTS, predecessor)[1] == 0
    assert not _at(Path(predecessor.mountpoint))


_UNMOUNTS_LATER = """
# Unmounts when a file is there.
assert mount(sys.argv[1], opened()) == 0
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
assert libc.umount2(os.fsencode(sys.argv[1]), 2) == 0
"""


def test_unmount_by_a_successor_that_is_being_ended_is_ignored(
    predecessor: DaemonMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = Path(predecessor.mountpoint).parent / "ready"
    with scripted(
        _UNMOUNTS_LATER, predecessor.mountpoint, ready, predecessor=predecessor, recovery_s=60
    ) as running:
        events = running.events()
        assert next(events) == predecessor
        running._errands.ignores_umounts = True
        ready.touch()
        assert [*events] == [Ended(0)]
        assert _at(Path(predecessor.mountpoint)) == [predecessor.connection]


@pytest.mark.parametrize("which", ["first", "successor"])
def test_unmount_by_a_daemon_that_was_replaced_is_ignored(
    which: str, stand_in: Path, predecessor: DaemonMount
) -> None:
    """A daemon that is asked to end closes its descriptor, is replaced, and then unmounts."""
    (stand_in / "first").mkdir()
    before = predecessor if which == "successor" else None
    mountpoint = stand_in / "first" if before is None else Path(before.mountpoint)
    ready = stand_in / "ready"
    with scripted(_UNMOUNTS_LATER, mountpoint, ready, predecessor=before, recovery_s=60) as running:
        events = running.events()
        mount = next(events)
        assert isinstance(mount, DaemonMount)
        connection = mount.connection
        # A mount that has ended had the same connection before.
        ended = DaemonMount(str(mountpoint), connection=connection, number=1)
        running._errands.let_go(ended)
        running._errands.let_go(mount)
        ready.touch()
        assert [*events] == [Ended(0)]
        assert _at(mountpoint) == [connection]
    subprocess.run(["umount", "-l", mountpoint], check=True)


def test_mount_without_a_number_that_was_left_is_not_taken_for_a_later_one(
    stand_in: Path,
) -> None:
    """A later mount may have its connection."""
    (stand_in / "mnt").mkdir()
    mountpoint, ready = stand_in / "mnt", stand_in / "ready"
    with scripted(_UNMOUNTS_LATER, mountpoint, ready, recovery_s=60) as running:
        events = running.events()
        mount = next(events)
        assert isinstance(mount, DaemonMount)
        mount.number = 0
        running._errands.let_go(mount)
        ready.touch()
        assert [*events] == [Ended(0)]
        assert not _at(mountpoint)


_MOUNTS_ELSEWHERE = """
assert mount(sys.argv[1], opened()) == 0
os.chdir(sys.argv[2])
device = opened()
number = mount(sys.argv[3], device)
assert number == 0, number
time.sleep(600)
"""


@pytest.mark.parametrize("name", ["more", "/more"])
def test_mount_elsewhere_is_made_outside(name: str, predecessor: DaemonMount) -> None:
    place = Path(predecessor.mountpoint).parent
    (place / "more").mkdir()
    target = str(place) + name if name.startswith("/") else name
    with scripted(
        _MOUNTS_ELSEWHERE,
        predecessor.mountpoint,
        place,
        target,
        predecessor=predecessor,
        recovery_s=60,
    ) as running:
        events = running.events()
        assert next(events) == predecessor
        made = next(events)
        assert isinstance(made, DaemonMount)
        assert made.mountpoint == str(place / "more")
        assert _at(place / "more") == [made.connection]
        subprocess.run(["umount", "-l", place / "more"], check=True)
        running.process.kill()
        running.process.wait(_ENOUGH_S)


def test_mount_that_has_ended_is_not_made_again(predecessor: DaemonMount) -> None:
    script = """
while os.path.exists(sys.argv[2]):
    time.sleep(0.01)
assert mount(sys.argv[1], opened()) == errno.ENOTCONN
"""
    gate = Path(predecessor.mountpoint).parent / "gate"
    gate.touch()
    with scripted(
        script, predecessor.mountpoint, gate, predecessor=predecessor, recovery_s=60
    ) as running:
        subprocess.run(["umount", "-l", predecessor.mountpoint], check=True)
        gate.unlink()
        assert [*running.events()] == [Ended(0)]
    assert not _at(Path(predecessor.mountpoint))


def test_program_that_mounts_efuse_by_itself_takes_nothing_over(predecessor: DaemonMount) -> None:
    script = """
device = os.open(os.path.dirname(sys.argv[1]) + "/efuse", os.O_RDWR)
assert mount(sys.argv[1], device, kind=b"efuse") == errno.EINVAL
"""
    (refused,), status = _ended(script, predecessor)
    assert status == 0
    assert refused.is_refused
    assert refused.reason == "the program mounts eFuse by itself"


def test_namespace_that_cannot_be_made_is_an_error(
    predecessor: DaemonMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> None:
        raise PermissionError(1, "not permitted")

    monkeypatch.setattr("efuse.supervisor.launch.uncover", fails)
    with (
        pytest.raises(MountError, match=r"its mounts cannot be carried out: .*EPERM"),
        scripted("", predecessor=predecessor),
    ):
        pass
