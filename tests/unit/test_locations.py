# SPDX-License-Identifier: LGPL-2.1-or-later
from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from efuse import locations
from efuse.errors import EfuseError
from efuse.fs import preload
from tests import access_lists
from tests.unit.symlinks import link_chain


def test_cache_is_below_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert locations.cache() == tmp_path / ".cache/efuse"


def test_cache_obeys_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert locations.cache() == tmp_path / "efuse"


def test_cache_ignores_a_relative_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert locations.cache() == tmp_path / ".cache/efuse"


def test_data_is_found_in_a_checkout() -> None:
    assert (locations.data("kernel_patches") / "6.12/series").is_file()


def test_data_of_an_installed_package_comes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = tmp_path / "efuse"
    for directory in (package / "_data/libefuse", tmp_path / "libefuse"):
        directory.mkdir(parents=True)
    monkeypatch.setattr(locations, "package", lambda: package)
    assert locations.data("libefuse") == package / "_data/libefuse"


def test_missing_data_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(locations, "package", lambda: tmp_path / "efuse")
    with pytest.raises(EfuseError, match="'specs' is missing"):
        locations.data("specs")


def test_data_of_an_unknown_name_fails() -> None:
    with pytest.raises(ValueError, match="passwords"):
        locations.data("passwords")


NOBODY = 65534


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home directory as sudo keeps it, and a private system cache."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    home = tmp_path / "home"
    (home / ".cache/efuse/kind").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(locations, "_SYSTEM_CACHE", tmp_path / "system")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return home


@pytest.mark.parametrize("which", ["", ".cache", ".cache/efuse"])
def test_root_does_not_use_a_cache_in_a_directory_of_another_user(home: Path, which: str) -> None:
    assert locations.cache() == home / ".cache/efuse"
    os.chown(home / which, NOBODY, NOBODY)
    assert locations.cache() == home.parent / "system"


@pytest.mark.parametrize("mode", [0o777, 0o702])
@pytest.mark.parametrize("which", ["", ".cache", ".cache/efuse"])
def test_root_does_not_use_a_cache_that_others_can_write(home: Path, which: str, mode: int) -> None:
    (home / which).chmod(mode)
    assert locations.cache() == home.parent / "system"


def test_root_uses_its_own_cache_below_a_sticky_directory(home: Path) -> None:
    home.chmod(0o1777)
    assert locations.cache() == home / ".cache/efuse"


def test_root_does_not_follow_a_link_to_a_directory_of_another_user(home: Path) -> None:
    elsewhere = home.parent / "elsewhere"
    elsewhere.mkdir()
    (home / ".cache/efuse/kind").rmdir()
    (home / ".cache/efuse").rmdir()
    (home / ".cache/efuse").symlink_to("../../elsewhere/../elsewhere")
    assert locations.cache() == home / ".cache/efuse"
    os.chown(elsewhere, NOBODY, NOBODY)
    assert locations.cache() == home.parent / "system"


@pytest.mark.parametrize("group", [0, NOBODY])
def test_cached_file_that_others_can_change_is_refused(home: Path, group: int) -> None:
    def make(file: Path) -> None:
        file.write_text("ours")

    made = locations.made_once("kind", "name", [], make)
    assert locations.made_once("kind", "name", [], make) == made
    os.chown(made, -1, group)
    made.chmod(0o664 if group else 0o646)
    with pytest.raises(EfuseError, match=r"is not used: .*can be written by .* \(EPERM\)"):
        locations.made_once("kind", "name", [], make)
    made.chmod(0o644)
    os.chown(made, NOBODY, -1)
    with pytest.raises(EfuseError, match="belongs to user 65534"):
        locations.made_once("kind", "name", [], make)


