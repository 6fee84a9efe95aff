# SPDX-License-Identifier: LGPL-2.1-or-later
"""Programs that the verifier or the kernel must refuse, and programs that misbehave."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse import bpf, paths
from efuse.errors import VerifierError
from tests.guest.tiny_fs import FIRST, Tiny, content, serve, xattr

HEAD = '#include "efuse.bpf.h"\n'


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    with serve(tmp_path_factory.mktemp("programs") / "mnt") as mounted:
        yield mounted


def refused(member: str, text: str) -> VerifierError:
    """Have a handler checked, which must be refused; return the error."""
    with pytest.raises(VerifierError) as caught:
        bpf.check({member: HEAD + text}, with_builtin=False)
    error = caught.value
    assert "\n" not in str(error)
    assert str(error).startswith(f"the kernel refused the handler of {member}")
    assert error.log
    assert error.hint is not None
    assert Path(error.hint.rsplit(" ", 1)[1]).read_text() == error.log
    return error


def test_builtin_programs_cost_the_verifier_little() -> None:
    cost = {v.member: v.verified_instructions for v in bpf.check()}
    assert set(cost) == {
        "lookup", "getattr", "access", "readlink", "getxattr", "listxattr", "open", "opendir",
        "flush", "statfs", "learn",
    }  # fmt: skip
    assert max(cost.values()) < 200


@pytest.mark.parametrize("name", ["deny_uid.c", "count_opcode.c", "latency.c"])
def test_examples_are_accepted(name: str) -> None:
    text = (paths.data("bpf_programs") / "examples" / name).read_text()
    members = [m for m in bpf.MEMBERS if f"\nint {m}(" in text]
    assert members
    assert bpf.check(dict.fromkeys(members, text))


@pytest.mark.parametrize(
    ("member", "call"),
    [
        ("getattr", "efuse_reply_flush(req)"),
        ("lookup", "efuse_reply_flush(req)"),
        ("write", "efuse_reply_flush(req)"),
        ("request", "efuse_reply_flush(req)"),
        ("lookup", "efuse_learn_map(req)"),
        ("learn", "efuse_reply_flush(req)"),
        ("notify", "efuse_req_uid(req)"),
        ("exit", "efuse_req_uid(req)"),
        ("lookup", "efuse_exit_kind((void *)req)"),
    ],
)
def test_kfunc_of_another_member_fails(member: str, call: str) -> None:
    error = refused(member, f"int {member}(struct efuse_req *req)\n{{\n\treturn {call};\n}}\n")
    assert "not allowed" in str(error)


def test_kfunc_in_reply_that_answers_fails() -> None:
    refused(
        "reply",
        "int reply(struct efuse_reply_ctx *ctx)\n{\n\treturn efuse_reply_flush(ctx->req);\n}\n",
    )


def test_error_names_the_line_of_the_text() -> None:
    error = refused(
        "lookup",
        "int lookup(struct efuse_req *req)\n{\n"
        "\tu32 uid = efuse_req_uid(req);\n\n"
        "\tif (uid == 7)\n"
        "\t\treturn efuse_reply_flush(req);\n"
        "\treturn 0;\n}\n",
    )
    assert "lookup handler:7:" in str(error)


def test_write_to_the_request_fails() -> None:
    refused(
        "lookup",
        "int lookup(struct efuse_req *req)\n{\n\t*(u64 *)req = 1;\n\treturn 0;\n}\n",
    )


def test_write_behind_the_key_fails() -> None:
    refused(
        "getattr",
        "int getattr(struct efuse_req *req)\n{\n\tu64 *key = efuse_req_key(req, 8);\n\n"
        "\tif (key)\n\t\tkey[1] = 1;\n\treturn 0;\n}\n",
    )


def test_key_without_a_check_for_null_fails() -> None:
    refused(
        "getattr",
        "int getattr(struct efuse_req *req)\n{\n\tu64 *key = efuse_req_key(req, 8);\n\n"
        "\treturn *key == 1;\n}\n",
    )


def test_value_longer_than_its_memory_fails() -> None:
    refused(
        "getattr",
        "int getattr(struct efuse_req *req)\n{\n\tu64 value = 0;\n\n"
        "\treturn efuse_reply_attrs(req, &value, 120);\n}\n",
    )


def test_argument_that_is_no_request_fails() -> None:
    refused(
        "lookup",
        "int lookup(struct efuse_req *req)\n{\n\tu64 fake = 0;\n\n"
        "\treturn efuse_req_uid((struct efuse_req *)&fake);\n}\n",
    )


def test_endless_loop_fails() -> None:
    refused(
        "lookup",
        "int lookup(struct efuse_req *req)\n{\n\twhile (efuse_req_uid(req) != 77)\n\t\t;\n"
        "\treturn 0;\n}\n",
    )


def test_helper_that_sleeps_fails() -> None:
    refused(
        "lookup",
        "int lookup(struct efuse_req *req)\n{\n\tchar c;\n\n"
        "\treturn bpf_copy_from_user(&c, 1, (void *)4096);\n}\n",
    )


def test_key_of_a_wrong_size_is_null(tiny: Tiny) -> None:
    text = HEAD + (
        "int getxattr(struct efuse_req *req)\n{\n\treturn efuse_req_key(req, 8) ? -EIO : 0;\n}\n"
    )
    with bpf.attach(tiny.connection, {"getxattr": text}, with_builtin=False):
        assert os.getxattr(tiny.path / "f1", "user.tiny") == xattr(FIRST + 1)


@pytest.mark.parametrize("verdict", [2, 1, 77777, -38, -512, -4095, -2147483647])
def test_garbage_verdict_is_counted_and_passed(tiny: Tiny, verdict: int) -> None:
    text = HEAD + f"int getxattr(struct efuse_req *req)\n{{\n\treturn {verdict};\n}}\n"
    before = int(tiny.read("garbage")), tiny.count("getxattr", "garbage")
    with bpf.attach(tiny.connection, {"getxattr": text}):
        assert os.getxattr(tiny.path / "f1", "user.tiny") == xattr(FIRST + 1)
    assert int(tiny.read("garbage")) == before[0] + 1
    assert tiny.count("getxattr", "garbage") == before[1] + 1


def test_garbage_verdict_of_open_still_opens(tiny: Tiny) -> None:
    text = HEAD + "int open(struct efuse_req *req)\n{\n\treturn 99;\n}\n"
    with bpf.attach(tiny.connection, {"open": text}):
        assert (tiny.path / "f1").read_bytes() == content(FIRST + 1)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EACCES, errno.EROFS, 511])
def test_negative_verdict_is_the_errno(tiny: Tiny, number: int) -> None:
    text = HEAD + f"int getxattr(struct efuse_req *req)\n{{\n\treturn -{number};\n}}\n"
    refusals = tiny.count("getxattr", "refused")
    daemon = tiny.count("getxattr", "daemon")
    with (
        bpf.attach(tiny.connection, {"getxattr": text}),
        pytest.raises(OSError) as caught,
    ):
        os.getxattr(tiny.path / "f1", "user.tiny")
    assert caught.value.errno == number
    assert tiny.count("getxattr", "refused") == refusals + 1
    assert tiny.count("getxattr", "daemon") == daemon


def test_release_tells_the_daemon_whatever_the_verdict(tiny: Tiny) -> None:
    text = HEAD + "int release(struct efuse_req *req)\n{\n\treturn -EIO;\n}\n"
    daemon = tiny.count("release", "daemon")
    with bpf.attach(tiny.connection, {"release": text}, with_builtin=False):
        (tiny.path / "f1").open("rb").close()
        (tiny.path / "f2").open("rb").close()
    # The daemon's RELEASEs are asynchronous; the next synchronous one is behind them.
    os.stat(tiny.path / "f3")
    assert tiny.count("release", "daemon") == daemon + 2
