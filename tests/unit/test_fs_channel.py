# SPDX-License-Identifier: LGPL-2.1-or-later
"""A channel for pyfuse3's session: how the session is found, and why there may be none."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path

import pyfuse3
import pytest

from efuse.cli._filesystem import describe
from efuse.errors import NotSupportedError
from efuse.fs import Mounted
from efuse.fs import channel as channel_module
from efuse.fs.channel import SessionChannel


@pytest.fixture(autouse=True)
def _channels_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EFUSE_CHANNELS", raising=False)


@pytest.fixture
def no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    if Path("/dev/efuse").exists():
        pytest.skip("the machine has eFuse")


@pytest.fixture
def nowhere() -> Iterator[str]:
    """A path that pyfuse3 accepts as a mount, but that has no requests."""
    fd = os.open(os.devnull, os.O_RDWR)
    yield f"/dev/fd/{fd}"
    pyfuse3.close(unmount=False)  # closes it


def _protections() -> list[str]:
    """Return how the parts of pyfuse3's extension are mapped."""
    extension = str(Path(pyfuse3.__file__).resolve())
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if line.endswith(extension)]


@pytest.mark.usefixtures("no_device")
def test_session_is_found_and_pyfuse3_is_restored(nowhere: str) -> None:
    before = _protections()
    assert before
    channel = SessionChannel(wanted=True)
    with channel.found():
        pyfuse3.init(pyfuse3.Operations(), nowhere, set())
    assert _protections() == before
    wait = pyfuse3._wait_fuse_readable  # type: ignore[attr-defined]
    channel.open()
    # The session was found; otherwise the reason would be another one.
    assert (channel.is_open, channel.reason) == (False, "the kernel has no eFuse")
    assert pyfuse3._wait_fuse_readable is wait  # type: ignore[attr-defined]
    channel.close()


def test_a_session_made_outside_is_not_found(nowhere: str) -> None:
    channel = SessionChannel(wanted=True)
    with channel.found():
        pass
    pyfuse3.init(pyfuse3.Operations(), nowhere, set())
    channel.open()
    assert (channel.is_open, channel.reason) == (False, "this version of pyfuse3 is not known")


def test_where_pyfuse3_fails_it_is_left_as_it_was(nowhere: str) -> None:
    before = _protections()
    with pytest.raises(KeyError), SessionChannel(wanted=True).found():
        raise KeyError
    assert _protections() == before
    test_a_session_made_outside_is_not_found(nowhere)


@pytest.mark.parametrize("wanted", [True, False])
def test_unwanted_channels_load_nothing_and_have_no_reason(
    wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if wanted:
        monkeypatch.setenv("EFUSE_CHANNELS", "0")
    monkeypatch.setattr(channel_module, "functions", lambda: pytest.fail("it was loaded"))
    channel = SessionChannel(wanted=wanted)
    with channel.found():
        pass
    channel.open()
    channel.close()
    assert (channel.is_open, channel.reason) == (False, "")


def test_missing_library_is_the_reason_for_no_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        raise NotSupportedError("it cannot be built: make: none")

    monkeypatch.setattr(channel_module, "functions", load)
    channel = SessionChannel(wanted=True)
    with channel.found():
        pass
    channel.open()
    assert (channel.is_open, channel.reason) == (False, "it cannot be built: make: none")


def test_unknown_pyfuse3_is_the_reason_for_no_channels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(pyfuse3, "_wait_fuse_readable")
    assert SessionChannel(wanted=True).reason == "this version of pyfuse3 is not known"


def test_mount_description_has_the_reason_for_no_channels() -> None:
    mounted = Mounted(1, "/m", "efuse", True, "", 7, False, "libfuse is older than 3.14", "")
    assert describe(mounted) == "/m: eFuse, connection 7, no channels: libfuse is older than 3.14"
    mounted = dataclasses.replace(mounted, channels=True, channels_reason="")
    assert describe(mounted) == "/m: eFuse, connection 7"


def test_mount_description_has_what_overridden_handlers_end() -> None:
    mounted = Mounted(1, "/m\x1b", "efuse", True, "", 7, True, "", "overrides read: without read")
    assert describe(mounted).splitlines() == [
        r"/m\x1b: eFuse, connection 7",
        r"/m\x1b: overrides read: without read",
    ]


def test_pyfuse3_with_its_own_libfuse_is_the_reason_for_no_channels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import _ctypes

    monkeypatch.setattr(pyfuse3, "__file__", _ctypes.__file__)
    channel = SessionChannel(wanted=True)
    with channel.found():
        pass
    # It has no fuse_session_mount() for eFuse to replace.
    assert channel.reason == "pyfuse3 contains its own libfuse"
    monkeypatch.setattr(pyfuse3, "__file__", "/not/loaded.so")
    channel = SessionChannel(wanted=True)
    with channel.found():
        pass
    assert channel.reason == "this version of pyfuse3 is not known"
