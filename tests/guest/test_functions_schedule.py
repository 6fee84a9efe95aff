# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test where storage functions run if the kernel chooses: at the place it measured as faster."""

from __future__ import annotations

import os
import statistics
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
from tests.guest.support.file_data import drop_pages
from tests.guest.support.forced import forced
from tests.guest.support.functions import BLOCK, background, result
from tests.guest.support.policies import TOLD, WRITES, says
from tests.guest.support.shell import run

CALL = Count(b"\x01")
WINDOW = 256  # The largest number of blocks of a batch at the device.
TRY = 32  # The number of blocks of a try in the kernel.
KNOWN = 32  # The number of functions whose measurements are kept.
SIZE = 8 * WINDOW * BLOCK
DATA = noise(SIZE)
WANTED = CALL.reference(DATA)


@pytest.fixture
def f(files: Path) -> Iterator[Path]:
    """Yield a file on the device that is not in the page cache."""
    path = files / "f"
    path.write_bytes(DATA)
    os.sync()
    drop_pages(path)
    with functions.load("count"):
        yield path


@pytest.fixture(autouse=True)
def nothing_known(device: Device) -> Iterator[None]:
    """After each test, reset the model so that it costs no time."""
    yield
    for name in ("model", "hold", "delay_ns", "forced", "try_share"):
        device.write(name, ATTRIBUTES[name].default)


def slow_cores(device: Device) -> None:
    """Give the device cores that are 100 times slower than the host's."""
    device.write("core_percent", 10000)
    device.write("model", 1)


def slow_link(device: Device) -> None:
    """Make the device's link take a second for 1 MiB, with cores as fast as the host's."""
    device.write("core_percent", 100)
    device.write("link_mib_per_s", 1)
    device.write("model", 1)


def auto(path: Path) -> Status:
    """Run to the end. The result has to be right at each place."""
    found, status = result(CALL, path, Place.AUTO)
    assert found == WANTED
    return status


def test_unknown_function_is_tried_at_the_device_and_in_the_kernel(f: Path) -> None:
    """The first batches of an unknown function go to the device, and the next ones do not."""
    status = auto(f)
    assert status.device_steps >= 2 * WINDOW
    assert status.kernel_steps >= 2 * TRY
    assert status.device_steps + status.kernel_steps == SIZE // BLOCK


def test_device_with_slow_cores_is_rarely_chosen(device: Device, f: Path) -> None:
    slow_cores(device)
    for _ in range(2):
        auto(f)
    tries = []
    for _ in range(3):
        before = device.read("chosen_device"), device.read("chosen_kernel")
        status = auto(f)
        assert status.why == Why.SLOWER
        # There is a try now and then.
        assert status.kernel_steps >= SIZE // BLOCK - WINDOW
        tries.append(device.read("chosen_device") - before[0])
        assert device.read("chosen_kernel") - before[1] >= 7 * WINDOW // 64
    # A batch that something holds up in the kernel pays for a try that is not due.
    assert min(tries) <= 1


def test_slow_link_is_used_only_where_the_page_cache_helps(device: Device, f: Path) -> None:
    """Blocks in the page cache do not cross the link."""
    data = DATA[: 2 * WINDOW * BLOCK]
    os.truncate(f, len(data))
    slow_link(device)
    for _ in range(4):
        drop_pages(f)
        found, status = result(CALL, f, Place.AUTO)
        assert found == CALL.reference(data)
    assert status.device_steps >= WINDOW
    assert status.kernel_steps <= TRY
    # Now the page cache has all of the file, and only the CPU matters.
    f.read_bytes()
    device.write("core_percent", 10000)
    for _ in range(3):
        found, status = result(CALL, f, Place.AUTO)
        assert found == CALL.reference(data)
    assert status.kernel_steps >= WINDOW
    assert status.why == Why.SLOWER


def until_tried(run: Callable[[], Status], most: int) -> int:
    """Run until a batch goes to the device, and return the number of runs before that.

    :param most: the number of runs after which the test fails.
    """
    for number in range(most):
        if run().device_steps:
            return number
    pytest.fail("the device was not tried again")


def until_noticed(path: Path) -> None:
    """Run until the kernel notices that the cores are no longer slow.

    A try at slow cores has cost about as much as two runs. On a busy machine a core that has to
    wait waits a hundred times as long at the device, which may be some hundred runs.
    """
    until_tried(lambda: auto(path), 1000)


