# SPDX-License-Identifier: LGPL-2.1-or-later
"""A directory that behaves like csd.ko's in configfs: a device's files come and go with it."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from efuse.csd import ATTRIBUTES, Device, Kind


class FakeConfigfs:
    """``/sys/kernel/config/csd``, and a ``/dev/csdN`` for each device that is powered on.

    :ivar root: the directory that has a directory for each device.
    :ivar busy: mount points of the devices whose disk is mounted, by device.
    """

    def __init__(self, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = base / "config" / "csd"
        self.root.mkdir(parents=True)
        self.busy: dict[str, list[str]] = {}
        self._mkdir, self._rmdir, self._open, self._write = os.mkdir, os.rmdir, os.open, os.write
        self._opened: dict[int, Path] = {}
        monkeypatch.setattr(sys.modules[Device.__module__], "_ROOT", self.root)
        monkeypatch.setattr(Device, "mounts", lambda device: self.busy.get(device.name, []))
        for name in ("mkdir", "rmdir", "open", "write"):
            monkeypatch.setattr(os, name, getattr(self, f"_{name}_fake"))

    def count(self, device: str, **counters: int) -> None:
        """Set the given counters of a device, and leave the others unchanged."""
        for name, value in counters.items():
            assert ATTRIBUTES[name].kind is Kind.COUNTER
            (self.root / device / name).write_text(f"{value}\n")

    def _mkdir_fake(self, path: Path, *rest: int) -> None:
        self._mkdir(path, *rest)
        if Path(path).parent == self.root:
            for attribute in ATTRIBUTES.values():
                (Path(path) / attribute.name).write_text(f"{attribute.default}\n")

    def _rmdir_fake(self, path: Path) -> None:
        if Path(path).parent == self.root:
            for file in Path(path).iterdir():
                file.unlink()
        self._rmdir(path)

    def _open_fake(self, path: Path | str, flags: int, *rest: int, **more: int) -> int:
        if str(path).startswith("/dev/csd"):
            index = str(path).removeprefix("/dev/csd")
            (name,) = (
                device.name
                for device in self.root.iterdir()
                if (device / "index").read_text() == f"{index}\n"
            )
            if name in self.busy:
                raise OSError(errno.EBUSY, "busy")
            return self._open("/dev/null", os.O_RDONLY)
        fd = self._open(path, flags, *rest, **more)
        self._opened[fd] = Path(path)
        return fd

    def _write_fake(self, fd: int, data: bytes) -> int:
        path = self._opened.get(fd)
        if path is None or path.parent.parent != self.root:
            return self._write(fd, data)
        power = path.parent / "power"
        powered = power.read_text() == "1\n"
        if ATTRIBUTES[path.name].kind is Kind.FIXED and powered:
            raise OSError(errno.EBUSY, "busy")
        os.ftruncate(fd, 0)
        if path.name == "power":
            indexes = {file.read_text() for file in self.root.glob("*/index")}
            free = next(n for n in range(64) if f"{n}\n" not in indexes)
            new = free if data == b"1\n" else -1
            (path.parent / "index").write_text(f"{new}\n")
        return self._write(fd, data)
