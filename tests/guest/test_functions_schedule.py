# SPDX-License-Identifier: LGPL-2.1-or-later
"""Where storage functions run if it is left to the kernel: where it was seen to be quicker."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from efuse import functions
from efuse.csd.attributes import ATTRIBUTES
from efuse.errors import AttachError, CompileError, VerifierError
from efuse.functions import BtreeLookup, Count, Place, Run, Shipped, Status, Why
from efuse.functions.btree_file import build
from efuse.functions.loading import function_text
from tests.guest.support import csd_device
from tests.guest.support.csd_device import Device, noise
from tests.guest.support.forced import forced
from tests.guest.support.functions import BLOCK, background, result
from tests.guest.support.shell import run

CALL = Count(b"\x01")
WINDOW = 256  # blocks of a batch at the device at most
TRY = 32  # blocks of a try in the kernel
KNOWN = 32  # functions of which something is known
SIZE = 8 * WINDOW * BLOCK
DATA = noise(SIZE)
WANTED = CALL.reference(DATA)


@pytest.fixture
def f(files: Path) -> Iterator[Path]:
    """A file on the device, of which the page cache has nothing."""
    path = files / "f"
    path.write_bytes(DATA)
    os.sync()
    forget(path)
    with functions.load("count"):
        yield path


@pytest.fixture(autouse=True)
def nothing_known(device: Device) -> Iterator[None]:
    """Each test begins with a model that costs nothing."""
    yield
    for name in ("model", "hold", "delay_ns", "forced", "try_share"):
        device.write(name, ATTRIBUTES[name].default)


def forget(path: Path) -> None:
    """Drop what the page cache has of a file."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def slow_cores(device: Device) -> None:
    """A core that takes a hundred times what the host's takes."""
    device.write("core_percent", 10000)
    device.write("model", 1)


def slow_link(device: Device) -> None:
    """1 MiB takes a second to read, and no time to look at."""
    device.write("core_percent", 100)
    device.write("link_mib_per_s", 1)
    device.write("model", 1)


def auto(path: Path) -> Status:
    """Run to the end; the answer is right wherever that was."""
    found, status = result(CALL, path, Place.AUTO)
    assert found == WANTED
    return status


def test_unknown_function_is_tried_at_the_device_and_in_the_kernel(f: Path) -> None:
    """Of a function that nobody knows, the first batches are the device's and the next ones not."""
    status = auto(f)
    assert status.device_steps >= 2 * WINDOW
    assert status.kernel_steps >= 2 * TRY
    assert status.device_steps + status.kernel_steps == SIZE // BLOCK


def test_device_with_slow_cores_is_rarely_chosen(device: Device, f: Path) -> None:
    slow_cores(device)
    for _ in range(2):
        auto(f)
    before = device.read("chosen_device"), device.read("chosen_kernel")
    status = auto(f)
    assert status.why == Why.SLOWER
    # A try now and then.
    assert status.kernel_steps >= SIZE // BLOCK - WINDOW
    assert device.read("chosen_device") - before[0] <= 1
    assert device.read("chosen_kernel") - before[1] >= 7 * WINDOW // 64


def test_slow_link_is_used_only_where_the_page_cache_helps(device: Device, f: Path) -> None:
    """But for what the page cache has: that does not cross it."""
    data = DATA[: 2 * WINDOW * BLOCK]
    os.truncate(f, len(data))
    slow_link(device)
    for _ in range(4):
        forget(f)
        found, status = result(CALL, f, Place.AUTO)
        assert found == CALL.reference(data)
    assert status.device_steps >= WINDOW
    assert status.kernel_steps <= TRY
    # Now it has all of it, and looking is a matter of this CPU.
    f.read_bytes()
    device.write("core_percent", 10000)
    for _ in range(3):
        found, status = result(CALL, f, Place.AUTO)
        assert found == CALL.reference(data)
    assert status.kernel_steps >= WINDOW
    assert status.why == Why.SLOWER


def until_tried(run: Callable[[], Status], most: int) -> int:
    """Run until a batch goes to the device, and return how often none did; at most so often."""
    for number in range(most):
        if run().device_steps:
            return number
    pytest.fail("the device was not tried again")


def until_noticed(path: Path) -> None:
    """Run until what made cores slow, and does not any more, is noticed.

    A try at slow cores has cost as much as two runs or so. A core of a busy machine that has to
    wait, waits a hundred times as long at the device, which may be some hundred runs.
    """
    until_tried(lambda: auto(path), 1000)


def test_device_that_became_faster_is_chosen_again(device: Device, f: Path) -> None:
    """The cores were slow and are not any more."""
    slow_cores(device)
    for _ in range(2):
        auto(f)
    device.write("try_share", 1)
    device.write("model", 0)
    device.write("link_mib_per_s", 0)
    until_noticed(f)