@pytest.mark.parametrize("which", [".cache", ".cache/efuse", ".cache/efuse/kind"])
def test_a_directory_that_another_user_makes_first_is_not_used(
    home: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """Root finds it missing, in a directory where every user can make it."""
    home.chmod(0o1777)
    shutil.rmtree(home / which)
    real = Path.mkdir

    def mkdir(path: Path, *args: Any, **kwargs: Any) -> None:
        real(path, *args, **kwargs)
        if path == home / which:
            os.chown(path, NOBODY, NOBODY)

    def make(file: Path) -> None:
        file.write_text("ours")

    def copy() -> None:
        monkeypatch.setattr(preload, "library", lambda _name: home.parent / "a b/digest/shim.so")
        monkeypatch.setattr(preload, "_RUNTIME", locations.cache() / "kind")
        preload.preload_library()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    (home.parent / "a b/digest").mkdir(parents=True)
    (home.parent / "a b/digest/shim.so").touch()
    assert locations.cache() == home / ".cache/efuse"
    directory = locations.cache() / "kind"
    for use in (
        lambda: locations.made_once("kind", "name", [], make),
        lambda: locations.write(directory / "name", "ours"),
        lambda: locations.make_directory(directory / "further"),
        copy,
    ):
        with pytest.raises(EfuseError, match="belongs to user 65534"):
            use()
        shutil.rmtree(home / which)


def test_cached_file_of_another_user_is_refused_after_making_it(home: Path) -> None:
    """The directories are there and private, but in the end the name is another user's file."""

    def make(file: Path) -> None:
        file.write_text("ours")
        os.chown(file, NOBODY, NOBODY)

    with pytest.raises(EfuseError, match="belongs to user 65534"):
        locations.made_once("kind", "name", [], make)


@pytest.mark.parametrize("permissions", [5, 7])
def test_root_does_not_use_a_cache_that_an_access_control_list_lets_others_write(
    home: Path, permissions: int
) -> None:
    """The mode shows the list's mask as the permissions of the group, which is root."""
    directory = home / ".cache"
    os.chown(directory, 0, 0)
    directory.chmod(0o775)
    assert locations.cache() == directory / "efuse"
    listed = access_lists.encoded(7, 5, 5, mask=permissions, users={NOBODY: permissions})
    os.setxattr(directory, access_lists.ACCESS, listed)
    is_private = permissions == 5
    assert locations.cache() == (directory / "efuse" if is_private else home.parent / "system")


def test_check_of_a_missing_file_fails_with_enoent(home: Path) -> None:
    with pytest.raises(EfuseError, match=r"is not used: it was removed meanwhile \(ENOENT\)"):
        locations.check_private(home / ".cache/efuse/none")


def test_a_compiled_program_of_another_user_is_not_loaded(home: Path) -> None:
    from efuse.bpf import compile as compiling
    from efuse.bpf.spec import Source

    directory = home / ".cache/efuse/specs"
    directory.mkdir()
    digest = compiling._digest((Source("x.c", "int x;"),), compiling.EFUSE_OPS)
    spec = directory / f"{digest}.json"
    spec.write_text("{}")
    os.chown(spec, NOBODY, NOBODY)
    with pytest.raises(EfuseError, match="is not used"):
        compiling.compile_text("int x;", name="x.c")


def test_a_kernel_of_another_user_is_not_used(home: Path) -> None:
    """Its makefiles would be executed, and its image be booted."""
    from efuse.module import kernel

    release = "7.3.4-amd64"
    root = home / ".cache/efuse/kernels" / release
    headers = root / f"usr/src/linux-headers-{release}"
    headers.mkdir(parents=True)
    (headers / "Module.symvers").touch()
    assert kernel.unpacked("7.3").headers == headers
    os.chown(root, NOBODY, NOBODY)
    for use in (lambda: kernel.unpacked("7.3"), lambda: kernel.find(release=release)):
        with pytest.raises(EfuseError, match="belongs to user 65534"):
            use()
    os.chown(root, 0, 0)
    os.chown(headers, NOBODY, NOBODY)
    with pytest.raises(EfuseError, match="belongs to user 65534"):
        kernel.unpacked("7.3")


def test_an_image_of_another_user_is_not_booted(home: Path) -> None:
    """The headers are the installed ones."""
    from efuse.module import kernel

    release = "6.12.5-amd64"
    installed = home / "root/lib/modules" / release / "build"
    kept = home / ".cache/efuse/kernels" / release
    for made in (installed, kept / "boot", kept / "lib/modules" / release):
        made.mkdir(parents=True)
    for file in (
        installed / "Module.symvers",
        kept / f"boot/vmlinuz-{release}",
        kept / "lib/modules" / release / "modules.dep",
    ):
        file.touch()
    assert kernel.find(home / "root").image == kept / f"boot/vmlinuz-{release}"
    os.chown(kept, NOBODY, NOBODY)
    with pytest.raises(EfuseError, match="belongs to user 65534"):
        kernel.find(home / "root")


def test_a_source_tree_of_another_user_is_not_unpacked(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from efuse import demo
    from efuse.module import kernel

    archive = home / "source.tar"
    archive.touch()
    monkeypatch.setattr(kernel, "source_archive", lambda: archive)
    monkeypatch.setattr(
        demo,
        "command",
        lambda *words: Path(words[words.index("-cf") + 1]).touch() if "-cf" in words else None,
    )
    made = demo.source_tree()
    assert demo.source_tree() == made
    os.chown(made, NOBODY, NOBODY)
    with pytest.raises(EfuseError, match="belongs to user 65534"):
        demo.source_tree()


def test_acceleration_result_of_another_user_is_ignored(home: Path) -> None:
    from efuse.guest import accel

    known = {"boot_id": accel._boot_id(), "kvm": True, "why": "a forged one"}
    path = locations.write(locations.cache() / "guests/acceleration.json", json.dumps(known))
    assert accel.cached() == accel.Accelerator(True, "a forged one")
    os.chown(path, NOBODY, NOBODY)
    assert accel.cached() is None


@pytest.fixture
def no_umask() -> Iterator[None]:
    """Clear the umask, as the daemon of a pass-through does."""
    umask = os.umask(0)
    yield
    os.umask(umask)


def test_files_written_with_umask_0_are_private(home: Path, no_umask: None) -> None:
    from efuse.bpf import compile as compiling
    from efuse.bpf.spec import Spec

    def make(file: Path) -> None:
        file.write_text("ours")
        file.chmod(0o777)

    shutil.rmtree(home / ".cache")
    made = locations.made_once("kind", "name", [], make)
    assert made.stat().st_mode & 0o777 == 0o755
    for kept in (
        locations.made_once("kind", "name", [], make),
        compiling.store(Spec({}, {}, "digest"), locations.cache() / "specs"),
        locations.write(locations.cache() / "a/b/c", "text"),
    ):
        assert locations.check_private(kept).is_file()
        assert locations.cache() == home / ".cache/efuse"


def test_a_file_is_written_whole_or_not_at_all(home: Path) -> None:
    path = locations.write(home / "a/b", "old")
    with pytest.raises(UnicodeEncodeError):
        locations.write(path, "new \udcff")
    assert path.read_text() == "old"
    assert [path.name for path in path.parent.iterdir()] == ["b"]


def test_remove_oldest_keeps_the_files_that_were_written_last(home: Path) -> None:
    for number in range(6):
        path = locations.write(home / f"kept/{9 - number}.json", f"{number}")
        os.utime(path, ns=(0, number))
    (home / "kept/0.txt").touch()
    (home / "kept/1.json").mkdir()
    locations.remove_oldest(home / "kept", "*.json", 4)
    assert sorted(path.name for path in (home / "kept").iterdir()) == [
        "0.txt",
        "1.json",
        *(f"{name}.json" for name in range(4, 8)),
    ]
    assert [(home / f"kept/{name}.json").read_text() for name in range(4, 8)] == [*"5432"]
    locations.remove_oldest(home / "kept", "*.json", 4)
    assert len(list((home / "kept").iterdir())) == 6


def test_remove_oldest_of_a_missing_directory_does_nothing(home: Path) -> None:
    locations.remove_oldest(home / "none", "*", 1)
    assert not (home / "none").exists()


def test_remove_oldest_goes_on_if_another_process_removes_a_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        os.utime(locations.write(home / f"kept/{number}", "-"), ns=(0, number))
    real = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        if path == home / "kept/0":
            path.unlink()
        return real(path)

    monkeypatch.setattr(Path, "lstat", lstat)
    locations.remove_oldest(home / "kept", "*", 1)
    assert [path.name for path in (home / "kept").iterdir()] == ["2"]


def test_as_many_links_are_followed_as_by_the_kernel(home: Path) -> None:
    chain = link_chain(home, ".cache", 41)
    assert locations.why_not_private(chain[39]) is None
    why = locations.why_not_private(chain[40])
    assert why is not None
    assert "ELOOP" in why


def test_nothing_is_made_below_a_link_that_another_user_makes_first(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "etc").mkdir()
    (tmp_path / "kind").symlink_to(tmp_path / "etc")
    os.chown(tmp_path / "kind", NOBODY, NOBODY, follow_symlinks=False)
    with pytest.raises(EfuseError, match="belongs to user 65534"):
        locations.make_directory(tmp_path / "kind/1/2")
    assert list((tmp_path / "etc").iterdir()) == []
