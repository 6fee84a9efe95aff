# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test storage functions: device, kernel and Python agree, and errors are reported."""

from __future__ import annotations

import errno
import os
import signal
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import trio

from efuse import functions
from efuse.errors import AttachError, EfuseError, VerifierError
from efuse.functions import (
    Aggregate,
    Count,
    Crc32c,
    Field,
    Filter,
    Grep,
    Histogram,
    Place,
    Records,
    Shipped,
    Why,
)
from tests.commands import AS_NOBODY
from tests.guest.support import csd_device
from tests.guest.support.csd_device import Device, noise
from tests.guest.support.functions import (
    BLOCK,
    JUMPS,
    agree,
    background,
    blocks,
    jumps_args,
    jumps_seen,
    numbered,
    result,
    stack_of,
)
from tests.guest.support.manual_daemon import DEADLINE_S, until
from tests.guest.support.set_names import Latin1, do_not_check
from tests.guest.support.shell import run

SIZES = (0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 300 * BLOCK + 77)
"""Sizes of files in bytes. The last one has more blocks than a layout."""

RECORDS = Records(64, Filter(Field(6, 2, signed=False), 1000, 40000))
CALLS: tuple[Shipped, ...] = (
    Count(b"\x01\n"),
    Crc32c(),
    Grep(b"\x01\x02"),
    Aggregate(RECORDS, Field(8)),
    Aggregate(Records(8), Field(3, 1)),
    Histogram(RECORDS, Field(16, 4), start=-(1 << 30), width=1 << 22, ranges=300),
)

EMITS = """
#include "csd.bpf.h"
int step(struct csd_run *run)
{
	if (csd_emit_block(run, 1, csd_len(run)) != -ERANGE)
		return -EPROTO;
	return csd_emit_block(run, 0, csd_len(run));
}
"""

OVERFLOWS = """
#include "csd.bpf.h"
int step(struct csd_run *run)
{
	int i;
	for (i = 0; i < 17; i++)
		csd_emit_block(run, 0, CSD_BLOCK_SIZE);
	return CSD_GO_ON;
}
"""

RETURNS = """
#include "csd.bpf.h"
struct number { s64 number; };
int step(struct csd_run *run)
{
	const struct number *number = csd_args(run, sizeof(*number));
	return number ? number->number : 0;
}
CSD_ARGS(struct number)
"""

WRITES = """
#include "csd.bpf.h"
int step(struct csd_run *run)
{
	u8 *block = (u8 *)csd_block(run, CSD_BLOCK_SIZE);
	if (block)
		block[0] = 1;
	return CSD_GO_ON;
}
"""

LARGE_BLOCK = """
#include "csd.bpf.h"
int step(struct csd_run *run)
{
	const u8 *block = csd_block(run, CSD_BLOCK_SIZE);
	return block ? block[csd_len(run)] & 1 : 0;
}
"""

BLOCK_AT_THE_END = """
#include "csd.bpf.h"
int step(struct csd_run *run)
{
	return CSD_GO_ON;
}
int finish(struct csd_run *run)
{
	return csd_block(run, CSD_BLOCK_SIZE) ? 0 : -EPROTO;
}
"""


# The same output at each place


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_device_kernel_and_python_agree(call: Shipped, device: Device, files: Path) -> None:
    with functions.load(call.name):
        for size in SIZES:
            data = noise(size, size)
            path = files / f"{size}"
            path.write_bytes(data)
            wanted = call.reference(data)
            os.sync()
            link = device.read("link_read_bytes")
            found, status = result(call, path, Place.DEVICE)
            assert found == wanted, size
            assert (status.device_steps, status.kernel_steps) == (blocks(size), 0)
            # Only the result crosses the link.
            assert device.read("link_read_bytes") - link == len(wanted) * (size > 0)
            found, status = result(call, path, Place.KERNEL)
            assert found == wanted, size
            assert (status.device_steps, status.kernel_steps) == (0, blocks(size))


def test_crc32c_of_the_check_string_is_the_known_value(files: Path) -> None:
    (files / "f").write_bytes(b"123456789")
    with functions.load("crc32c"):
        found, _ = result(Crc32c(), files / "f", Place.DEVICE)
    assert Crc32c().decode(found) == 0xE3069283  # This is the check value in catalogues of CRCs.


