# SPDX-License-Identifier: LGPL-2.1-or-later
"""``efuse doctor``: check what eFuse needs, and tell how to fix what is missing."""

from __future__ import annotations

import dataclasses
import sys

import click

from efuse.cli._output import echo, print_json
from efuse.features import Feature

__all__ = ["checks", "cli"]


def _module_sources() -> Feature:
    from efuse.errors import NotSupportedError
    from efuse.module import kernel

    release = kernel.running()
    needed = f"headers and source of {release or f'a {kernel.SERIES} {kernel.FLAVOUR} kernel'}"
    why = "efuse.ko is built from them"
    try:
        target = kernel.find(release=release)
        _ = target.archive
    except NotSupportedError as error:
        return Feature("sources", str(error), needed, False, why, error.hint or "", False)
    return Feature("sources", target.release, needed, True, why, required=False)


def _guest() -> Feature:
    from efuse.guest.status import status

    fields = status()
    ready = bool(fields["ready"])
    # The acceleration is known only after a guest has run: probing means a boot, too slow here.
    how = fields["acceleration"] or "acceleration not probed yet"
    found = f"{fields['kernel']}, {how}" if ready else f"missing: {fields['missing']}"
    return Feature(
        "guest",
        found,
        "QEMU, virtiofsd, a kernel image",
        ready,
        "if this machine's kernel cannot load efuse.ko, a guest's kernel can",
        "scripts/setup",
        required=False,
    )


def checks() -> list[Feature]:
    """Return all checks: the features, and what a module build and a guest need."""
    from efuse import features

    return [*features.all_features(), _module_sources(), _guest()]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def cli(as_json: bool) -> None:
    """Check what eFuse needs: what was found, what is needed, how to fix it.

    The exit status is 3 if eFuse cannot work with the kernel that this machine runs.

    \b
    efuse doctor --json
    """
    found = checks()
    works = all(check.ok for check in found if check.required)
    if as_json:
        print_json({"works": works, "checks": [dataclasses.asdict(check) for check in found]})
    else:
        for check in found:
            mark = "ok" if check.ok else "FAIL" if check.required else "no"
            echo(f"{mark:<5}{check.name:<9}{check.found or 'not found'}")
            if not check.ok:
                echo(f"     {'':<9}needed: {check.needed}, because {check.why}")
                if check.fix:
                    echo(f"     {'':<9}try: {check.fix}")
        ready = any(check.name == "guest" and check.ok for check in found)
        if works:
            echo("eFuse works here.")
        elif ready:
            echo("eFuse cannot work on this kernel, but it can in a guest.")
        else:
            echo("eFuse cannot work here without changes.")
    sys.exit(0 if works else 3)
