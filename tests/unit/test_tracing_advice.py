# SPDX-License-Identifier: LGPL-2.1-or-later
"""Advice from recorded requests."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from efuse import locations
from efuse.tracing import Advice, Advisor, OpcodeAdvice, Request, advice
from tests.unit.recorded_requests import ATTR, attr_out, entry, getattr_, lookup, request

OTHER_ATTR = b"b" * 88
DIGESTED = 4


def read(offset: int = 0, digest: int = 7, **more: Any) -> Request:
    arguments = struct.pack("=QQI", 0, offset, 4096)
    return request("read", 2, arguments=arguments, digest=digest, flags=DIGESTED, **more)


def write(nodeid: int = 2) -> Request:
    return request("write", nodeid, arguments=struct.pack("=QQI", 0, 0, 1))


def statfs() -> Request:
    return request("statfs", 1, answer=b"s" * 80)


def opened(fh: int) -> Request:
    return request("open", 2, answer=struct.pack("=QII", fh, 0, 0), arguments=bytes(8))


def closed(opcode: str, fh: int) -> Request:
    return request(opcode, 2, arguments=struct.pack("=QQQ", fh, 0, 0))


def copied(opcode: str, target: int) -> Request:
    return request(opcode, 2, arguments=struct.pack("=QQQQQQQ", 0, 0, target, 0, 0, 0, 0))


def advised(requests: Sequence[Request], *, each_ns: int = 100) -> Advice:
    """Return the advice for requests in sequence, each of which takes *each_ns*."""
    advisor = Advisor()
    for i, one in enumerate(requests, 1):
        advisor.add(replace(one, time_ns=i * 1000, ns=each_ns))
    return advisor.advice(1.0)


def hits(*requests: Request) -> int:
    return advised(requests).total.hits


def test_advice_counts_repeats_hits_and_saved_time_of_an_opcode() -> None:
    found = advised([getattr_(), getattr_(), getattr_(attributes=OTHER_ATTR), getattr_(3)])
    assert found.opcodes == {
        "getattr": OpcodeAdvice(
            requests=4, repeats=2, same=1, changed=1, hits=1, daemon_ns=400, saved_ns=100
        )
    }
    assert found.opcodes["getattr"].hit_ratio == 0.25


def test_answers_that_differ_in_timeouts_or_handles_are_equal() -> None:
    again = request("getattr", 2, answer=attr_out(ATTR, valid=60))
    assert hits(getattr_(), again) == 1
    first = request("open", 2, answer=struct.pack("=QII", 11, 0, 0), arguments=bytes(8))
    second = request("open", 2, answer=struct.pack("=QII", 12, 0, 0), arguments=bytes(8))
    assert hits(first, second) == 1


@pytest.mark.parametrize(
    ("asked", "change", "kept"),
    [
        (getattr_(), write(2), 0),
        (getattr_(), write(3), 1),
        (getattr_(), read(), 0),  # the read changes the atime
        (read(), write(2), 0),
        (read(), getattr_(), 1),
        (lookup(), write(2), 0),
        (lookup(), request("unlink", 1, b"f"), 0),
        (lookup(), request("unlink", 1, b"g"), 1),
        (lookup(), request("rename", 1, b"g", b"f", arguments=struct.pack("=Q", 1)), 0),
        (lookup(), request("setattr", 1, arguments=struct.pack("=I", 1)), 0),
        (lookup(), request("setattr", 1, arguments=struct.pack("=I", 1 << 5)), 1),
        (request("lookup", 1, b"new", ret=-2), request("create", 1, b"new"), 0),
        (request("lookup", 1, b"new", ret=-2), request("create", 1, b"old"), 1),
        (request("getxattr", 2, b"user.a", ret=-61), write(2), 1),
        (request("getxattr", 2, b"user.a", ret=-61), request("setxattr", 2, b"user.b"), 0),
        (request("statfs", 1, answer=b"s" * 80), write(2), 0),
        (request("statfs", 1, answer=b"s" * 80), getattr_(), 1),
        (request("access", 2, arguments=struct.pack("=II", 4, 0)), request("removexattr", 2), 0),
        (request("readlink", 2, digest=3, flags=DIGESTED), request("setattr", 2), 0),
        (getattr_(3), copied("copy_file_range", 3), 0),
        (getattr_(3), copied("copy_file_range_64", 3), 0),
        (getattr_(3), copied("copy_file_range_64", 4), 1),
        (getattr_(2), request("open", 2, arguments=struct.pack("=II", 0o1000, 0)), 0),
        (getattr_(2), request("link", 1, b"l", arguments=struct.pack("=Q", 2)), 0),
        (read(), request("link", 1, b"l", arguments=struct.pack("=Q", 2)), 0),
        (statfs(), request("tmpfile", 1), 0),
        (statfs(), request("syncfs", 1), 0),
        (statfs(), request("fsync", 2), 0),
        (statfs(), request("release", 2, arguments=bytes(24)), 0),
        (getattr_(), request("setupmapping", 2), 0),
        (getattr_(), request("getattr", 2, ret=-116), 0),
        (getattr_(), request("setxattr", 2, ret=-38), 1),
        (read(), request("ioctl", 2, ret=-25), 1),
        (read(), request("ioctl", 2, answer=struct.pack("=iIII", -25, 0, 0, 0)), 1),
        (read(), request("ioctl", 2, answer=struct.pack("=iIII", -1, 0, 0, 0)), 0),
        (getattr_(), read(answered_by=3), 1),  # the cache answered it
        (getattr_(), read(answered_by=2), 0),  # from a backing file
    ],
)
def test_request_voids_earlier_answers_as_the_kernel_does(
    asked: Request, change: Request, kept: int
) -> None:
    before = advised([asked, change]).total.hits
    assert advised([asked, change, asked]).total.hits - before == kept
    assert advised([asked, asked]).total.hits == 1


@pytest.mark.parametrize("opcode", ["flush", "release"])
def test_close_voids_attributes_only_of_a_file_written_since_it_was_opened(opcode: str) -> None:
    assert hits(opened(7), write(), getattr_(), closed(opcode, 7), getattr_()) == 0
    assert hits(write(), opened(7), getattr_(), closed(opcode, 7), getattr_()) == 1
    assert hits(opened(7), opened(8), write(3), getattr_(), closed(opcode, 7), getattr_()) == 2


def test_close_voids_attributes_if_the_file_was_opened_before_the_trace_and_written() -> None:
    assert hits(write(), getattr_(), closed("release", 7), getattr_()) == 0


@pytest.mark.parametrize(
    ("asked", "kept"),
    [
        (request("lookup", 1, b"f", ret=-2), True),
        (request("lookup", 1, b"f", answer=entry(0)), True),
        (request("lookup", 1, b"f", ret=-5), False),
        (request("getxattr", 2, b"user.a", ret=-61), True),
        (request("getxattr", 2, b"user.a", ret=-95), False),
        (request("listxattr", 2, ret=-61), False),
        (request("getattr", 2, ret=-5), False),
        (request("access", 2, arguments=struct.pack("=II", 4, 0), ret=-13), False),
        (request("open", 2, arguments=bytes(8), ret=-13), False),
        (request("readlink", 2, ret=-22), False),
        (request("statfs", 1, ret=-5), False),
        (request("flush", 2, arguments=bytes(24), ret=-5), False),
    ],
)
def test_repeated_error_is_a_hit_only_if_it_says_that_something_is_absent(
    asked: Request, kept: bool
) -> None:
    found = advised([asked, asked]).total
    assert (found.repeats, found.same, found.hits) == (1, 1, kept)


@pytest.mark.parametrize("opcode", ["getxattr", "listxattr", "readlink"])
def test_value_larger_than_a_map_holds_is_no_hit(opcode: str) -> None:
    def asked(size: int) -> Request:
        arguments = struct.pack("=II", 4096, 0)
        return request(opcode, 2, ret=size, arguments=arguments, digest=3, flags=DIGESTED)

    assert hits(asked(976), asked(976)) == 1
    assert hits(asked(977), asked(977)) == 0


@pytest.mark.parametrize("opcode", ["getxattr", "listxattr"])
def test_size_of_a_value_larger_than_a_map_holds_is_no_hit(opcode: str) -> None:
    def asked(size: int) -> Request:
        return request(opcode, 2, arguments=bytes(8), answer=struct.pack("=II", size, 0))

    assert hits(asked(976), asked(976)) == 1
    assert hits(asked(977), asked(977)) == 0


def test_name_that_the_kernel_does_not_learn_is_no_hit() -> None:
    for name, kept in ((b"n" * 255, 1), (b"n" * 256, 0), (b".", 0), (b"..", 0), (b"...", 1)):
        assert hits(lookup(name), lookup(name)) == kept, name


def test_limits_equal_those_of_the_kernel() -> None:
    header = (locations.data("kernel_patches") / "include/uapi/linux/efuse.h").read_text()
    assert f"#define EFUSE_NAME_LEN\t\t{advice._NAME_BYTES + 1}\t" in header
    assert f"#define EFUSE_BLOB_LEN\t\t{advice._BLOB_BYTES}\t" in header


def test_volume_older_than_ten_seconds_is_no_hit() -> None:
    advisor = Advisor()
    for second in (1, 10, 21):
        advisor.add(replace(statfs(), time_ns=second * 10**9, ns=1000))
    assert advisor.advice(1.0).total.hits == 1


@pytest.mark.parametrize("opcode", ["getxattr", "listxattr", "readlink"])
def test_repeated_request_by_another_user_is_no_hit(opcode: str) -> None:
    asked = request(opcode, 2, digest=3, flags=DIGESTED)
    assert hits(asked, replace(asked, uid=asked.uid + 1)) == 0


def test_unlink_voids_attributes_of_an_inode_with_another_name() -> None:
    made = lookup(b"other", 2)
    assert hits(made, getattr_(2), request("unlink", 1, b"other"), getattr_(2)) == 0


def test_change_in_flight_voids_answers_asked_meanwhile() -> None:
    advisor = Advisor()
    advisor.add(replace(getattr_(), time_ns=500, ns=300))
    advisor.add(replace(write(2), time_ns=600, ns=550))
    advisor.add(replace(getattr_(), time_ns=900, ns=50))
    assert advisor.advice(1).total.hits == 0
    advisor.add(replace(getattr_(), time_ns=1000, ns=50))
    assert advisor.advice(1).total.hits == 1


def test_lookup_by_another_user_is_no_hit_but_getattr_is() -> None:
    assert hits(lookup(), lookup(uid=0)) == 0
    assert hits(getattr_(), getattr_(uid=0)) == 1


def test_read_of_another_range_and_lookup_of_another_name_are_no_hits() -> None:
    assert hits(read(0), read(4096)) == 0
    assert hits(lookup(b"a", 5), lookup(b"b", 5)) == 0


def test_answer_that_cannot_be_compared_is_no_hit() -> None:
    blind = replace(read(), digest=None)
    found = advised([blind, blind]).opcodes["read"]
    assert (found.repeats, found.same, found.changed, found.hits) == (1, 0, 0, 0)


def test_readdirplus_and_truncating_open_are_not_counted_as_hits() -> None:
    found = advised([request("readdirplus", 1, digest=1, flags=DIGESTED)] * 3)
    assert (found.total.requests, found.total.repeats, found.total.hits) == (3, 0, 0)
    truncating = request("open", 2, arguments=struct.pack("=II", 0o1000, 0))
    assert hits(truncating, truncating) == 0


def test_answer_of_the_kernel_is_not_counted_as_saved() -> None:
    found = advised([getattr_(), getattr_(answered_by=5), getattr_()])
    assert found.total == OpcodeAdvice(
        requests=3, in_kernel=1, repeats=1, same=1, hits=1, daemon_ns=200, saved_ns=100
    )
    assert found.total.hit_ratio == 0.5


def test_hits_of_open_are_counted_as_declared() -> None:
    opened = request("open", 2, arguments=bytes(8), answer=bytes(16))
    found = advised([opened, opened, getattr_(), getattr_()])
    assert (found.total.hits, found.declared.hits, found.declared.saved_ns) == (2, 1, 100)


def test_advice_without_requests_is_empty() -> None:
    found = advised([])
    assert (found.total, found.total.hit_ratio) == (OpcodeAdvice(), None)
    assert found.json()["opcodes"] == {}


def test_json_has_the_advice_for_each_opcode() -> None:
    value = advised([getattr_(), getattr_()]).json()
    assert value["total"]["hits"] == value["opcodes"]["getattr"]["hits"] == 1
    assert value["total"]["hit_ratio"] == 0.5
    assert (value["seconds"], value["lost"]) == (1.0, 0)
