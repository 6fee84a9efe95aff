# SPDX-License-Identifier: LGPL-2.1-or-later
"""Build the modules for a kernel, and cache them by the hash of their sources."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from efuse import locations
from efuse.errors import ModuleBuildError, NotSupportedError
from efuse.module import source
from efuse.module.check import check, has_btf
from efuse.module.kernel import Kernel
from efuse.module.root import THERE, in_root

__all__ = ["CSD", "EFUSE", "UNDISTILLED", "Say", "Source", "build", "built", "make"]

Say = Callable[[str], None]
"""Function that takes one line about the progress."""


@dataclass(frozen=True)
class Source:
    """How to make one module.

    :ivar name: name of the module.
    :ivar data: name of the package data with its sources.
    :ivar description: what is being prepared, in the progress message.
    :ivar write: function (work directory, package data, kernel) that writes the source tree below
        the work directory. It returns the directory for kbuild's ``M=``.
    :ivar sysfs: directory that exists while the module is loaded. It can contain ``version``.
    :ivar let_go: what the user can try if the module is in use.
    :ivar package: name of the DKMS package.
    :ivar needs: modules of the kernel that have to be loaded before it.
    """

    name: str
    data: str
    description: str
    write: Callable[[Path, Path, Kernel], Path]
    sysfs: Path
    let_go: str
    package: str
    needs: tuple[str, ...] = ()


EFUSE = Source(
    "efuse",
    "kernel_patches",
    "fs/fuse of the kernel's source package",
    lambda work, data, target: source.write_tree(work, data, target.archive, target.version),
    Path("/sys/fs/efuse"),
    "umount -a -t efuse; end the daemons that hold /dev/efuse",
    "efuse",
)
CSD = Source(
    "csd",
    "csd",
    "csd",
    lambda work, data, _target: source.write_csd_tree(work, data),
    Path("/sys/module/csd"),
    "efuse csd remove the devices, efuse csd unload the functions, end what runs",
    "efuse-csd",
    needs=("configfs",),
)


def _silent(_text: str) -> None:
    pass


def _plain_locale() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C"}


def _directory(target: Kernel, of: Source) -> Path:
    """Return the cache directory for a build of the present sources for ``target``."""
    symvers = target.headers / "Module.symvers"
    vmlinux = target.headers / "vmlinux"
    stat = [
        f"{path.stat().st_size} {path.stat().st_mtime_ns}"
        for path in (symvers, vmlinux)
        if path.is_file()
    ]
    archive = target.archive.stat()
    key = source.content_hash(locations.data(of.data), target.release, *stat, str(archive.st_size))
    return locations.cache() / "modules" / key


def built(target: Kernel, of: Source = EFUSE) -> Path | None:
    """Return the module built from the present sources for ``target``, or None if there is none."""
    module = _directory(target, of) / f"{of.name}.ko"
    return locations.check_private(module) if module.is_file() else None


def build(
    target: Kernel,
    of: Source = EFUSE,
    *,
    say: Say = _silent,
    force: bool = False,
    kept: Path | None = None,
) -> Path:
    """Return a module for ``target``. Build it if the cache has no build of the present sources.

    :param of: the module to build.
    :param say: function that is called with each progress message.
    :param force: build even if the cache has it.
    :param kept: directory that keeps the object files. A later build of this module for the same
        kernel compiles only what has changed since; two such builds at the same time are not safe.
    :raises NotSupportedError: the kernel's source or BTF is missing.
    :raises ModuleBuildError: a patch does not apply, the compiler fails, or the result has no BTF
        that the kernel can use.
    """
    directory = _directory(target, of)
    module = directory / f"{of.name}.ko"
    if module.is_file() and not force:
        return locations.check_private(module)
    locations.make_directory(directory.parent)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".new-") as name:
        work = Path(name)
        say(f"preparing {of.description}")
        tree = of.write(work / "source", locations.data(of.data), target)
        if kept:
            tree = _updated(kept / "source", work / "source") / tree.relative_to(work / "source")
        say(f"compiling {module.name} for {target.release}")
        make(target, tree, kept or work)
        check(tree / module.name, _objects_with_btf(target, kept or work) / "vmlinux")
        fresh = work / "result"
        fresh.mkdir(mode=0o755)
        locations.make_private(Path(shutil.copy(tree / module.name, fresh)))
        # Two builds at the same time have the same result: the second one replaces the first.
        if directory.exists():
            shutil.rmtree(directory)
        fresh.rename(directory)
    return locations.check_private(module)


def _updated(kept: Path, fresh: Path) -> Path:
    """Make the sources in ``kept`` those in ``fresh``, and touch only the files that differ."""
    for path in fresh.rglob("*"):
        target = kept / path.relative_to(fresh)
        if path.is_file() and not (target.is_file() and target.read_bytes() == path.read_bytes()):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    return kept


UNDISTILLED = ("RESOLVE_BTFIDS_FLAGS=", "MODULE_PAHOLE_FLAGS=")
"""Variables that keep kbuild from making distilled BTF for a module outside the kernel tree.

