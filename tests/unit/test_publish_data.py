# SPDX-License-Identifier: LGPL-2.1-or-later
"""Publish blocks to a data cache in plain memory, by the C function and its Python caller."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from efuse import locations
from efuse.blocks import BLOCK_BYTES
from efuse.bpf.cache import DataCache
from efuse.bpf.maps import BpfMap, mapping
from efuse.bpf.spec import WAYS, MapSpec
from efuse.bpf.values import NEVER_NS, TAG_BYTES, Tag
from efuse.errors import NotSupportedError, UsageError

ROOT = locations.package().parent
SETS = 64


def built(directory: Path, *flags: str) -> Path:
    program = directory / "publish_test"
    command = ["gcc", "-std=gnu11", "-g", "-Wall", "-Wextra", "-Werror", *flags, "-pthread"]
    command += [f"-I{ROOT / 'libefuse'}", f"-I{ROOT / 'kernel_patches/include/uapi'}"]
    command += [ROOT / "libefuse/publish.c", ROOT / "tests/libefuse/publish_test.c"]
    subprocess.run([*command, "-o", program], check=True)
    return program


@pytest.mark.parametrize(
    ("what", "flags"),
    [
        ("memory", ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")),
        ("system-calls", ("-O2",)),
        ("threads", ("-O1", "-fsanitize=thread")),
    ],
)
def test_c_library_publishes_blocks(what: str, flags: tuple[str, ...], tmp_path: Path) -> None:
    program = built(tmp_path, *flags)
    # TSan does not support kernels that randomise addresses more widely than it expects.
    before = ["setarch", "-R"] if what == "threads" else []
    subprocess.run([*before, program, what], check=True, timeout=120)


@pytest.fixture
def maps() -> Iterator[dict[str, BpfMap[Any, Any]]]:
    """Fake array maps: memory that can be mapped like a real map's."""
    found = {}
    for name, value_bytes, entries in (
        ("tags", TAG_BYTES * WAYS, SETS),
        ("blocks", BLOCK_BYTES, SETS * WAYS),
    ):
        fd = os.memfd_create(name)
        os.ftruncate(fd, value_bytes * entries)
        found[name] = mapping(fd, name, MapSpec(2, 4, value_bytes, entries))
    yield found
    for m in found.values():
        os.close(m.fd)


def slots(maps: dict[str, BpfMap[Any, Any]]) -> dict[tuple[int, int], tuple[Tag, bytes]]:
    """Return tag and contents of each slot in use, by nodeid and block."""
    found = {}
    for number in range(SETS):
        for way, tag in enumerate(
            Tag.decode_set(os.pread(maps["tags"].fd, TAG_BYTES * WAYS, number * TAG_BYTES * WAYS))
        ):
            if tag.nodeid:
                at = (number * WAYS + way) * BLOCK_BYTES
                data = os.pread(maps["blocks"].fd, BLOCK_BYTES, at)
                found[tag.nodeid, tag.block] = tag, data
    return found


def test_published_blocks_lie_in_the_maps(maps: dict[str, BpfMap[Any, Any]]) -> None:
    data = os.urandom(2 * BLOCK_BYTES + 11)
    with DataCache(maps) as cache:
        done = cache.publish(9, BLOCK_BYTES, data, epoch=5, valid_ns=NEVER_NS, end=True)
        assert (done.stored, done.busy, done.newer) == (3, 0, 0)
        found = slots(maps)
        assert set(found) == {(9, 1), (9, 2), (9, 3)}
        for block, length in ((1, BLOCK_BYTES), (2, BLOCK_BYTES), (3, 11)):
            tag, kept = found[9, block]
            part = data[(block - 1) * BLOCK_BYTES :][:length]
            assert tag == Tag(0, 0, 9, block, 5, NEVER_NS, 0, length)
            assert kept == part.ljust(BLOCK_BYTES, b"\0")
        old = cache.publish(9, BLOCK_BYTES, bytearray(BLOCK_BYTES), epoch=4, valid_ns=0)
        assert (old.stored, old.newer) == (0, 1)
        assert slots(maps) == found


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_publishing_takes_any_bytes(maps: dict[str, BpfMap[Any, Any]], kind: Any) -> None:
    data = b"\0 in it".ljust(BLOCK_BYTES, b"x")
    with DataCache(maps) as cache:
        assert cache.publish(1, 0, kind(data), epoch=1, valid_ns=0).stored == 1
    assert slots(maps)[1, 0][1] == data


def test_publishing_into_a_closed_cache_fails(maps: dict[str, BpfMap[Any, Any]]) -> None:
    cache = DataCache(maps)
    cache.close()
    cache.close()
    with pytest.raises(UsageError, match="EBADF"):
        cache.publish(1, 0, bytes(BLOCK_BYTES), epoch=1, valid_ns=0)


def test_publishing_without_a_cache_fails() -> None:
    with pytest.raises(NotSupportedError, match="data cache"):
        DataCache({})


def test_blocks_are_hashed_as_the_programs_do() -> None:
    wanted = "(nodeid * 0x9e3779b97f4a7c15ULL) ^ (block * 0xc2b2ae3d27d4eb4fULL)"
    scaled = "((hash >> 32) * "
    for path in ("bpf_programs/blocks.c", "libefuse/publish.c"):
        text = (ROOT / path).read_text()
        assert wanted in text
        assert scaled in text
