# SPDX-License-Identifier: LGPL-2.1-or-later
"""The data workloads of ``efuse bench``, on a directory of this machine."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from efuse.bench import DATA, METADATA, REQUESTS, WORKLOADS
from efuse.bench.clock import CLOCKS
from efuse.bench.environment import Settings
from efuse.bench.fio import Rates, rates
from efuse.bench.io import IoWorkload
from efuse.bench.programs import PROGRAMS, SID, command, libfuse
from efuse.bench.ring import RING
from efuse.bench.run import _lower_mib, _together
from efuse.errors import EfuseError, NotSupportedError, UsageError

COUNT = 100

needs_fio = pytest.mark.skipif(not shutil.which("fio"), reason="fio is not installed")


def small(name: str) -> IoWorkload:
    """Return a workload with small files through the page cache: a tmpfs has no O_DIRECT."""
    workload = DATA[name]
    assert isinstance(workload, IoWorkload)
    block = min(workload.block, 64 << 10)
    return replace(workload, block=block, file_bytes=512 << 10, grows="", direct=False, jobs=2)


def half(iops: float = 0.0, bandwidth: float = 0.0) -> dict[str, float]:
    return {"iops": iops, "bw_bytes": bandwidth}


def test_rates_add_reads_and_writes_after_a_note_of_fio() -> None:
    job = {"error": 0, "read": half(70.0, 7 << 20), "write": half(30.0, 3 << 20)}
    text = "fio: multiple writers may overwrite blocks\n" + json.dumps({"jobs": [job]})
    assert rates(text) == Rates(iops=100.0, mib_s=10.0)


def test_rates_of_a_failed_job_fails() -> None:
    job = {"error": 84, "read": half(), "write": half()}
    with pytest.raises(EfuseError, match="error 84"):
        rates(json.dumps({"jobs": [job]}))


@pytest.mark.parametrize("text", ["", "fio: no", "{", "{}", '{"jobs": [{}]}', '{"jobs": 3}'])
def test_fio_output_without_rates_fails(text: str) -> None:
    with pytest.raises(EfuseError, match="cannot be read"):
        rates(text)


def test_every_load_has_its_variants() -> None:
    for name in ("t1-single", "t2-small", "t3-large", "t3-large-512k", "t3-large-8m"):
        assert f"{name}-buffered" in DATA
    assert {"t1-single-read", "t2-small-read", "seq-read-4", "seq-write-4"} <= set(DATA)
    assert set(WORKLOADS) == set(DATA) | set(METADATA) | set(REQUESTS)
    assert all(name == workload.name for name, workload in WORKLOADS.items())


def test_data_workloads_fit_a_guest_of_4_gib() -> None:
    assert _lower_mib(Settings(tuple(WORKLOADS))) < 2048


def test_data_workloads_have_mounts_of_their_own() -> None:
    assert _together(("t1-single", "stat", "seq-read", "xattr")) == [
        ("stat", "xattr"),
        ("t1-single",),
        ("seq-read",),
    ]


def test_workloads_of_requests_alone_share_mounts_by_transports() -> None:
    assert _together(("scale-stat-1", "skew", "scale-read-4", "stat")) == [
        ("stat",),
        ("scale-stat-1", "scale-read-4"),
        ("skew",),
    ]


@needs_fio
@pytest.mark.parametrize("name", ["t1-single", "t2-small-read", "t3-large", "seq-write"])
def test_workload_is_measured_and_verified(tmp_path: Path, name: str) -> None:
    workload = small(name)
    workload.prepare(tmp_path, COUNT)
    assert workload.warm_up(tmp_path, tmp_path, COUNT)
    assert workload.measure(tmp_path, COUNT, 1, CLOCKS["time"]).value > 0
    assert workload.verify(tmp_path, tmp_path, tmp_path)


@needs_fio
def test_a_changed_byte_is_noticed_before_the_rounds(tmp_path: Path) -> None:
    workload = small("t1-single-read")
    workload.prepare(tmp_path, COUNT)
    with (tmp_path / "f.0").open("r+b") as file:
        file.seek(300_000)
        file.write(b"\0!")
    with pytest.raises(EfuseError, match="verify"):
        workload.warm_up(tmp_path, tmp_path, COUNT)


@pytest.mark.parametrize("other", [b"abC", b"ab", b"abcd"])
def test_a_difference_is_noticed_after_the_rounds(tmp_path: Path, other: bytes) -> None:
    mount, lower = tmp_path / "mount", tmp_path / "lower"
    for directory, data in ((mount, other), (lower, b"abc")):
        directory.mkdir()
        (directory / "f.0").write_bytes(data)
    assert DATA["t1-single"].verify(mount, mount, mount)
    assert not DATA["t1-single"].verify(mount, lower, lower)


@pytest.mark.parametrize("name", ["passthrough_backing", "passthrough_ll"])
def test_daemon_is_built_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first, again = (command(name, "fuse", Path("/src"), Path("/mnt")) for _ in range(2))
    assert first == again
    assert Path(first[0]).is_relative_to(tmp_path) and Path(first[0]).name == name
    assert "-f" in first and first[-1] == "/mnt"
    assert len(list(tmp_path.rglob(name))) == 1


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != SID])
@pytest.mark.parametrize("system", ["fuse", "fuse-tuned", "efuse"])
def test_every_daemon_serves_every_system(name: str, system: str) -> None:
    words = command(name, system, Path("/src"), Path("/mnt"))
    assert Path(words[0]).name == name and "-f" in words
    assert any("/src" in word for word in words) and words[-1] == "/mnt"


def test_daemon_of_another_libfuse_gets_the_same_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "efuse/libfuse").mkdir(parents=True)
    (tmp_path / "efuse/libfuse/version").write_text("3.18.3-1\n")
    for system in ("fuse", "fuse-writeback", "fuse-tuned", "efuse", "efuse-writethrough"):
        program, *words = command(SID, system, Path("/src"), Path("/mnt"))
        assert program == str(tmp_path / "efuse/libfuse/example/passthrough_ll")
        assert words == command("passthrough_ll", system, Path("/src"), Path("/mnt"))[1:]
    (plain,), (over,) = (
        [word for word in command(SID, name, Path("/src"), Path("/mnt")) if "source=" in word]
        for name in ("fuse", RING)
    )
    assert over == f"{plain},io_uring"
    assert libfuse(SID) == {"libfuse": "3.18.3-1"} and libfuse("passthrough_ll") == {}


def test_daemon_of_a_libfuse_that_is_not_set_up_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for asked in (lambda: command(SID, RING, Path("/src"), Path("/mnt")), lambda: libfuse(SID)):
        with pytest.raises(NotSupportedError, match="has no libfuse") as caught:
            asked()
        assert caught.value.hint == "scripts/setup-libfuse"


def test_daemon_in_an_unsupported_system_fails() -> None:
    with pytest.raises(UsageError, match="bindfs is not measured as fuse-writeback"):
        command("bindfs", "fuse-writeback", Path("/src"), Path("/mnt"))
