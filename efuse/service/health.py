# SPDX-License-Identifier: LGPL-2.1-or-later
"""The health of the service and of its mounts, for the exporter."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from efuse.errors import EfuseError
from efuse.service.parsing import Described, described
from efuse.service.records import Records
from efuse.service.status import Status, statuses

__all__ = ["NO_SERVICE", "Health", "health"]


@dataclass(frozen=True, slots=True)
class Health:
    """The health of the service.

    :ivar mounts: the mounts that were started, and those that are described while the service runs.
    :ivar up: 1 if the service runs, 0 if it does not; None if it has never run.
    :ivar invalid: how many descriptions are invalid; None if the service does not run.
    """

    mounts: tuple[Status, ...] = ()
    up: int | None = None
    invalid: int | None = None


NO_SERVICE = Health()
"""The health where the service has never run."""


def health(records: Records | None = None) -> Health:
    """Return the health of the service.

    :param records: what is remembered of the mounts; by default, where the service keeps it.
    :raises EfuseError: another user can change the records, or mountinfo cannot be read.
    """
    records = records or Records()
    if not records.directory.exists():
        return NO_SERVICE
    service = records.service()
    found = Described({}, {})
    if service is not None:
        # They may hold passwords, so that only root may read them.
        with contextlib.suppress(EfuseError):
            found = described(service.directory)
    mounts = tuple(each for each in statuses(records, found) if each.mountpoint)
    if service is None:
        return Health(mounts, 0)
    return Health(mounts, 1, service.invalid)
