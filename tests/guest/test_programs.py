# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test programs that the verifier or the kernel must refuse, and programs that misbehave."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from efuse import bpf, locations
from efuse.bpf import libbpf
from efuse.bpf.load import open_target
from efuse.bpf.members import CSD_FUNCTION, EFUSE_OPS, Interface
from efuse.errors import VerifierError
from tests.guest.support import csd_device
from tests.guest.support.tiny_fs import FIRST, Tiny, content, serve, xattr

HEAD = '#include "efuse.bpf.h"\n'

# One text for several tests, because compiling takes long in the guest.
FORBIDDEN = (
    HEAD
    + "".join(
        f"int {member}(struct efuse_req *req)\n{{\n\treturn {call};\n}}\n"
        for member, call in (
            ("getattr", "efuse_reply_flush(req)"),
            ("lookup", "efuse_reply_attrs(req, &(struct efuse_attrs){}, 120)"),
            ("open", "efuse_reply_blob(req, &(struct efuse_grant){}, 40)"),
            ("write", "efuse_reply_flush(req)"),
            ("request", "efuse_reply_flush(req)"),
            ("setattr", "efuse_learn_map(req)"),
            ("mknod", "efuse_exit_kind((void *)req)"),
            ("learn", "efuse_reply_flush(req)"),
            ("notify", "efuse_req_uid(req)"),
            ("exit", "efuse_req_uid(req)"),
        )
    )
    + "int reply(struct efuse_reply_ctx *ctx)\n{\n\treturn efuse_reply_flush(ctx->req);\n}\n"
)
BAD = (
    HEAD
    + """
int lookup(struct efuse_req *req)
{
	u64 *key = efuse_req_key(req, 8);

	return *key == 1;
}

int getattr(struct efuse_req *req)
{
	u64 *key = efuse_req_key(req, 8);

	if (key)
		key[1] = 1;
	return 0;
}

int access(struct efuse_req *req)
{
	u64 value = 0;

	return efuse_reply_grant(req, &value, 40);
}

int setattr(struct efuse_req *req)
{
	*(u64 *)req = 1;
	return 0;
}

int mknod(struct efuse_req *req)
{
	u64 fake = 0;

	return efuse_req_uid((struct efuse_req *)&fake);
}

int mkdir(struct efuse_req *req)
{
	while (efuse_req_uid(req) != 77)
		;
	return 0;
}

int rmdir(struct efuse_req *req)
{
	char c;

	return bpf_copy_from_user(&c, 1, (void *)4096);
}

int symlink(struct efuse_req *req)
{
	u32 uid = efuse_req_uid(req);

	if (uid != 7)
		return 0;
	return efuse_reply_flush(req);
}
"""
)
VERDICT = (
    HEAD
    + """
BPF_ARRAY(verdict, s32, 1);

static inline int say(void)
{
	int slot = 0;
	s32 *value = verdict.lookup(&slot);

	return value ? *value : 0;
}

int getxattr(struct efuse_req *req)
{
	return say();
}

int open(struct efuse_req *req)
{
	return say();
}

int release(struct efuse_req *req)
{
	return say();
}

int statfs(struct efuse_req *req)
{
	return efuse_req_key(req, 16) ? -EIO : 0;
}
"""
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    with serve(tmp_path_factory.mktemp("programs") / "mnt") as mounted:
        yield mounted


def refused(member: str, text: str, why: str) -> VerifierError:
    """Check a handler that must be refused, and return the error.

    :param why: words of the verifier's log. A handler that is wrong otherwise is refused, too.
    """
    with pytest.raises(VerifierError) as caught:
        bpf.check({member: text}, with_builtin=False)
    error = caught.value
    assert "\n" not in str(error)
    assert str(error).startswith(f"the kernel refused the handler of {member} at {member} handler:")
    assert why in error.log
    assert error.hint is not None
    assert Path(error.hint.rsplit(" ", 1)[1]).read_text() == error.log
    return error


def test_builtin_programs_need_few_verifier_instructions() -> None:
    cost = {v.member: v.verified_instructions for v in bpf.check()}
    assert set(cost) == {
        "lookup", "getattr", "access", "readlink", "getxattr", "listxattr", "open", "opendir",
        "flush", "statfs", "learn", "block", "select_path", "path_done", "written", "reply",
        "notify",
    }  # fmt: skip
    # Two programs go through the eight ways of a set, which are unrolled. One chooses among three
    # paths, each of which may be probed, predicted and timed, or keeps the last choice.
    assert cost.pop("select_path") < 2500
    assert max(cost.pop("learn"), cost.pop("block")) < 1000
    assert max(cost.values()) < 300


@pytest.mark.parametrize(
    "name", ["deny_uid.c", "count_opcode.c", "hide_name.c", "latency.c", "least_loaded.c"]
)
def test_examples_pass_the_verifier(name: str) -> None:
    text = (locations.data("bpf_programs") / "examples" / name).read_text()
    members = [m for m in bpf.MEMBERS if f"\nint {m}(" in text]
    assert members
    assert bpf.check(dict.fromkeys(members, text))


@pytest.mark.parametrize(
    "member",
    ["getattr", "lookup", "open", "write", "request", "setattr", "mknod", "learn", "notify",
     "exit", "reply"],
)  # fmt: skip
def test_kfunc_of_another_member_fails(member: str) -> None:
    assert "not allowed" in str(refused(member, FORBIDDEN, "is not allowed"))


def _load_calling(interface: Interface, member: str, other: Interface, kfunc: str) -> str:
    """Load a program that calls a kfunc with its argument. Return the log if it is refused."""
    with open_target(interface) as target, open_target(other) as module:
        code = struct.pack("<BBhi", 0x79, 0x11, 0, 0)  # r1 = the member's first argument
        code += struct.pack("<BBhi", 0x85, 0x20, 1, module.types.own_function(kfunc))
        code += struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)
        fds = (ctypes.c_int * 2)(target.btf_fd, module.btf_fd)
        options = libbpf._ProgramLoadOpts(
            expected_attach_type=target.members[member][0],
            attach_btf_id=target.ops_id,
            attach_btf_obj_fd=target.btf_fd,
            fd_array=ctypes.addressof(fds),
        )
        fd, log = libbpf._load(libbpf._PROGRAM_STRUCT_OPS, member, code, options, 1 << 16)
    if fd < 0:
        return log
    os.close(fd)
    return ""