def test_file_on_no_device_is_read_by_the_kernel(tmp_path: Path) -> None:
    csd_device.load()
    data = noise(5 * BLOCK + 3)
    (tmp_path / "f").write_bytes(data)
    with functions.load("count"):
        found, status = result(CALLS[0], tmp_path / "f", Place.AUTO)
    assert found == CALLS[0].reference(data)
    assert (status.kernel_steps, status.why) == (6, Why.NO_DEVICE)


@pytest.mark.parametrize(("before", "fails"), [(60 << 10, False), ((60 << 10) + 1, True)])
def test_grep_prints_a_line_longer_than_a_block_or_fails(
    files: Path, before: int, fails: bool
) -> None:
    """The match begins at the beginning of a block, in a long line."""
    first = b"short\n" * 1000
    first += b"." * (-(len(first) + before) % BLOCK - 1) + b"\n"
    data = first + b"." * before + b"match" + b"." * 300_000 + b"\nshort match\n"
    call = Grep(b"match")
    with functions.load("grep"):
        agree(call, files / "f", data)
        if fails:
            with pytest.raises(EfuseError, match="EOVERFLOW"):
                result(call, files / "f", Place.DEVICE)
        else:
            found, _ = result(call, files / "f", Place.DEVICE)
            assert found == data[len(first) :]
    # A line without a match may have any length.
    with functions.load("grep"):
        agree(Grep(b"short"), files / "f", data)
        found, _ = result(Grep(b"short"), files / "f", Place.DEVICE)
    assert found == b"short\n" * 1000 + b"short match\n"


def test_holes_and_unwritten_blocks_are_read_by_the_kernel(files: Path) -> None:
    path = files / "f"
    data = bytearray(600 * BLOCK + 5)
    with path.open("wb") as file, functions.load("count"):
        file.truncate(len(data))
        for at in (0, 7 * BLOCK, 400 * BLOCK, 600 * BLOCK):
            data[at : at + 5] = b"\x01\n\x01\n\n"
            os.pwrite(file.fileno(), b"\x01\n\x01\n\n", at)
        found, status = result(CALLS[0], path, Place.DEVICE)
    assert found == CALLS[0].reference(data)
    assert (status.device_steps, status.kernel_steps) == (4, 597)
    assert status.why == Why.UNMAPPED


def test_run_over_a_range_sees_only_the_range(files: Path) -> None:
    data = noise(40 * BLOCK + 9)
    (files / "f").write_bytes(data)
    call = CALLS[0]
    with functions.load("count"):
        for place in (Place.DEVICE, Place.KERNEL):
            for offset, length in ((BLOCK, 0), (2 * BLOCK, 3 * BLOCK), (0, 100), (40 * BLOCK, 50)):
                with functions.run(
                    "count",
                    files / "f",
                    call.encode(),
                    offset=offset,
                    length=length,
                    place=place,
                ) as one:
                    end = offset + length if length else len(data)
                    assert one.result() == call.reference(data[offset:end])


# Limits of functions


def _jump(path: Path, offsets: list[int], place: Place, **more: int) -> list[tuple[int, int]]:
    with functions.run("jumps", path, jumps_args(offsets), place=place, **more) as one:
        seen = jumps_seen(one.result())
        assert one.status().device_steps == (len(seen) if place == Place.DEVICE else 0)
    return seen


@pytest.mark.parametrize("place", [Place.DEVICE, Place.KERNEL])
def test_function_jumps_to_blocks_of_its_range_only(files: Path, place: Place) -> None:
    (files / "f").write_bytes(numbered(range(700)))
    with functions.load("jumps", JUMPS):
        wanted = [0, 5, 699, 5, 6, 300]
        assert _jump(files / "f", [n * BLOCK for n in wanted[1:]], place) == [
            (n * BLOCK, n) for n in wanted
        ]
        for outside in (700 * BLOCK, 1 << 40, BLOCK + 8, (1 << 64) - BLOCK):
            with pytest.raises(EfuseError, match="ERANGE"):
                _jump(files / "f", [outside], place)
        with pytest.raises(EfuseError, match="ERANGE"):
            _jump(files / "f", [0], place, offset=BLOCK)
        with pytest.raises(EfuseError, match="ELOOP"):
            _jump(files / "f", [0] * 16, place, max_steps=9)


