# SPDX-License-Identifier: LGPL-2.1-or-later
"""The cached answers about the types of a kernel and a module, on hand-made BTF."""

from __future__ import annotations

import ctypes
import functools
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from efuse import locations
from efuse.bpf import type_index
from efuse.bpf.kernel_types import KernelTypes
from efuse.bpf.tracing import Hook
from efuse.control.mounts import is_on_fuse
from tests.unit import spoiled_files
from tests.unit.btf_builder import write_types

_IN_OPEN = 0x20
_IS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
_libc = ctypes.CDLL(None, use_errno=True)


def _notes(build_id: bytes) -> bytes:
    other = struct.pack("=III6s2x5s3x", 6, 5, 7, b"Linux\0", b"other")
    return other + struct.pack("=III4s", 4, len(build_id), 3, b"GNU\0") + build_id


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(type_index, "_MAX_KEPT", 0)  # as if each question came from a new process
    monkeypatch.setattr(type_index.TypeIndex, "_kept", {})
    sysfs = tmp_path / "sys"
    write_types(sysfs)
    (sysfs / "notes").write_bytes(_notes(b"\1" * 20))
    return sysfs


@contextmanager
def _opens_of(path: Path) -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether *path* was opened, by Python or by libbpf."""
    fd = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    assert _libc.inotify_add_watch(fd, os.fsencode(path), _IN_OPEN) >= 0

    def opened() -> bool:
        try:
            return bool(os.read(fd, 4096))
        except BlockingIOError:
            return False

    try:
        yield opened
    finally:
        os.close(fd)


def _tell(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except KeyError as error:
        return repr(error)


def _ask(sysfs: Path, module: str | None = "efuse") -> list[Any]:
    """Return the answers to every kind of question, and the errors."""
    with KernelTypes(module, sysfs=sysfs) as types:
        hooks = [Hook("tp_btf", "efuse_request"), Hook("tp_btf", "fuse_request_send")]
        ids = [_tell(lambda h=hook: h.type_id(types)) for hook in hooks]  # type: ignore[misc]
        return [
            *ids,
            *(types.is_own(number) for number in ids if isinstance(number, int)),
            *(types.hides(f"btf_trace_{hook.name}") for hook in hooks),
            types.hides("btf_trace_fuse_request_end"),
            _tell(lambda: types.function("fuse_request_end")),
            _tell(lambda: types.function("nothing")),
            _tell(lambda: types.own_function("efuse_req_uid")),
            _tell(lambda: types.own_function("fuse_request_end")),
            _tell(lambda: types.own_struct("fuse_req")),
            _tell(lambda: types.size("fuse_req")),
            _tell(lambda: types.size("nothing")),
            _tell(lambda: types.members("fuse_req")),
            _tell(lambda: types.members("nothing")),
            _tell(lambda: types.offset("fuse_req", "args")),
            _tell(lambda: types.offset("fuse_req", "in.h.opcode")),
            _tell(lambda: types.offset("fuse_req", "in.x")),
            _tell(lambda: types.bit_offset("fuse_args", "force")),
            _tell(lambda: types.offset("nothing", "x")),
        ]


def _files() -> list[Path]:
    return sorted((locations.cache() / "btf").glob("*"))


@pytest.mark.parametrize("module", ["efuse", None])
def test_second_read_opens_no_vmlinux_and_gives_the_same_answers(
    sysfs: Path, module: str | None
) -> None:
    with _opens_of(sysfs / "btf/vmlinux") as opened:
        first = _ask(sysfs, module)
        assert opened()
        assert _ask(sysfs, module) == first
        assert not opened()
    (file,) = _files()
    assert file.stat().st_mode & 0o777 == 0o644


def test_process_reads_the_file_once(sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = _ask(sysfs)
    monkeypatch.setattr(type_index, "_MAX_KEPT", 1)
    with _opens_of(_files()[0]) as opened:
        assert _ask(sysfs) == first
        assert opened()
        assert _ask(sysfs) == first
        assert not opened()
        write_types(sysfs, module_args=24)  # another module is loaded
        assert "24" in str(_ask(sysfs))
        write_types(sysfs)
        assert _ask(sysfs) == first
        assert opened()  # only the last index was kept


def test_answers_that_another_process_has_stored_stay(
    sysfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type_index, "_MAX_KEPT", 1)
    with KernelTypes("efuse", sysfs=sysfs) as types:
        types.own_struct("fuse_req")
    kept, type_index.TypeIndex._kept = type_index.TypeIndex._kept, {}
    with KernelTypes("efuse", sysfs=sysfs) as types:  # the other process
        assert types.offset("fuse_in_header", "opcode") == 4
    type_index.TypeIndex._kept = kept
    with KernelTypes("efuse", sysfs=sysfs) as types:
        assert types.offset("fuse_req", "args") == 40
    type_index.TypeIndex._kept = {}
    with _opens_of(sysfs / "btf/vmlinux") as opened, KernelTypes("efuse", sysfs=sysfs) as types:
        assert types.offset("fuse_in_header", "opcode") == 4
        assert types.offset("fuse_req", "args") == 40
        assert not opened()


def test_question_that_is_new_is_answered_and_stored(sysfs: Path) -> None:
    with KernelTypes("efuse", sysfs=sysfs) as types:
        types.own_struct("fuse_req")
    for was_parsed in (True, False):
        with _opens_of(sysfs / "btf/vmlinux") as opened:
            with KernelTypes("efuse", sysfs=sysfs) as types:
                assert types.offset("fuse_req", "args") == 40
                assert types.offset("fuse_in_header", "opcode") == 4
            assert opened() == was_parsed


def test_other_build_of_the_module_has_its_own_answers(sysfs: Path) -> None:
    before = _ask(sysfs)
    write_types(sysfs, module_args=24)
    for _ in range(2):
        assert "24" in str(_ask(sysfs))
    write_types(sysfs)
    assert _ask(sysfs) == before
    assert len(_files()) == 2


def test_kernel_alone_and_kernel_with_module_have_different_answers(sysfs: Path) -> None:
    found = [_ask(sysfs, module) for module in ("efuse", None, "efuse", None, "built_in")]
    assert found[0] == found[2] != found[1] == found[3] == found[4]


def test_other_kernel_has_its_own_answers(sysfs: Path) -> None:
    _ask(sysfs)
    (sysfs / "notes").write_bytes(_notes(b"\2" * 20))
    with _opens_of(sysfs / "btf/vmlinux") as opened:
        _ask(sysfs)
        assert opened()


def test_kernel_whose_types_were_replaced_has_its_own_answers(sysfs: Path) -> None:
    _ask(sysfs)
    vmlinux = sysfs / "btf/vmlinux"
    vmlinux.write_bytes(vmlinux.read_bytes() + bytes(4))
    with _opens_of(vmlinux) as opened:
        _tell(lambda: KernelTypes("efuse", sysfs=sysfs).close())
        assert opened()


@pytest.mark.parametrize("version", ["reader_version", "_VERSION"])
def test_other_version_has_its_own_answers(
    sysfs: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    first = _ask(sysfs)
    monkeypatch.setattr(type_index, version, (lambda: "v9.9") if version[0] == "r" else 0)
    with _opens_of(sysfs / "btf/vmlinux") as opened:
        assert _ask(sysfs) == first
        assert opened()


@pytest.mark.parametrize("notes", [None, b"", b"\1", _notes(b""), _notes(b"\1" * 20)[:-24]])
def test_kernel_without_build_id_is_not_cached(sysfs: Path, notes: bytes | None) -> None:
    (sysfs / "notes").unlink()
    if notes is not None:
        (sysfs / "notes").write_bytes(notes)
    assert _ask(sysfs) == _ask(sysfs)
    assert not (locations.cache() / "btf").exists()


def _cut_off(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def _empty(file: Path) -> None:
    file.write_bytes(b"")


def _changed(file: Path) -> None:
    file.write_text(file.read_text().replace(": 40", ": 41").replace(": 320", ": 328"))


def _not_utf8(file: Path) -> None:
    file.write_bytes(b"\xff" + file.read_bytes())


def _another_kernels(file: Path) -> None:
    """A file with a right checksum under another name."""
    index = type_index.TypeIndex("another key")
    index.number("bits fuse_req args", lambda: 8)
    index.write()
    (file.parent / "another key.json").replace(file)


@pytest.mark.parametrize(
    "spoil",
    [
        _cut_off,
        _empty,
        _changed,
        _not_utf8,
        _another_kernels,
        spoiled_files.link,
        spoiled_files.fifo,
        spoiled_files.directory,
        pytest.param(spoiled_files.of_another_user, marks=_IS_ROOT),
        spoiled_files.writable_by_others,
        pytest.param(spoiled_files.writable_by_another_group, marks=_IS_ROOT),
        spoiled_files.in_a_directory_of_others,
    ],
)
def test_file_that_cannot_be_trusted_is_not_used(sysfs: Path, spoil: Callable[[Path], Any]) -> None:
    first = _ask(sysfs)
    spoil(_files()[0])
    with _opens_of(sysfs / "btf/vmlinux") as opened:
        for _ in range(2):
            assert _ask(sysfs) == first
        assert opened()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{}",
        '{"numbers": {}}',
        '{"members": {}}',
        '{"numbers": [], "members": {}}',
        '{"numbers": {}, "members": []}',
        '{"numbers": {"id 4 fuse_req": "7"}, "members": {}}',
        '{"numbers": {"id 4 fuse_req": [7]}, "members": {}}',
        '{"numbers": {"id 4 fuse_req": 7}, "members": {"fuse_req": 3}}',
        '{"numbers": {"id 4 fuse_req": 7}, "members": {"fuse_req": {"args": 1}}}',
        '{"numbers": {"id 4 fuse_req": 7}, "members": {"fuse_req": [3]}}',
        '{"numbers": {"id 4 fuse_req": 7}, "members": {"fuse_req": [["args", 1]]}}',
        '{"numbers": {"id 4 fuse_req": 7}, "members": {"fuse_req": [["args", 1, 2, 3]]}}',
        '{"numbers": {"id 4 fuse_req": 7}, "members": {"fuse_req": [["args", 1, null]]}}',
    ],
)
def test_file_of_another_shape_with_a_right_checksum_is_replaced(sysfs: Path, text: str) -> None:
    first = _ask(sysfs)
    (file,) = _files()
    right = file.read_bytes()
    file.write_text(f"{type_index._checksum(file.stem, text)}\n{text}")
    with _opens_of(sysfs / "btf/vmlinux") as opened:
        assert _ask(sysfs) == first
        assert opened()
    assert file.read_bytes() == right


def test_damaged_file_is_replaced(sysfs: Path) -> None:
    first = _ask(sysfs)
    right = _files()[0].read_bytes()
    _cut_off(_files()[0])
    assert _ask(sysfs) == first
    assert _files()[0].read_bytes() == right


def test_files_of_kernels_that_wrote_no_answers_lately_are_removed(
    sysfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type_index, "_MAX_FILES", 3)
    first = _ask(sysfs)
    (oldest,) = _files()
    for number in range(2, 6):
        for age, file in enumerate(_files()):
            os.utime(file, ns=(0, age + 1 if file != oldest else 0))
        (sysfs / "notes").write_bytes(_notes(bytes([number]) * 20))
        assert _ask(sysfs) == first
    assert len(_files()) == 3
    assert oldest not in _files()
    with _opens_of(sysfs / "btf/vmlinux") as opened:
        assert _ask(sysfs) == first
        assert not opened()


def test_cache_that_cannot_be_written_changes_no_answer(sysfs: Path) -> None:
    first = _ask(sysfs)
    _files()[0].unlink()
    (locations.cache() / "btf").rmdir()
    (locations.cache() / "btf").write_bytes(b"in the way")
    assert _ask(sysfs) == first


def test_home_that_is_unknown_changes_no_answer(
    sysfs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    first = _ask(sysfs)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", unknown)
    assert _ask(sysfs) == first


@pytest.mark.parametrize("place", ["cache", "cache/efuse", "cache/efuse/btf"])
def test_cache_on_a_fuse_mount_is_not_touched(
    sysfs: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The mount's daemon may be this process, which would wait for itself."""
    first = _ask(sysfs)
    mountpoint = sysfs.parent / place
    (sysfs / "mountinfo").write_text(f"1 0 0:40 / {mountpoint} rw - fuse.x x rw\n")
    of_table = functools.partial(is_on_fuse, mountinfo=sysfs / "mountinfo")
    monkeypatch.setattr(type_index, "is_on_fuse", of_table)
    with _opens_of(sysfs / "btf/vmlinux") as vmlinux, _opens_of(_files()[0]) as file:
        assert _ask(sysfs) == first
        assert vmlinux()
        assert not file()


def test_module_that_was_replaced_meanwhile_leaves_no_wrong_answers(sysfs: Path) -> None:
    """The stored answers are those of the content that the key is made of."""
    types = KernelTypes("efuse", sysfs=sysfs)
    write_types(sysfs, module_args=24)
    with types:
        assert types.offset("fuse_req", "args") == 40
    assert "24" in str(_ask(sysfs))
    write_types(sysfs)
    with KernelTypes("efuse", sysfs=sysfs) as types:
        assert types.offset("fuse_req", "args") == 40
