# SPDX-License-Identifier: LGPL-2.1-or-later
"""The module's source tree and build, with a small archive, a small series and a fake kbuild."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import efuse
from efuse import locations
from efuse.errors import ModuleBuildError, NotSupportedError
from efuse.module import __main__ as completed
from efuse.module import build, check, dkms, kernel, source
from efuse.module.kernel import Kernel
from tests.unit.btf_builder import kernel_btf, module_btf

_PATCH = """\
--- a/fs/fuse/inode.c
+++ b/fs/fuse/inode.c
@@ -1 +1 @@
-int original;
+int patched;
"""

_SCRIPTS = ("checkpatch.pl", "const_structs.checkpatch", "extract-vmlinux", "spelling.txt")

# A replacement for the kernel's kbuild: it compiles one object, with BTF if asked to.
_KBUILD = """\
modules:
\t@test -f $(M)/Kbuild -a -f $(M)/efuse/ours.c -a -f $(M)/../../include/uapi/linux/efuse.h
\t$(CC) -c -o $(M)/efuse.o $(M)/inode.c
\tobjcopy $(SECTIONS) $(M)/efuse.o $(M)/efuse.ko
"""


@pytest.fixture
def patches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small kernel_patches directory."""
    directory = tmp_path / "kernel_patches"
    for name in ("6.12", "src", "include/uapi/linux"):
        (directory / name).mkdir(parents=True)
    (directory / "6.12/series").write_text("# in this order\none.patch  # the only one\n\n")
    (directory / "6.12/one.patch").write_text(_PATCH)
    (directory / "6.12/Kbuild").write_text("obj-m := efuse.o\n")
    (directory / "src/ours.c").write_text("int ours;\n")
    (directory / "include/uapi/linux/efuse.h").write_text("#define EFUSE 1\n")
    (directory / "dkms.conf.in").write_text('PACKAGE_VERSION="@VERSION@"\n')
    monkeypatch.setattr(locations, "data", lambda name: tmp_path / name)
    return directory


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small kernel source package, and a private cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tree = tmp_path / "linux-source-6.12"
    (tree / "fs/fuse").mkdir(parents=True)
    (tree / "fs/ext4").mkdir()
    (tree / "scripts").mkdir()
    for name in ("inode.c", "cuse.c", "virtio_fs.c"):
        (tree / "fs/fuse" / name).write_text("int original;\n")
    scripts = [f"scripts/{name}" for name in _SCRIPTS]
    for name in ("fs/ext4/inode.c", "fs/Makefile", "Makefile", "scripts/other", *scripts):
        (tree / name).write_text("")
    (tmp_path / "usr/src").mkdir(parents=True)
    path = tmp_path / "usr/src/linux-source-6.12.tar.xz"
    with tarfile.open(path, "w:xz") as tar:
        tar.add(tree, arcname=tree.name)
    monkeypatch.setattr(kernel, "source_archive", lambda *_, version="6.12": path)
    return path


def _elf_with_btf(path: Path, btf: bytes) -> None:
    source_file = path.with_suffix(".c")
    source_file.write_text("int some;\n")
    subprocess.run(["gcc", "-c", "-o", path, source_file], check=True)
    section = path.with_suffix(".section")
    section.write_bytes(btf)
    subprocess.run(["objcopy", "--add-section", f".BTF={section}", path], check=True)


@pytest.fixture
def target(tmp_path: Path) -> Kernel:
    """A kernel with a fake object tree."""
    headers = tmp_path / "headers"
    headers.mkdir()
    (headers / "Module.symvers").touch()
    _elf_with_btf(headers / "vmlinux", kernel_btf().bytes())
    (headers / "module.section").write_bytes(module_btf())
    (headers / "Makefile").write_text(
        f"SECTIONS := --add-section .BTF={headers}/module.section\n{_KBUILD}"
    )
    return Kernel("6.12.1-test", headers)


def test_pristine_holds_only_what_is_needed(archive: Path) -> None:
    found = source.pristine()
    files = {str(path.relative_to(found)) for path in found.rglob("*") if path.is_file()}
    assert files == {
        "Makefile",
        "fs/fuse/inode.c",
        "fs/fuse/cuse.c",
        "fs/fuse/virtio_fs.c",
        *(f"scripts/{name}" for name in _SCRIPTS),
    }