def test_device_that_became_faster_is_chosen_again(device: Device, f: Path) -> None:
    """The cores were slow, and are fast again."""
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
    """It does not matter whether the function has measurements."""
    device.write("forced", forced)
    for _ in range(3):
        status = auto(f)
        total = SIZE // BLOCK
        steps = (total, 0) if at_device else (0, total)
        assert (status.device_steps, status.kernel_steps) == steps


def test_forced_place_overrides_a_policy(device: Device, f: Path) -> None:
    device.write("forced", 2)
    with functions.load_policy(says("CSD_DEVICE")):
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
    # With a large share, half of the time, the cost of the last try counts as well.
    device.write("try_share", 1)
    until_noticed(f)


def test_loads_of_one_function_share_their_measurements(device: Device, f: Path) -> None:
    """The part of a name behind a dot only tells loads apart, as for a load for a single run."""
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
    """Restart a run, let it end, and return the status of this pass."""
    one.restart(call.encode())
    one.result()
    return one.status()


def test_measurements_of_the_oldest_function_are_replaced(device: Device, files: Path) -> None:
    """An older run does not get the measurements of another function."""
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
def test_btree_lookup_is_scheduled_once(device: Device, files: Path, count: int) -> None:
    """The number of its blocks does not matter, nor whether the root is next to the header."""
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
    """A first pass and later passes are measured separately, because a first pass takes longer."""
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


def test_unsuccessful_tries_become_rarer(device: Device, files: Path) -> None:
    """A try is due when *share* times its cost were spent, and after two in vain four times that.

    All times are those that the device counts, so the test holds at any speed of the machine.
    """
    share = 4
    device.write("try_share", share)
    path = files / "small"
    path.write_bytes(DATA[:BLOCK])
    os.sync()
    device.write("delay_ns", 20_000_000)
    with (
        functions.load("rare", function_text("count")),
        functions.run("rare", path, CALL.encode()) as one,
    ):
        for _ in range(8):
            restart(one, CALL)

        def timed_ns() -> tuple[Status, int]:
            before = device.read("actual_ns")
            status = restart(one, CALL)
            return status, device.read("actual_ns") - before

        def until_next_try() -> tuple[list[int], int]:
            """Return the time of each run in the kernel, and that of the try which ended them."""
            runs: list[int] = []
            while len(runs) < 200_000:
                status, took_ns = timed_ns()
                if status.device_steps:
                    return runs, took_ns
                runs.append(took_ns)
            pytest.fail("the device was not tried again")

        for _ in range(4):
            _, try_ns = until_next_try()
        runs, _ = until_next_try()
    # What a try costs more than a run in the kernel. The predicted time of a run differs from the
    # usual one by much less than ten times.
    cost_ns = try_ns - 10 * int(statistics.median(runs))
    assert sum(runs) > 3 * share * cost_ns


def test_policy_chooses_the_place(device: Device, f: Path) -> None:
    for _ in range(3):
        auto(f)
    asked = device.read("chosen_policy")
    with functions.load_policy(says("CSD_KERNEL")) as policy:
        assert auto(f).device_steps == 0
        policy.replace(says("CSD_DEVICE"))
        assert auto(f).kernel_steps == 0
        policy.replace(TOLD)
        assert auto(f).device_steps == 0
        output = device.read("chosen_policy")
        assert output - asked >= 3 * (SIZE // BLOCK // WINDOW)
        # A policy does not overrule a caller that names the place.
        found, status = result(CALL, f, Place.DEVICE)
        assert (found, status.kernel_steps) == (WANTED, 0)
        # With no choice or an invalid one, the kernel chooses as without a policy.
        for answer in ("CSD_AUTO", "3", "-1"):
            policy.replace(says(answer))
            auto(f)
        assert device.read("chosen_policy") == output
    auto(f)
    assert device.read("chosen_policy") == output


def test_invalid_policy_fails(device: Device) -> None:
    with pytest.raises(VerifierError) as caught:
        functions.load_policy(WRITES)
    assert "only read is supported" in caught.value.log
    with pytest.raises(CompileError, match="is not a member"):
        functions.load_policy('#include "policy.bpf.h"\nint chose(void) { return 0; }\n')
    with functions.load_policy(says("CSD_AUTO")) as policy:
        with pytest.raises(AttachError, match="EBUSY"):
            functions.load_policy(says("CSD_AUTO"))
        with pytest.raises(VerifierError):
            policy.replace(WRITES)
    with functions.load_policy(says("CSD_AUTO")):
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
    """Commands that are queued count, so a device whose cores are all busy is not chosen."""
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
    """The pages that count are in the page cache of the backing file."""
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