def test_kfunc_of_the_other_module_fails() -> None:
    """A handler calls none of csd.ko, and a storage function none of efuse.ko."""
    handler, function = (EFUSE_OPS, "lookup"), (CSD_FUNCTION, "step")
    csd_device.load()
    try:
        assert _load_calling(*handler, EFUSE_OPS, "efuse_req_uid") == ""
        assert _load_calling(*function, CSD_FUNCTION, "csd_len") == ""
        refused_call = "calling kernel function {} is not allowed"
        log = _load_calling(*handler, CSD_FUNCTION, "csd_len")
        assert refused_call.format("csd_len") in log
        log = _load_calling(*function, EFUSE_OPS, "efuse_req_uid")
        assert refused_call.format("efuse_req_uid") in log
    finally:
        csd_device.unload()


def test_verifier_error_names_the_line_of_the_text() -> None:
    line = BAD.splitlines().index("\treturn efuse_reply_flush(req);") + 1
    assert f"symlink handler:{line}: " in str(refused("symlink", BAD, "is not allowed"))


def test_key_without_a_check_for_null_fails() -> None:
    refused("lookup", BAD, "mem_or_null")


def test_write_beyond_the_key_fails() -> None:
    refused("getattr", BAD, "invalid access to memory")


def test_value_longer_than_its_memory_fails() -> None:
    refused("access", BAD, "leads to invalid memory access")


def test_write_to_the_request_fails() -> None:
    refused("setattr", BAD, "the structures of efuse are read-only")


def test_argument_that_is_no_request_fails() -> None:
    refused("mknod", BAD, "arg#0 pointer type STRUCT efuse_req")


def test_endless_loop_fails() -> None:
    refused("mkdir", BAD, "infinite loop detected")


def test_helper_that_sleeps_fails() -> None:
    refused("rmdir", BAD, "cannot use helper bpf_copy_from_user")


def test_key_of_a_wrong_size_is_null(tiny: Tiny) -> None:
    passed = tiny.count("statfs", "daemon")
    with bpf.attach(tiny.connection, {"statfs": VERDICT}, with_builtin=False):
        assert os.statvfs(tiny.path).f_blocks == 1000
    assert tiny.count("statfs", "daemon") == passed + 1


@pytest.mark.parametrize("verdict", [2, 1, 77777, -38, -512, -4095, -2147483647])
def test_invalid_verdict_is_counted_and_the_daemon_answers(tiny: Tiny, verdict: int) -> None:
    before = int(tiny.read("invalid_verdicts")), tiny.count("getxattr", "invalid_verdict")
    with bpf.attach(tiny.connection, {"getxattr": VERDICT}) as attachment:
        attachment.maps["verdict"][0] = verdict
        assert os.getxattr(tiny.path / "f1", "user.tiny") == xattr(FIRST + 1)
    assert int(tiny.read("invalid_verdicts")) == before[0] + 1
    assert tiny.count("getxattr", "invalid_verdict") == before[1] + 1


def test_open_with_an_invalid_verdict_opens_the_file(tiny: Tiny) -> None:
    with bpf.attach(tiny.connection, {"open": VERDICT}) as attachment:
        attachment.maps["verdict"][0] = 99
        assert (tiny.path / "f1").read_bytes() == content(FIRST + 1)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EROFS, 511])
def test_negative_verdict_fails_with_that_errno(tiny: Tiny, number: int) -> None:
    refusals = tiny.count("getxattr", "refused")
    daemon = tiny.count("getxattr", "daemon")
    with bpf.attach(tiny.connection, {"getxattr": VERDICT}) as attachment:
        attachment.maps["verdict"][0] = -number
        with pytest.raises(OSError) as caught:
            os.getxattr(tiny.path / "f1", "user.tiny")
    assert caught.value.errno == number
    assert tiny.count("getxattr", "refused") == refusals + 1
    assert tiny.count("getxattr", "daemon") == daemon


def test_release_reaches_the_daemon_whatever_the_verdict(
    tiny: Tiny, eventually: Callable[..., Any]
) -> None:
    daemon = tiny.count("release", "daemon")
    with bpf.attach(tiny.connection, {"release": VERDICT}, with_builtin=False) as attachment:
        attachment.maps["verdict"][0] = -errno.EIO
        (tiny.path / "f1").open("rb").close()
        (tiny.path / "f2").open("rb").close()
        eventually(lambda: tiny.count("release", "daemon") == daemon + 2, what="two RELEASEs")