@pytest.mark.parametrize(("forced", "at_device"), [(1, True), (2, False)])
def test_forced_place_is_used_for_all_batches(
    device: Device, f: Path, forced: int, at_device: bool
) -> None:
    """Whatever is known, or not."""
    device.write("forced", forced)
    for _ in range(3):
        status = auto(f)
        total = SIZE // BLOCK
        steps = (total, 0) if at_device else (0, total)
        assert (status.device_steps, status.kernel_steps) == steps


def test_forced_place_overrides_a_policy(device: Device, f: Path) -> None:
    device.write("forced", 2)
    with functions.load_policy(SAYS.format("CSD_DEVICE")):
        before = device.read("chosen_policy")
        assert auto(f).device_steps == 0
        assert device.read("chosen_policy") == before


def test_try_share_of_0_tries_no_slower_place(device: Device, f: Path) -> None:
    slow_cores(device)
    for _ in range(2):
        auto(f)
    device.write("try_share", 0)
    device.write("model", 0)
    tried = device.read("chosen_device")
    for _ in range(60):
        auto(f)
    assert device.read("chosen_device") == tried
    # A large share, half of the time, counts for what the last try has cost as well.
    device.write("try_share", 1)
    until_noticed(f)


def test_loads_of_one_function_share_their_measurements(device: Device, f: Path) -> None:
    """A dot tells them apart, as for one that is loaded for a single run."""
    slow_cores(device)
    for _ in range(3):
        auto(f)
    with (
        functions.load("count.other", function_text("count")),
        functions.run("count.other", f, CALL.encode()) as one,
    ):
        assert one.result() == WANTED
        assert one.status().device_steps <= WINDOW


def restart(one: Run, call: Shipped) -> Status:
    """Restart a run and let it end; return the status of this pass."""
    one.restart(call.encode())
    one.result()
    return one.status()


def test_measurements_of_the_oldest_function_are_replaced(device: Device, files: Path) -> None:
    """A run that was there before is not told what is known of another function."""
    slow_cores(device)
    path = files / "small"
    path.write_bytes(DATA[:BLOCK])
    os.sync()
    with (
        functions.load("first", function_text("count")),
        functions.run("first", path, CALL.encode()) as one,
    ):
        for _ in range(8):
            status = restart(one, CALL)
        assert status.device_steps == 0
        for number in range(KNOWN):
            name = f"other{number}"
            with (
                functions.load(name, function_text("count")),
                functions.run(name, path, CALL.encode()) as other,
            ):
                for _ in range(5):
                    status = restart(other, CALL)
                assert status.device_steps == 0
        assert restart(one, CALL).device_steps == 1


@pytest.mark.parametrize("count", [10, 3000])
def test_btree_lookup_is_one_choice(device: Device, files: Path, count: int) -> None:
    """However many blocks it goes through, and if the root is the block behind the header, too."""
    items = {n: b"%064d" % n for n in range(count)}
    path = files / "tree"
    path.write_bytes(build(items.items()))
    os.sync()
    with (
        functions.load("btree_lookup"),
        functions.run("btree_lookup", path, BtreeLookup(0).encode()) as one,
    ):
        one.result()
        before = device.read("chosen_device") + device.read("chosen_kernel")
        for n in range(20):
            call = BtreeLookup(n)
            one.restart(call.encode())
            assert call.decode(one.result()) == items.get(n)
        assert device.read("chosen_device") + device.read("chosen_kernel") - before == 20


def test_restarted_run_is_measured_apart_from_its_first_pass(device: Device, files: Path) -> None:
    """From block to block: what a first pass takes says nothing of the following ones."""
    slow_cores(device)
    call = BtreeLookup(7)
    path = files / "tree"
    path.write_bytes(build((n, b"%064d" % n) for n in range(3000)))
    os.sync()
    with functions.load("own", function_text("btree_lookup")):
        for _ in range(6):
            with functions.run("own", path, call.encode()) as one:
                one.result()
                status = one.status()
        assert status.device_steps == 0
        with functions.run("own", path, call.encode()) as one:
            one.result()
            assert one.status().device_steps == 0
            passes = [restart(one, call) for _ in range(6)]
    assert all(status.kernel_steps == 0 for status in passes[:2])
    assert all(status.device_steps == 0 for status in passes[2:])


def test_tries_in_vain_become_rarer(device: Device, files: Path) -> None:
    """By the time that the device itself has counted for batches, not by how many there were."""
    share, delay_ns = 4, 20_000_000
    device.write("try_share", share)
    path = files / "small"
    path.write_bytes(DATA[:BLOCK])
    os.sync()
    device.write("delay_ns", delay_ns)
    with (
        functions.load("rare", function_text("count")),
        functions.run("rare", path, CALL.encode()) as one,
    ):
        for _ in range(8):
            restart(one, CALL)

        def spent_ns() -> int:
            before = device.read("actual_ns")
            until_tried(lambda: restart(one, CALL), 200_000)
            return device.read("actual_ns") - before

        for _ in range(4):
            last = spent_ns()
    # A first try is due when its cost was spent so often; this one, after others in vain, much
    # later. The try itself counts as well. That a run takes long makes it later still.
    assert last > (2 * share + 2) * delay_ns


