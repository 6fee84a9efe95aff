# SPDX-License-Identifier: LGPL-2.1-or-later
"""Run the transcripts of the documents that need no module, on plain FUSE."""

from __future__ import annotations

import shlex
import shutil
import sysconfig
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.documents import ROOT, runs
from tests.examples import git, make_tree
from tests.transcripts import World

_RUNS = runs("host")


@pytest.fixture
def world() -> Iterator[World]:
    with World() as made:
        yield made


def _git_fs(world: World, scratch: Path) -> None:
    """Make a repository with one branch, whose second commit changes a document."""
    repository = scratch / "repository"
    repository.mkdir()
    git(repository, "init", "--quiet", "--initial-branch=main")
    shutil.copytree(ROOT / "docs/examples/git_fs", repository / "docs/examples/git_fs")
    (repository / "docs/benchmarks.md").write_text("once\n")
    (repository / "getattr").write_text("getattr\n")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message=One")
    world.instead["c4b95c35277268be3dbc87d68a3d16495ed4f8fd"] = git(
        repository, "rev-parse", "HEAD"
    ).decode()
    (repository / "docs/benchmarks.md").write_text("twice\n")
    git(repository, "commit", "--quiet", "--all", "--message=Two")
    world.type(f"cd {shlex.quote(str(repository))}")


def _fsspec_fs(world: World, _scratch: Path) -> None:
    library = Path(sysconfig.get_path("stdlib"))
    with zipfile.ZipFile(world.made("/srv") / "stdlib.zip", "w") as archive:
        for path in [*(library / "json").glob("*.py"), library / "pydoc_data/topics.py"]:
            archive.write(path, path.relative_to(library))
    world.made("/var/cache/chunks")


def _install(world: World, _scratch: Path) -> None:
    make_tree(world.made("/srv/data"))
    world.made("/mnt/data")
    for directory in ("bash-completion/completions", "fish/vendor_completions.d"):
        world.made(f"/usr/share/{directory}")
    world.made("/usr/local/share/zsh/site-functions")


_PREPARED: dict[str, Callable[[World, Path], None]] = {
    "docs/examples/fsspec_fs/README.md": _fsspec_fs,
    "docs/examples/git_fs/README.md": _git_fs,
    "docs/install.md": _install,
}


@pytest.mark.parametrize("document", _RUNS)
def test_commands_of_the_documents_print_what_they_show(
    document: str, world: World, tmp_path: Path
) -> None:
    if document in _PREPARED:
        _PREPARED[document](world, tmp_path)
    for block in _RUNS[document]:
        world.play(block.text)
