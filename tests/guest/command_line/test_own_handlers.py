# SPDX-License-Identifier: LGPL-2.1-or-later
"""Test a user's own handlers next to the built-in ones, and the command line that attaches them."""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from efuse import bpf, locations, opcodes
from tests.guest.support.daemons import mounted
from tests.guest.support.forked import run_efuse
from tests.guest.support.tiny_fs import FIRST, Tiny, content, getattr_from_daemon, serve, xattr

EXAMPLES = locations.data("bpf_programs") / "examples"
HEAD = '#include "efuse.bpf.h"\n'

# One text for several tests, because compiling takes long in the guest.
OWN = (
    HEAD
    + """
struct news {
	u64 nodeid;
	s64 len;
	char name[16];
};

BPF_HASH(news, u32, struct news, 8);
BPF_ARRAY(calls, u64, 1);
BPF_HASH(attrs, u32, u32, 4);
BPF_ARRAY(ends, u64, 8);

int getxattr(struct efuse_req *req)
{
	int slot = 0;
	u64 *count = calls.lookup(&slot);

	if (count)
		lock_xadd(count, 1);
	return EFUSE_PASS;
}

int write(struct efuse_req *req)
{
	u32 one = 1;

	attrs.update(&one, &one);
	return EFUSE_PASS;
}

int notify(struct efuse_notify *n)
{
	u32 code = efuse_notify_code(n);
	struct news value = {};

	value.nodeid = efuse_notify_nodeid(n);
	value.len = efuse_notify_name(n, value.name, sizeof(value.name));
	news.update(&code, &value);
	return 0;
}

int exit(struct efuse_exit_info *info)
{
	u32 kind = efuse_exit_kind(info);
	u64 *count = ends.lookup(&kind);

	if (count)
		lock_xadd(count, 1);
	return 0;
}
"""
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    base = tmp_path_factory.mktemp("own")
    for directory in (base, *base.parents[:3]):
        if str(directory).startswith("/tmp/"):
            directory.chmod(0o755)
    with serve(base / "mnt") as mounted:
        yield mounted


def as_user(uid: int, path: Path, action: str) -> int:
    """Do *action* ("stat" or "open") as another user, and return the errno, or 0."""
    child = os.fork()
    if child == 0:
        status = 0
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            if action == "stat":
                os.stat(path)
            else:
                os.close(os.open(path, os.O_RDONLY))
        except OSError as error:
            status = error.errno or 255
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_deny_uid_refuses_the_lookups_and_opens_of_a_user(tiny: Tiny) -> None:
    text = (EXAMPLES / "deny_uid.c").read_text()
    path = tiny.path / "f1"
    before = tiny.count("lookup", "refused")
    with bpf.attach(tiny.connection, {"lookup": text, "open": text}) as attachment:
        denied = attachment.maps["denied"]
        assert as_user(1000, path, "open") == 0
        denied[1000] = 0
        assert as_user(1000, path, "stat") == errno.EACCES
        assert as_user(1000, path, "open") == errno.EACCES
        # A name that was known before is looked up twice: to revalidate it, and then again.
        assert denied[1000] >= 2
        assert tiny.count("lookup", "refused") == before + denied[1000]
        assert as_user(1001, path, "open") == 0
        assert path.read_bytes() == content(FIRST + 1)
        del denied[1000]
        assert as_user(1000, path, "open") == 0
    assert as_user(1000, path, "open") == 0


def test_hide_name_hides_names(mountpoint: Path) -> None:
    names = (".dot", "secret", "secrets", "seen")
    with mounted(mountpoint, attach=False) as m:
        for name in names:
            m.model.create(name, b"1")
        text = (EXAMPLES / "hide_name.c").read_text()
        hidden = m.attach(handlers={"lookup": text}).maps["hidden"]
        hidden[b"secret".ljust(256, b"\0")] = 0
        m.log()
        found = [os.path.exists(m / name) for name in names]
        assert found == [False, False, True, True]
        assert not os.path.exists(m / ("." + 254 * "x"))
        assert m.asked().count("lookup") == 2
        assert m.count("lookup", "refused") == 3
        del hidden[b"secret".ljust(256, b"\0")]
        assert os.path.exists(m / "secret")


def test_deny_uid_attached_to_open_alone_refuses_only_opens(tiny: Tiny) -> None:
    text = (EXAMPLES / "deny_uid.c").read_text()
    path = tiny.path / "f2"
    before = tiny.count("open", "refused")
    with bpf.attach(tiny.connection, {"open": text}) as attachment:
        attachment.maps["denied"][1000] = 0
        assert as_user(1000, path, "stat") == 0
        assert as_user(1000, path, "open") == errno.EACCES
    assert tiny.count("open", "refused") == before + 1


def test_count_opcode_counts_what_the_daemon_answers(tiny: Tiny) -> None:
    text = (EXAMPLES / "count_opcode.c").read_text()
    number = opcodes.number("getxattr")
    with bpf.attach(tiny.connection, {"reply": text}, with_builtin=False) as attachment:
        for _ in range(7):
            assert os.getxattr(tiny.path / "f3", "user.tiny") == xattr(FIRST + 3)
        with pytest.raises(OSError, match="No data"):
            os.getxattr(tiny.path / "f3", "user.none")
        assert attachment.maps["answers"][number] == 8
        assert attachment.maps["failures"][number] == 1
        assert attachment.maps["answers"][opcodes.number("write")] == 0


def test_latency_fills_its_histogram(tiny: Tiny) -> None:
    text = (EXAMPLES / "latency.c").read_text()
    handlers = dict.fromkeys(("lookup", "getattr", "reply"), text)
    with bpf.attach(tiny.connection, handlers, with_builtin=False) as attachment:
        for _ in range(5):
            getattr_from_daemon(tiny.path)
        latency = attachment.maps["latency"]
        found = {slot: count for slot, count in latency.items() if count}
        assert sum(found.values()) >= 5
        assert min(found) > 8  # A round trip to the daemon takes longer than 256 ns.


def test_own_handler_that_passes_lets_the_builtin_answer(tiny: Tiny) -> None:
    tiny.write("consistency", "exclusive")
    try:
        with bpf.attach(tiny.connection, {"getxattr": OWN}) as attachment:
            os.getxattr(tiny.path / "f4", "user.tiny")
            hits = tiny.count("getxattr", "hits")
            for _ in range(4):
                assert os.getxattr(tiny.path / "f4", "user.tiny") == xattr(FIRST + 4)
            assert tiny.count("getxattr", "hits") == hits + 4
            assert attachment.maps["calls"][0] == 5
    finally:
        tiny.write("consistency", "ttl")


def test_names_of_own_maps_are_kept_apart(tiny: Tiny) -> None:
    with bpf.attach(tiny.connection, {"write": OWN}) as attachment:
        assert set(attachment.maps) >= {"attrs", "write__attrs"}
        (tiny.path / "f5").write_bytes(b"x")
        assert dict(attachment.maps["write__attrs"]) == {1: 1}


def test_exit_handler_receives_the_kind_of_the_exit(tiny: Tiny) -> None:
    with bpf.attach(tiny.connection, {"exit": OWN}) as attachment:
        attachment.replace({"exit": OWN})
        ends = attachment.maps["ends"]
        assert (ends[1], ends[2]) == (0, 1)
        fd = os.dup(ends.fd)
    from efuse.bpf.maps import mapping

    try:
        assert mapping(fd, "ends", ends.definition)[1] == 1
    finally:
        os.close(fd)
    assert tiny.read("exit_info").startswith("unregister 0")


def test_notify_handler_receives_the_notifications_of_the_daemon(mountpoint: Path) -> None:
    with mounted(mountpoint, attach=False) as m:
        directory = m.model.mkdir("d")
        file = m.model.create("d/f", b"1")
        os.stat(m / "d/f")
        news = m.attach(handlers={"notify": OWN}).maps["news"]
        m.call("inval_inode", "d/f")
        m.call("store", "d/f", 0, b"2")
        m.call("inval_entry", "d", b"f")
        seen = {code: struct.unpack("=Qq16s", value) for code, value in news.items()}
        assert seen == {
            1: (file, -errno.ENOENT, bytes(16)),
            2: (directory, 1, b"f".ljust(16, b"\0")),
            4: (file, -errno.ENOENT, bytes(16)),
        }


def test_example_of_the_document_refuses_a_user(tiny: Tiny) -> None:
    example = locations.package().parent / "docs" / "examples" / "handlers" / "deny_user.py"
    path = tiny.path / "f6"
    with subprocess.Popen(
        [sys.executable, example, tiny.path, "1000", EXAMPLES / "deny_uid.c"],
        env={**os.environ, "PYTHONPATH": str(locations.package().parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "uid 1000 is kept out\n"
        assert as_user(1000, path, "stat") == errno.EACCES
        rest, _ = program.communicate("\n")
    assert program.returncode == 0
    assert re.fullmatch(r"refused [1-9]\d* times\n", rest)
    assert as_user(1000, path, "stat") == 0


def prog(*arguments: str, status: int = 0) -> str:
    """Run ``efuse prog``, and return its output, or its errors if *status* is not 0."""
    done = run_efuse("prog", *arguments, status=status)
    return done.stdout if status == 0 else done.stderr


def test_prog_attaches_lists_replaces_and_detaches_handlers(tiny: Tiny) -> None:
    example = str(EXAMPLES / "deny_uid.c")
    prog("attach", str(tiny.path), "--handler", f"lookup={example}", "--name", "cli")
    try:
        assert tiny.read("ops") == "cli"
        (found,) = json.loads(prog("list", "--json"))
        assert found["connection"] == tiny.connection
        assert "denied" in found["maps"]
        error = prog("attach", str(tiny.connection), status=1)
        assert "EBUSY" in error
        assert "try: efuse prog replace" in error
        prog("replace", str(tiny.path), "--name", "cli2")
        assert tiny.read("ops") == "cli2"
        (found,) = json.loads(prog("list", "--json"))
        assert "denied" not in found["maps"]
    finally:
        prog("detach", str(tiny.path))
    assert tiny.read("ops") == "none"
    assert json.loads(prog("list", "--json")) == []


def test_prog_check_of_a_refused_handler_fails(tmp_path: Path) -> None:
    path = tmp_path / "bad.c"
    path.write_text(
        HEAD + "int lookup(struct efuse_req *req)\n{\n\treturn efuse_reply_flush(req);\n}\n"
    )
    error = prog("check", "--handler", str(path), status=1)
    assert error.splitlines()[0].startswith("efuse: the kernel refused the handler of lookup")
    assert "bad.c:4" in error
