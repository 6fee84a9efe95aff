# SPDX-License-Identifier: LGPL-2.1-or-later
"""What a guest would be made of here."""

from __future__ import annotations

from efuse.errors import NotSupportedError
from efuse.guest import accel
from efuse.guest.machine import missing_programs
from efuse.module import build, kernel

__all__ = ["status"]


def status() -> dict[str, str | bool | None]:
    """Return what a guest would be made of; nothing is probed, built or booted for it.

    Keys: ``ready`` (bool), ``kernel`` (release), ``image``, ``module`` (paths), ``acceleration``
    (what an earlier probe found), ``missing`` (what has to be installed). None: not there.
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