Distilled BTF fits any kernel: its type ids are renumbered when the module is loaded. The ids that
BTF_ID() stored in the module are not, so the kernel would not recognise the module's kfuncs. The
first variable is for the kbuild of Linux 7, the second for that of 6.12."""


def make(target: Kernel, tree: Path, work: Path, *variables: str) -> str:
    """Run kbuild on the source tree ``tree`` of a module. Return the output.

    :param work: directory for other files that the build needs.
    :param variables: further arguments of make, such as ``W=1``.
    :raises NotSupportedError: the BTF of the kernel itself is missing.
    :raises ModuleBuildError: the compiler failed; the message holds its errors.
    """
    objects = _objects_with_btf(target, work)
    jobs = f"-j{min(os.cpu_count() or 1, 8)}"
    variables = (jobs, *variables, *UNDISTILLED, "modules")
    # If make runs this program, its variables would affect the make that is started here.
    environment = {
        key: value
        for key, value in _plain_locale().items()
        if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS", "MAKEOVERRIDES")
    }
    result = subprocess.run(
        _kbuild(target, objects, tree, work, variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment,
    )
    output = result.stdout.replace(THERE, str(work))
    log = locations.write(locations.cache() / "modules" / "build.log", output)
    if result.returncode != 0:
        raise ModuleBuildError(
            f"the module cannot be compiled for {target.release}:\n{_errors(output, tree)}",
            hint=f"the whole output is in {log}",
        )
    return output


def _kbuild(
    target: Kernel, objects: Path, tree: Path, work: Path, arguments: Sequence[str]
) -> list[str]:
    """Return the command that runs kbuild, inside the kernel's own root if it has one."""
    if target.root == Path("/"):
        return ["make", "-C", str(objects), f"M={tree}", *arguments]
    if os.geteuid() != 0:
        raise NotSupportedError(
            f"nothing can be built for {target.release}: chroot(2) to {target.root} needs root",
            hint="sudo",
        )
    if objects.is_relative_to(work):
        inside = THERE / objects.relative_to(work)
    else:
        inside = "/" / objects.relative_to(target.root)
    words = ["make", "-C", str(inside), f"M={THERE}/{tree.relative_to(work)}", *arguments]
    return in_root(target.root, work, words)


def _errors(output: str, tree: Path) -> str:
    """Return the error lines of a compiler's output, each with the two lines that follow it."""
    lines = output.replace(f"{tree}/", "fs/fuse/").splitlines()
    wanted: list[str] = []
    for number, line in enumerate(lines):
        if re.search(r"\berror\b|undefined!|\*\*\*|No such file", line):
            wanted += [text for text in lines[number : number + 3] if text not in wanted]
    return "\n".join(wanted[:40] or lines[-20:])


def _objects_with_btf(target: Kernel, work: Path) -> Path:
    """Return an object tree whose ``vmlinux`` has BTF. pahole takes the base types from it.

    Newer header packages contain such a ``vmlinux``. For older ones it is extracted from the kernel
    image, into a directory of links that stands for the object tree: nothing is written to
    /usr/src.
    """
    vmlinux = target.headers / "vmlinux"
    if vmlinux.is_file() and has_btf(vmlinux):
        return target.headers
    if target.image is None:
        raise NotSupportedError(
            f"the kernel's BTF was not found: {target.headers} has no vmlinux, and the image of "
            f"{target.release} is missing",
            hint="scripts/setup puts the image into the cache",
        )
    shadow = work / "objects"
    if shadow.exists():
        return shadow
    shadow.mkdir()
    for entry in target.headers.iterdir():
        if entry.name != "vmlinux":
            # The build tools see the file below the root in which they run.
            inside = "/" / entry.resolve().relative_to(target.root.resolve())
            (shadow / entry.name).symlink_to(inside)
    script = source.pristine(target.archive) / "scripts/extract-vmlinux"
    with (shadow / "vmlinux").open("wb") as output:
        subprocess.run(
            ["bash", str(script), str(target.image)],
            stdout=output,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
    if not has_btf(shadow / "vmlinux"):
        raise NotSupportedError(
            f"the kernel's BTF was not found: {target.image} has none",
            hint="use a kernel with CONFIG_DEBUG_INFO_BTF=y",
        )
    return shadow
