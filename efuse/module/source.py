# SPDX-License-Identifier: LGPL-2.1-or-later
"""Write the modules' source trees. That of ``efuse.ko`` is made from the kernel's ``fs/fuse``."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from efuse import locations
from efuse.errors import ModuleBuildError, NotSupportedError
from efuse.module import kernel

__all__ = [
    "content_hash",
    "pristine",
    "series",
    "write_csd_tree",
    "write_pristine",
    "write_tree",
]

# Drivers for other devices in the same directory, which are not part of the module.
_LEFT_OUT = ("cuse.c", "virtio_fs.c")

# Files to unpack from the source package. The scripts are for `make lint-kernel` and the build.
_WANTED = (
    "*/Makefile",
    "*/fs/fuse/*",
    "*/scripts/checkpatch.pl",
    "*/scripts/const_structs.checkpatch",
    "*/scripts/extract-vmlinux",
    "*/scripts/spelling.txt",
)


def pristine(archive: Path | None = None) -> Path:
    """Return the unpacked parts of the kernel's source package. Unpack them if necessary.

    :param archive: archive of the source package; by default the installed one.
    :raises NotSupportedError: the source package is not installed.
    :raises ModuleBuildError: the archive cannot be unpacked.
    """
    archive = archive or kernel.source_archive()
    stat = archive.stat()
    identity = f"{archive.resolve()} {stat.st_size} {stat.st_mtime_ns}".encode()
    target = locations.cache() / "sources" / hashlib.sha256(identity).hexdigest()[:16]
    if target.is_dir():
        return locations.check_private(target)
    locations.make_directory(target.parent)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-") as work:
        tree = Path(work) / "tree"
        tree.mkdir(mode=0o755)
        command = ["tar", "-xf", str(archive), "-C", str(tree), "--strip-components=1"]
        command += ["--wildcards", "--no-wildcards-match-slash", *_WANTED]
        result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if result.returncode != 0 or not (tree / "fs/fuse/inode.c").is_file():
            raise ModuleBuildError(
                f"{archive} could not be unpacked: {_last_line(result.stderr)}",
                hint=f"apt-get install --reinstall {archive.name.removesuffix('.tar.xz')}",
            )
        # If another process has unpacked it by now, its result is the same.
        if not target.is_dir():
            tree.rename(target)
    return locations.check_private(target)


def series(kernel_patches: Path, version: str) -> Path:
    """Return the directory with the patches for a kernel series.

    :param version: the series, such as ``6.12``.
    :raises NotSupportedError: there are no patches for it.
    """
    for name in (version, f"{version.partition('.')[0]}.x"):
        if (kernel_patches / name / "series").is_file():
            return kernel_patches / name
    known = sorted(path.parent.name for path in kernel_patches.glob("*/series"))
    raise NotSupportedError(
        f"efuse.ko cannot be built for a kernel {version}: there are patches for "
        f"{' and '.join(known)} only",
        hint="use one of those kernels, or carry the patches over: kernel_patches/README.md",
    )


def _patches(patches: Path) -> list[Path]:
    """Return the patches listed in the file ``series``, in order."""
    lines = (patches / "series").read_text().splitlines()
    names = [line.partition("#")[0].strip() for line in lines]
    return [patches / name for name in names if name]


def content_hash(sources: Path, *more: str) -> str:
    """Return a hash of everything below ``sources`` that the module is made from.

    :param sources: the directory ``kernel_patches`` or ``csd``.
    :param more: further strings that the result depends on.
    """
    digest = hashlib.sha256()
    for text in more:
        digest.update(text.encode() + b"\0")
    # Both modules are compiled with the headers of what efuse.ko exports.
    serieses = sorted(path.parent for path in sources.glob("*/series"))
    for top in (*serieses, sources / "src", sources / "include", _exports()):
        for path in sorted(top.rglob("*")):
            if path.is_file():
                digest.update(str(path.relative_to(top.parent)).encode() + b"\0")
                digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _exports() -> Path:
    """Return the directory of the headers for what ``efuse.ko`` exports."""
    return locations.data("kernel_patches") / "include/linux"


def write_pristine(target: Path, archive: Path | None = None) -> Path:
    """Write the kernel's unpatched fs/fuse below ``target``, with a Kbuild for the same files.

    The result is for compiler checks, not for loading.

    :returns: the directory for kbuild's ``M=``.
    """
    fuse = target / "fs/fuse"
    shutil.copytree(pristine(archive) / "fs/fuse", fuse, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    objects = " ".join(sorted(f"{path.stem}.o" for path in fuse.glob("*.c")))
    (fuse / "Kbuild").write_text(
        f"obj-m := fuse.o\nccflags-y := -I$(src) -D__DISABLE_EXPORTS\nfuse-y := {objects}\n"
    )
    return fuse


def write_tree(
    target: Path,
    kernel_patches: Path,
    archive: Path | None = None,
    version: str = kernel.SERIES,
) -> Path:
    """Write the source of ``efuse.ko`` below ``target``, laid out as in a kernel tree.

    The tree has ``fs/fuse`` with the patches applied, ``fs/fuse/efuse`` with eFuse's own files,
    ``fs/fuse/Kbuild``, and ``include/uapi/linux/efuse.h``.

    :param kernel_patches: the directory with the patches and eFuse's own files.
    :param archive: archive of the kernel's source; by default the installed one.
    :param version: series of the kernel, such as ``6.12``.
    :returns: the directory for kbuild's ``M=``: ``target/fs/fuse``.
    :raises NotSupportedError: there are no patches for this series.
    :raises ModuleBuildError: a patch does not apply.
    """
    patches = series(kernel_patches, version)
    fuse = target / "fs/fuse"
    shutil.copytree(pristine(archive) / "fs/fuse", fuse, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    for patch in _patches(patches):
        command = ["patch", "-p1", "--batch", "--forward", "--no-backup-if-mismatch", "-s"]
        with patch.open("rb") as text:
            result = subprocess.run(command, cwd=target, stdin=text, capture_output=True, text=True)
        if result.returncode != 0:
            raise ModuleBuildError(
                f"{patch.name} does not apply to this kernel's fs/fuse:\n{result.stdout.strip()}",
                hint="refresh the patch for the installed linux-source package",
            )
    shutil.copytree(kernel_patches / "src", fuse / "efuse")
    shutil.copytree(kernel_patches / "include", target / "include")
    shutil.copy(patches / "Kbuild", fuse / "Kbuild")
    return fuse


def write_csd_tree(target: Path, csd: Path) -> Path:
    """Write the source of ``csd.ko`` below ``target``.

    :returns: the directory for kbuild's ``M=``.
    """
    for directory in ("src", "include"):
        shutil.copytree(csd / directory, target / "csd" / directory)
    shutil.copytree(_exports(), target / "kernel_patches/include/linux")
    return target / "csd/src"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no reason given"
