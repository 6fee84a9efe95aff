# SPDX-License-Identifier: LGPL-2.1-or-later
"""A file of the cache is read only if no untrusted user could have written it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from efuse import locations
from efuse.bpf import bcc
from efuse.bpf import compile as compiling
from efuse.bpf.spec import Source, Spec
from efuse.errors import EfuseError
from efuse.guest import accel
from tests import access_lists
from tests.unit import spoiled_files

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "efuse"


def _writable_by_a_listed_user(file: Path) -> None:
    os.setxattr(
        file, access_lists.ACCESS, access_lists.encoded(6, 4, 4, users={spoiled_files.NOBODY: 6})
    )


_SPOILS = (
    (spoiled_files.link, r"ELOOP"),
    (spoiled_files.fifo, r"EINVAL"),
    (spoiled_files.directory, r"EINVAL"),
    (spoiled_files.of_another_user, r"belongs to user 65534 \(EPERM\)"),
    (spoiled_files.writable_by_others, r"can be written by all users \(EPERM\)"),
    (spoiled_files.writable_by_another_group, r"can be written by group 65534 \(EPERM\)"),
    (_writable_by_a_listed_user, r"can be written by users of its access control list \(EPERM\)"),
    (spoiled_files.in_a_directory_of_others, r"can be written by all users \(EPERM\)"),
)


def test_read_private_returns_the_content_of_an_own_file(cache: Path) -> None:
    assert locations.read_private(locations.write(cache / "a/b", "ä\n")) == "ä\n"


def test_read_private_of_a_missing_file_raises_file_not_found(cache: Path) -> None:
    with pytest.raises(FileNotFoundError):
        locations.read_private(cache / "a/b")


@pytest.mark.parametrize(("spoil", "why"), _SPOILS)
def test_read_private_of_an_untrusted_file_fails(
    cache: Path, spoil: Callable[[Path], None], why: str
) -> None:
    path = locations.write(cache / "a/b", "forged")
    spoil(path)
    with pytest.raises(EfuseError, match=why):
        locations.read_private(path)


@pytest.mark.parametrize(
    "make_untrusted", [spoiled_files.of_another_user, _writable_by_a_listed_user]
)
def test_read_private_checks_the_opened_file_if_it_is_replaced_meanwhile(
    cache: Path, monkeypatch: pytest.MonkeyPatch, make_untrusted: Callable[[Path], None]
) -> None:
    """In a sticky directory, another user can remove a file after it was opened."""
    path = locations.write(cache / "a/b", "forged")
    path.parent.chmod(0o1777)
    make_untrusted(path)
    look = locations._look

    def replace_and_look(checked: Path) -> tuple[str | None, bool]:
        path.unlink()
        path.write_text("ours")
        path.chmod(0o644)
        return look(checked)

    monkeypatch.setattr(locations, "_look", replace_and_look)
    with pytest.raises(EfuseError, match=r"is not used: .* \(EPERM\)"):
        locations.read_private(path)


def test_compiled_program_that_another_process_removes_meanwhile_is_compiled_again(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = compiling._digest((Source("x.c", "int x;"),), compiling.EFUSE_OPS)
    stored = compiling.store(Spec({}, {}, digest), cache / "specs")
    check, compiled = locations._check_opened, Spec({}, {}, "compiled again")

    def remove_and_check(path: Path, fd: int) -> None:
        stored.unlink()
        check(path, fd)

    monkeypatch.setattr(locations, "_check_opened", remove_and_check)
    monkeypatch.setattr(bcc, "run", lambda *_: compiled)
    assert compiling.compile_text("int x;", name="x.c") == compiled


@pytest.mark.parametrize("spoil", [spoil for spoil, _ in _SPOILS])
def test_result_of_an_untrusted_probe_for_kvm_is_ignored(
    cache: Path, spoil: Callable[[Path], None]
) -> None:
    known = {"boot_id": accel._boot_id(), "kvm": True, "why": "a forged one"}
    path = locations.write(cache / "guests/acceleration.json", json.dumps(known))
    assert accel.cached() == accel.Accelerator(True, "a forged one")
    spoil(path)
    assert accel.cached() is None


@pytest.mark.parametrize(("spoil", "why"), _SPOILS)
def test_compiled_program_in_an_untrusted_file_is_not_used(
    cache: Path, spoil: Callable[[Path], None], why: str
) -> None:
    digest = compiling._digest((Source("x.c", "int x;"),), compiling.EFUSE_OPS)
    stored = compiling.store(Spec({}, {}, digest), cache / "specs")
    assert compiling.compile_text("int x;", name="x.c") == Spec({}, {}, digest)
    spoil(stored)
    with pytest.raises(EfuseError, match=why):
        compiling.compile_text("int x;", name="x.c")
