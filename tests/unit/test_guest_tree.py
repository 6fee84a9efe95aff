# SPDX-License-Identifier: LGPL-2.1-or-later
"""A guest whose root is another directory; these tests boot nothing and mount nothing."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from efuse.cli import guest as cli_guest
from efuse.errors import UsageError
from efuse.guest import processes, run, tree
from efuse.guest.tree import HOST, Tree
from efuse.module.kernel import Kernel
from tests.documents import ROOT, named


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of another Debian; the working directory is outside of it."""
    made = tmp_path / "root"
    for name in ("usr/bin", "dev", "proc", "run", "sys", "tmp"):
        (made / name).mkdir(parents=True)
    (made / "bin").symlink_to("usr/bin")
    (made / "bin/bash").touch()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return made


def test_working_directory_keeps_its_path(root: Path) -> None:
    cwd = Path.cwd()
    found = tree.at(root)
    assert found == Tree(root, ((cwd, cwd),))
    assert found.inside(cwd / "file") == cwd / "file"
    assert found.inside(root / "etc/fstab") == Path("/etc/fstab")


def test_working_directory_below_the_root_is_the_same_one_there(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root / "usr")
    found = tree.at(root)
    assert found.shown == ()
    assert found.inside(Path.cwd()) == Path("/usr")


def test_own_root_is_entered_without_a_namespace() -> None:
    assert tree.at(Path("/")) is HOST
    assert HOST.entering(["server"]) == ["server"]
    assert HOST.inside(Path("/srv/x")) == Path("/srv/x")


def test_working_directory_where_the_root_has_files_fails(root: Path) -> None:
    own = root / Path.cwd().relative_to("/")
    own.mkdir(parents=True)
    assert tree.at(root).shown
    (own / "file").touch()
    with pytest.raises(UsageError, match="has files of its own there") as caught:
        tree.at(root)
    assert str(root) in str(caught.value.hint)


def test_working_directory_where_the_root_has_a_symbolic_link_fails(root: Path) -> None:
    point = root / Path.cwd().relative_to("/")
    point.parent.mkdir(parents=True)
    point.symlink_to("/")
    with pytest.raises(UsageError, match="has files of its own there"):
        tree.at(root)


def test_root_that_does_not_exist_fails(root: Path) -> None:
    with pytest.raises(UsageError, match="it does not exist") as caught:
        tree.at(root / "absent")
    assert caught.value.hint == f"debootstrap trixie {root}/absent"


def test_root_that_is_a_file_fails(root: Path) -> None:
    with pytest.raises(UsageError, match="it is not a directory"):
        tree.at(root / "bin/bash")


def test_root_without_a_system_fails(root: Path) -> None:
    (root / "bin/bash").unlink()
    (root / "sys").rmdir()
    with pytest.raises(UsageError, match="it has no bin/bash, sys"):
        tree.at(root)


def test_directories_of_a_run_are_shown_unless_the_root_has_them(
    root: Path, tmp_path: Path
) -> None:
    found = Tree(root).with_run(run=tmp_path / "run", modules=root / "boot", headers=None)
    assert found.shown == ((tmp_path / "run", Path("/run/efuse-guest/run")),)
    assert found.inside(tmp_path / "run/init") == Path("/run/efuse-guest/run/init")


def test_server_starts_where_all_is_shown(root: Path) -> None:
    command = Tree(root, ((Path("/a b"), Path("/c")),)).entering(["server", "--fd=3"])
    assert command[:4] == ["unshare", "--mount", "--propagation", "slave"]
    assert command[-6:] == [str(root), "/a b", "/c", "--", "server", "--fd=3"]


@pytest.mark.parametrize("keep", [True, False])
def test_server_in_c_gets_its_options(keep: bool) -> None:
    command = processes._virtiofsd_command(processes._C_VIRTIOFSD, 7, Path("/srv/root"), keep=keep)
    cache = "always" if keep else "auto"
    assert command == [
        "/usr/lib/qemu/virtiofsd",
        "--fd=7",
        "-f",
        "-o",
        f"source=/srv/root,cache={cache},sandbox=chroot,log_level=err",
    ]


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("program", ["/usr/libexec/virtiofsd", "/usr/local/bin/virtiofsd"])
def test_server_in_rust_gets_its_options(program: str, keep: bool) -> None:
    command = processes._virtiofsd_command(Path(program), 7, Path("/srv/root"), keep=keep)
    cache = "always" if keep else "auto"
    assert command[:4] == [program, "--fd=7", "--shared-dir=/srv/root", f"--cache={cache}"]
    assert "--sandbox=chroot" in command
    assert "-o" not in command


@pytest.mark.parametrize("name", ["_C_VIRTIOFSD", "_RUST_VIRTIOFSD"])
def test_either_server_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for other in ("_C_VIRTIOFSD", "_RUST_VIRTIOFSD"):
        monkeypatch.setattr(processes, other, tmp_path / other)
    assert processes._virtiofsd() is None
    (tmp_path / name).touch(mode=0o755)
    assert processes._virtiofsd() == tmp_path / name


def test_link_to_the_file_server_in_rust_is_not_taken_for_the_one_in_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rust, link = tmp_path / "rust", tmp_path / "c"
    rust.touch(mode=0o755)
    link.symlink_to(rust)
    monkeypatch.setattr(processes, "_RUST_VIRTIOFSD", rust)
    monkeypatch.setattr(processes, "_C_VIRTIOFSD", link)
    program = processes._virtiofsd()
    assert program == rust
    assert "--sandbox=chroot" in processes._virtiofsd_command(program, 7, tmp_path, keep=True)


def test_files_for_init_have_the_paths_of_the_guest(root: Path, tmp_path: Path) -> None:
    directory = tmp_path / "directory"
    directory.mkdir()
    (tmp_path / "efuse.ko").write_text("module")
    headers = root / "usr/src/linux-headers-6.12.1"
    target = Kernel("6.12.1", headers, root / "vmlinuz", root / "lib/modules/6.12.1", root)
    modules = {run.MODULE: tmp_path / "efuse.ko"}
    found = run._fill(directory, ["true"], target, modules, tree.at(root))
    assert found.inside(directory) == Path("/run/efuse-guest/run")
    assert (directory / "module").read_text() == "/run/efuse-guest/run/efuse.ko"
    assert (directory / "efuse.ko").read_text() == "module"
    assert (directory / "modules/6.12.1").readlink() == Path("/lib/modules/6.12.1")
    assert "EFUSE_MODULE=/run/efuse-guest/run/efuse.ko" in (directory / "command").read_text()
    lines = (directory / "fstab").read_text().splitlines()
    assert "/run/efuse/host/run/efuse-guest /run/efuse-guest none x-mount.mkdir,bind" in lines
    assert lines[-1].startswith("/run/efuse-guest/run/modules /lib/modules ")
    assert not any(os.fspath(root) in line for line in lines)


def test_command_of_the_document_boots_the_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    test = f"{Path(__file__).relative_to(ROOT)}::test_command_of_the_document_boots_the_directory"
    (block,) = named("test", test)
    make, boot = (shlex.split(line.removeprefix("# ")) for line in block.text.splitlines())
    seen: list[object] = []

    def fake_run(command: list[str], options: run.Options, *, shell: bool) -> run.Result:
        seen.extend([command, options])
        return run.Result(0, 1.0, 1.0, None)

    monkeypatch.setattr(run, "run", fake_run)
    result = CliRunner().invoke(cli_guest.cli, boot[boot.index("guest") + 1 :])
    assert result.exit_code == 0
    assert seen == [["cat", "/etc/debian_version"], run.Options(root=Path(make[-1]))]