@pytest.mark.parametrize("place", [Place.DEVICE, Place.KERNEL])
def test_output_of_any_total_size_is_returned(files: Path, place: Place) -> None:
    data = noise(500 * BLOCK + 1234)
    (files / "f").write_bytes(data)
    with (
        functions.load("emits", EMITS),
        functions.run("emits", files / "f", place=place) as one,
    ):
        assert one.result() == data
        status = one.status()
    assert (status.emitted, status.done) == (len(data), True)
    assert (status.device_steps > 0, status.kernel_steps > 0) == (
        place == Place.DEVICE,
        place == Place.KERNEL,
    )


@pytest.mark.parametrize("place", [Place.DEVICE, Place.KERNEL])
def test_output_of_one_call_beyond_its_limit_fails(files: Path, place: Place) -> None:
    (files / "f").write_bytes(noise(BLOCK))
    with (
        functions.load("overflows", OVERFLOWS),
        functions.run("overflows", files / "f", place=place) as one,
        pytest.raises(EfuseError, match="ENOSPC"),
    ):
        one.result()


@pytest.mark.parametrize(
    ("number", "printed"), [(-errno.EDOM, "EDOM"), (2, "EPROTO"), (-512, "EPROTO")]
)
def test_invalid_return_value_of_a_function_fails_the_run(
    files: Path, number: int, printed: str
) -> None:
    (files / "f").write_bytes(noise(BLOCK))
    args = struct.pack("<q", number)
    with functions.load("returns", RETURNS):
        for place in (Place.DEVICE, Place.KERNEL):
            with (
                functions.run("returns", files / "f", args, place=place) as one,
                pytest.raises(EfuseError, match=printed),
            ):
                one.result()


@pytest.mark.parametrize("name", ["", "a b", "../a", "a\nb", Latin1("\u00fc"), "a" * 32])
@pytest.mark.usefixtures("device")
def test_kernel_refuses_the_name_of_a_function_that_is_not_valid(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Without the toolkit's own check. A pin has the name of its function."""
    do_not_check(monkeypatch)
    with pytest.raises(AttachError, match=r"cannot make a program set: .*EINVAL"):
        functions.load(name, RETURNS)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (WRITES, "cannot write into rdonly_mem"),
        (LARGE_BLOCK, "unbounded memory access"),
        (BLOCK_AT_THE_END, "csd_block is not allowed"),
    ],
)
def test_load_of_a_function_that_the_verifier_refuses_fails(text: str, why: str) -> None:
    csd_device.load()
    with pytest.raises(VerifierError) as caught:
        functions.load("denied", text)
    assert why in caught.value.log


# Callers and arguments


def test_run_with_invalid_arguments_fails(files: Path) -> None:
    (files / "f").write_bytes(b"x")
    with functions.load("count"):
        with pytest.raises(AttachError, match="EEXIST"):
            functions.load("count")
        for name, file, args, printed in (
            ("other", files / "f", b"", "ENOENT"),
            ("count", files / "f", b"x", "EMSGSIZE"),
            ("count", files, Count().encode(), "EISDIR"),
            ("count", Path("/dev/null"), Count().encode(), "EINVAL"),
        ):
            with pytest.raises(EfuseError, match=printed):
                functions.run(name, file, args)
        fd = os.open(files / "f", os.O_WRONLY)
        with pytest.raises(EfuseError, match="EBADF"):
            functions.run("count", fd, Count().encode())
        os.close(fd)
        with pytest.raises(EfuseError, match="EINVAL"):
            functions.run("count", files / "f", Count().encode(), offset=100)


def test_unprivileged_user_runs_a_function_over_readable_files_only(files: Path) -> None:
    files.chmod(0o755)
    (files / "f").write_bytes(b"a\nb\n")
    (files / "f").chmod(0o644)
    (files / "g").write_bytes(b"a\n")
    (files / "g").chmod(0o600)
    code = (
        f"import os, sys; sys.path.insert(0, {os.getcwd()!r}); os.chdir({str(files)!r});"
        "from efuse.functions import Count, run; os.setgid(65534); os.setuid(65534);"
        "args = Count().encode();"
        "print(Count().decode(run('count', 'f', args).result()).lines);"
        "run('count', 'g', args)"
    )
    with functions.load("count"):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "2\n"
    assert done.stderr.splitlines()[-1].endswith("over g: Permission denied (EACCES)")


def test_private_function_is_refused_to_another_user(files: Path) -> None:
    files.chmod(0o755)
    (files / "f").write_bytes(b"a\n")
    (files / "f").chmod(0o644)
    code = f"from efuse.functions import run; print(run('emits', {str(files / 'f')!r}).result())"
    command = (*AS_NOBODY, sys.executable, "-c", code)
    with functions.load("emits", EMITS):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.stdout == "b'a\\n'\n", done.stderr
    with functions.load("emits", EMITS + "CSD_FLAGS(CSD_PRIVATE)\n"):
        with functions.run("emits", files / "f") as one:
            assert one.result() == b"a\n"
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.stdout == ""
        assert "EACCES" in done.stderr.splitlines()[-1]


