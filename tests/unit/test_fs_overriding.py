# SPDX-License-Identifier: LGPL-2.1-or-later
"""Shortcuts past the handlers that a subclass overrides are not used."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

import efuse
from efuse.fs.guard import HANDLERS
from efuse.fs.overriding import Shortcut, applies_umask, shortcuts, stands_for

OWN = sorted(name for name in HANDLERS if name in vars(efuse.Passthrough))


async def _handler(self: Any, *arguments: Any) -> Any:
    """Replace a handler; it is never called."""


def over(tmp_path: Path, *names: str) -> efuse.Passthrough:
    """Return a pass-through that overrides the handlers *names*."""
    kind = type("Over", (efuse.Passthrough,), dict.fromkeys(names, _handler))
    made: efuse.Passthrough = kind(tmp_path, consistency="exclusive")
    return made


@pytest.fixture
def plain(tmp_path: Path) -> efuse.Passthrough:
    return efuse.Passthrough(tmp_path, consistency="exclusive")


def test_all_shortcuts_stay_without_overridden_handlers(plain: efuse.Passthrough) -> None:
    used = shortcuts(plain.efuse_options, plain)
    assert used.options == plain.efuse_options
    assert (used.without, used.reads, used.writes, used.description) == (
        frozenset(),
        True,
        True,
        "",
    )


@pytest.mark.parametrize("name", sorted(HANDLERS))
def test_overridden_handler_ends_its_shortcuts(tmp_path: Path, name: str) -> None:
    operations = over(tmp_path, name)
    used = shortcuts(operations.efuse_options, operations)
    assert used.overridden == (name,)
    assert used.options.consistency == "ttl"
    assert name in used.description
    asked_at_once = {"lookup", "getattr", "access", "readlink", "getxattr", "listxattr", "statfs"}
    if name in asked_at_once | {"open", "opendir", "flush"}:
        assert name in used.without
    if name in ("open", "opendir", "create", "release", "read", "write", "readdir", "fsync"):
        assert not used.options.no_open
    assert used.reads is (name not in ("read", "poll"))
    assert used.writes is (name not in ("read", "write", "poll"))
    assert ("block" in used.without) is (name in ("read", "write", "poll"))
    assert used.options.no_flush is (name not in ("flush", "poll"))


def test_every_passthrough_handler_declares_its_shortcut() -> None:
    assert len(OWN) > 25
    for name in OWN:
        assert isinstance(getattr(efuse.Passthrough, name).efuse_stands_for, Shortcut), name


def test_overridden_handler_without_a_declaration_ends_all_shortcuts(tmp_path: Path) -> None:
    # The pass-through itself has no handler for poll.
    used = shortcuts(efuse.Options(no_open=True, no_flush=True), over(tmp_path, "poll"))
    assert not (used.options.no_open or used.options.no_flush or used.reads or used.writes)


def test_a_handler_of_a_mixin_or_of_the_object_counts(tmp_path: Path) -> None:
    mixin = type("Mixin", (), {"read": _handler})
    mixed = type("Mixed", (mixin, efuse.Passthrough), {})(tmp_path)
    assert shortcuts(mixed.efuse_options, mixed).overridden == ("read",)
    patched = efuse.Passthrough(tmp_path)
    patched.access = _handler.__get__(patched)  # type: ignore[method-assign]
    assert shortcuts(patched.efuse_options, patched).overridden == ("access",)


def test_a_handler_that_was_replaced_in_the_class_itself_counts(
    plain: efuse.Passthrough, monkeypatch: pytest.MonkeyPatch
) -> None:
    @functools.wraps(efuse.Passthrough.read)
    async def read(self: efuse.Passthrough, *arguments: Any) -> bytes:
        return b"another"

    monkeypatch.setattr(efuse.Passthrough, "read", read)
    used = shortcuts(plain.efuse_options, plain)
    assert used.overridden == ("read",)
    assert not (used.reads or used.writes or used.options.no_open)
    assert used.options.consistency == "ttl"
    monkeypatch.undo()

    @stands_for(Shortcut.NONE)
    async def mkdir(self: efuse.Passthrough, *arguments: Any) -> Any:
        """Replace a handler; it is never called."""

    assert applies_umask(plain)
    monkeypatch.setattr(efuse.Passthrough, "mkdir", mkdir)
    assert shortcuts(plain.efuse_options, plain).overridden == ("mkdir",)
    assert not applies_umask(plain)


def test_stands_for_stores_the_shortcut_of_a_handler() -> None:
    @stands_for(Shortcut.FLUSH)
    async def handler() -> None: ...

    assert handler.efuse_stands_for is Shortcut.FLUSH  # type: ignore[attr-defined]


def test_a_file_system_that_inherits_no_promise_keeps_its_own() -> None:
    class Own(efuse.Operations):
        efuse_options = efuse.Options(consistency="exclusive", no_open=True)

        async def read(self, fh: int, off: int, size: int) -> bytes:
            return b""

    own = Own()
    assert shortcuts(own.efuse_options, own).options == own.efuse_options


def test_subclass_of_a_file_system_with_own_promises_answers_for_them() -> None:
    """Nothing tells that the promises are about the handlers of the class that it inherits."""

    class Own(efuse.Operations):
        efuse_options = efuse.Options(consistency="exclusive", no_open=True)

    class Further(Own):
        async def open(self, inode: int, flags: int, ctx: Any) -> Any:
            """Replace a handler; it is never called."""

    further = Further()
    used = shortcuts(further.efuse_options, further)
    assert (used.options, used.description) == (Own.efuse_options, "")


@pytest.mark.parametrize("name", ["create", "mkdir", "mknod"])
def test_kernel_applies_umasks_if_a_creating_handler_is_overridden(
    tmp_path: Path, name: str
) -> None:
    assert applies_umask(efuse.Passthrough(tmp_path))
    assert applies_umask(over(tmp_path, "unlink"))
    assert not applies_umask(over(tmp_path, name))
    patched = efuse.Passthrough(tmp_path)
    setattr(patched, name, _handler.__get__(patched))
    assert not applies_umask(patched)


def test_a_subclass_may_say_that_it_applies_umasks(tmp_path: Path) -> None:
    kind = type("Says", (efuse.Passthrough,), {"create": _handler, "efuse_applies_umask": True})
    assert applies_umask(kind(tmp_path))
    further = type("Further", (kind,), {"mkdir": _handler})
    assert not applies_umask(further(tmp_path))
    assert not applies_umask(efuse.Operations())
    assert not applies_umask(object())
