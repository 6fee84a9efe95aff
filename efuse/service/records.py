# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is remembered of mounts while the machine runs: files that outlive the service.

``mounts/NAME.json`` tells which process was started for a mount, and ``NAME.log`` has the output of
that process: it is made when the command is executed. ``NAME.silent`` exists while the daemon does
not answer. ``NAME.lock`` is locked while a process starts, replaces or stops the mount.
``service.json`` names the service.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from efuse.errors import EfuseError, reason
from efuse.locations import make_directory, read_private, write
from efuse.service.description import Description
from efuse.service.processes import Process

__all__ = ["STATE", "Record", "Records"]

STATE = Path("/run/efuse/service")
"""The directory of the records. A record that was written before the last boot counts as none."""

_NOTHING = Process(0, 0)
_MOST_LOG_BYTES = 1 << 20
_LAST_BYTES = 4096
_ERROR = "efuse: "
_BOOT = "boot"


@dataclass(frozen=True, slots=True)
class Record:
    """What is remembered of a mount.

    :ivar name: name of the mount.
    :ivar mountpoint: where it was mounted.
    :ivar has_command: whether it has a daemon of its own, or is a file system of the package.
    :ivar identity: see `Description.identity`.
    :ivar digest: see `Description.digest`.
    :ivar process: the process that was started first for it, which may have ended.
    :ivar above: the highest unique number of a mount before that. Later mounts have higher ones. 0
        on a kernel before 6.8.
    :ivar number: unique number of the mount, see `efuse.control.mounts.number_at`; 0 before it was
        seen.
    :ivar rest: why the service does not start it, ``stopped`` or ``ended``; empty if it does.
    :ivar successor: the process that replaces the daemon, until it serves or has failed.
    :ivar successor_digest: digest of the description that the successor is started from.
    """

    name: str
    mountpoint: str
    has_command: bool
    identity: str
    digest: str
    process: Process = _NOTHING
    above: int = 0
    number: int = 0
    rest: str = ""
    successor: Process = _NOTHING
    successor_digest: str = ""

    @classmethod
    def of(cls, given: Description) -> Record:
        """Return the record of a mount for which no process was started yet."""
        named = given.name, given.mountpoint
        return cls(*named, bool(given.command), given.identity, given.digest)

    @property
    def started(self) -> list[Process]:
        """The processes that were started first, which may have ended; the last one first."""
        return [each for each in (self.successor, self.process) if each.pid]

    def without_successor(self) -> Record:
        """Return the record of a mount whose daemon is not being replaced."""
        return dataclasses.replace(self, successor=_NOTHING, successor_digest="")


@dataclass(frozen=True, slots=True)
class ServiceProcess:
    """The service.

    :ivar process: its process.
    :ivar directory: directory of the descriptions that it has read.
    :ivar invalid: how many of them are invalid.
    """

    process: Process
    directory: Path
    invalid: int