def test_pristine_is_unpacked_once(archive: Path) -> None:
    found = source.pristine()
    (found / "mark").touch()
    assert (source.pristine() / "mark").exists()
    os.utime(archive, ns=(0, 0))
    assert not (source.pristine() / "mark").exists()


def test_pristine_of_a_broken_archive_fails(archive: Path) -> None:
    archive.write_bytes(b"no archive")
    with pytest.raises(ModuleBuildError, match="could not be unpacked"):
        source.pristine()
    assert not list((locations.cache() / "sources").iterdir())


def test_tree_is_laid_out_as_in_a_kernel(archive: Path, patches: Path, tmp_path: Path) -> None:
    fuse = source.write_tree(tmp_path / "out", patches)
    assert fuse == tmp_path / "out/fs/fuse"
    assert (fuse / "inode.c").read_text() == "int patched;\n"
    assert (fuse / "efuse/ours.c").is_file()
    assert (fuse / "Kbuild").is_file()
    assert (tmp_path / "out/include/uapi/linux/efuse.h").is_file()
    assert not {"cuse.c", "virtio_fs.c"} & {path.name for path in fuse.iterdir()}


def test_tree_has_the_patches_of_the_kernels_series(
    archive: Path, patches: Path, tmp_path: Path
) -> None:
    shutil.copytree(patches / "6.12", patches / "7.x")
    (patches / "7.x/one.patch").write_text(_PATCH.replace("patched", "patched_otherwise"))
    fuse = source.write_tree(tmp_path / "out", patches, archive, "7.3")
    assert (fuse / "inode.c").read_text() == "int patched_otherwise;\n"


def test_kernel_without_patches_fails(archive: Path, patches: Path, tmp_path: Path) -> None:
    with pytest.raises(NotSupportedError, match=r"a kernel 7\.3: there are patches for 6\.12 only"):
        source.write_tree(tmp_path / "out", patches, archive, "7.3")


def test_patch_that_does_not_apply_fails(archive: Path, patches: Path, tmp_path: Path) -> None:
    (patches / "6.12/one.patch").write_text(_PATCH.replace("original", "other"))
    with pytest.raises(ModuleBuildError, match=r"one\.patch does not apply"):
        source.write_tree(tmp_path / "out", patches)


@pytest.mark.parametrize("changed", ["6.12/one.patch", "src/ours.c", "6.12/Kbuild"])
def test_content_hash_changes_with_each_file(patches: Path, changed: str) -> None:
    before = source.content_hash(patches)
    assert source.content_hash(patches) == before
    (patches / changed).write_text("something else")
    assert source.content_hash(patches) != before
    assert source.content_hash(patches, "other kernel") != source.content_hash(patches)


def test_build_is_kept_until_something_changes(
    archive: Path, patches: Path, target: Kernel
) -> None:
    output: list[str] = []
    assert build.built(target) is None
    module = build.build(target, say=output.append)
    check.check(module, target.headers / "vmlinux")
    assert output[-1] == "compiling efuse.ko for 6.12.1-test"
    assert build.built(target) == module
    output.clear()
    assert build.build(target, say=output.append) == module
    assert output == []
    (patches / "src/ours.c").write_text("int changed;\n")
    assert build.built(target) is None
    assert build.build(target) != module


def test_forced_build_replaces_the_module(archive: Path, patches: Path, target: Kernel) -> None:
    module = build.build(target)
    module.write_text("broken")
    assert build.build(target, force=True) == module
    check.check(module, target.headers / "vmlinux")


