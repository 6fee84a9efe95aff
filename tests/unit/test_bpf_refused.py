# SPDX-License-Identifier: LGPL-2.1-or-later
"""System calls that fail become AttachError, and no descriptor stays open."""

from __future__ import annotations

import errno
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from efuse.bpf import libbpf
from efuse.bpf.attach import Attachment, list_attached, unpin
from efuse.bpf.libbpf import MapInfo
from efuse.bpf.load import describe_cache
from efuse.bpf.maps import BpfMap, mapping
from efuse.bpf.spec import MapSpec, Spec
from efuse.errors import AttachError

module = importlib.import_module("efuse.bpf.attach")  # `efuse.bpf.attach` is the function
HASH = MapSpec(1, 8, 8, 4)


def fails(number: int) -> Callable[..., NoReturn]:
    def call(*_arguments: object, **_options: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return call


@pytest.fixture
def counts() -> BpfMap[Any, Any]:
    return mapping(-1, "counts", HASH)


def test_lookup_refused_by_the_kernel_fails(
    counts: BpfMap[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libbpf, "map_lookup", fails(errno.EPERM))
    with pytest.raises(AttachError, match=r"cannot read map 'counts': .*EPERM"):
        counts[1]


@pytest.mark.parametrize("refused", ["map_next_key", "map_lookup"])
def test_iteration_without_batches_refused_by_the_kernel_fails(
    counts: BpfMap[Any, Any], monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    monkeypatch.setattr(libbpf, "map_lookup_batch", fails(errno.EINVAL))
    monkeypatch.setattr(libbpf, "map_next_key", lambda *_: bytes(8))
    monkeypatch.setattr(libbpf, refused, fails(errno.EPERM))
    with pytest.raises(AttachError, match=r"cannot read map 'counts': .*EPERM"):
        counts.read_all()


def test_write_all_without_batches_into_a_full_map_fails(
    counts: BpfMap[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libbpf, "map_update_batch", fails(errno.EINVAL))
    monkeypatch.setattr(libbpf, "map_update", fails(errno.E2BIG))
    with pytest.raises(AttachError, match=r"cannot change map 'counts': .*E2BIG"):
        counts.write_all([(1, 2)])


def test_clear_refused_by_the_kernel_fails(
    counts: BpfMap[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libbpf, "map_lookup_batch", lambda *_: (None, bytes(8), bytes(8), 1))
    monkeypatch.setattr(libbpf, "map_delete", fails(errno.EPERM))
    with pytest.raises(AttachError, match=r"cannot change map 'counts': .*EPERM"):
        counts.clear()


class Kernel:
    """A kernel with one program set, of one program that uses the maps in *names* by id.

    :ivar opened: descriptors that were given out.
    :ivar refuses: id of a map whose description is refused.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, names: dict[int, str]) -> None:
        self.opened: list[int] = []
        self.refuses = 0
        self._names = names
        self._ids: dict[int, int] = {}
        monkeypatch.setattr(libbpf, "program_by_id", self._open)
        monkeypatch.setattr(
            libbpf, "program_info", lambda _fd: SimpleNamespace(map_ids=tuple(names))
        )
        monkeypatch.setattr(libbpf, "map_by_id", self._open)
        monkeypatch.setattr(libbpf, "map_info", self._info)
        monkeypatch.setattr(module, "struct_ops_links", lambda _: iter([(1, self._open(1), b"")]))
        monkeypatch.setattr(module, "open_target", self._target)

    def _open(self, number: int) -> int:
        fd = os.open("/dev/null", os.O_RDONLY)
        self.opened.append(fd)
        self._ids[fd] = number
        return fd

    def _info(self, fd: int) -> MapInfo:
        number = self._ids[fd]
        if number == self.refuses:
            fails(errno.EPERM)()
        return MapInfo(number, 1, 8, 8, 4, 0, self._names[number])

    @contextmanager
    def _target(self) -> Iterator[Any]:
        yield SimpleNamespace(describe=lambda _value: (41, "efuse", {"lookup": 7}))

    def still_open(self) -> list[int]:
        """Return the ids behind the descriptors that are still open, except that of the link."""
        return [self._ids[fd] for fd in self.opened[1:] if Path(f"/proc/self/fd/{fd}").exists()]


def test_maps_that_cannot_be_opened_leave_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch, {10: "attrs", 11: "entries"})
    kernel.refuses = 11
    before = len(os.listdir("/proc/self/fd"))
    for call in (list_attached, lambda: Attachment.open(41)):
        with pytest.raises(AttachError, match=r"cannot open the maps of the programs: .*EPERM"):
            call()
        os.close(kernel.opened[0])
        assert kernel.still_open() == []
        kernel.opened.clear()
    assert len(os.listdir("/proc/self/fd")) == before


def test_open_without_a_descriptor_for_the_link_fails_and_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = Kernel(monkeypatch, {10: "attrs", 11: "entries"})
    monkeypatch.setattr(os, "dup", fails(errno.EMFILE))
    why = r"cannot open the programs of connection 41: Too many open files \(EMFILE\)"
    with pytest.raises(AttachError, match=why) as caught:
        Attachment.open(41)
    assert caught.value.hint == "raise the limit of open files: ulimit -n"
    os.close(kernel.opened[0])
    assert kernel.still_open() == []


def test_open_of_a_set_whose_pins_may_not_be_seen_fails_and_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernel = Kernel(monkeypatch, {10: "attrs", 11: "entries"})
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(Path, "is_dir", fails(errno.EACCES))
    with pytest.raises(AttachError, match=r"the programs of connection 41: .*EACCES") as caught:
        Attachment.open(41)
    monkeypatch.undo()
    assert caught.value.hint == "run as root"
    assert kernel.still_open() == []
    os.close(kernel.opened[0])
    assert len(os.listdir("/proc/self/fd")) == before


def test_maps_of_one_name_leave_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(monkeypatch, {10: "attrs", 11: "attrs"})
    (found,) = list_attached()
    assert found.maps == ("attrs",)
    assert kernel.still_open() == []
    os.close(kernel.opened[0])


def test_replace_that_cannot_pin_new_maps_raises_and_uses_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Kernel(monkeypatch, {})
    opened = os.open("/dev/null", os.O_RDONLY)
    monkeypatch.setattr(module, "create_maps", lambda *_: {"counts": opened})
    monkeypatch.setattr(module, "_load_set", lambda *_: os.open("/dev/null", os.O_RDONLY))
    monkeypatch.setattr(libbpf, "link_update", lambda *_: None)
    monkeypatch.setattr(libbpf, "object_pin", fails(errno.EEXIST))
    attachment = Attachment(41, "old", os.open("/dev/null", os.O_RDONLY), {})
    attachment._pins = tmp_path
    with pytest.raises(AttachError, match=r"cannot pin the new maps in .*EEXIST"):
        attachment.replace(spec=Spec({}, {"counts": HASH}, ""), name="new")
    assert (attachment.name, attachment.maps["counts"].fd) == ("new", opened)
    attachment.close()


def _attachment(pins: Path | None = None) -> Attachment:
    attachment = Attachment(41, "efuse", os.open("/dev/null", os.O_RDONLY), {})
    attachment._pins = pins
    return attachment


def test_size_of_the_cache_that_the_kernel_refuses_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libbpf, "map_update", fails(errno.EPERM))
    spec = Spec({}, {"geometry": HASH, "tags": HASH}, "")
    with pytest.raises(AttachError, match=r"the size of the data cache: .*EPERM") as caught:
        describe_cache(spec, {"geometry": -1, "tags": -1})
    assert caught.value.hint


def test_detach_that_cannot_remove_the_pins_fails_and_closes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(libbpf, "link_detach", lambda _fd: None)
    (tmp_path / "directory").mkdir()
    attachment = _attachment(tmp_path)
    link = attachment._link_fd
    with pytest.raises(AttachError, match=r"cannot remove the pins in .*EISDIR") as caught:
        attachment.detach()
    assert str(tmp_path) in str(caught.value.hint)
    assert not Path(f"/proc/self/fd/{link}").exists()


def test_detach_that_the_kernel_refuses_says_what_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libbpf, "link_detach", fails(errno.EPERM))
    attachment = _attachment()
    with pytest.raises(AttachError, match=r"cannot detach .*EPERM") as caught:
        attachment.detach()
    assert caught.value.hint
    attachment.close()


def test_pin_that_cannot_remove_earlier_pins_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "mount_bpffs", lambda: None)
    monkeypatch.setattr(module, "pin_directory", lambda _: tmp_path)
    (tmp_path / "directory").mkdir()
    attachment = _attachment()
    with pytest.raises(AttachError, match=r"cannot remove the pins in .*EISDIR"):
        attachment.pin()
    attachment.close()


def test_pin_that_fails_says_why_although_its_pins_cannot_be_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "mount_bpffs", lambda: None)

    def pinned(_fd: int, path: Path) -> None:
        path.mkdir()
        fails(errno.ENOMEM)()

    monkeypatch.setattr(libbpf, "object_pin", pinned)
    attachment = _attachment()
    with pytest.raises(AttachError, match=r"cannot pin the programs in .*ENOMEM") as caught:
        attachment.pin(tmp_path / "new")
    assert "cannot remove the pins" in str(caught.value.hint)
    attachment.close()


def test_pins_that_another_process_removes_meanwhile_are_no_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pins = tmp_path / "41"
    pins.mkdir()
    (pins / "link").touch()
    rmdir = Path.rmdir

    def removed(path: Path) -> None:
        rmdir(path)
        rmdir(path)

    monkeypatch.setattr(Path, "rmdir", removed)
    unpin(pins)
    assert not pins.exists()