# A policy that says where, and one that does so by what it is told.
SAYS = """
#include "policy.bpf.h"
int choose(struct csd_batch *batch)
{{
	return {};
}}
"""
TOLD = """
#include "policy.bpf.h"
int choose(struct csd_batch *batch)
{
	int count = batch->function[0] == 'c' && !batch->function[5];
	int whole = batch->blocks && batch->resident <= batch->blocks && batch->place;
	/* There may never have been as few as are left at the end. */
	int known = batch->blocks < 64 || (batch->kernel_ns && batch->device_ns > batch->queue_ns);
	return count && whole && known ? CSD_KERNEL : CSD_DEVICE;
}
"""
WRITES = """
#include "policy.bpf.h"
int choose(struct csd_batch *batch)
{
	batch->blocks = 0;
	return CSD_AUTO;
}
"""


def test_policy_chooses_the_place(device: Device, f: Path) -> None:
    for _ in range(3):
        auto(f)
    asked = device.read("chosen_policy")
    with functions.load_policy(SAYS.format("CSD_KERNEL")) as policy:
        assert auto(f).device_steps == 0
        policy.replace(SAYS.format("CSD_DEVICE"))
        assert auto(f).kernel_steps == 0
        policy.replace(TOLD)
        assert auto(f).device_steps == 0
        said = device.read("chosen_policy")
        assert said - asked >= 3 * (SIZE // BLOCK // WINDOW)
        # Who does not leave it open is not overruled.
        found, status = result(CALL, f, Place.DEVICE)
        assert (found, status.kernel_steps) == (WANTED, 0)
        # No word, or no answer: as without one.
        for answer in ("CSD_AUTO", "3", "-1"):
            policy.replace(SAYS.format(answer))
            auto(f)
        assert device.read("chosen_policy") == said
    auto(f)
    assert device.read("chosen_policy") == said


def test_invalid_policy_fails(device: Device) -> None:
    with pytest.raises(VerifierError):
        functions.load_policy(WRITES)
    with pytest.raises(CompileError, match="is no member"):
        functions.load_policy('#include "policy.bpf.h"\nint chose(void) { return 0; }\n')
    with functions.load_policy(SAYS.format("CSD_AUTO")) as policy:
        with pytest.raises(AttachError, match="EBUSY"):
            functions.load_policy(SAYS.format("CSD_AUTO"))
        with pytest.raises(VerifierError):
            policy.replace(WRITES)
    with functions.load_policy(SAYS.format("CSD_AUTO")):
        pass


def test_predicted_times_are_compared_with_actual_times(device: Device, f: Path) -> None:
    names = ("predicted_ns", "actual_ns", "error_ns")
    auto(f)
    before = [device.read(name) for name in names]
    auto(f)
    predicted, actual, error = (
        device.read(name) - was for name, was in zip(names, before, strict=True)
    )
    assert predicted > 0
    assert actual > 0
    assert abs(predicted - actual) <= error


def test_busy_device_is_not_chosen(device: Device, f: Path) -> None:
    """Commands that are ahead count: one whose cores are all taken is not asked."""
    for _ in range(2):
        auto(f)
    with csd_device.csd(size_mib=64, cores=1, core_percent=3000, model=1, power=1) as busy:
        other = f.parent / "mounted"
        other.mkdir()
        run("mkfs.ext4", "-q", "-b", str(BLOCK), busy.path)
        run("mount", busy.path, other)
        try:
            (other / "f").write_bytes(DATA)
            os.sync()
            (other / "f").read_bytes()
            for _ in range(2):
                auto(other / "f")
            ones = [background(other / "f", CALL) for _ in range(2)]
            status = auto(other / "f")
            for one in ones:
                one.end()
                assert one.found == WANTED
            assert status.kernel_steps >= SIZE // BLOCK - WINDOW
        finally:
            run("umount", other)


def test_file_of_a_mount_is_scheduled_by_its_backing_file(
    device: Device, f: Path, tmp_path: Path
) -> None:
    """The page cache that counts is the backing file's."""
    slow_cores(device)
    with forced(f.parent, tmp_path / "efuse", "auto", consistency="exclusive") as m:
        for _ in range(3):
            status = auto(m / "f")
    assert status.why == Why.SLOWER
    assert status.kernel_steps >= SIZE // BLOCK - WINDOW


def test_removal_of_the_device_during_a_scheduled_run_fails_it_or_returns_the_right_result(
    mountpoint: Path,
) -> None:
    csd_device.load()
    with csd_device.csd(size_mib=64, power=1) as device, functions.load("count"):
        run("mkfs.ext4", "-q", "-b", str(BLOCK), device.path)
        run("mount", device.path, mountpoint)
        (mountpoint / "f").write_bytes(DATA)
        os.sync()
        (mountpoint / "f").read_bytes()
        device.write("hold", 1)
        one = background(mountpoint / "f", CALL, Place.AUTO)
        device.wait("held", 1)
        device.directory.rmdir()
        one.end()
        run("umount", mountpoint)
    assert one.found == WANTED or "EIO" in str(one.error)
