# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test maps as Python mappings, capacities, eviction, full maps and publishing."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator

import pytest

from efuse import bpf, opcodes
from efuse.bpf import libbpf
from efuse.bpf.attach import Attachment
from tests.guest.support.publishing import published
from tests.guest.support.tiny_fs import FIRST, Tiny, content, getattr_from_daemon, serve, xattr

HEAD = '#include "efuse.bpf.h"\n'
GETXATTR = opcodes.number("getxattr")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    with serve(tmp_path_factory.mktemp("maps") / "mnt", timeout_s=1000) as mounted:
        mounted.write("stable_nodeids", "1")
        yield mounted


@pytest.fixture
def attachment(tiny: Tiny) -> Iterator[Attachment]:
    tiny.forget()
    with bpf.attach(tiny.connection) as attached:
        yield attached


def drop_caches() -> None:
    """Make the kernel drop every name and inode that is not in use."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("2")


def test_learned_values_equal_the_replies_of_the_daemon(tiny: Tiny, attachment: Attachment) -> None:
    drop_caches()
    path = tiny.path / "f7"
    os.getxattr(path, "user.tiny")
    getattr_from_daemon(path)
    nodeid = FIRST + 7
    entry = attachment.maps["entries"][bpf.EntryKey(1, b"f7")]
    assert entry.nodeid == nodeid
    assert entry.stamp.expires_ns > time.monotonic_ns()
    attributes = attachment.maps["attrs"][nodeid]
    stat = os.stat(path)
    for name in ("st_ino", "st_mode", "st_nlink", "st_size", "st_mtime_ns"):
        assert getattr(attributes, name) == getattr(stat, name)
    blob = attachment.maps["blobs"][bpf.XattrKey(nodeid, GETXATTR, b"user.tiny")]
    assert blob.data == xattr(nodeid)


def test_lookup_is_answered_in_the_kernel(tiny: Tiny, attachment: Attachment) -> None:
    os.stat(tiny.path / "f8")
    drop_caches()
    os.stat(tiny.path / "f8")
    hits = tiny.count("lookup", "hits")
    daemon = tiny.count("lookup", "daemon")
    drop_caches()
    assert os.stat(tiny.path / "f8").st_size == len(content(FIRST + 8))
    assert tiny.count("lookup", "hits") == hits + 1
    assert tiny.count("lookup", "daemon") == daemon


def test_negative_lookup_is_answered_in_the_kernel(tiny: Tiny, attachment: Attachment) -> None:
    path = tiny.path / "no such file"
    assert not path.exists()
    drop_caches()
    daemon = tiny.count("lookup", "daemon")
    assert not path.exists()
    assert tiny.count("lookup", "daemon") == daemon
    assert attachment.maps["entries"][bpf.EntryKey(1, b"no such file")].nodeid == 0


def test_mapping_gets_sets_deletes_and_iterates(attachment: Attachment) -> None:
    entries = attachment.maps["entries"]
    entries.clear()
    stored = {bpf.EntryKey(5, b"n%d" % i): bpf.Entry(i, i + 1) for i in range(700)}
    assert entries.write_all(stored.items()) == 700
    assert len(entries) == 700
    assert set(entries) == set(stored)
    assert entries.read_all() == stored
    assert entries[bpf.EntryKey(5, b"n9")] == bpf.Entry(9, 10)
    del entries[bpf.EntryKey(5, b"n9")]
    assert bpf.EntryKey(5, b"n9") not in entries
    with pytest.raises(KeyError):
        entries[bpf.EntryKey(5, b"n9")]
    with pytest.raises(KeyError):
        del entries[bpf.EntryKey(5, b"n9")]
    entries.clear()
    assert len(entries) == 0


def test_mapping_keeps_names_of_any_bytes(attachment: Attachment) -> None:
    entries = attachment.maps["entries"]
    name = bytes(range(1, 256))
    entries[bpf.EntryKey(1, name)] = bpf.Entry(3)
    assert entries[bpf.EntryKey(1, name)].nodeid == 3
    assert name in {key.name for key in entries}


def test_value_with_a_wrong_checksum_reads_as_none(tiny: Tiny, attachment: Attachment) -> None:
    path = tiny.path / "f11"
    os.getxattr(path, "user.tiny")
    blobs = attachment.maps["blobs"]
    key = bpf.XattrKey(FIRST + 11, GETXATTR, b"user.tiny")
    raw = bytearray(libbpf.map_lookup(blobs.fd, key.encode(), 1024) or b"")
    raw[40] ^= 0xFF
    libbpf.map_update(blobs.fd, key.encode(), bytes(raw))
    assert key not in blobs
    daemon = tiny.count("getxattr", "daemon")
    assert os.getxattr(path, "user.tiny") == xattr(FIRST + 11)
    assert tiny.count("getxattr", "daemon") == daemon + 1


def test_value_under_another_inodes_key_is_refused(tiny: Tiny, attachment: Attachment) -> None:
    path = tiny.path / "f12"
    os.getxattr(path, "user.tiny")
    blobs = attachment.maps["blobs"]
    mine = bpf.XattrKey(FIRST + 12, GETXATTR, b"user.tiny")
    other = bpf.XattrKey(FIRST + 13, GETXATTR, b"user.tiny")
    raw = libbpf.map_lookup(blobs.fd, mine.encode(), 1024)
    assert raw is not None
    libbpf.map_update(blobs.fd, other.encode(), raw)
    assert os.getxattr(tiny.path / "f13", "user.tiny") == xattr(FIRST + 13)


def test_evicted_values_are_requested_again(tiny: Tiny) -> None:
    tiny.forget()
    with bpf.attach(tiny.connection, capacity={"blobs": 16}) as attachment:
        for _ in range(2):
            for number in range(40):
                path = tiny.path / f"f{number}"
                assert os.getxattr(path, "user.tiny") == xattr(FIRST + number)
        assert len(attachment.maps["blobs"]) <= 16
        assert int(tiny.read("map_full")) == 0


_NEVER_EVICTING = HEAD + (
    'BPF_TABLE("hash", struct efuse_blob_key, struct efuse_blob, few, 8);\n'
    "int learn(struct efuse_req *req)\n{\n"
    "\tstruct efuse_blob_key *key = efuse_learn_key(req, sizeof(*key));\n"
    "\tstruct efuse_blob *value = efuse_learn_value(req, sizeof(*value));\n\n"
    "\treturn key && value ? few.update(key, value) : 0;\n}\n"
    "int getxattr(struct efuse_req *req)\n{\n"
    "\tstruct efuse_blob_key *key = efuse_req_key(req, sizeof(*key));\n"
    "\tstruct efuse_blob *value = key ? few.lookup(key) : 0;\n\n"
    "\treturn value ? efuse_reply_blob(req, value, sizeof(*value)) : 0;\n}\n"
)


def test_full_map_that_does_not_evict_is_counted(tiny: Tiny) -> None:
    tiny.forget()
    full = int(tiny.read("map_full"))
    handlers = {"learn": _NEVER_EVICTING, "getxattr": _NEVER_EVICTING}
    with bpf.attach(tiny.connection, handlers, with_builtin=False) as attachment:
        for _ in range(2):
            for number in range(20):
                path = tiny.path / f"f{number}"
                assert os.getxattr(path, "user.tiny") == xattr(FIRST + number)
        assert len(attachment.maps["few"]) == 8
        assert attachment.maps["few"].definition.max_entries == 8
    assert int(tiny.read("map_full")) > full


def test_invalidate_voids_the_learned_values(tiny: Tiny, attachment: Attachment) -> None:
    path = tiny.path / "f14"
    os.getxattr(path, "user.tiny")
    tiny.forget()
    stale = tiny.count("getxattr", "stale")
    os.getxattr(path, "user.tiny")
    assert tiny.count("getxattr", "stale") == stale + 1


def test_published_names_are_answered_without_the_daemon(
    tiny: Tiny, attachment: Attachment
) -> None:
    drop_caches()
    epoch = int(tiny.read("epoch"))
    numbers = range(50, 60)
    entries = [
        published(
            b"f%d" % number,
            FIRST + number,
            st_mode=0o100644,
            st_size=len(content(FIRST + number)),
        )
        for number in numbers
    ]
    entries.append(published(b"absent", 0))
    assert bpf.publish(attachment.maps, entries, epoch=epoch) == 11
    daemon = tiny.count("lookup", "daemon")
    for number in numbers:
        assert os.stat(tiny.path / f"f{number}").st_mode == 0o100644
    assert not (tiny.path / "absent").exists()
    assert tiny.count("lookup", "daemon") == daemon


def test_value_published_before_an_invalidation_is_not_used(
    tiny: Tiny, attachment: Attachment
) -> None:
    drop_caches()
    epoch = int(tiny.read("epoch"))
    tiny.forget()
    bpf.publish(attachment.maps, [published(b"f61", 0)], epoch=epoch)
    assert os.stat(tiny.path / "f61").st_ino == FIRST + 61


def test_expired_published_value_is_not_used(tiny: Tiny, attachment: Attachment) -> None:
    drop_caches()
    epoch = int(tiny.read("epoch"))
    bpf.publish(attachment.maps, [published(b"f62", 0, entry_timeout=0)], epoch=epoch)
    expired = tiny.count("lookup", "expired")
    assert os.stat(tiny.path / "f62").st_ino == FIRST + 62
    assert tiny.count("lookup", "expired") == expired + 1


def test_capacity_of_an_unknown_map_fails(tiny: Tiny) -> None:
    from efuse.errors import UsageError

    with pytest.raises(UsageError, match="no such map"):
        bpf.attach(tiny.connection, capacity={"nothing": 1})


def test_store_refused_by_the_kernel_names_the_map(attachment: Attachment) -> None:
    from efuse.errors import AttachError

    blobs = attachment.maps["blobs"]
    closed = type(blobs)(1 << 20, "blobs", blobs.definition)
    with pytest.raises(AttachError, match="'blobs'") as caught:
        closed[bpf.XattrKey(1, GETXATTR)] = bpf.XattrValue()
    assert errno.errorcode[errno.EBADF] in str(caught.value)
