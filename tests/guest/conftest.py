# SPDX-License-Identifier: LGPL-2.1-or-later
"""Tests that run inside the guest with the module loaded: ``make test-guest``.

A fixture reads the kernel's log and taint word before and after each test. A test fails if the
kernel complains during it.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse.guest import kernel_log
from efuse.module import live
from tests.guest.support import csd_device, injection, work_sharing
from tests.guest.support.channel import Channel
from tests.guest.support.csd_device import Device
from tests.guest.support.daemons import Mount, mounted
from tests.guest.support.manual_daemon import ManualDaemon
from tests.guest.support.overlays import overlaid
from tests.guest.support.running_kernel import CHECKS_ITSELF, LINUX, KernelLog
from tests.guest.support.shell import run
from tests.guest.support.small_disk import small

collect_ignore = ["test_io_uring.py" if LINUX < 7 else "test_no_io_uring.py"]
"""Tests that do not apply to this kernel."""
if not injection.is_supported():
    collect_ignore.append("test_injected_faults.py")
if CHECKS_ITSELF:
    collect_ignore.append("test_cost_of_a_mount.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("EFUSE_GUEST") != "1" and items:
        raise pytest.UsageError("tests/guest runs inside a guest only: make test-guest")


def pytest_collection_finish() -> None:
    """Exclude all present objects from garbage collection: in a forked child it copies pages."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Show immediately why a test failed: a guest that is killed later prints no summary."""
    if not report.failed:
        return
    print(f"\n{report.longreprtext}", file=sys.stderr, flush=True)
    if me := os.environ.get(work_sharing.VARIABLE):
        work_sharing.failed(Path(me), report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail also because of what failed before this guest was booted again."""
    me = os.environ.get(work_sharing.VARIABLE)
    if me and not session.exitstatus and (failures := work_sharing.failures(Path(me))):
        print("\nfailed before this guest was booted again:", *failures, sep="\n")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run only the test files that no other guest has taken."""
    me = os.environ.get(work_sharing.VARIABLE)
    if me is None or session.testsfailed:  # errors of collection end the session anyway
        return None
    files: dict[Path, list[pytest.Item]] = {}
    for item in session.items:
        files.setdefault(item.path, []).append(item)
    for file in work_sharing.longest_first(files):
        # The file is taken only now, so that no other guest has to wait for this one at the end.
        if work_sharing.takes(Path(me), file):
            failed = session.testsfailed
            _run_file(session, files[file], _of_all(session.items, file))
            if session.testsfailed == failed:
                work_sharing.passed(Path(me), file)
    return True


def _run_file(session: pytest.Session, items: list[pytest.Item], after: pytest.Item | None) -> None:
    """Run the tests of a file, as pytest's own loop does.

    :param after: a test whose fixtures are kept. pytest ends the last ones with the session.
    """
    for item, following in zip(items, [*items[1:], after], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.shouldfail:
            raise session.Failed(session.shouldfail)
        if session.shouldstop:
            raise session.Interrupted(session.shouldstop)


def _of_all(items: list[pytest.Item], file: Path) -> pytest.Item | None:
    """Return a test of another file that shares with each test the directories that all share.

    It is not known yet which file is next, so only the fixtures of the session may be kept.
    """
    common = Path(os.path.commonpath([item.path.parent for item in items]))
    return next((i for i in items if i.path != file and i.path.parent == common), None)


@pytest.fixture(scope="session", autouse=True)
def _no_write_back_by_age() -> None:
    """Keep pages from being written back because a slow test lasts longer than half a minute."""
    Path("/proc/sys/vm/dirty_expire_centisecs").write_text("360000")


@pytest.fixture(scope="session")
def _kernel() -> KernelLog:
    return KernelLog()


@pytest.fixture(autouse=True)
def _kernel_is_content(_kernel: KernelLog) -> Iterator[None]:
    """Fail a test during which the kernel complains or becomes tainted."""
    _kernel.new_text()
    before = _kernel.taint()
    yield
    complaints = kernel_log.complaints(_kernel.new_text())
    after = _kernel.taint()
    assert not complaints, "the kernel complained:\n" + "\n...\n".join(complaints)
    new = after & ~before & ~kernel_log.MODULE_TAINTS
    assert not new, f"the kernel became tainted: {kernel_log.taint_names(new)}"


@pytest.fixture(scope="session")
def module_file() -> Path:
    """The module with which the guest was started."""
    return Path(os.environ["EFUSE_MODULE"])


@pytest.fixture(autouse=True)
def _module_is_loaded(module_file: Path) -> Iterator[None]:
    """Fail if the module is not loaded, instead of testing plain FUSE. Load it again if needed."""
    assert live.loaded(), "efuse.ko is not loaded"
    yield
    if not live.loaded():
        live.load(module_file)
        pytest.fail("the test left the module unloaded")


def _mounts_below(directory: Path) -> list[str]:
    """Return the mount points at or below *directory*, the last mount first."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    points = [point.encode().decode("unicode_escape") for point in points]
    inside = [p for p in points if p == str(directory) or p.startswith(f"{directory}/")]
    return inside[::-1]


def _remove(directory: Path) -> None:
    for point in _mounts_below(directory):
        run("umount", "--lazy", point)
    assert not _mounts_below(directory)
    shutil.rmtree(directory)


@pytest.fixture
def mountpoint(tmp_path: Path) -> Iterator[Path]:
    """An empty directory for the test. What is still mounted there is unmounted afterwards."""
    directory = tmp_path / "mnt"
    directory.mkdir()
    yield directory
    _remove(directory)


@pytest.fixture
def reachable(mountpoint: Path) -> None:
    """Let every user reach the mount."""
    for above in mountpoint.parents:
        above.chmod(above.stat().st_mode | 0o111)


@pytest.fixture(scope="session")
def lower_root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The root of an ext4 file system on a loop device in tmpfs."""
    base = tmp_path_factory.mktemp("lower")
    image = base / "image"
    with image.open("wb") as file:
        file.truncate(1 << 30)
    run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,nodiscard", image)
    # The loop driver may be built in.
    if not Path("/sys/module/loop").exists():
        run("modprobe", "loop")
    root = base / "root"
    root.mkdir()
    run("mount", "-o", "loop", image, root)
    yield root
    run("umount", "--lazy", root)


@pytest.fixture
def lower(lower_root: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """An empty directory on the ext4 file system for the test.

    For the path ``device`` it is on a computational storage device.
    """
    callspec = getattr(request.node, "callspec", None)
    if callspec and callspec.params.get("path") == "device":
        lower_root = request.getfixturevalue("files")
    name = "".join(letter if letter.isalnum() else "_" for letter in request.node.name)[:100]
    directory = lower_root / name
    directory.mkdir(mode=0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def overlay(lower: Path) -> Iterator[Path]:
    """An overlay of two directories of ``lower``, ``below`` and ``above``."""
    with overlaid(lower) as root:
        yield root


@pytest.fixture
def point(tmp_path: Path) -> Path:
    """A mountpoint for eFuse over the files of a device."""
    directory = tmp_path / "efuse"
    directory.mkdir()
    return directory


@pytest.fixture
def manual_daemon(mountpoint: Path) -> Iterator[ManualDaemon]:
    made = ManualDaemon(mountpoint)
    yield made
    made.close()


@pytest.fixture
def channels(manual_daemon: ManualDaemon) -> Iterator[list[Channel]]:
    """A channel for each CPU."""
    made = [Channel(manual_daemon.fd, cpu) for cpu in (0, 1)]
    yield made
    for each in made:
        each.close()


@pytest.fixture(scope="module")
def csd_is_loaded() -> Iterator[None]:
    """Load csd.ko, and unload it in the end."""
    csd_device.load()
    yield
    csd_device.unload()


@pytest.fixture(scope="module")
def device(csd_is_loaded: None) -> Iterator[Device]:
    """A computational storage device with an ext4 file system."""
    with csd_device.csd(size_mib=256, queues=2, cores=2, power=1) as made:
        csd_device.make_quiet_ext4(made)
        yield made


@pytest.fixture
def files(device: Device, tmp_path: Path) -> Iterator[Path]:
    """A directory on the device for the test."""
    directory = tmp_path / "files"
    directory.mkdir()
    csd_device.mount_quiet_ext4(device, directory)
    yield directory
    run("umount", directory)
    directory.rmdir()


@pytest.fixture
def source(tmp_path: Path) -> Iterator[Mount]:
    """A second mount, without handlers. A page of its files arrives when it releases the READ."""
    point = tmp_path / "slow"
    point.mkdir()
    with mounted(point, attach=False) as m:
        yield m


@pytest.fixture
def slow(lower: Path) -> Iterator[Path]:
    """A small lower file system, which a test can freeze with `frozen`."""
    with small(lower) as point:
        yield point