def test_build_in_a_kept_directory_writes_only_the_sources_that_changed(
    archive: Path, patches: Path, target: Kernel, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    build.build(target, kept=kept)
    fuse = kept / "source/fs/fuse"
    before = {path: path.stat().st_mtime_ns for path in fuse.rglob("*.c")}
    assert fuse / "inode.c" in before
    (patches / "src/ours.c").write_text("int changed;\n")
    module = build.build(target, kept=kept)
    check.check(module, target.headers / "vmlinux")
    after = {path: path.stat().st_mtime_ns for path in fuse.rglob("*.c")}
    changed = {path for path in after if after[path] != before[path]}
    assert changed == {fuse / "efuse/ours.c"}
    assert (fuse / "efuse/ours.c").read_text() == "int changed;\n"


def test_build_without_btf_fails(archive: Path, patches: Path, target: Kernel) -> None:
    (target.headers / "Makefile").write_text(_KBUILD)
    with pytest.raises(ModuleBuildError, match="without BTF"):
        build.build(target)
    assert build.built(target) is None


def test_build_whose_types_are_unmerged_fails(archive: Path, patches: Path, target: Kernel) -> None:
    (target.headers / "module.section").write_bytes(module_btf(structs=2))
    with pytest.raises(ModuleBuildError, match="left 1 of its structs unmerged") as caught:
        build.build(target)
    assert "libbpf 1.7" in str(caught.value.hint)
    assert build.built(target) is None


def test_build_whose_types_are_damaged_fails(archive: Path, patches: Path, target: Kernel) -> None:
    (target.headers / "module.section").write_bytes(module_btf()[:-1])
    with pytest.raises(ModuleBuildError, match=r"types of efuse\.ko cannot be read: .*EINVAL"):
        build.build(target)


def test_compile_error_is_shown(archive: Path, patches: Path, target: Kernel) -> None:
    (patches / "6.12/one.patch").write_text(_PATCH.replace("int patched;", "int patched"))
    with pytest.raises(ModuleBuildError, match=r"fs/fuse/inode\.c:1:.* error: ") as caught:
        build.build(target)
    assert "build.log" in str(caught.value.hint)


def test_kernel_without_btf_or_image_fails(archive: Path, patches: Path, target: Kernel) -> None:
    (target.headers / "vmlinux").unlink()
    with pytest.raises(NotSupportedError, match="the kernel's BTF was not found"):
        build.build(target)


def test_btf_is_taken_out_of_the_image(archive: Path, patches: Path, target: Kernel) -> None:
    image = target.headers.with_name("vmlinuz")
    (target.headers / "vmlinux").rename(image)
    (source.pristine() / "scripts/extract-vmlinux").write_text('cat "$1"\n')
    module = build.build(Kernel(target.release, target.headers, image))
    check.check(module, image)
    assert not (target.headers / "vmlinux").exists()


def test_file_that_is_no_elf_object_has_no_btf(tmp_path: Path) -> None:
    for text in ("", ".BTF", "\x7fELF\x02\x01.BTF"):
        (tmp_path / "text").write_text(text)
        assert not check.has_btf(tmp_path / "text")


def test_dkms_source_names_its_version(patches: Path, tmp_path: Path) -> None:
    dkms.write_source(tmp_path / "efuse-9.8", "9.8")
    assert (tmp_path / "efuse-9.8/dkms.conf").read_text() == 'PACKAGE_VERSION="9.8"\n'
    assert (tmp_path / "efuse-9.8/kernel_patches/src/ours.c").is_file()


def test_dkms_source_has_nothing_of_the_kernel(patches: Path, tmp_path: Path) -> None:
    dkms.write_source(tmp_path / "efuse-9.8", "9.8")
    assert not list(tmp_path.glob("efuse-9.8/**/inode.c"))


def _run_in_dkms_source(tree: Path, module: str, *arguments: object) -> tuple[int, str]:
    """Run a Python module of a DKMS source tree, without installed packages; return the result."""
    dkms.write_source(tree, "9.8")
    script = f"import runpy, sys; runpy.run_module({module!r}, run_name='__main__')"
    python = Path(sys.executable).resolve()
    words = [python, "-S", "-c", script, *map(str, arguments)]
    done = subprocess.run(words, cwd=tree, env={}, capture_output=True, text=True)
    return done.returncode, done.stderr


def test_dkms_source_completes_itself_without_more_than_python(
    patches: Path, tmp_path: Path
) -> None:
    ended = _run_in_dkms_source(tmp_path / "efuse-9.8", "efuse.module", "out", "5.4.0")
    assert ended[0] == 1
    assert ended[1].startswith("efuse: the kernel's source package was not found")
    assert "Traceback" not in ended[1]


def test_dkms_source_checks_types_without_more_than_python_and_libbpf(
    patches: Path, tmp_path: Path
) -> None:
    module, vmlinux = tmp_path / "some", tmp_path / "vmlinux"
    _elf_with_btf(vmlinux, kernel_btf().bytes())
    _elf_with_btf(module, module_btf())
    ended = _run_in_dkms_source(tmp_path / "one", "efuse.module.check", module, vmlinux)
    assert ended == (0, "")
    module.write_text("no module")
    status, output = _run_in_dkms_source(tmp_path / "two", "efuse.module.check", module, vmlinux)
    assert status == 1
    assert output.startswith("efuse: the types of some cannot be read: Exec format error (ENOEXEC)")
    assert "\ntry: " in output
    _, output = _run_in_dkms_source(tmp_path / "three", "efuse.module.check", module, module)
    assert output.startswith(f"efuse: the types of {module} cannot be read: Exec format error")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("without BTF", "some was built without BTF: struct_ops and kfuncs cannot register"),
        ("with damaged BTF", "the types of some cannot be read: Invalid argument (EINVAL)"),
        ("as text", "the types of some cannot be read: Exec format error (ENOEXEC)"),
        ("in part", "the types of some cannot be read: Exec format error (ENOEXEC)"),
        ("not at all", "the types of some cannot be read: No such file or directory (ENOENT)"),
    ],
)
def test_module_whose_types_cannot_be_used_fails_and_says_why(
    tmp_path: Path, made: str, message: str
) -> None:
    module, vmlinux = tmp_path / "some", tmp_path / "vmlinux"
    _elf_with_btf(vmlinux, kernel_btf().bytes())
    if made == "with damaged BTF":
        _elf_with_btf(module, module_btf()[:-1])
    elif made == "as text":
        module.write_text("no module")
    elif made != "not at all":
        subprocess.run(["gcc", "-c", "-o", module, vmlinux.with_suffix(".c")], check=True)
    if made == "in part":
        module.write_bytes(module.read_bytes()[:200])
    with pytest.raises(ModuleBuildError) as caught:
        check.check(module, vmlinux)
    assert str(caught.value) == message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("made", "message"),
    [
        ("not at all", "the types of {} cannot be read: No such file or directory (ENOENT)"),
        ("as text", "the types of {} cannot be read: Exec format error (ENOEXEC)"),
    ],
)
def test_kernel_whose_types_cannot_be_used_is_refused_and_says_why(
    tmp_path: Path, made: str, message: str
) -> None:
    vmlinux = tmp_path / "vmlinux"
    if made == "as text":
        vmlinux.write_text("no kernel")
    with pytest.raises(NotSupportedError) as caught:
        check.check(tmp_path / "some", vmlinux)
    assert str(caught.value) == message.format(vmlinux)


