# SPDX-License-Identifier: LGPL-2.1-or-later
"""Scripts that change many directories at the same time, and a walk to compare the result."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


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
