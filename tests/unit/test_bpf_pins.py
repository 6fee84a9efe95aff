# SPDX-License-Identifier: LGPL-2.1-or-later
"""In which directories pins are made, used and removed."""

from __future__ import annotations

import importlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from efuse.bpf import libbpf, pins
from efuse.bpf.attach import Attachment, unpin
from efuse.errors import AttachError, EfuseError
from efuse.functions import loading, policy

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")

NOBODY = 65534
# Functions of the packages have the names of these two modules.
attaching = importlib.import_module("efuse.bpf.attach")
loaded = importlib.import_module("efuse.functions.loaded")


@pytest.fixture
def bpffs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A directory with the mode of a bpffs that was mounted without options."""
    bpffs = tmp_path / "bpf"
    bpffs.mkdir()
    bpffs.chmod(0o1777)
    for module in (attaching, loading):
        monkeypatch.setattr(module, "BPFFS", bpffs)
        monkeypatch.setattr(module, "mount_bpffs", lambda: None)
    monkeypatch.setattr(policy, "_PIN", bpffs / "efuse-csd-policy")
    monkeypatch.setattr(libbpf, "object_pin", lambda _fd, path: path.touch(exist_ok=False))
    monkeypatch.setattr(libbpf, "link_detach", lambda _fd: None)
    return bpffs


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A directory of root with files whose names are those of pins."""
    directory = tmp_path / "etc"
    (directory / "41").mkdir(parents=True)
    for name in ("link", "find", "41/link"):
        (directory / name).write_bytes(b"precious")
    return directory


def _link_of_another_user(path: Path, target: Path) -> Path:
    path.symlink_to(target)
    os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return path


def _attachment(pinned: Path | None = None) -> Attachment:
    attachment = Attachment(41, "efuse", os.open("/dev/null", os.O_RDONLY), {})
    attachment._pins = pinned
    return attachment


def _content(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


PRECIOUS = {name: b"precious" for name in ("link", "find", "41/link")}


def test_unpin_does_not_follow_a_link_of_another_user(bpffs: Path, precious: Path) -> None:
    with pytest.raises(AttachError, match=r"belongs to user 65534 \(EPERM\)"):
        unpin(_link_of_another_user(bpffs / "efuse", precious) / "41")
    with pytest.raises(AttachError, match=r"belongs to user 65534 \(EPERM\)"):
        unpin(_link_of_another_user(bpffs / "link", precious))
    assert _content(precious) == PRECIOUS


def test_unpin_does_not_follow_a_link_of_root(bpffs: Path, precious: Path) -> None:
    (bpffs / "41").symlink_to(precious)
    with pytest.raises(AttachError, match="ENOTDIR"):
        unpin(bpffs / "41")
    assert _content(precious) == PRECIOUS


def test_unpin_of_a_directory_that_another_user_owns_fails(bpffs: Path) -> None:
    (bpffs / "41").mkdir()
    (bpffs / "41/link").touch()
    os.chown(bpffs / "41", NOBODY, NOBODY)
    with pytest.raises(AttachError, match="belongs to user 65534"):
        unpin(bpffs / "41")
    assert (bpffs / "41/link").exists()


def test_pins_are_removed_with_their_directory(bpffs: Path) -> None:
    pins.make_directory(bpffs / "efuse/41")
    (bpffs / "efuse/41/link").touch()
    unpin(bpffs / "efuse/41")
    assert list((bpffs / "efuse").iterdir()) == []
    unpin(bpffs / "efuse/41")


def test_pin_below_a_link_of_another_user_fails(bpffs: Path, precious: Path) -> None:
    _link_of_another_user(bpffs / "efuse", precious)
    attachment = _attachment()
    for directory in (None, bpffs / "efuse/42"):
        with pytest.raises(AttachError, match="belongs to user 65534"):
            attachment.pin(directory)
    assert _content(precious) == PRECIOUS
    assert not (precious / "42").exists()
    attachment.close()


def test_pin_in_a_bpffs_that_every_user_can_change_fails(bpffs: Path) -> None:
    bpffs.chmod(0o777)
    attachment = _attachment()
    with pytest.raises(AttachError, match="can be written by all users"):
        attachment.pin()
    assert list(bpffs.iterdir()) == []
    attachment.close()


@pytest.mark.parametrize("umask", [0, 0o022])
def test_directories_of_pins_are_private_with_any_umask(bpffs: Path, umask: int) -> None:
    attachment = _attachment()
    before = os.umask(umask)
    try:
        directory = attachment.pin()
        loading.Loaded("find", -1).pin()
    finally:
        os.umask(before)
    for made in (directory, directory.parent, bpffs / "efuse-csd"):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert (bpffs / "efuse-csd/find").exists()
    attachment.close()


def test_pins_of_an_earlier_set_are_replaced(bpffs: Path) -> None:
    earlier, later = _attachment(), _attachment()
    (earlier.pin() / "gone").touch()
    assert sorted(path.name for path in later.pin().iterdir()) == ["link"]
    earlier.close()
    later.close()


def test_replaced_pins_are_not_those_behind_a_link(bpffs: Path, precious: Path) -> None:
    attachment = _attachment(_link_of_another_user(bpffs / "41", precious))
    with pytest.raises(AttachError, match="belongs to user 65534"):
        attachment._pin_again(bpffs / "41", [], {"new": 0})
    assert _content(precious) == PRECIOUS
    attachment.close()


def test_pinned_set_in_a_directory_of_another_user_is_not_opened(
    monkeypatch: pytest.MonkeyPatch, bpffs: Path, precious: Path
) -> None:
    opened: list[Path] = []
    monkeypatch.setattr(libbpf, "object_get", opened.append)
    with pytest.raises(AttachError, match="belongs to user 65534"):
        Attachment.open_pinned(_link_of_another_user(bpffs / "41", precious))
    assert opened == []


def _unload_function(monkeypatch: pytest.MonkeyPatch) -> None:
    found = loaded.InKernel("find", 0, 0, pinned=True)
    monkeypatch.setattr(loaded, "_links", lambda: iter([(-1, found)]))
    loaded.unload("find")


def _pin_function(_: pytest.MonkeyPatch) -> None:
    loading.Loaded("find", -1).pin()


@pytest.mark.parametrize("use", [_unload_function, _pin_function])
def test_pin_of_a_function_below_a_link_of_another_user_is_left(
    monkeypatch: pytest.MonkeyPatch,
    bpffs: Path,
    precious: Path,
    use: Callable[[pytest.MonkeyPatch], Any],
) -> None:
    _link_of_another_user(bpffs / "efuse-csd", precious)
    with pytest.raises(EfuseError, match="belongs to user 65534"):
        use(monkeypatch)
    assert _content(precious) == PRECIOUS


def test_pin_of_a_policy_in_a_bpffs_that_every_user_can_change_is_left(
    monkeypatch: pytest.MonkeyPatch, bpffs: Path
) -> None:
    bpffs.chmod(0o777)
    (bpffs / "efuse-csd-policy").touch()
    monkeypatch.setattr(policy, "struct_ops_links", lambda _: iter([(1, -1, b"")]))
    with pytest.raises(AttachError, match="can be written by all users"):
        policy.unload_policy()
    assert (bpffs / "efuse-csd-policy").exists()
