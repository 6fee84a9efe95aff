# SPDX-License-Identifier: LGPL-2.1-or-later
"""Build the modules for a kernel and keep them by the hash of what they were made from."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from efuse import paths
from efuse.errors import ModuleBuildError, NotSupportedError
from efuse.module import source
from efuse.module.btf import check, has_btf
from efuse.module.kernel import Kernel
from efuse.module.root import THERE, in_root

__all__ = ["CSD", "EFUSE", "UNDISTILLED", "Say", "Source", "build", "built", "make"]

Say = Callable[[str], None]
"""Takes one line about the progress."""


@dataclass(frozen=True)
class Source:
    """What a module is made from.

    :ivar name: of the module.
    :ivar data: which of the package's data.
    :ivar said: what a person is told that is being prepared.
    :ivar write: writes the tree below a directory, from the data, for a kernel; returns what kbuild
        is given.
    :ivar sysfs: the directory that is there, with ``version`` in it, while the module is loaded.
    :ivar let_go: what to try where it is in use.
    :ivar package: what DKMS calls it.
    :ivar needs: modules of the kernel's that it needs.
    """

    name: str
    data: str
    said: str
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
    """Return where the build of the present sources for ``target`` belongs."""
    symvers = target.headers / "Module.symvers"
    vmlinux = target.headers / "vmlinux"
    stat = [
        f"{path.stat().st_size} {path.stat().st_mtime_ns}"
        for path in (symvers, vmlinux)
        if path.is_file()
    ]
    archive = target.archive.stat()
    key = source.content_hash(paths.data(of.data), target.release, *stat, str(archive.st_size))
    return paths.cache() / "modules" / key


def built(target: Kernel, of: Source = EFUSE) -> Path | None:
    """Return the module that was built from the present sources for ``target``, if it was."""
    module = _directory(target, of) / f"{of.name}.ko"
    return paths.check_private(module) if module.is_file() else None


def build(target: Kernel, of: Source = EFUSE, *, say: Say = _silent, force: bool = False) -> Path:
    """Return a module for ``target``, building it unless that was done before.

    :param of: which.
    :param say: is told what is being done.
    :param force: build it even so.
    :raises NotSupportedError: the kernel's source or BTF is not here.
    :raises ModuleBuildError: a patch does not apply, the compiler refuses, or what came
        of it has no BTF that the kernel could use.
    """
    directory = _directory(target, of)
    module = directory / f"{of.name}.ko"
    if module.is_file() and not force:
        return paths.check_private(module)
    paths.make_directory(directory.parent)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".new-") as name:
        work = Path(name)
        say(f"preparing {of.said}")
        tree = of.write(work, paths.data(of.data), target)
        say(f"compiling {module.name} for {target.release}")
        make(target, tree, work)
        check(tree / module.name)
        fresh = work / "result"
        fresh.mkdir(mode=0o755)
        paths.make_private(Path(shutil.copy(tree / module.name, fresh)))
        # Two builds at once end with the same content: whoever comes second replaces it.
        if directory.exists():
            shutil.rmtree(directory)
        fresh.rename(directory)
    return paths.check_private(module)


UNDISTILLED = ("RESOLVE_BTFIDS_FLAGS=", "MODULE_PAHOLE_FLAGS=")
"""BTF of a module outside of the kernel's tree is made for any kernel where the tools know how, and
gets other numbers when it is loaded, which its own BTF_ID() do not: no kfunc would be known by its
own. The first is of Linux 7's kbuild, the second of 6.12's."""


def make(target: Kernel, tree: Path, work: Path, *variables: str) -> str:
    """Run kbuild on the module's source ``tree`` and return what it printed.

    :param work: a directory for what the build needs besides.
    :param variables: more of make's, such as ``W=1``.
    :raises NotSupportedError: there is no BTF of the kernel itself.
    :raises ModuleBuildError: the compiler refused; the message holds what it said.
    """
    objects = _objects_with_btf(target, work)
    jobs = f"-j{min(os.cpu_count() or 1, 8)}"
    variables = (jobs, *variables, *UNDISTILLED, "modules")
    # Make's own variables of a make that called us would change what this one does.
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
    said = result.stdout.replace(THERE, str(work))
    log = paths.write(paths.cache() / "modules" / "build.log", said)
    if result.returncode != 0:
        raise ModuleBuildError(
            f"the module cannot be compiled for {target.release}:\n{_errors(said, tree)}",
            hint=f"the whole output is in {log}",
        )
    return said


def _kbuild(
    target: Kernel, objects: Path, tree: Path, work: Path, arguments: Sequence[str]
) -> list[str]:
    """Return the command that runs kbuild, in the root of the kernel's own tools if it has one."""
    if target.root == Path("/"):
        return ["make", "-C", str(objects), f"M={tree}", *arguments]
    if os.geteuid() != 0:
        raise NotSupportedError(
            f"nothing can be built for {target.release}: chroot(2) to {target.root} needs root",
            hint="sudo",
        )
    inside = Path("/") / objects.relative_to(target.root)
    words = ["make", "-C", str(inside), f"M={THERE}/{tree.relative_to(work)}", *arguments]
    return in_root(target.root, work, words)


def _errors(output: str, tree: Path) -> str:
    """Return the lines of a compiler's output that say what is wrong, with their context."""
    lines = output.replace(f"{tree}/", "fs/fuse/").splitlines()
    wanted: list[str] = []
    for number, line in enumerate(lines):
        if re.search(r"\berror\b|undefined!|\*\*\*|No such file", line):
            wanted += [text for text in lines[number : number + 3] if text not in wanted]
    return "\n".join(wanted[:40] or lines[-20:])


def _objects_with_btf(target: Kernel, work: Path) -> Path:
    """Return an object tree whose ``vmlinux`` carries BTF: pahole takes the base types from it.

    Newer header packages bring one. For others it is taken out of the image, into a directory of
    links that stands for the object tree, so that nothing is written below /usr/src.
    """
    vmlinux = target.headers / "vmlinux"
    if vmlinux.is_file() and has_btf(vmlinux):
        return target.headers
    if target.image is None:
        raise NotSupportedError(
            f"the kernel's BTF was not found: {target.headers} has no vmlinux, and no image of "
            f"{target.release} is here to take it from",
            hint="scripts/setup, which keeps the image in the cache",
        )
    shadow = work / "objects"
    shadow.mkdir()
    for entry in target.headers.iterdir():
        if entry.name != "vmlinux":
            (shadow / entry.name).symlink_to(entry.resolve())
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
            f"the kernel's BTF was not found: {target.image} carries none",
            hint="use a kernel with CONFIG_DEBUG_INFO_BTF=y",
        )
    return shadow