def test_source_is_completed_where_dkms_builds(
    archive: Path, patches: Path, tmp_path: Path
) -> None:
    completed.main(tmp_path / "build", "6.12.1-amd64")
    assert (tmp_path / "build/fs/fuse/inode.c").read_text() == "int patched;\n"
    assert (tmp_path / "build/fs/fuse/efuse/ours.c").is_file()
    assert (tmp_path / "build/cache/efuse/sources").is_dir()


def test_source_that_cannot_be_completed_says_why(
    archive: Path, patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (patches / "6.12/one.patch").write_text(_PATCH.replace("original", "other"))
    with pytest.raises(SystemExit) as ended:
        completed.main(tmp_path / "build", "6.12.1-amd64")
    assert ended.value.code == 1
    assert "one.patch does not apply" in capsys.readouterr().err


def test_source_is_completed_with_the_patches_of_the_kernel(
    archive: Path, patches: Path, tmp_path: Path
) -> None:
    shutil.copytree(patches / "6.12", patches / "7.x")
    newer = (patches / "7.x/one.patch").read_text().replace("int patched", "int newer")
    (patches / "7.x/one.patch").write_text(newer)
    for release, line in (("6.12.1-amd64", "patched"), ("7.3.4+deb13-amd64", "newer")):
        completed.main(tmp_path / release, release)
        assert (tmp_path / release / "fs/fuse/inode.c").read_text() == f"int {line};\n"


def test_source_of_a_kernel_without_patches_fails(
    archive: Path, patches: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        completed.main(tmp_path / "build", "6.1.0-49-amd64")
    assert "cannot be built for a kernel 6.1" in capsys.readouterr().err


@pytest.mark.parametrize("of", [build.EFUSE, build.CSD], ids=lambda of: of.name)
def test_dkms_builds_for_the_kernels_that_there_are_patches_for(
    of: build.Source, tmp_path: Path
) -> None:
    dkms.write_source(tmp_path, "9.8", of)
    text = (tmp_path / "dkms.conf").read_text()
    found = re.search(r'^BUILD_EXCLUSIVE_KERNEL="(.*)"$', text, re.MULTILINE)
    assert found
    for release in ("6.12.117+deb12-amd64", "7.3.4+deb13-amd64"):
        assert re.search(found[1], release)
        source.series(locations.data("kernel_patches"), kernel.version(release))
    for release in ("6.1.0-49-amd64", "7.30.1", "6.120.1", "17.3.1"):
        assert not re.search(found[1], release)


@pytest.mark.parametrize("of", [build.EFUSE, build.CSD], ids=lambda of: of.name)
def test_dkms_configuration_is_the_modules(of: build.Source, tmp_path: Path) -> None:
    dkms.write_source(tmp_path, "9.8", of)
    text = (tmp_path / "dkms.conf").read_text()
    fields = dict(re.findall(r'^([A-Z_]+)(?:\[0\])?="(.*)"$', text, re.MULTILINE))
    assert fields["PACKAGE_NAME"] == of.package
    assert fields["BUILT_MODULE_NAME"] == of.name
    where = fields["BUILT_MODULE_LOCATION"]
    build_directory = f"${{dkms_tree}}/{of.package}/9.8/build/{where}"
    whole = " ".join(build.UNDISTILLED)
    assert f"M={build_directory} {whole} modules" in fields["MAKE"]
    assert f"{where}/{of.name}.ko" in fields["MAKE"]
    if of is build.EFUSE:
        assert (
            f"python3 -m efuse.module ${{dkms_tree}}/{of.package}/9.8/build ${{kernelver}} &&"
            in (fields["MAKE"])
        )
    else:
        assert f"M={build_directory} clean" in fields["CLEAN"]


def test_dkms_source_of_csd_is_complete(tmp_path: Path) -> None:
    dkms.write_source(tmp_path / "efuse-csd-9.8", "9.8", build.CSD)
    configuration = (tmp_path / "efuse-csd-9.8/dkms.conf").read_text()
    assert 'PACKAGE_VERSION="9.8"' in configuration
    assert not re.search(r"@[A-Z]+@", configuration)
    assert (tmp_path / "efuse-csd-9.8/csd/src/Kbuild").is_file()
    assert (tmp_path / "efuse-csd-9.8/csd/include/uapi/linux/csd.h").is_file()


@pytest.mark.parametrize("of", [build.EFUSE, build.CSD], ids=lambda of: of.name)
def test_dkms_is_told_to_add_build_and_install(
    of: build.Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "output"
    fake = tmp_path / "dkms"
    fake.write_text(f'#!/bin/sh\necho "$@" >>{output}\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(kernel, "source_archive", lambda version: tmp_path / version)
    monkeypatch.setattr(dkms, "_SOURCES", tmp_path)
    name = f"{of.package}/{efuse.__version__}"
    told = [f"add {name}", f"build {name} -k 6.12.1", f"install {name} -k 6.12.1"]
    dkms.install("6.12.1", of, say=lambda _text: None)
    assert output.read_text().splitlines() == told
    assert (tmp_path / f"{of.package}-{efuse.__version__}/dkms.conf").is_file()
    dkms.install("6.12.1", of, say=lambda _text: None)
    assert output.read_text().splitlines() == [*told, f"remove {name} --all", *told]


def test_install_without_dkms_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(NotSupportedError, match="dkms not found"):
        dkms.install()
