# SPDX-License-Identifier: LGPL-2.1-or-later
"""Report what a guest would be made of on this machine."""

from __future__ import annotations

from efuse.errors import NotSupportedError
from efuse.guest import accel
from efuse.guest.processes import missing_programs
from efuse.module import build, kernel

__all__ = ["status"]


def status() -> dict[str, str | bool | None]:
    """Return what a guest would be made of, without probing, building or booting anything.

    Keys: ``ready`` (bool), ``kernel`` (release), ``image`` and ``module`` (paths), ``acceleration``
    (result of an earlier probe), ``missing`` (what has to be installed). A value of None means that
    it is not there.
    """
    missing = missing_programs()
    known = accel.cached()
    fields: dict[str, str | bool | None] = {
        "ready": False,
        "kernel": None,
        "image": None,
        "module": None,
        "acceleration": str(known) if known else None,
        "missing": None,
    }
    try:
        target = kernel.find()
        fields["kernel"] = target.release
        if target.image is None:
            missing.append("the kernel's image")
        else:
            fields["image"] = str(target.image)
        module = build.built(target)
        fields["module"] = str(module) if module else None
    except NotSupportedError as error:
        missing.append(str(error))
    fields["ready"] = not missing
    fields["missing"] = ", ".join(missing) or None
    return fields