def test_stream_yields_all_output_in_trio(files: Path) -> None:
    data = noise(300 * BLOCK)
    (files / "f").write_bytes(data)

    async def collect() -> bytes:
        with functions.run("emits", files / "f") as one:
            return b"".join([some async for some in one.stream()])

    with functions.load("emits", EMITS):
        assert trio.run(collect) == data


# Changes during a run


def test_truncate_waits_for_the_device(device: Device, files: Path) -> None:
    """Blocks that a command is going to read are not given to another file before that."""
    data = noise(200 * BLOCK)
    (files / "f").write_bytes(data)
    os.sync()
    with functions.load("count"):
        device.write("hold", 1)
        try:
            one = background(files / "f", CALLS[0])
            device.wait("held", 1)
            cut = threading.Thread(target=os.truncate, args=(files / "f", 0))
            cut.start()
            until(lambda: "inode_dio_wait" in stack_of(cut))
        finally:
            device.write("hold", 0)
        cut.join(DEADLINE_S)
        status = one.end()
    assert one.found == CALLS[0].reference(data)
    assert status.device_steps == 200


def test_run_returns_the_right_result_despite_a_device_error(device: Device, files: Path) -> None:
    data = noise(600 * BLOCK)
    (files / "f").write_bytes(data)
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
    (files / "f").read_bytes()
    with functions.load("count"):
        device.write("fail_next", 1)
        found, status = result(CALLS[0], files / "f", Place.DEVICE)
    assert found == CALLS[0].reference(data)
    assert status.why == Why.FAILED
    assert (status.device_steps, status.kernel_steps) == (536, 64)


def test_run_fails_when_its_function_is_unloaded(device: Device, files: Path) -> None:
    (files / "f").write_bytes(noise(200 * BLOCK))
    os.sync()
    with functions.load("count"):
        device.write("hold", 1)
        one = background(files / "f", CALLS[0])
        device.wait("held", 1)
    device.write("hold", 0)
    one.end()
    assert one.error is not None
    assert "ESTALE" in str(one.error)


def test_signal_ends_the_wait_for_the_device(device: Device, files: Path) -> None:
    (files / "f").write_bytes(noise(200 * BLOCK))
    os.sync()
    with functions.load("count"):
        device.write("hold", 1)
        try:
            code = (
                "from efuse.functions import Count, run, Place;"
                f"run('count', {str(files / 'f')!r}, Count().encode(), place=Place.DEVICE).result()"
            )
            child = subprocess.Popen([sys.executable, "-c", code])
            device.wait("held", 1)
            child.send_signal(signal.SIGKILL)
            assert child.wait(DEADLINE_S) == -signal.SIGKILL
        finally:
            device.write("hold", 0)


def test_power_off_during_a_run_fails_it_or_returns_the_right_result(mountpoint: Path) -> None:
    csd_device.load()
    data = noise(200 * BLOCK)
    with csd_device.csd(size_mib=64, power=1) as device, functions.load("count"):
        run("mkfs.ext4", "-q", "-b", str(BLOCK), device.path)
        run("mount", device.path, mountpoint)
        (mountpoint / "f").write_bytes(data)
        os.sync()
        device.write("hold", 1)
        one = background(mountpoint / "f", CALLS[0])
        device.wait("held", 1)
        device.write("power", 0)
        one.end()
        run("umount", mountpoint)
    # The result comes from the page cache, or there is an error.
    assert one.found == CALLS[0].reference(data) or "EIO" in str(one.error)


def test_many_runs_at_the_same_time_return_the_right_results(device: Device, files: Path) -> None:
    wanted = {}
    for n in range(6):
        data = noise(100 * BLOCK + n, n)
        (files / f"{n}").write_bytes(data)
        wanted[n] = data
    with functions.load("count"), functions.load("crc32c"):
        calls = [(CALLS[0], Crc32c())[n % 2] for n in wanted]
        ones = [background(files / f"{n}", calls[n]) for n in wanted]
        for n, one in enumerate(ones):
            status = one.end()
            assert one.found == calls[n].reference(wanted[n])
            assert status.kernel_steps == 0
