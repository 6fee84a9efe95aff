# SPDX-License-Identifier: LGPL-2.1-or-later
"""What is remembered of mounts while the machine runs: files that outlive the service.

``mounts/NAME.json`` tells which process was started for a mount, and ``NAME.log`` has the output of
that process. ``NAME.silent`` exists while the daemon does not answer. ``NAME.lock`` is locked while
a process starts, replaces or stops the mount. ``service.json`` names the service.
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

from efuse.errors import EfuseError, reason
from efuse.locations import make_directory, read_private, write
from efuse.service.description import Description
from efuse.service.processes import Process

__all__ = ["STATE", "Record", "Records"]

STATE = Path("/run/efuse/service")
"""The directory of the records. It is empty after a boot."""

_NOTHING = Process(0, 0)
_MOST_LOG_BYTES = 1 << 20
_LAST_BYTES = 4096
_ERROR = "efuse: "


@dataclass(frozen=True, slots=True)
class Record:
    """What is remembered of a mount.

    :ivar name: name of the mount.
    :ivar mountpoint: where it was mounted.
    :ivar has_command: whether it has a daemon of its own, or is a file system of the package.
    :ivar identity: see `Description.identity`.
    :ivar digest: see `Description.digest`.
    :ivar process: the process that was started last for it, which may have ended.
    :ivar number: unique number of the mount, see `efuse.control.mounts.number_at`; 0 before it was
        seen.
    :ivar rest: why the service does not start it, ``stopped`` or ``ended``; empty if it does.
    """

    name: str
    mountpoint: str
    has_command: bool
    identity: str
    digest: str
    process: Process = _NOTHING
    number: int = 0
    rest: str = ""

    @classmethod
    def of(cls, given: Description) -> Record:
        """Return the record of a mount for which no process was started yet."""
        named = given.name, given.mountpoint
        return cls(*named, bool(given.command), given.identity, given.digest)


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
        """Return the sorted names of the mounts that have a record."""
        return sorted(path.stem for path in self._mounts.glob("*.json"))

    def load(self, name: str) -> Record | None:
        """Return the record of a mount; None if there is none.

        :raises EfuseError: another user can change it.
        """
        with contextlib.suppress(FileNotFoundError, ValueError, TypeError, KeyError):
            told = json.loads(read_private(self._mounts / f"{name}.json"))
            return Record(**{**told, "process": Process(**told["process"])})
        return None

    def save(self, record: Record) -> None:
        """Write a record, in one step.

        :raises EfuseError: another user can change the directory, or it cannot be written.
        """
        self._write(self._mounts / f"{record.name}.json", dataclasses.asdict(record))

    def forget(self, name: str) -> None:
        """Remove the record of a mount."""
        for suffix in ("json", "log", "silent"):
            (self._mounts / f"{name}.{suffix}").unlink(missing_ok=True)

    def is_silent(self, name: str) -> bool:
        """Tell whether the service has found that the daemon of a mount does not answer."""
        return (self._mounts / f"{name}.silent").exists()

    def note_silence(self, name: str, *, is_silent: bool) -> None:
        """Record whether the daemon of a mount does not answer."""
        path = self._mounts / f"{name}.silent"
        if is_silent:
            path.touch()
        else:
            path.unlink(missing_ok=True)

    def log(self, name: str) -> Path:
        """Return the path of the output of the process that was started for a mount."""
        return self._mounts / f"{name}.log"

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
            told = json.loads(read_private(self.directory / "service.json"))
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

    def _write(self, path: Path, told: object) -> None:
        try:
            write(path, json.dumps(told))
        except OSError as error:
            raise _not_written(path, error) from error


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
