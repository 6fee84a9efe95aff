# SPDX-License-Identifier: LGPL-2.1-or-later
"""Make, configure and remove devices; each is a directory of configfs."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from efuse.control.mounts import of_device
from efuse.csd.attributes import ATTRIBUTES, Kind, attribute
from efuse.errors import ControlError, NotSupportedError, UsageError, reason
from efuse.kernel_fs import CONFIGFS

__all__ = ["Device", "create", "device", "devices"]

_ROOT = CONFIGFS / "csd"


class Device:
    """A device, identified by its directory in configfs.

    :ivar name: name of the device and of its directory.
    :ivar directory: path of the directory, which has one file per attribute.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.directory = _ROOT / name

    def __repr__(self) -> str:
        return f"Device({self.name!r})"

    @property
    def powered(self) -> bool:
        """Whether the device is powered on and so exists as a disk."""
        return bool(self.read("power"))

    @property
    def path(self) -> Path:
        """Path of the block device; valid only while the device is powered on."""
        return Path(f"/dev/csd{self.read('index')}")

    def read(self, name: str) -> int:
        """Read the number in an attribute's file.

        :param name: name of the attribute.
        :raises ControlError: the device no longer exists, or its file cannot be read.
        """
        try:
            return int((self.directory / name).read_text())
        except OSError as error:
            raise _failed(f"read {name} of", self.name, error) from error

    def values(self) -> dict[str, int]:
        """Return the values of all attributes, by name."""
        return {name: self.read(name) for name in ATTRIBUTES}

    def set(self, name: str, value: int) -> None:
        """Write an attribute. Writing ``power`` is the same as `power_on` or `power_off`.

        :param name: name of the attribute.
        :param value: number to write, in the attribute's unit.
        :raises UsageError: no attribute has this name, or it does not accept this value.
        :raises ControlError: the kernel refuses the value; with EBUSY if the attribute is fixed
            while the device is powered on.
        """
        number = attribute(name).parse(str(value))
        if name == "power" and not number:
            self.power_off()
        else:
            self._write(name, number)

    def power_on(self) -> None:
        """Power the device on: it becomes a disk.

        :raises ControlError: the kernel refuses, for example because memory is short.
        """
        self._write("power", 1)

    def power_off(self) -> None:
        """Power the device off: its disk goes away, its data stays.

        :raises ControlError: the disk is in use, for example mounted.
        """
        with self._claimed("power off"):
            self._write("power", 0)

    def remove(self) -> None:
        """Remove the device and its data.

        :raises ControlError: the disk is in use, for example mounted.
        """
        with self._claimed("remove"):
            try:
                self.directory.rmdir()
            except OSError as error:
                raise _failed("remove", self.name, error) from error

    def mounts(self) -> list[str]:
        """Return the mount points of the disk that this process can see.

        :raises ControlError: mountinfo cannot be read.
        """
        if not self.powered:
            return []
        try:
            status = self.path.stat()
        except FileNotFoundError:  # its power has just gone
            return []
        return [mount.mountpoint for mount in of_device(status.st_rdev)]

    def _write(self, name: str, value: int) -> None:
        try:
            descriptor = os.open(self.directory / name, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(descriptor, f"{value}\n".encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno == errno.EBUSY and ATTRIBUTES[name].kind is Kind.FIXED:
                raise ControlError(
                    f"cannot set {name} of the device {self.name}: it is fixed while the device "
                    "has power (EBUSY)",
                    hint=f"efuse csd set {self.name} power=0 {name}={value} power=1",
                ) from error
            raise _failed(f"set {name} of", self.name, error) from error

    @contextmanager
    def _claimed(self, verb: str) -> Iterator[None]:
        """Hold the disk exclusively, if the device has one, so that it cannot be mounted."""
        if not self.powered:
            yield
            return
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise _failed(verb, self.name, error) from error
            where = self.mounts()
            why = f"it is mounted on {' and '.join(where)}" if where else "it is in use"
            raise ControlError(
                f"cannot {verb} the device {self.name}: {why} (EBUSY)",
                hint=f"umount {' '.join(where)}" if where else f"lsblk {self.path}",
            ) from error
        try:
            yield
        finally:
            os.close(descriptor)


def devices() -> tuple[Device, ...]:
    """Return all devices, sorted by name.

    :raises NotSupportedError: csd.ko is not loaded, or no configfs is mounted.
    """
    _need_module()
    return tuple(Device(path.name) for path in sorted(_ROOT.iterdir()) if path.is_dir())


def device(name: str) -> Device:
    """Return the device with this name.

    :raises ControlError: no device has this name.
    :raises NotSupportedError: csd.ko is not loaded, or no configfs is mounted.
    """
    _need_module()
    found = Device(name)
    if not _is_name(name) or not found.directory.is_dir():
        raise ControlError(f"there is no device {name!r} (ENOENT)", hint="efuse csd list")
    return found


def create(name: str, values: Mapping[str, int]) -> Device:
    """Make a device, set its attributes and power it on.

    :param name: name of the device: letters, digits, ``_``, ``-`` and ``.``, which is not first.
    :param values: values by attribute name. The other attributes have their defaults, except that
        ``power`` is 1.
    :raises UsageError: an attribute does not exist or does not accept its value, or the name is
        not valid.
    :raises ControlError: a device of this name exists, or the kernel refuses a value.
    :raises NotSupportedError: csd.ko is not loaded, or no configfs is mounted.
    """
    if not _is_name(name):
        raise UsageError(f"a device cannot have the name {name!r} (EINVAL)", hint="use one word")
    for key, value in values.items():
        attribute(key).parse(str(value))
    _need_module()
    made = Device(name)
    try:
        made.directory.mkdir()
    except OSError as error:
        raise _failed("create", name, error) from error
    try:
        for key, value in values.items():
            if key != "power":
                made.set(key, value)
        made.set("power", values.get("power", 1))
    except BaseException:
        made.directory.rmdir()
        raise
    return made


def _is_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*", name) is not None


def _need_module() -> None:
    if not _ROOT.is_dir():
        raise NotSupportedError(
            f"there are no devices: csd.ko is not loaded, or no configfs is mounted on {CONFIGFS}",
            hint="efuse module load --csd",
        )


def _failed(verb: str, name: str, error: OSError) -> ControlError:
    hints = {
        errno.EACCES: "run as root",
        errno.EPERM: "run as root",
        errno.EEXIST: f"choose another name, or: efuse csd set {name} ...",
        errno.ENOENT: "efuse csd list",
        errno.ENOMEM: "set a smaller depth or fewer queues",
    }
    number = error.errno or 0
    why = "a device with that name exists (EEXIST)" if number == errno.EEXIST else reason(error)
    return ControlError(f"cannot {verb} the device {name}: {why}", hint=hints.get(number))