class Records:
    """The records in a directory.

    :param directory: the directory, which only root can change.
    """

    def __init__(self, directory: Path = STATE) -> None:
        self.directory = directory
        self._mounts = directory / "mounts"

    def names(self) -> list[str]:
        """Return the sorted names of the mounts that have a record of this boot."""
        return sorted(p.stem for p in self._mounts.glob("*.json") if not _is_of_another_boot(p))

    def load(self, name: str) -> Record | None:
        """Return the record of a mount; None if there is none of this boot.

        :raises EfuseError: another user can change it.
        """
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError, KeyError):
            told = _told(self.path(name))
            processes = {key: Process(**told[key]) for key in ("process", "successor")}
            return Record(**{**told, **processes})
        return None

    def save(self, record: Record) -> None:
        """Write a record, in one step.

        :raises EfuseError: another user can change the directory, or it cannot be written.
        """
        self._write(self.path(record.name), dataclasses.asdict(record))

    def forget(self, name: str) -> None:
        """Remove the record of a mount."""
        for suffix in ("json", "log", "silent"):
            (self._mounts / f"{name}.{suffix}").unlink(missing_ok=True)

    def is_silent(self, name: str) -> bool:
        """Tell whether the service has found that the daemon of a mount does not answer."""
        return (self._mounts / f"{name}.silent").exists()

    def note_silence(self, name: str, *, is_silent: bool) -> None:
        """Record whether the daemon of a mount does not answer.

        :raises EfuseError: the directory cannot be written.
        """
        path = self._mounts / f"{name}.silent"
        try:
            if is_silent:
                path.touch()
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise _not_written(path, error) from error

    def path(self, name: str) -> Path:
        """Return the path of the record of a mount."""
        return self._mounts / f"{name}.json"

    def log(self, name: str) -> Path:
        """Return the path of the output of the process that was started for a mount."""
        return self._mounts / f"{name}.log"

    def has_begun(self, name: str) -> bool:
        """Tell whether the command that was started last for a mount was executed."""
        return self.log(name).exists()

    def note_start(self, record: Record) -> None:
        """Write the record of a mount whose command is about to be executed.

        :raises EfuseError: the directory cannot be written.
        """
        try:
            self.log(record.name).unlink(missing_ok=True)
        except OSError as error:
            raise _not_written(self.log(record.name), error) from error
        self.save(record)

    def last_error(self, name: str) -> str:
        """Return the last error of `efuse` in the output of a mount; empty if there is none."""
        with contextlib.suppress(OSError), self.log(name).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
            errors = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
            return errors[-1] if errors else ""
        return ""

    def shorten_log(self, name: str) -> None:
        """Empty the output of a mount if it has become long: its place is in memory."""
        with contextlib.suppress(OSError):
            if self.log(name).stat().st_size > _MOST_LOG_BYTES:
                os.truncate(self.log(name), 0)

    @contextlib.contextmanager
    def locked(self, name: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold the lock of a mount in a block.

        :param wait: whether to wait while another process has it.
        :returns: whether this process has the lock.
        :raises EfuseError: this process is not root.
        """
        fd = self._opened(self._mounts / f"{name}.lock")
        try:
            yield _locked(fd, wait=wait)
        finally:
            _unlock(fd)

    @contextlib.contextmanager
    def serving(self, directory: Path) -> Iterator[None]:
        """Be the service in a block.

        :param directory: directory of the descriptions.
        :raises EfuseError: another process is the service, or this process is not root.
        """
        fd = self._opened(self.directory / "service.lock")
        try:
            if not _locked(fd, wait=False):
                raise EfuseError(
                    f"the service cannot start: another one serves {self.directory} (EBUSY)",
                    hint="efuse service reload makes it read the descriptions again",
                )
            self.note_service(directory, invalid=0)
            yield
            (self.directory / "service.json").unlink(missing_ok=True)
        finally:
            _unlock(fd)

    def note_service(self, directory: Path, *, invalid: int) -> None:
        """Record that this process is the service, and what it has read.

        :raises EfuseError: another user can change the directory, or it cannot be written.
        """
        me = Process.of(os.getpid())
        assert me is not None
        told = {"process": dataclasses.asdict(me), "directory": str(directory), "invalid": invalid}
        self._write(self.directory / "service.json", told)

    def service(self) -> ServiceProcess | None:
        """Return the service that runs; None if none does.

        :raises EfuseError: another user can change its record.
        """
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError, KeyError):
            told = _told(self.directory / "service.json")
            process, directory = Process(**told["process"]), Path(told["directory"])
            found = ServiceProcess(process, directory, told["invalid"])
            return found if found.process.is_alive else None
        return None

    def _opened(self, path: Path) -> int:
        try:
            make_directory(path.parent)
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _not_written(path, error) from error

    def _write(self, path: Path, told: dict[str, Any]) -> None:
        try:
            write(path, json.dumps({_BOOT: _boot(), **told}))
        except OSError as error:
            raise _not_written(path, error) from error


def _boot() -> str:
    """Return an id of the time since the last boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _told(path: Path) -> dict[str, Any]:
    """Return what was written into a record.

    :raises FileNotFoundError: there is none.
    :raises ValueError: it was spoiled, or written before the last boot.
    :raises EfuseError: another user can change it.
    """
    told = json.loads(read_private(path))
    if not isinstance(told, dict) or told.pop(_BOOT, "") != _boot():
        raise ValueError(path)
    return told


def _is_of_another_boot(path: Path) -> bool:
    with contextlib.suppress(EfuseError, ValueError, TypeError, AttributeError, FileNotFoundError):
        return str(json.loads(read_private(path)).get(_BOOT, _boot())) != _boot()
    return False


def _not_written(path: Path, error: OSError) -> EfuseError:
    return EfuseError(f"{path} cannot be written: {reason(error)}", hint="run it as root")


def _locked(fd: int, *, wait: bool) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def _unlock(fd: int) -> None:
    """Unlock a file and close it. A process that was just started may still have it open."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)
