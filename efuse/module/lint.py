# SPDX-License-Identifier: LGPL-2.1-or-later
"""Check the modules' sources with the kernel's tools: checkpatch, sparse and W=1."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from efuse import locations
from efuse.module import build, kernel, source

# A source file is not an email, and there is no MAINTAINERS file here.
_IGNORED = "FILE_PATH_CHANGES,EMAIL_SUBJECT,COMMIT_MESSAGE,NO_AUTHOR_SIGN_OFF,MISSING_SIGN_OFF"
# ENOSYS has a meaning of its own in the FUSE protocol. noexport.h is about EXPORT_SYMBOL itself.
# One macro evaluates its argument twice because the argument is the name of a member.
_IGNORED += ",ENOSYS,EXPORT_SYMBOL,MACRO_ARG_UNUSED,MACRO_ARG_REUSE"
# Lines of a patch are aligned and written like the kernel code around them.
_IGNORED_IN_PATCHES = ",PARENTHESIS_ALIGNMENT,MULTIPLE_ASSIGNMENTS"
# Trace events are written in the style of the kernel's own; the path of their header has a slash.
_IGNORED_IN_EVENTS = ",PARENTHESIS_ALIGNMENT,OPEN_ENDED_LINE,SPACING"


def checkpatch(sources: Path) -> list[str]:
    """Return the remarks of checkpatch about source files and patches, one line each.

    :param sources: the directory ``kernel_patches`` or ``csd``.
    """
    script = source.pristine() / "scripts/checkpatch.pl"
    files = sorted([*(sources / "src").rglob("*.[ch]"), *(sources / "include").rglob("*.h")])
    events = [path for path in files if path.name == "trace.h"]
    files = [path for path in files if path not in events]
    patches = sorted(sources.glob("*/*.patch"))
    remarks: list[str] = []
    for mode, names, also in (
        ("--file", files, ""),
        ("--file", events, _IGNORED_IN_EVENTS),
        ("--patch", patches, _IGNORED_IN_PATCHES),
    ):
        command = [
            "perl",
            str(script),
            "--no-tree",
            "--strict",
            "--terse",
            "--no-summary",
            "--max-line-length=100",
            f"--ignore={_IGNORED}{also}",
            mode,
            *map(str, names),
        ]
        if names:
            result = subprocess.run(
                command, capture_output=True, text=True, stdin=subprocess.DEVNULL
            )
            printed = (result.stdout + result.stderr).splitlines()
            remarks += [line.replace(f"{sources}/", "") for line in printed if line.strip()]
    return remarks


def _remarks(output: str, tree: Path) -> set[str]:
    lines = output.replace(f"{tree}/", "").splitlines()
    return {line.strip() for line in lines if ": warning:" in line or ": error:" in line}


def compile_remarks(target: kernel.Kernel, kernel_patches: Path) -> list[str]:
    """Return the remarks of gcc with W=1 and of sparse about ``efuse.ko``.

    They concern eFuse's own files, or lines of the patches. Remarks about the kernel's unpatched
    files are left out.
    """
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        ours = source.write_tree(work / "ours", kernel_patches, target.archive, target.version)
        output = build.make(target, ours, work, "W=1", "C=2", "CF=-D__CHECK_ENDIAN__")
        new = _remarks(output, ours)
    # Patches shift the line numbers of the kernel's own remarks, so compare only the texts.
    own = {line for line in new if line.startswith("efuse/")}
    patched = {line for line in new if not line.startswith(("efuse/", "/", "./"))}
    known = {_text(line) for line in _pristine_remarks(target)} if patched else set()
    return sorted(own | {line for line in patched if _text(line) not in known})


def csd_remarks(target: kernel.Kernel, csd: Path) -> list[str]:
    """Return the remarks of gcc with W=1 and of sparse about ``csd.ko``."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        tree = source.write_csd_tree(work, csd)
        output = build.make(target, tree, work, "W=1", "C=2", "CF=-D__CHECK_ENDIAN__")
        return sorted(_remarks(output, tree))


def _text(remark: str) -> str:
    """Return a remark without its line and column numbers."""
    file, *_numbers, text = remark.split(":", maxsplit=3)
    return f"{file}:{text}"


def _pristine_remarks(target: kernel.Kernel) -> set[str]:
    """Return the remarks about the kernel's own fs/fuse, compiled without patches."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        tree = source.write_pristine(work, target.archive)
        output = build.make(
            target, tree, work, "W=1", "C=2", "CF=-D__CHECK_ENDIAN__", "KBUILD_MODPOST_WARN=1"
        )
        return _remarks(output, tree)


def main() -> None:
    """Print all remarks. Exit with status 1 if there is one."""
    kernel_patches, csd = locations.data("kernel_patches"), locations.data("csd")
    checks = [
        ("efuse.ko: checkpatch", checkpatch(kernel_patches)),
        ("csd.ko: checkpatch", checkpatch(csd)),
    ]
    for target in (kernel.find(), kernel.unpacked("7")):
        how = f"W=1 and sparse, {target.release}"
        checks.append((f"efuse.ko: {how}", compile_remarks(target, kernel_patches)))
        checks.append((f"csd.ko: {how}", csd_remarks(target, csd)))
    found = 0
    for title, remarks in checks:
        print(f"{title}: {len(remarks) or 'no'} remarks")
        for remark in remarks:
            print(f"  {remark}")
        found += len(remarks)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
