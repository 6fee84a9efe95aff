# SPDX-License-Identifier: LGPL-2.1-or-later
"""Many inodes, few descriptors, exact lookup counts, and many processes at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FILES = {False: 10_500, True: 3_000}
DESCRIPTORS = 256


def _fill(source: Path, files: int) -> None:
    for n in range(files):
        directory = source / f"{n % 40}"
        if n < 40:
            directory.mkdir()
        (directory / f"{n}").write_bytes(b"file %d" % n)


def walk(top: Path, *, every: int = 1) -> dict[str, tuple[Any, ...]]:
    """Return each name below *top* with its attributes, and the content of one file in *every*."""
    found: dict[str, tuple[Any, ...]] = {}
    for directory, directories, files in os.walk(top):
        for name in directories + files:
            path = Path(directory) / name
            st = path.lstat()
            content = path.read_bytes() if name in files and st.st_ino % every == 0 else b""
            size = st.st_size if name in files else 0
            found[str(path.relative_to(top))] = (st.st_mode, st.st_ino, size, content)
    return found


@pytest.mark.parametrize("no_file_handles", [False, True])
def test_more_inodes_than_descriptors(served: Any, no_file_handles: bool) -> None:
    mounted = served(
        arguments={"entry_timeout": 60, "attr_timeout": 60},
        descriptors=DESCRIPTORS,
        no_file_handles=no_file_handles,
    )
    _fill(mounted.source, FILES[no_file_handles])
    kept = [os.open(mounted.path / f"{n}/{n}", os.O_RDONLY) for n in range(40)]
    os.rename(mounted.path / "7", mounted.path / "8/moved")
    os.unlink(mounted.path / "9/9")
    assert walk(mounted.path, every=40) == walk(mounted.source, every=40)
    report = mounted.report()
    assert len(report["lookups"]) > FILES[no_file_handles] // 2, (
        "the kernel should hold most inodes"
    )
    assert report["open"] <= DESCRIPTORS
    # Inodes put aside meanwhile are found again, wherever they are now.
    for n, fd in enumerate(kept):
        assert os.read(fd, 100) == b"file %d" % n
        os.close(fd)
    os.truncate(mounted.path / "8/moved/7", 2)
    assert (mounted.source / "8/moved/7").read_bytes() == b"fi"
    last = mounted.unmount()
    assert last["logged"] == []


def test_inode_put_aside_and_gone_below_is_stale_not_another(served: Any) -> None:
    mounted = served(descriptors=128, arguments={"descriptors": 32, "entry_timeout": 3600})
    _fill(mounted.source, 400)
    kept = os.open(mounted.path / "0/0", os.O_PATH)
    walk(mounted.path)
    (mounted.source / "0/0").unlink()
    (mounted.source / "0/0").write_bytes(b"another")
    with pytest.raises(OSError, match="Stale"):
        os.stat(f"/proc/self/fd/{kept}")
    os.close(kept)


def _drop_caches() -> None:
    Path("/proc/sys/vm/drop_caches").write_text("2")


def test_lookup_counts_return_to_zero(served: Any, eventually: Callable[..., Any]) -> None:
    mounted = served(arguments={"entry_timeout": 3600, "attr_timeout": 3600})
    _fill(mounted.source, 500)
    for _ in range(2):
        walk(mounted.path)
        for n in range(100):
            (mounted.path / f"new{n}").write_bytes(b"x")
            os.link(mounted.path / f"new{n}", mounted.path / f"link{n}")
            os.rename(mounted.path / f"link{n}", mounted.path / f"new{(n + 1) % 100}")
        for path in mounted.path.glob("new*"):
            path.unlink()
        for path in mounted.path.glob("link*"):
            path.unlink()
        _drop_caches()

    def all_forgotten() -> bool:
        _drop_caches()
        return mounted.report()["lookups"] == {}

    eventually(all_forgotten, timeout=120, what="every lookup to be forgotten")
    assert walk(mounted.path) == walk(mounted.source)
    last = mounted.unmount()
    assert last["logged"] == [], "a FORGET took back more than there was"


RENAMES = """
import os, random, sys
number, top, rounds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
os.chdir(top)
rng = random.Random(number)
def content(who, step):
    return (b"%d:%d;" % (who, step)) * 50
for step in range(rounds):
    own = f"own.{number}"
    with open(own, "wb") as f:
        f.write(content(number, step))
    slot = f"slot.{rng.randrange(6)}"
    action = rng.randrange(5)
    try:
        if action == 0:
            os.rename(own, slot)
        elif action == 1:
            os.link(own, slot)
        elif action == 2:
            os.unlink(slot)
        elif action == 3:
            os.rename(slot, f"d{rng.randrange(2)}/{slot}")
        else:
            with open(slot, "rb") as f:
                data = f.read()
            who, _, rest = data.partition(b":")
            assert data == content(int(who), int(rest.partition(b";")[0])) or not data, data[:40]
    except (FileNotFoundError, FileExistsError):
        pass
    if os.path.exists(own):
        st = os.stat(own)
        os.unlink(own)
        assert not os.path.exists(own), "it was removed"
"""


def test_many_processes_renaming_and_unlinking_agree_with_the_truth(
    served: Any, in_processes: Callable[..., list[str]]
) -> None:
    mounted = served()
    for name in ("d0", "d1"):
        (mounted.source / name).mkdir()
    in_processes(4, RENAMES, mounted.path, 150)
    assert walk(mounted.path) == walk(mounted.source)
    assert mounted.unmount()["logged"] == []


TREES = """
import os, random, shutil, sys
number, top, rounds = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
rng = random.Random(number)
model = {}
mine = f"{top}/tree{number}"
os.mkdir(mine)
for step in range(rounds):
    action = rng.randrange(6)
    names = sorted(model)
    if action <= 1 or not names:
        name = f"{rng.randrange(1000)}"
        model[name] = rng.randbytes(rng.randrange(5000))
        with open(f"{mine}/{name}", "wb") as f:
            f.write(model[name])
    elif action == 2:
        name = rng.choice(names)
        os.unlink(f"{mine}/{name}")
        del model[name]
    elif action == 3:
        old, new = rng.choice(names), f"{rng.randrange(1000)}"
        os.rename(f"{mine}/{old}", f"{mine}/{new}")
        model[new] = model.pop(old)
    elif action == 4:
        moved = f"{top}/moved{number}"
        os.rename(mine, moved)
        assert not os.path.exists(mine)
        os.rename(moved, mine)
    else:
        name = rng.choice(names)
        size = rng.randrange(6000)
        os.truncate(f"{mine}/{name}", size)
        model[name] = model[name][:size].ljust(size, b"\\0")
    if names:
        name = rng.choice(names)
        if name in model:
            with open(f"{mine}/{name}", "rb") as f:
                assert f.read() == model[name]
            assert os.stat(f"{mine}/{name}").st_size == len(model[name])
        else:
            assert not os.path.exists(f"{mine}/{name}")
assert sorted(os.listdir(mine)) == sorted(model)
"""


def test_processes_in_trees_of_their_own_see_their_own_changes(
    served: Any, in_processes: Callable[..., list[str]]
) -> None:
    mounted = served(arguments={"entry_timeout": 60, "attr_timeout": 60})
    in_processes(4, TREES, mounted.path, 150)
    assert walk(mounted.path) == walk(mounted.source)
    assert mounted.unmount()["logged"] == []
